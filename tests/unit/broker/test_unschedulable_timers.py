"""A delayed message, or a recall, that fails on its way into the wheel holds up and pins nothing (T2, T3)."""

import pytest

from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.log.record import Record
from popwheel_broker.options import BrokerOptions
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.memory_disk import CrashKind
from tests.harness.poison import MARK
from tests.unit.broker.timer_pair import TimerPair
from tests.unit.broker.timer_poison import entries, failing_recalls, failing_to_be_scheduled, pass_and_save
from tests.unit.broker.timer_world import TOPIC, TimerWorld, timer_options

CRASHES: tuple[CrashKind, ...] = ("process", "power")
FAR_MS = 7000
"""Beyond the roll window."""


@pytest.mark.parametrize("is_mended", [True, False])
@pytest.mark.parametrize("saves", [0, 1, 3])
@pytest.mark.parametrize("kind", [*CRASHES, "without timer files"])
def test_a_recall_that_cannot_be_scheduled_goes_on_recalling(
    kind: str, saves: int, is_mended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    world.turn()
    with monkeypatch.context() as patch:
        tried = failing_to_be_scheduled(patch, recalls=True)
        world.recall(position, MARK, FAR_MS)
        world.send(b"a", 2500)
        world.turn()
        pass_and_save(world, *range(1000, 1000 + 500 * saves, 500))
        world.pass_to(3000)
        assert len(tried) == 1 + saves
        (entry,) = entries(world)
        assert (entry.step, entry.origin, entry.position, entry.topic) == (Step.SCHEDULING, b"", position, TOPIC)
        if kind == "without timer files":
            world.remove_timer_files()
        world.crash("power" if kind == "power" else "process")
        if not is_mended:
            world.turn()
            assert world.timer.state.pending.total == 0
            pass_and_save(world, 3500, FAR_MS + 500, FAR_MS + 2500)
    pass_and_save(world, FAR_MS + 3000, FAR_MS + 4000)
    assert [(body[-1:], at) for body, at in world.fired()] == [(b"a", 2500)]
    state = world.timer.state
    assert (state.recalled, state.unscheduled, state.pending.total) == ({}, {}, 0)
    assert state.opened_slots.keys() <= {state.curr_read_time_ms}
    world.crash("process")
    pass_and_save(world, FAR_MS + 6000)
    assert len(world.fired()) == 1


def test_a_recall_that_cannot_be_scheduled_needs_no_old_part_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    world.turn()
    failing_to_be_scheduled(monkeypatch, recalls=True)
    world.recall(position, MARK, FAR_MS)
    needed = []
    for time_ms in range(1000, FAR_MS + 4000, 1000):
        world.send(b"a", time_ms - 500)
        pass_and_save(world, time_ms)
        needed.append(world.timer.needed_from())
    assert needed[-1] == world.core.store.log.end_position


def test_progress_is_not_saved_while_a_recall_can_be_put_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    pass_and_save(world, 500)
    saved = world.timer.saved
    with monkeypatch.context() as patch:
        failing_to_be_scheduled(patch, recalls=True)
        world.recall(position, MARK, FAR_MS)
        world.turn()

        def put(records: list[Record]) -> None:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, "the disk is full")

        patch.setattr(world.core.store, "put", put)
        world.save_timer()
    assert world.timer.saved == saved
    world.crash("process")
    pass_and_save(world, FAR_MS + 2000)
    assert world.fired() == []


@pytest.mark.parametrize("as_they_roll", [True, False])
def test_recalls_that_fail_hold_up_no_message(as_they_roll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a queue that is full of them, nor by a slot that stays open, to which the wheel would come round."""
    world = TimerWorld(timer_options(stage_entries_max=1))
    positions = world.send_many([b"a", b"b", b"c"], [30_000] * 3)
    world.turn()
    if as_they_roll:
        failing_recalls(monkeypatch)
    else:
        failing_to_be_scheduled(monkeypatch, recalls=True)
    for position, body in zip(positions, (b"a", b"b", b"c"), strict=True):
        world.recall(position, body, 30_000)
    dues_ms = range(1_700, 29_000, 1_000)
    for due_ms in dues_ms:
        world.pass_to(due_ms - 1_500)
        world.send(b"d", due_ms)
        pass_and_save(world, due_ms - 1_000)
    pass_and_save(world, *range(29_000, 36_000, 500))
    assert [at for _, at in world.fired()] == list(dues_ms)
    assert (world.timer.state.recalled, world.timer.state.unscheduled) == ({}, {})


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", CRASHES)
def test_what_cannot_be_scheduled_is_quarantined_and_pins_nothing(
    kind: CrashKind, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TimerWorld()
    with monkeypatch.context() as patch:
        failing_to_be_scheduled(patch, recalls=False, half=half)
        world.send(MARK, 3500)
        world.turn()
    entry = entries(world)[0]
    pass_and_save(world, 1000)
    world.crash(kind)
    world.turn()
    assert world.timer.state.pending.total == 0
    pass_and_save(world, 4500, 5500)
    assert world.fired() == []
    assert entries(world) == [entry]
    assert world.timer.state.scan_position == world.timer.needed_from() == world.core.store.log.end_position


@pytest.mark.parametrize("half", [False, True])
def test_what_cannot_be_scheduled_pins_nothing_without_a_restart_either(
    half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TimerWorld()
    with monkeypatch.context() as patch:
        failing_to_be_scheduled(patch, recalls=False, half=half)
        world.send(MARK, 1500)
        world.turn()
    pass_and_save(world, 5500, 6500)
    assert world.timer.state.done == {}
    assert world.timer.needed_from() == world.core.store.log.end_position


@pytest.mark.parametrize("kind", CRASHES)
def test_a_recalled_message_that_cannot_be_scheduled_is_recalled(
    kind: CrashKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TimerWorld()
    position = world.send(MARK, 3500)
    world.recall(position, MARK, 3500)
    with monkeypatch.context() as patch:
        failing_to_be_scheduled(patch, recalls=False)
        world.turn()
    assert entries(world) == []
    assert world.timer.state.pending.total == 0
    world.pass_to(6000)
    assert world.timer.state.recalled == {}
    assert world.timer.state.opened_slots.keys() <= {world.timer.state.curr_read_time_ms}
    pass_and_save(world, 6500)
    world.crash(kind)
    world.pass_to(8000)
    assert world.fired() == []


@pytest.mark.parametrize("slave_fails", [True, False])
def test_a_recall_that_its_master_cannot_schedule_recalls_at_the_next_master(
    slave_fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = TimerPair(body_bytes=len(MARK))
    position = pair.send(MARK, FAR_MS)
    pair.turn()
    pair.follow()
    with monkeypatch.context() as patch:
        failing_to_be_scheduled(patch, recalls=True)
        pair.recall(position, MARK, FAR_MS)
        pair.pass_to(500)
        if not slave_fails:
            pair.follow()
        pair.save_master()
        pair.pass_to(1000)
        if slave_fails:
            pair.follow()
            pair.fail_over()
            pair.turn()
            pair.save_master()
    if not slave_fails:
        pair.follow()
        pair.fail_over()
    assert pair.master.timer.state.pending.total == 0
    pair.pass_to(FAR_MS + 2000)
    pair.save_master()
    assert pair.fired() == []
    assert pair.master.timer.state.recalled == {}


@pytest.mark.parametrize("kind", CRASHES)
def test_one_that_waits_to_be_quarantined_with_half_a_unit_fires_once(
    kind: CrashKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = timer_options()
    world = TimerWorld(BrokerOptions(log=options.log, timer=options.timer, quarantine_max=1))
    with monkeypatch.context() as patch:
        failing_to_be_scheduled(patch, recalls=False, half=True)
        world.send_many([b"a", b"b"], [1500] * 2)
        world.turn()
        assert len(entries(world)) == 1
    world.turn()
    pass_and_save(world, 500)
    world.crash(kind)
    world.pass_to(8000)
    assert world.fired_bodies() == [b"b"]
    assert world.timer.state.pending.total == 0
    assert world.timer.state.opened_slots.keys() <= {world.timer.state.curr_read_time_ms}
