"""An interest without polls that is busy still: a proxy that keeps none of them idle must not look at it for ever."""

from services.common.pb.popwheel.v1.broker_pb2 import Filter
from services.proxy.receive.interest_book import InterestBook


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
