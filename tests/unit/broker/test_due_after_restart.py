"""A new process takes its steady clock from the wall clock: one that was set back must not hide messages for longer."""

from services.broker.pop.check_point import CheckPoint
from services.broker.pop.revive import ReviveTable


def check_point(due_ms: int) -> CheckPoint:
    """A CK of two messages, hidden for ten seconds."""
    return CheckPoint(
        id=8,
        group="group",
        topic="topic",
        origin=0,
        queue_id=0,
        start_offset=0,
        next_offset=2,
        pop_time_ms=due_ms - 10_000,
        invisible_ms=10_000,
        due_ms=due_ms,
        first_position=0,
        offsets=range(2),
    )


def test_no_message_is_hidden_for_longer_from_now_than_it_was_to_be_from_its_pop() -> None:
    table = ReviveTable()
    opened = check_point(due_ms=1_000_000)
    table.open(opened)
    table.renew(opened.id, 0b10, 1_005_000)

    table.bound_dues(now_ms=400_000)

    assert [opened.due_of(0), opened.due_of(1)] == [410_000, 415_000]
    table.bound_dues(now_ms=405_000)
    assert [opened.due_of(0), opened.due_of(1)] == [410_000, 415_000]
    assert table.take_due(410_000, 10) == [(opened, [0])]


def test_what_is_due_in_time_stays_as_it_is() -> None:
    table = ReviveTable()
    opened = check_point(due_ms=405_000)
    table.open(opened)

    table.bound_dues(now_ms=400_000)

    assert opened.due_ms == 405_000


def test_a_renewal_for_longer_than_the_pop_stays_as_it_is() -> None:
    """Else a restart would give the message to a second consumer while the first one's handle is good (P2)."""
    table = ReviveTable()
    opened = check_point(due_ms=405_000)
    table.open(opened)
    table.renew(opened.id, 0b01, 430_000)

    table.bound_dues(now_ms=400_000)

    assert [opened.due_of(0), opened.due_of(1)] == [430_000, 405_000]
