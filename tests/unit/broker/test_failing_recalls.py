"""Recalls that fail by themselves where something else is wrong, too: the device, damage, or the other replica (T4)."""

import pytest

from popwheel_broker.log.consume_queue import Entry
from popwheel_broker.log.record import StoredRecord
from popwheel_common.errors import CorruptDataError
from tests.harness.poison import MARK
from tests.unit.broker.timer_pair import TimerPair
from tests.unit.broker.timer_poison import (
    entries,
    failing_recalls,
    failing_to_be_scheduled,
    pass_and_save,
)
from tests.unit.broker.timer_world import TimerWorld
from tests.unit.broker.world import run_now

FAR_MS = 7000
"""Beyond the roll window."""


@pytest.mark.parametrize("error", [OSError(5, "the device"), CorruptDataError("damage")])
@pytest.mark.parametrize("as_they_roll", [True, False])
def test_a_recall_that_fails_and_cannot_be_read_goes_on_recalling(
    as_they_roll: bool, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    world.recall(position, MARK, FAR_MS)

    def read(entry: Entry) -> StoredRecord:
        raise error

    with monkeypatch.context() as patch:
        if as_they_roll:
            failing_recalls(patch)
        else:
            failing_to_be_scheduled(patch, recalls=True)
        patch.setattr(world.core.store.records, "read", read)
        for time_ms in (0, 2000, 4000):
            world.pass_to(time_ms)
            world.save()
            world.save_timer()
    assert entries(world) == []
    world.crash("process")
    pass_and_save(world, FAR_MS + 1000, FAR_MS + 3000)
    assert world.fired() == []
    assert world.timer.state.recalled == {}
    assert world.timer.state.opened_slots.keys() <= {world.timer.state.curr_read_time_ms}


def test_a_recall_that_fails_again_and_again_is_appended_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimerWorld()
    due_ms = 130_000
    position = world.send(MARK, due_ms)
    world.turn()
    tried_at_ms: list[int] = []
    with monkeypatch.context() as patch:
        tried = failing_to_be_scheduled(patch, recalls=True)
        world.recall(position, MARK, due_ms)
        for time_ms in range(0, 95_000, 1000):
            world.send(b"a", time_ms + 500)  # there is always something to save
            world.pass_to(time_ms)
            run_now(world.service.save_when_due())
            world.turn()
            tried_at_ms += [time_ms] * (len(tried) - len(tried_at_ms))
        assert tried_at_ms == [0, 0, 1000, 3000, 7000, 15_000, 31_000, 61_000, 91_000]
    pass_and_save(world, 121_000, 122_000, due_ms + 2000)
    assert world.timer.state.unscheduled == {}
    assert {body[-1:] for body, _ in world.fired()} == {b"a"}


def test_a_slave_goes_on_behind_a_recall_that_fails_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its master lets go of it without a word when its time has passed."""
    pair = TimerPair(body_bytes=len(MARK))
    position = pair.send(MARK, FAR_MS)
    pair.turn()
    pair.follow()
    failing_to_be_scheduled(monkeypatch, recalls=True)
    pair.recall(position, MARK, FAR_MS)

    def follow_to(*times_ms: int) -> None:
        for time_ms in times_ms:
            pair.pass_to(time_ms)
            pair.save_master()
            pair.report_progress()
            pair.follow()
            pair.slave.save_timer()

    follow_to(*range(500, FAR_MS + 5000, 500))
    pair.send(b"aaaaaa", FAR_MS + 7000)
    pair.send(b"bbbbbb", FAR_MS + 20_000)
    follow_to(*range(FAR_MS + 5000, FAR_MS + 12_000, 500))
    state = pair.slave.timer.state
    assert pair.slave.timer.enqueue_lag == 0
    assert (state.unscheduled, state.recalled, state.done) == ({}, {}, {})
    saved = pair.slave.timer.saved
    assert saved is not None
    assert saved.last_timer_queue_offset == state.commit_queue_offset
    pair.slave.save()
    pair.slave.crash("process")
    pair.fail_over()
    pair.pass_to(FAR_MS + 22_000)
    assert [body for body, _ in pair.fired()] == [b"aaaaaa", b"bbbbbb"]
