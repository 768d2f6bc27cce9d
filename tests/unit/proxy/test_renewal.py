"""What is renewed when: told the time, nothing else."""

import pytest

from popwheel_common.errors import StatusError
from popwheel_proxy.options import RenewalOptions
from popwheel_proxy.receive.renewal import RenewalBook


def due_handles(book: RenewalBook, now: float) -> list[str]:
    return [entry.receipt_handle for entries in book.due(now).values() for entry in entries]


def test_a_handle_is_due_every_third_of_its_invisible_duration() -> None:
    book = RenewalBook(RenewalOptions(invisible_ms=60_000))
    book.add("c", "b1", "g", "t", ["h1", "h2"], 0.0)
    assert due_handles(book, 19.9) == []
    assert due_handles(book, 20.0) == ["h1", "h2"]
    assert due_handles(book, 39.9) == []
    book.drop(["h1"])
    assert due_handles(book, 40.0) == ["h2"]


def test_batches_are_made_by_broker() -> None:
    book = RenewalBook(RenewalOptions())
    book.add("c", "b1", "g", "t", ["h1"], 0.0)
    book.add("c", "b2", "g", "t", ["h2"], 0.0)
    assert {name: len(entries) for name, entries in book.due(30.0).items()} == {"b1": 1, "b2": 1}


def test_what_a_client_holds_is_taken_a_part_at_a_time() -> None:
    book = RenewalBook(RenewalOptions())
    book.add("gone", "b1", "g", "t", [f"h{number}" for number in range(1_500)], 0.0)
    book.add("here", "b1", "g", "t", ["h"], 0.0)
    assert [len(book.take("gone", 1_000)) for _ in range(3)] == [1_000, 500, 0]
    assert due_handles(book, 30.0) == ["h"]
    assert book.take("unknown", 1) == []


def test_what_is_due_comes_a_part_at_a_time() -> None:
    book = RenewalBook(RenewalOptions())
    book.add("c", "b1", "g", "t", [f"h{number}" for number in range(1_500)], 0.0)
    assert [len(due_handles(book, 30.0)) for _ in range(3)] == [1_000, 500, 0]


def test_the_end_of_one_try_takes_nothing_from_another() -> None:
    book = RenewalBook(RenewalOptions())
    book.add("c", "b1", "g", "t", ["h1", "h2"], 0.0, receive=1)
    book.add("c", "b1", "g", "t", ["h1"], 0.0, receive=2)
    book.drop_of(1, ["h1", "h2"])
    assert [(each.entry.receipt_handle, each.receive) for each in book.take("c", 9)] == [("h1", 2)]


def test_nothing_is_renewed_for_ever() -> None:
    book = RenewalBook(RenewalOptions(invisible_ms=60_000, longest_ms=50_000))
    book.add("c", "b1", "g", "t", ["h"], 0.0)
    assert [due_handles(book, now) for now in (20.0, 40.0)] == [["h"], ["h"]]
    (entry,) = book.due(60.0)["b1"]
    assert entry.back_off, "it comes again when its group's back-off is over"
    assert len(book) == 0


def test_there_is_a_limit() -> None:
    book = RenewalBook(RenewalOptions(handles_max=9))
    book.check_room("c", 5)
    book.add("c", "b1", "g", "t", ["h1", "h2", "h3"], 0.0)
    book.add("c", "b1", "g", "t", ["h1"], 0.0)
    with pytest.raises(StatusError, match="3 messages are kept invisible, 3 of them for this client"):
        book.check_room("c", 3)
    book.check_room("another", 3)
    book.drop(["h1", "h2", "unknown"])
    book.check_room("c", 4)
    assert due_handles(book, 1e9) == ["h3"]
    book.check_room("c", 5)
