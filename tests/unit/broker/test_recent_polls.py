"""Clients that have popped a moment ago are counted, for a moment and up to a limit."""

import pytest

from popwheel_broker.consume import recent_polls
from popwheel_broker.consume.recent_polls import RecentPolls
from popwheel_common.contract.polls import WHILE_S


def test_clients_of_a_group_and_topic_are_counted_for_a_while() -> None:
    polls = RecentPolls()
    for client in ("a", "b", "a"):
        polls.record("g", "t", client, 1000)
    polls.record("g", "u", "c", 2000)
    polls.record("h", "t", "d", 2000)
    assert polls.count("g", "t", 1000 + WHILE_S * 1000) == 2
    assert polls.count("g", "t", 1001 + WHILE_S * 1000) == 0
    assert polls.count("h", "t", 1001 + WHILE_S * 1000) == 1


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_polls, "POLLS_MAX", 3)
    polls = RecentPolls()
    for number in range(5):
        polls.record("g", "t", f"{number}", number)
    assert (len(polls), polls.count("g", "t", 5)) == (3, 3)
    for number in range(5, 8):
        polls.record("g", "t", "again", number + WHILE_S * 1000)
    assert len(polls) == 1, "what is long ago goes with each pop"
