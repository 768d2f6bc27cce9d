"""What is renewed when: told the time, nothing else."""

import pytest

from services.common.errors import StatusError
from services.proxy.ack.renewal import RenewalBook
from services.proxy.options import RenewalOptions
from services.proxy.session.clients import Clients


def everybody(client_id: str) -> bool:
    return True


def due_handles(book: RenewalBook, now: float) -> list[str]:
    return [entry.receipt_handle for entries in book.due(now, everybody).values() for entry in entries]


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
    assert {name: len(entries) for name, entries in book.due(30.0, everybody).items()} == {"b1": 1, "b2": 1}


def test_handles_of_clients_that_are_gone_are_dropped() -> None:
    book = RenewalBook(RenewalOptions())
    book.add("gone", "b1", "g", "t", ["h1"], 0.0)
    book.add("here", "b1", "g", "t", ["h2"], 0.0)
    (entries,) = book.due(30.0, lambda client_id: client_id == "here").values()
    assert [entry.receipt_handle for entry in entries] == ["h2"]
    assert len(book) == 1


def test_nothing_is_renewed_for_ever() -> None:
    book = RenewalBook(RenewalOptions(invisible_ms=60_000, longest_ms=50_000))
    book.add("c", "b1", "g", "t", ["h"], 0.0)
    assert [due_handles(book, now) for now in (20.0, 40.0)] == [["h"], ["h"]]
    (entry,) = book.due(60.0, everybody)["b1"]
    assert entry.back_off, "it comes again when its group's back-off is over"
    assert len(book) == 0
    book.add("gone", "b1", "g", "t", ["h"], 0.0)
    assert book.due(60.0, lambda client_id: False) == {}


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


def test_clients_are_gone_when_they_have_not_been_heard_of() -> None:
    clients = Clients(2, 60.0)
    clients.seen("a", 0.0)
    clients.seen("b", 10.0)
    with pytest.raises(StatusError):
        clients.seen("c", 10.0)
    clients.seen("a", 50.0)
    assert clients.is_alive("a", 100.0)
    assert not clients.is_alive("b", 100.0)
    clients.expire(100.0)
    assert len(clients) == 1
    clients.gone("a")
    assert not clients.is_alive("a", 51.0)
