"""What became of a message, told from its places: never more than these say."""

from typing import Any

import pytest

from popwheel_controller.http.audit_shapes import GroupHolding, TracedMessage
from popwheel_controller.http.message_fates import Fate, fates

RETRY, DEAD = "%RETRY%g+t", "%DLQ%g"
WAITS = {"group": "g", "holding": "waits", "popped_ms": None, "due_ms": None}
DONE = {"group": "g", "holding": "done", "popped_ms": None, "due_ms": None}
DELIVERED = {"group": "g", "holding": "delivered", "popped_ms": 1_000, "due_ms": 31_000}


def place(topic: str, position: int, *groups: dict[str, Any], broker: str = "b1", **more: Any) -> dict[str, Any]:
    """A place as the API has it."""
    facts = {"topic": topic, "position": position, "broker": broker, "attempts": 0, "stored_ms": 500, **more}
    sent = {"message_id": "1", "tag": "", "keys": [], "properties": {}}
    body = {"body": "", "body_encoding": "text", "body_bytes": 0}
    holdings = [GroupHolding.model_validate(each) for each in groups]
    return TracedMessage.model_validate(
        {"queue_id": 0, "queue_offset": 0, **sent, **body, **facts, "groups": holdings}
    ).model_dump()


def reported(*places: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(each.group, each.state, each.attempts) for each in fates(places, "t")]


def only(*places: dict[str, Any]) -> Fate:
    (fate,) = fates(places, "t")
    return fate


@pytest.mark.parametrize(
    ("holding", "state", "words"),
    [
        (WAITS, "unread", "not read yet"),
        (WAITS | {"kept_back_by": "a"}, "unread", "not read yet; its filter a will pass it by"),
        (WAITS | {"attempts": 2}, "waits for retry", "failed 2 times, waits for attempt 3"),
        (
            DELIVERED,
            "in flight",
            "delivered at 1970-01-01T00:00:01.000Z for attempt 1, hidden until 1970-01-01T00:00:31",
        ),
        (DELIVERED | {"client_id": "consumer@7"}, "in flight", "to consumer@7 for attempt 1, hidden until"),
        (DELIVERED | {"put_off": True}, "put off", "attempt 2 at 1970-01-01T00:00:31.000Z unless acknowledged before"),
        (DONE | {"ended": True}, "acknowledged", "acknowledged"),
        (DONE, "done", "acknowledged, or passed by (a filter, an offset that was set); which is not known any more"),
        (DONE | {"kept_back_by": "a"}, "done", "its filter of now, a, does not let it through"),
        (WAITS | {"holding": "quarantined", "set_aside": "7.0"}, "quarantined", "quarantined as 7.0"),
    ],
)
def test_in_its_topic(holding: dict[str, Any], state: str, words: str) -> None:
    fate = only(place("t", 1, holding))
    assert fate.state == state
    assert words in fate.words


def test_what_has_failed_and_gone_on_is_not_done() -> None:
    first = place("t", 1, DONE)
    assert reported(first, place(RETRY, 2, WAITS, attempts=1)) == [("g", "waits for retry", 1)]
    assert reported(first, place(RETRY, 2, DONE, attempts=1), place(RETRY, 3, DELIVERED, attempts=2)) == [
        ("g", "in flight", 2)
    ]
    assert reported(first, place(RETRY, 2, DONE | {"ended": True}, attempts=1)) == [("g", "acknowledged", 1)]
    assert reported(first, place(RETRY, 2, DONE, attempts=1), place(DEAD, 3)) == [("g", "dead letter", 2)]


def test_dead_letters_that_were_redriven() -> None:
    before = (place("t", 1, DONE), place(RETRY, 2, DONE, attempts=1))
    assert reported(*before, place(DEAD, 3, DONE)) == [("g", "was dead letter", 2)]
    redriven = only(*before, place(DEAD, 3, DONE), place(RETRY, 4, WAITS, redriven=True))
    assert (redriven.state, redriven.attempts) == ("waits for retry", 0)
    assert redriven.words.startswith("redriven by an operator")


def test_a_dead_letter_of_which_nothing_else_is_stored() -> None:
    fate = only(place(DEAD, 3))
    assert (fate.state, fate.attempts) == ("dead letter", 0)
    assert fate.words.startswith("dead letter since")


def test_groups_and_brokers_are_distinguished() -> None:
    other = {**WAITS, "group": "h"}
    assert reported(
        place("t", 1, DONE, other), place(RETRY, 2, WAITS, attempts=1), place("t", 1, WAITS, broker="b0")
    ) == [
        ("g", "unread", 0),
        ("g", "waits for retry", 1),
        ("h", "unread", 0),
    ]


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        ({"kind": "delayed", "pending": True, "due_ms": 9_000}, "delayed", "delayed until 1970-01-01T00:00:09.000Z"),
        ({"kind": "delayed", "due_ms": 9_000}, "due", "is not in its topic: on its way, or gone with time"),
        ({"kind": "delayed", "due_ms": 9_000, "set_aside": "77"}, "quarantined", "quarantined as 77"),
        ({"kind": "recalled"}, "recalled", "recalled at 1970-01-01T00:00:00.500Z"),
        ({"kind": "half", "pending": True, "checks": 1}, "open", "its senders were asked once"),
        ({"kind": "half"}, "ended", "it is not known any more how"),
        ({"kind": "rolled back"}, "rolled back", "rolled back at 1970-01-01T00:00:00.500Z"),
        ({"kind": "given up"}, "rolled back", "its senders did not say how the transaction ended"),
    ],
)
def test_before_its_topic(facts: dict[str, Any], state: str, words: str) -> None:
    waiting = place("rmq_sys", 1, **facts)
    fate = only(waiting)
    assert (fate.group, fate.state) == ("", state)
    assert words in fate.words
    assert reported(waiting, place("t", 2, WAITS)) == [("g", "unread", 0)], "it has come"
    assert reported(place("rmq_sys", 0, kind="delayed", due_ms=9_000), waiting) == [("", state, 0)], (
        "the last word counts"
    )
