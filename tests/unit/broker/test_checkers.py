"""Which proxy is to ask about a half message."""

import pytest

from popwheel_broker.transactions import checkers as module
from popwheel_broker.transactions.checkers import Checker, Checkers


def checker() -> tuple[Checker, list[None]]:
    woken: list[None] = []
    return Checker(lambda: woken.append(None)), woken


def test_proxies_that_have_producers_ask_in_turn() -> None:
    checkers = Checkers()
    (one, one_woken), (two, _), (other, _) = checker(), checker(), checker()
    checkers.change(one, ["t"], [])
    checkers.change(two, ["t"], [])
    checkers.change(other, ["u"], [])
    assert [checkers.ask("t", position) for position in (1, 2, 3)] == [True] * 3
    assert (list(one.waiting), list(two.waiting), list(other.waiting)) == ([1, 3], [2], [])
    assert len(one_woken) == 2


def test_nobody_asks_where_there_is_no_producer_any_more() -> None:
    checkers = Checkers()
    one, _ = checker()
    assert not checkers.ask("t", 1)
    checkers.change(one, ["t", "u", "t"], [])
    assert checkers.topics == 2
    checkers.change(one, [], ["t", "never"])
    assert not checkers.ask("t", 1)
    assert checkers.ask("u", 1)
    checkers.remove(one)
    assert not checkers.ask("u", 1)
    assert checkers.topics == 0


def test_who_has_too_much_to_ask_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 1)
    checkers = Checkers()
    (one, _), (two, _) = checker(), checker()
    checkers.change(one, ["t"], [])
    checkers.change(two, ["t"], [])
    assert [checkers.ask("t", position) for position in (1, 2, 3)] == [True, True, False]


def test_topics_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    checkers = Checkers()
    one, _ = checker()
    checkers.change(one, ["a", "b", "c"], [])
    assert (checkers.topics, checkers.refused) == (2, 1)
    assert not checkers.ask("c", 1)
    checkers.change(one, ["c"], ["a"])
    assert checkers.ask("c", 1)
