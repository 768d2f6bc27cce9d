"""An interest without polls that is busy still: a proxy that keeps none of them idle must not look at it for ever."""

import pytest

from popwheel_common.pb.popwheel.v1.broker_pb2 import Filter
from popwheel_proxy.receive import interest_book
from popwheel_proxy.receive.interest_book import InterestBook


def test_an_idle_interest_with_a_pop_under_way_is_left_for_the_next_round() -> None:
    book = InterestBook(interests_max=10, filter_bytes_max=100, idle_s=0.0)
    interest = book.enter("orders", "group", Filter())
    ticket = book.begin(interest, "broker")
    book.leave(interest, lambda ticket: None, now=1.0)

    assert book.time_passed(2.0) == []
    assert len(book) == 1

    book.finish(ticket, taken=0, messages=0, now=3.0)
    book.time_passed(4.0)
    assert len(book) == 0


@pytest.mark.parametrize("is_registered", [True, False])
def test_many_interests_end_in_several_steps(monkeypatch: pytest.MonkeyPatch, is_registered: bool) -> None:
    """The seen fault: those that no broker knows of all ended in one step."""
    monkeypatch.setattr(interest_book, "ENDED_AT_ONCE_MAX", 4)
    book = InterestBook(interests_max=100, filter_bytes_max=100, idle_s=0.0)
    for number in range(10):
        interest = book.enter(f"topic-{number}", "group", Filter())
        interest.registered = is_registered
        book.leave(interest, lambda ticket: None, now=1.0)
    left = []
    for now in range(2, 5):
        assert len(book.time_passed(float(now))) == (min(4, 10 - 4 * (now - 2)) if is_registered else 0)
        left.append(len(book))
    assert left == [6, 2, 0]
