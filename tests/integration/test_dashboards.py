"""Every query of dashboards and alerts finds something at a real cluster, and no alert fires there."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from tests.harness.dashboards_and_alerts import DASHBOARDS, Query, program, queries, rules
from tests.harness.watched_cluster import WatchedCluster

TEST_S_MAX = 180
FLOW = 30
WINDOW = "10s"
"""Prometheus scrapes once a second here, so this is what a minute is elsewhere."""

NOTHING = {
    ("overview: Limits", "{{limit}}, of the transport"): "a client has to break HTTP/2's rules for it",
}
"""Queries that find nothing here, and why."""

NOT_REPORTED_IN_SECONDS = {"PopwheelDiskDaysLeft", "PopwheelLoopTurnsLong"}
"""Alerts on what only hours or minutes tell: half a minute of a disk that others write on, too, says nothing, and the
longest turn of the last minute is one of the start, where a slow machine loads modules.
"""

NOT_HERE = {"PopwheelAccessFileRefused", "PopwheelProcessHung"}
"""Alerts on files and on workers that this cluster goes without; `test_alerts` has the rules judged."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedCluster]:
    program("prometheus")
    with WatchedCluster(tmp_path_factory.mktemp("watched")) as cluster:
        asyncio.run(cluster.live(FLOW))
        yield cluster


def finds_something(watched: WatchedCluster, expression: str) -> bool:
    times = watched.times
    found = watched.prometheus.series(expression, times.quiet, times.over)
    return any(value != "NaN" for series in found for _, value in series["values"])


@pytest.mark.timeout(TEST_S_MAX)
def test_every_query_of_a_dashboard_finds_something(watched: WatchedCluster) -> None:
    found: dict[Query, bool] = {
        query: finds_something(watched, query.expression) for path in DASHBOARDS for query in queries(path, WINDOW)
    }
    empty = {(query.place, query.legend) for query, something in found.items() if not something}
    assert empty == NOTHING.keys()


@pytest.mark.timeout(TEST_S_MAX)
def test_what_alerts_compare_is_there(watched: WatchedCluster) -> None:
    for rule in rules():
        compared = re.fullmatch(r"(.*) (?:>=|>|<) (?:on \(.*?\) )?(.*)", rule["expr"], re.DOTALL)
        assert compared is not None, rule["expr"]
        if rule["alert"] not in NOT_REPORTED_IN_SECONDS | NOT_HERE:
            assert finds_something(watched, compared[1]), rule["alert"]
            assert re.fullmatch(r"[0-9.e]+", compared[2]) or finds_something(watched, compared[2]), rule["alert"]


@pytest.mark.timeout(TEST_S_MAX)
def test_nothing_is_pending_while_all_is_well_and_a_failover_is_no_alert(watched: WatchedCluster) -> None:
    times, prometheus = watched.times, watched.prometheus
    pending = {each["metric"]["alertname"] for each in prometheus.series("ALERTS", times.quiet, times.struck)}
    assert pending <= NOT_REPORTED_IN_SECONDS
    assert prometheus.series('ALERTS{alertstate="firing"}', times.quiet, times.over) == []
