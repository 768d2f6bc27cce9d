"""Prometheus and its `promtool`, where they are there, and what the chart gives them: rules and dashboards."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.harness.standalone import ROOT

CHART = ROOT / "helm" / "popwheel"
RULES = CHART / "rules" / "popwheel.yaml"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))


class Query(NamedTuple):
    """A query of a dashboard.

    Args:
        place: dashboard and panel.
        legend: what its series are called.
        expression: in Prometheus' language.
    """

    place: str
    legend: str
    expression: str


def rules() -> list[dict[str, Any]]:
    """All alerts."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels(path: Path) -> list[dict[str, Any]]:
    """The panels of a dashboard's file, without the rows."""
    return [panel for panel in json.loads(path.read_text(encoding="utf-8"))["panels"] if panel["type"] != "row"]


def queries(path: Path, window: str) -> Iterator[Query]:
    """All queries of a dashboard's file for all namespaces and instances.

    Args:
        path: of the file.
        window: over which rates are taken, such as `15s`.
    """
    for panel in panels(path):
        for target in panel["targets"]:
            yield Query(f"{path.stem}: {panel['title']}", target["legendFormat"], of_all(target["expr"], window))


def of_all(expression: str, window: str) -> str:
    """A query of a dashboard for all namespaces and instances, with rates over `window`."""
    return re.sub(r"\$(namespace|instance)\b", ".*", expression.replace("$__rate_interval", window))


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is; the test is skipped if it is not there."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on PATH: install Debian's package `prometheus`, or another one's")
    return path
