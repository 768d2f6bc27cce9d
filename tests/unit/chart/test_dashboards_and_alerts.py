"""Dashboards and alerts as the chart installs them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.chart import RenderedChart
from tests.harness.dashboards_and_alerts import DASHBOARDS, RULES, panels
from tools.dashboards.all import BOARDS
from tools.dashboards.board import Board

CONFIG_MAP_BYTES_MAX = 1024 * 1024
VALUES: dict[str, Any] = {
    "metrics": {
        "rules": {"enabled": True, "labels": {"release": "prometheus"}, "runbookBase": "https://example.org/popwheel/"},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Popwheel"}},
    }
}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.name))
def test_the_file_is_what_the_code_makes(board: Board) -> None:
    (path,) = (path for path in DASHBOARDS if path.stem == board.name)
    assert path.read_text(encoding="utf-8") == board.as_json(), "run make dashboards"


def test_there_is_no_file_that_the_code_does_not_make() -> None:
    assert [path.stem for path in DASHBOARDS] == sorted(board.name for board in BOARDS)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_each_panel_has_a_unit_a_sentence_and_legends(path: Path) -> None:
    for panel in panels(path):
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert re.fullmatch(r"[A-Z0-9].*[.]", panel["description"]), panel["title"]
        assert len(panel["description"]) > 20 and len(panel["title"]) < 40
        for target in panel["targets"]:
            assert target["legendFormat"] and target["refId"] and target["datasource"]["uid"] == "${datasource}"
            assert '"$namespace"' in target["expr"] and '"$instance"' in target["expr"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_panels_do_not_lie_upon_each_other(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(path):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_nothing_of_it_is_there_by_default() -> None:
    made = {(each["kind"], each["metadata"]["name"]) for each in RenderedChart().objects}
    assert not [name for kind, name in made if kind == "PrometheusRule" or "dashboard" in name]


def test_dashboards_are_config_maps_that_grafana_finds() -> None:
    maps = [each for each in RenderedChart(VALUES).of_kind("ConfigMap") if "dashboard" in each["metadata"]["name"]]
    assert len(maps) == len(DASHBOARDS)
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "Popwheel"}
        ((name, text),) = each["data"].items()
        path = next(path for path in DASHBOARDS if name == f"popwheel-{path.name}")
        assert json.loads(text) == json.loads(path.read_text(encoding="utf-8"))
        assert len(text) < CONFIG_MAP_BYTES_MAX


def test_the_label_of_dashboards_may_be_another_one() -> None:
    values = {"metrics": {"dashboards": {"enabled": True, "labels": {"grafana_dashboard": None, "shown_by": "ours"}}}}
    (one, *_) = (each for each in RenderedChart(values).of_kind("ConfigMap") if "dashboard" in each["metadata"]["name"])
    assert one["metadata"]["labels"]["shown_by"] == "ours" and "grafana_dashboard" not in one["metadata"]["labels"]


def test_rules_are_the_file_with_links_that_lead_somewhere() -> None:
    rule = RenderedChart(VALUES).one("PrometheusRule", "popwheel")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    base = VALUES["metrics"]["rules"]["runbookBase"]
    text = RULES.read_text(encoding="utf-8").replace("docs/operate/alerts.md#", f"{base}docs/operate/alerts.md#")
    assert rule["spec"] == yaml.safe_load(text)


def test_a_pod_keeps_its_series_when_its_address_or_its_role_changes() -> None:
    monitor = RenderedChart({"metrics": {"serviceMonitor": {"enabled": True}}}).one("ServiceMonitor", "popwheel")
    assert "popwheel.io/role" not in monitor["spec"]["podTargetLabels"]
    assert monitor["spec"]["endpoints"][0]["relabelings"] == [
        {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"}
    ]
