"""The page of dead letters, and what is printed of them."""

import json
from datetime import UTC, datetime

import pytest

from popwheel_spark.jobs.dead_letter_report import (
    UNKNOWN_SENTENCE,
    DeadLetterReport,
    ages_table,
    dead_letter_page,
)
from tests.unit.spark.test_report_page import NETWORK

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
_COUNTS = {"letters": 3, "open": 2}
CAUSES = [
    {
        "group": "g",
        "originTopic": "t",
        "cause": cause,
        "attempts": tried,
        **_COUNTS,
        "firstDead": NOON,
        "lastDead": NOON,
    }
    for cause, tried in (("limit", 17), ("unknown", None))
]
AGES = [
    {"group": "g", "originTopic": topic, "age": age, **_COUNTS}
    for topic, age in (("t", "1 hour"), ("u", "1 hour"), ("t", "older"))
]
TOPS = [{"group": "g", "kind": "key", "value": "<k>", **_COUNTS}]


def test_ages_are_one_row_for_each_group() -> None:
    assert ages_table(AGES).rows == [["g", 0, 0, 6, 0, 0, 0, 0, 3]]


def test_the_page_shows_everything_and_fetches_nothing() -> None:
    html = dead_letter_page("Lead.", CAUSES, AGES, TOPS)
    assert NETWORK.search(html) is None
    for words in ("<svg", "&lt;k&gt;", "2026-01-31 12:00:00Z", UNKNOWN_SENTENCE.split(".")[0]):
        assert words in html


@pytest.mark.parametrize(("causes", "is_said"), [(CAUSES, True), (CAUSES[:1], False), ([], False)])
def test_what_is_unknown_is_said(
    causes: list[dict[str, object]], is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    DeadLetterReport(NOON, causes, AGES, TOPS, "file:/report.html").show()
    printed = capsys.readouterr().out
    assert (UNKNOWN_SENTENCE in printed) is is_said
    assert "report: file:/report.html" in printed


def test_json_has_the_same() -> None:
    found = json.loads(DeadLetterReport(NOON, CAUSES, AGES, TOPS).json())
    assert (found["letters"], found["open"], found["asked"]) == (6, 4, "2026-01-31T12:00:00+00:00")
    assert found["causes"][1]["attempts"] is None
    assert found["tops"] == TOPS and "report" not in found
