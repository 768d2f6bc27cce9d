"""The pages of docs/reference are what the code says, and they leave nothing out."""

import re

import pytest

from popwheel_cli.main import main
from popwheel_cli.options import ClusterOptions
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.settings.option_fields import option_fields
from tests.unit.source import ROOT
from tools.reference import limits, metrics, statuses
from tools.reference.cli import cli_page
from tools.reference.options import SECTIONS, options_page
from tools.reference.pages import FOLDER, PAGES

COUNTED = re.compile(r'"((?:message|receive|send|renewal|client)\.\w+_(?:max|min)|\w+_max)"')


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


def test_nothing_else_is_there() -> None:
    assert {page.name for page in FOLDER.iterdir()} == PAGES.keys()


def test_a_section_that_has_no_words_is_not_left_out_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SECTIONS, "tls")
    with pytest.raises(ValueError, match="would leave out tls: say in SECTIONS of tools"):
        options_page()


def test_a_section_that_is_gone_leaves_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECTIONS, "gone", "Has no options.")
    with pytest.raises(ValueError, match="has gone, of which there are no options any more"):
        options_page()


def test_every_option_says_what_it_is_for() -> None:
    assert [field.key for field in option_fields(ClusterOptions) if not field.description] == []


def test_no_part_has_more_options_than_one_can_survey() -> None:
    """A service with more settings than that is hard to run."""
    counts: dict[str, int] = {}
    for field in option_fields(ClusterOptions):
        part = field.key.partition(".")[0]
        counts[part] = counts.get(part, 0) + 1
    assert max(counts.values()) <= 60, counts


def test_a_status_without_words_is_not_left_out_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(statuses.MEANINGS, "FORBIDDEN")
    with pytest.raises(ValueError, match="differ in FORBIDDEN"):
        statuses.statuses_page()


def test_all_statuses_are_of_the_protocol() -> None:
    assert statuses.MEANINGS.keys() <= set(Code.keys())


def test_each_limit_that_a_proxy_counts_is_on_the_page() -> None:
    code = [path for path in (ROOT / "services/proxy").rglob("*.py") if path.name != "options.py"]
    counted = {name for path in code for name in COUNTED.findall(path.read_text(encoding="utf-8"))}
    shown = limits.labels()
    assert {name for name in counted if name not in shown and f"receive.{name}" not in shown} == set()


def test_metrics_are_found_with_their_labels_also_where_a_loop_makes_them() -> None:
    rows = {row.name: row for service in ("broker", "proxy") for row in metrics.rows_of(service)}
    assert rows["rocketmq_messages_in_total"].labels == ("topic",)
    assert rows["popwheel_lite_topics"].kind == "gauge"
    assert rows["popwheel_proxy_limit_hits_total"].labels == ("limit",)


def test_metrics_of_alerts_and_dashboards_are_on_the_page() -> None:
    known = {row.name for part in metrics.PARTS for row in metrics.rows_of(part)}
    named = set()
    for path in (*(ROOT / "helm/popwheel/dashboards").glob("*.json"), ROOT / "helm/popwheel/rules/popwheel.yaml"):
        named |= set(re.findall(r"\b(?:popwheel|rocketmq)_[a-z_]+\b(?=[\[{)\s])", path.read_text(encoding="utf-8")))
    histograms = {f"{name}_{end}" for name in known for end in ("bucket", "sum", "count")}
    assert {name for name in named if name not in known | histograms} == set()


def test_the_page_of_commands_has_every_verb() -> None:
    page = cli_page()
    assert [name for name in main.commands if not re.search(rf"`popwheel (admin )?{name}\b", page)] == []
