"""A delayed message that fails by itself is quarantined; all others fire at their millisecond (T2, T3)."""

from typing import Any

import pytest

from popwheel_broker.consume.quarantine_entry import EntryFlag, QuarantineEntry, Step
from popwheel_broker.consume.quarantine_table import QuarantineTable
from popwheel_broker.log.timer_record import TIMER_TOPIC, decode_delay, fired_origin
from popwheel_broker.options import BrokerOptions
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.memory_disk import CrashKind
from tests.harness.poison import ERRORS, MARK, Poison, failing_fold
from tests.unit.broker.timer_pair import TimerPair
from tests.unit.broker.timer_poison import entries, failing_recalls, pass_and_save
from tests.unit.broker.timer_world import TOPIC, TimerWorld, timer_options

CRASHES: tuple[CrashKind, ...] = ("process", "power")
FAR_MS = 7000
"""Beyond the roll window."""


@pytest.mark.parametrize("step", ["firing", "scheduling", "writing", "decoding"])
@pytest.mark.parametrize("error", ERRORS)
def test_one_that_fails_is_quarantined_and_others_fire_in_time(step: str, error: type[Exception]) -> None:
    world = TimerWorld()
    positions = world.send_many([b"a", MARK, b"b", b"c"], [1500, 1501, 1502, 2700])
    marked = Poison([step], lambda: error)
    if step == "decoding":
        marked = _failing_delay(positions[1], world, error)
    with marked.spread():
        world.pass_to(4000)
    assert [(body[-1:], at) for body, at in world.fired()] == [(b"a", 1500), (b"b", 1502), (b"c", 2700)]
    (entry,) = entries(world)
    assert entry.step is (Step.SCHEDULING if step == "scheduling" else Step.FIRING)
    assert entry.position == positions[1]
    assert world.failures == []
    assert world.timer.state.pending.total == 0
    assert world.timer.state.put_bytes == 0
    assert world.timer.state.opened_slots.keys() <= {world.timer.state.curr_read_time_ms}


def _failing_delay(position: int, world: TimerWorld, error: type[Exception]) -> Poison:
    """Has the origin of one record fail to be read."""
    stored = next(found for found in world.core.store.log.records(position, position + 1))
    poison = Poison(["decoding"], lambda: error)

    def bite(data: bytes) -> None:
        if data == stored.origin:
            poison.hits += 1
            raise error("poison")

    poison._bite = bite  # type: ignore[method-assign,assignment]
    return poison


@pytest.mark.parametrize("error", ERRORS)
def test_one_that_fails_as_it_rolls_is_quarantined(error: type[Exception]) -> None:
    world = TimerWorld()
    world.send_many([b"a", MARK, b"b"], [FAR_MS] * 3)
    with Poison(["firing"], lambda: error).spread():
        world.pass_to(5000)
    (entry,) = entries(world)
    world.pass_to(9000)
    assert world.fired_bodies() == [b"a", b"b"]
    assert world.core.retrial.retry(entry.id)
    world.flush()
    world.pass_to(9100)
    assert len(world.fired()) == 3


@pytest.mark.parametrize("kind", CRASHES)
@pytest.mark.parametrize("step", ["firing", "scheduling"])
def test_what_is_quarantined_does_not_fire_after_a_restart(kind: CrashKind, step: str) -> None:
    world = TimerWorld()
    world.send_many([b"a", MARK, b"b"], [1500] * 3)
    with Poison([step]).spread():
        world.pass_to(2000)
    (entry,) = entries(world)
    for save in (False, True):
        if save:
            world.save()
            world.save_timer()
        world.crash(kind)
        world.pass_to(3000)
        assert world.fired_bodies() == [b"a", b"b"]
        assert entries(world) == [entry]
        assert world.timer.state.pending.total == 0


@pytest.mark.parametrize("kind", CRASHES)
def test_one_that_is_released_before_its_time_fires_at_its_time(kind: CrashKind) -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    with Poison(["firing"]).spread():
        world.pass_to(4000)
    (entry,) = entries(world)
    with pytest.raises(StatusError) as refusal:
        world.recall(position, MARK, FAR_MS)
    assert refusal.value.code == Code.MESSAGE_NOT_FOUND
    assert world.core.retrial.retry(entry.id)
    world.flush()
    assert world.timer.state.pending.total == 1
    assert entries(world) == []
    world.crash(kind)
    assert entries(world) == []
    assert world.timer.state.pending.total == 1
    world.pass_to(FAR_MS + 100)
    assert [at for _, at in world.fired()] == [FAR_MS]
    assert world.timer.state.pending.total == 0


def test_one_that_is_released_can_be_recalled_again() -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    with Poison(["firing"]).spread():
        world.pass_to(4000)
    assert world.core.retrial.retry(entries(world)[0].id)
    world.flush()
    world.recall(position, MARK, FAR_MS)
    world.pass_to(FAR_MS + 2000)
    assert world.fired() == []
    assert world.timer.state.pending.total == 0


@pytest.mark.parametrize("kind", CRASHES)
def test_one_that_is_released_when_it_is_due_fires_at_once_and_once(kind: CrashKind) -> None:
    world = TimerWorld()
    world.send(MARK, 1500)
    with Poison(["firing"]).spread():
        world.pass_to(3000)
    (entry,) = entries(world)
    assert world.core.retrial.retry(entry.id)
    world.flush()
    assert len(world.fired()) == 1
    world.crash(kind)
    world.pass_to(5000)
    assert len(world.fired()) == 1
    assert entries(world) == []


@pytest.mark.parametrize("kind", CRASHES)
def test_one_is_not_fired_after_a_start_whose_checkpoint_is_ahead_of_its_record(kind: CrashKind) -> None:
    world = TimerWorld()
    world.send(MARK, 1500)
    world.pass_to(1499)
    world.save_timer()
    with Poison(["firing"]).spread():
        world.clock.advance(1)
        world.timer.step()
    (entry,) = entries(world)
    world.save()  # what the record says is in it, but its position is before that, as it was not confirmed
    world.crash(kind)
    assert entries(world) == [entry]
    world.turn()
    assert world.core.retrial.retry(entry.id)
    world.flush()
    world.pass_to(5000)
    assert world.fired_bodies() == [MARK[-1:]]


@pytest.mark.parametrize("due_ms", [1500, FAR_MS])
@pytest.mark.parametrize("kind", CRASHES)
def test_one_that_is_released_is_fired_once_after_a_start_whose_checkpoint_is_ahead(
    kind: CrashKind, due_ms: int
) -> None:
    world = TimerWorld()
    world.send(MARK, due_ms)
    with Poison(["firing"]).spread():
        world.pass_to(4000)
    (entry,) = entries(world)
    world.save()
    world.save_timer()
    assert world.core.retrial.retry(entry.id)
    world.save()
    world.crash(kind)
    assert entries(world) == []
    assert world.timer.state.pending.total == (due_ms == FAR_MS)
    world.pass_to(FAR_MS + 1000)
    assert world.fired_bodies() == [MARK[-1:]]
    assert world.timer.state.pending.total == 0
    assert not world.timer.state.opened_slots


def test_one_of_a_topic_that_is_gone_is_let_go_by_a_retry() -> None:
    world = TimerWorld()
    world.send(MARK, 1500)
    with Poison(["firing"]).spread():
        world.pass_to(3000)
    (entry,) = entries(world)
    world.delete_topic(TOPIC)
    world.add_topic(TOPIC)
    assert not world.core.retrial.retry(entry.id)
    world.flush()
    assert world.fired() == []


def test_a_recalled_one_that_fails_is_recalled() -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    world.send(b"a", FAR_MS)
    world.pass_to(1000)
    world.recall(position, MARK, FAR_MS)
    with Poison(["firing"]).spread():
        world.pass_to(FAR_MS + 3000)
    assert world.fired_bodies() == [b"a"]
    assert entries(world) == []
    assert world.timer.state.recalled == {}
    assert world.timer.state.opened_slots.keys() <= {world.timer.state.curr_read_time_ms}


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("kind", [*CRASHES, "without timer files"])
def test_a_recall_that_fails_as_it_rolls_goes_on_recalling(
    kind: str, saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    world.send(b"a", 4500)
    world.recall(position, MARK, FAR_MS)
    with monkeypatch.context() as patch:
        tried = failing_recalls(patch)
        pass_and_save(world, 3000, 6000)
        assert len(tried) > 1
        assert [(body[-1:], at) for body, at in world.fired()] == [(b"a", 4500)]
        (entry,) = entries(world)
        assert (entry.step, entry.origin, entry.position, entry.topic) == (Step.FIRING, b"", position, TOPIC)
        if saved:
            world.save()
            world.save_timer()
    if kind == "without timer files":
        world.remove_timer_files()
    world.crash("power" if kind == "power" else "process")
    world.recall(position, MARK, FAR_MS)  # again, at once after the start
    world.turn()
    assert world.timer.state.pending.total == 0
    assert world.core.retrial.retry(entry.id)
    pass_and_save(world, FAR_MS + 1000, FAR_MS + 3000)
    assert world.fired_bodies() == [b"a"]
    assert world.timer.state.recalled == {}
    assert world.timer.state.opened_slots.keys() <= {world.timer.state.curr_read_time_ms}


def test_a_recall_that_always_fails_as_it_rolls_ends_when_its_message_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    world.recall(position, MARK, FAR_MS)
    failing_recalls(monkeypatch)
    pass_and_save(world, *range(500, FAR_MS + 5000, 500))
    assert world.fired() == []
    assert world.timer.state.recalled == {}
    assert world.timer.state.opened_slots.keys() <= {world.timer.state.curr_read_time_ms}
    assert len(entries(world)) == 1


@pytest.mark.parametrize("error", ERRORS)
def test_what_makes_a_message_fail_leaves_its_recall_alone(error: type[Exception]) -> None:
    world = TimerWorld()
    position = world.send(MARK, FAR_MS)
    world.recall(position, MARK, FAR_MS)
    with Poison(["firing"], lambda: error, lambda payload, properties: True).spread():
        world.pass_to(4000)
    assert entries(world) == []
    world.remove_timer_files()
    world.crash("process")
    assert world.timer.state.pending.total == 0
    world.pass_to(FAR_MS + 1000)
    assert world.fired() == []


def test_past_the_limit_one_waits_alone_and_others_fire() -> None:
    options = timer_options()
    world = TimerWorld(BrokerOptions(log=options.log, timer=options.timer, quarantine_max=1))
    world.send_many([MARK, MARK, b"a", b"b"], [1500, 1500, 1500, 2500])
    with Poison(["firing"]).spread():
        world.pass_to(5000)
        assert len(entries(world)) == 1
        assert [(body[-1:], at) for body, at in world.fired()] == [(b"a", 1500), (b"b", 2500)]
    world.pass_to(7000)  # the one that waits is tried again
    assert len(world.fired()) == 3


# Two brokers


@pytest.mark.parametrize("step", ["firing", "scheduling"])
def test_a_slave_has_what_its_master_has_quarantined(step: str) -> None:
    pair = TimerPair(body_bytes=len(MARK))
    pair.send(b"aaaaaa", 1500)
    pair.send(MARK, 1500)
    with Poison([step]).spread():
        pair.pass_to(3000)
        pair.follow()
    assert entries(pair.slave) == entries(pair.master)
    assert len(entries(pair.slave)) == 1
    pair.follow()
    assert pair.slave.timer.enqueue_lag == 0
    pair.fail_over()
    pair.pass_to(5000)
    assert [body for body, _ in pair.fired()] == [b"aaaaaa"]
    assert pair.master.timer.state.pending.total == 0
    entry = entries(pair.master)[0]
    assert pair.master.core.retrial.retry(entry.id)
    pair.turn()
    pair.follow()
    assert [body for body, _ in pair.fired()] == [b"aaaaaa", MARK]
    assert entries(pair.slave) == entries(pair.master) == []
    pair.fail_over()
    pair.pass_to(9000)
    assert [body for body, _ in pair.fired()] == [b"aaaaaa", MARK]


def test_what_its_master_quarantines_as_it_rolls_stays_so_at_a_slave_where_it_need_not_roll() -> None:
    pair = TimerPair(body_bytes=len(MARK))
    pair.slave.options = timer_options(slots=400, roll_window_ms=100_000)
    pair.slave.begin()
    pair.replicate()
    pair.send(MARK, FAR_MS)
    for number in range(6):
        pair.send(b"%06d" % number, 1000 * number + 500)
    with Poison(["firing"]).spread():
        for time_ms in range(1000, FAR_MS, 1000):
            pair.pass_to(time_ms)
            pair.follow()
    assert len(entries(pair.slave)) == 1
    pair.slave.save_timer()
    pair.slave.save()
    pair.slave.crash("process")
    pair.fail_over()
    pair.pass_to(2 * FAR_MS)
    assert MARK not in [body for body, _ in pair.fired()]
    assert pair.master.timer.state.pending.total == 0


def test_a_slave_that_alone_cannot_schedule_one_waits_and_sets_it_aside_when_it_leads() -> None:
    pair = TimerPair(body_bytes=len(MARK))
    with Poison(["scheduling"], lambda: KeyError).spread():
        pair.send(b"aaaaaa", 1500)
        pair.send(MARK, 1500)
        pair.send(b"bbbbbb", 1500)
        pair.replicate()
        step = pair.slave.timer.step()
        while step.busy:
            step = pair.slave.timer.step()
        assert step.refusal is not None
        pair.fail_over()
        pair.pass_to(3000)
    assert [body for body, _ in pair.fired()] == [b"aaaaaa", b"bbbbbb"]
    assert len(entries(pair.master)) == 1


@pytest.mark.parametrize("error", ERRORS)
def test_a_timer_that_a_slave_cannot_fold_is_quarantined_and_others_fire(error: type[Exception]) -> None:
    pair = TimerPair(body_bytes=len(MARK))
    first = pair.send(b"aaaaaa", 1500)
    marked = pair.send(MARK, 1500)
    pair.send(b"bbbbbb", 1500)
    assert first < marked
    with failing_fold(lambda found: found.position == marked, error):
        pair.replicate()
        pair.follow()
    assert [entry.step for entry in entries(pair.slave)] == [Step.FOLD]
    pair.fail_over()
    pair.pass_to(3000)
    assert [body for body, _ in pair.fired()] == [b"aaaaaa", MARK, b"bbbbbb"]  # it was read again, from the log


def test_a_pending_message_counts_once_on_both_when_it_is_released() -> None:
    pair = TimerPair(body_bytes=len(MARK))
    pair.send(MARK, FAR_MS)
    with Poison(["firing"]).spread():
        pair.pass_to(4000)
    pair.follow()
    assert pair.slave.timer.state.pending.total == pair.master.timer.state.pending.total == 0
    assert pair.master.core.retrial.retry(entries(pair.master)[0].id)
    pair.turn()
    pair.follow()
    assert pair.slave.timer.state.pending.total == pair.master.timer.state.pending.total == 1
    pair.fail_over()
    pair.pass_to(FAR_MS + 1000)
    assert [body for body, _ in pair.fired()] == [MARK]
    assert pair.master.timer.state.pending.total == 0


# At a start


@pytest.mark.parametrize("error", ERRORS)
def test_a_start_goes_on_past_a_delay_that_cannot_be_read(error: type[Exception], monkeypatch: Any) -> None:
    world = TimerWorld()
    positions = world.send_many([b"a", MARK, b"b"], [1500] * 3)
    world.save()
    marked = next(found for found in world.core.store.log.records(positions[1], positions[1] + 1))
    marks = {id(marked)}

    def failing(before: Any) -> Any:
        def decode(data: bytes) -> Any:
            if bytes(data) == marked.origin and marks:
                raise error("poison")
            return before(data)

        return decode

    # All three say the same, so they all fail, as each record that a newer release's fault has spoilt would.
    with monkeypatch.context() as patch:
        for module in ("recovery", "enqueue_stages", "dequeue_stages", "fold", "timer_faults"):
            patch.setattr(f"popwheel_broker.delay.{module}.decode_delay", failing(decode_delay))
        world.crash("process")
        world.pass_to(3000)
    assert [entry.step for entry in entries(world)] == [Step.SCHEDULING] * 3
    assert world.fired() == []
    world.send(b"c", 4500)
    world.pass_to(5000)
    assert world.fired_bodies() == [b"c"]
    for entry in entries(world):
        assert world.core.retrial.retry(entry.id)
    world.flush()
    assert len(world.fired()) == 4


def test_only_what_was_quarantined_of_a_timer_ends_with_what_comes_of_it() -> None:
    """A word on a record, as that a recall of it failed, has the same key as the timer has that stands there."""
    world = TimerWorld()
    position = world.send(b"a", FAR_MS)
    world.pass_to(FAR_MS + 1000)
    records = [found for topic in (TIMER_TOPIC, TOPIC) for _, found in world.held(topic)]
    last = records[-2].position
    assert (decode_delay(records[1].origin).predecessor, records[-1].origin) == (position, fired_origin(last))
    table = QuarantineTable()
    for step, origin, noted in (
        (Step.FOLD, b"", 0),
        (Step.SCHEDULING, b"", position),
        (Step.FIRING, fired_origin(last), last),
    ):
        table.record_fault(QuarantineEntry(step, EntryFlag(0), origin, noted, noted, "", TOPIC, 0, 0, "why"))
    for found in records:
        table.apply(found)
    assert [entry.step for entry in table] == [Step.FOLD, Step.SCHEDULING]
