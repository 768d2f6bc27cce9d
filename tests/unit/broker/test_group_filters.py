"""Groups whose consumers ask for different messages are counted, and named in the log: some messages reach nobody."""

import pytest
from structlog.testing import capture_logs

from popwheel_broker.consume import group_filters
from popwheel_broker.consume.group_filters import WARN_AGAIN_MS, WHILE_MS, GroupFilters
from popwheel_broker.consume.wanted import wanted_by
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.test_sql_filters import bodies, popped, put
from tests.unit.broker.world import tag_filter


def noted(filters: GroupFilters, expression: str, now_ms: int, group: str = "g") -> bool:
    asked = pb.Filter() if expression == "*" else tag_filter(expression)
    return filters.record(group, "t", asked, wanted_by(asked), now_ms)


def test_consumers_that_ask_for_different_tags_are_noticed_and_named_once() -> None:
    filters = GroupFilters()
    with capture_logs() as logs:
        seen = [noted(filters, each, 1000 * at) for at, each in enumerate(("red", "blue", "red", "blue", "blue"))]
        assert seen == [False, False, True, True, True]
        assert (filters.changes, filters.count(5_000)) == (2, 1)
        (line,) = logs
        assert (line["group"], line["topic"], line["log_level"]) == ("g", "t", "warning")
        assert line["filters"] == ["'blue'", "'red'"]
        assert noted(filters, "red", WARN_AGAIN_MS) is False, "that was long ago"
        noted(filters, "blue", WARN_AGAIN_MS + 1)
        noted(filters, "red", WARN_AGAIN_MS + 2)
        assert len(logs) == 1
        noted(filters, "blue", 2 * WARN_AGAIN_MS)
        noted(filters, "red", 2 * WARN_AGAIN_MS + 3)
        assert len(logs) == 1, "blue alone came again after a while"
        noted(filters, "blue", 2 * WARN_AGAIN_MS + 4)
        assert len(logs) == 2
    assert filters.count(2 * WARN_AGAIN_MS + 5 + WHILE_MS) == 0


def test_a_filter_that_takes_another_s_place_is_none_of_it() -> None:
    filters = GroupFilters()
    assert not any(noted(filters, each, at) for at, each in enumerate(("a", "a", "b", "b", "c", "c")))
    assert not noted(filters, "c", 3, group="other")
    assert not noted(filters, "b || c", 4)
    assert not noted(filters, "c || b", 5), "of one meaning"
    assert noted(filters, "c", 6)


def test_three_filters_by_turns_and_all_messages_beside_some() -> None:
    filters = GroupFilters()
    assert [noted(filters, each, at) for at, each in enumerate("abcabc")] == [False] * 3 + [True] * 3
    filters = GroupFilters()
    assert [noted(filters, each, at) for at, each in enumerate(("*", "a", "*"))] == [False, False, True]


def test_groups_that_were_seen_longest_ago_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_filters, "PAIRS_MAX", 2)
    filters = GroupFilters()
    for at, (group, expression) in enumerate(
        [("used", "a"), ("idle", "a"), ("used", "b"), ("new", "a"), ("used", "a")]
    ):
        differ = noted(filters, expression, at, group)
    assert differ, "the group is in use, so it is still in mind"


def test_groups_that_came_first_are_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_filters, "PAIRS_MAX", 3)
    filters = GroupFilters()
    for number in range(10):
        for each in "aba":
            noted(filters, each, number, group=f"g{number}")
    assert filters.count(10) == len(filters) == 3


def test_an_operator_sees_how_many_messages_may_be_lost() -> None:
    world = world_of()
    for number in range(8):
        put(world, b"%d" % number, n=str(number))
    assert bodies(popped(world, "n = 1", 1)) == [b"1"]
    assert bodies(popped(world, "n = 2 OR n = 3", 1)) == [b"2"]
    assert "popwheel_groups_with_different_filters 0.0" in metrics(world)
    assert bodies(popped(world, "n = 6", 1)) == [b"6"]
    assert bodies(popped(world, "n = 1")) == []
    said = metrics(world)
    assert "popwheel_groups_with_different_filters 1.0" in said
    assert "popwheel_group_filter_changes_total 1.0" in said
    assert "popwheel_group_filter_passed_over_messages_total 1.0" in said, "7; 3 to 5 went by before it was known"
