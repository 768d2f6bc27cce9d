"""The five stages: when each message fires, what a recall does, and what happens while something is in the way."""

import asyncio

import pytest

from popwheel_broker.delay import dequeue_stages
from popwheel_broker.delay.service import TimerService
from popwheel_broker.delay.timer_state import DueUnit, TimerLogDamagedError
from popwheel_broker.delay.unit import UnitFlag
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.unit.broker.timer_world import TIMER_FOLDER, TOPIC, TimerWorld, timer_options
from tests.unit.broker.world import FOLDER, run_now

_DAY_MS = 24 * 3_600_000


def test_each_message_fires_at_its_own_millisecond() -> None:
    world = TimerWorld()
    for body, due_ms in ((b"c", 1731), (b"a", 1), (b"d", 1732), (b"b", 999)):
        world.send(body, due_ms)
    world.pass_to(3000)
    assert [(payload[-1:], at_ms) for payload, at_ms in world.fired()] == [
        (b"a", 1),
        (b"b", 999),
        (b"c", 1731),
        (b"d", 1732),
    ]


@pytest.mark.parametrize("before", range(1, 18))
def test_what_comes_behind_messages_that_were_read_from_the_log_fires(before: int) -> None:
    """They are, as the process that they came to has ended."""
    world = TimerWorld()
    bodies = [b"%d" % number for number in range(before + 1)]
    for number, body in enumerate(bodies):
        if number == before:
            world.start()
            world.turn()
        world.send(body, 1000 + number)
    world.pass_to(2000)
    assert [payload[-len(body) :] for (payload, _), body in zip(world.fired(), bodies, strict=True)] == bodies


def test_what_is_due_beyond_the_roll_window_rolls_and_fires_in_time() -> None:
    world = TimerWorld()
    world.send(b"a", 60_123)
    world.pass_to(60_122)
    assert world.fired() == []
    assert world.timer.state.pending.total == 1
    world.pass_to(60_123)
    assert [at_ms for _, at_ms in world.fired()] == [60_123]
    assert world.timer.state.pending.total == 0


def test_after_a_long_rest_one_step_comes_up_to_now_however_small_the_wheel() -> None:
    world = TimerWorld()
    world.turn()
    world.clock.advance(600_000)
    world.timer.step()
    assert world.timer.state.curr_read_time_ms == world.begin_ms + 600_000
    world.send(b"a", 600_250)
    world.pass_to(601_000)
    assert [at_ms for _, at_ms in world.fired()] == [600_250]


def test_what_rolls_does_so_at_its_slots_beginning_and_does_not_hold_the_slot_open() -> None:
    unit = DueUnit.of(9_500, UnitFlag.TIMER | UnitFlag.ROLL, 0, 1, 4_000)
    assert (unit.fire_ms, unit.rolls) == (4_000, True)
    assert DueUnit.of(9_500, UnitFlag.TIMER, 0, 1, 9_000).fire_ms == 9_500


def test_with_the_clock_set_back_nothing_is_stuck() -> None:
    world = TimerWorld()
    world.clock.advance(600_000)
    world.send(b"a", 600_100)
    world.pass_to(601_000)
    world.clock.set_wall_ms(world.begin_ms)
    world.send(b"b", 700_000)  # beyond the slot that is being read, and that is far ahead of the clock
    world.send(b"c", 5_000)
    world.pass_to(5_000)
    assert world.fired_bodies() == [b"a", b"c"]
    world.pass_to(700_000)
    assert world.fired_bodies() == [b"a", b"c", b"b"]
    assert world.fired()[-1][1] == 700_000


def test_a_clock_set_back_by_weeks_does_not_make_a_delay_longer_than_a_unit_can_say() -> None:
    world = TimerWorld(timer_options(delay_ms_max=40 * _DAY_MS))
    world.send(b"a", 40 * _DAY_MS)
    world.clock.set_wall_ms(world.begin_ms - 20 * _DAY_MS)
    assert world.turn().refusal is None
    assert world.timer.enqueue_lag == 0


def test_the_limits_hold_within_one_run() -> None:
    world = TimerWorld(timer_options(timers_per_slot_max=2, timers_max=7))
    with pytest.raises(StatusError) as caught:
        world.send_many([b"a", b"b", b"c"], [1100, 1200, 1300])
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    with pytest.raises(StatusError) as caught:
        world.send_many([b"a", b"b", b"c", b"d", b"e"], [1000, 2000, 3000, 4000, 5000])
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    assert world.timer.state.pending.total == 0
    world.send_many([b"a", b"b", b"c", b"d"], [1000, 1500, 3000, 4000])
    assert world.timer.state.pending.total == 4


def test_a_topic_that_hoards_timers_or_recalls_leaves_room_for_others() -> None:
    world = TimerWorld(timer_options(timers_max=4, recalls_max=2))
    positions = world.send_many([b"a", b"b"], [100_000, 200_000])
    with pytest.raises(StatusError, match=r"2 of the topic orders: that is its share of 4 \(broker.timer.timers_max"):
        world.send(b"c", 300_000)
    world.send(b"other", 300_000, topic="others")
    world.recall(positions[0], b"a", 100_000)
    with pytest.raises(StatusError, match="1 of the topic orders"):
        world.recall(positions[1], b"b", 200_000)
    world.pass_to(101_000)
    assert world.timer.state.recalls.total == 0


def test_few_large_messages_wait_to_be_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk that holds them up costs memory by their bytes, not by their number."""
    world = TimerWorld()
    world.send_many([bytes(1000)] * 9, [1000] * 9)
    monkeypatch.setattr(dequeue_stages, "PUT_BYTES_MAX", 10_000)
    world.pass_to(900)
    world.disk.fill(0)
    world.clock.advance(200)
    most = 0
    for _ in range(20):
        world.turn()
        state = world.timer.state
        most = max(most, state.put_bytes)
        assert state.put_bytes == sum(each.unit.length for each in state.dequeue_put_queue)
    assert 0 < most <= 10_000
    world.disk.fill(1 << 30)
    world.pass_to(3000)
    assert len(world.fired()) == 9
    assert world.timer.state.put_bytes == 0


def test_a_recalled_message_is_not_delivered_though_it_rolls_behind_its_recall() -> None:
    world = TimerWorld()
    world.pass_to(500)
    position = world.send(b"a", 3_100)  # waits in the slot of the roll window's end
    world.pass_to(1_900)
    world.disk.fill(0)
    world.clock.advance(100)
    assert world.turn().refusal is not None  # it was to roll
    world.clock.advance(900)
    world.disk.fill(1 << 30)
    world.recall(position, b"a", 3_100)
    world.clock.advance(500)
    world.turn()
    assert world.timer.state.recalled == {}
    world.pass_to(20_000)
    assert world.fired() == []
    assert world.timer.state.pending.total == 0


@pytest.mark.parametrize("message_first", [False, True])
def test_after_a_crash_a_message_is_not_found_without_its_recall_that_was_of_an_earlier_slot(
    message_first: bool,
) -> None:
    world = TimerWorld()
    world.pass_to(500)
    position = world.send(b"a", 3_100)
    world.pass_to(1_900)
    if message_first:
        world.send(b"b", 3_050)  # holds up the recall until the message is there
        world.turn()
    world.disk.fill(0)
    world.clock.advance(100)
    assert world.turn().refusal is not None  # it was to roll
    world.clock.advance(1_000)
    world.disk.fill(1 << 30)
    world.recall(position, b"a", 3_100)
    world.timer.step()  # puts the recall into its slot, and lets the message roll behind it
    world.flush()
    world.clock.advance(600)  # a long pause: the message meets the next slot
    for _ in range(4):
        world.timer.step(fired_at_once=1)
        world.flush()
    assert world.timer.state.recalled == {}
    world.save_timer()
    world.crash("process")
    world.pass_to(20_000)
    assert world.fired_bodies() == [b"b"] * message_first
    assert world.timer.state.pending.total == 0
    assert world.timer.state.recalled == {}


def test_a_message_that_was_recalled_does_not_roll_any_more() -> None:
    world = TimerWorld()
    position = world.send(b"a", 30_000)
    world.pass_to(1_200)
    world.recall(position, b"a", 30_000)
    world.pass_to(2_500)
    assert world.timer.state.recalled[position].is_dropped
    world.save_timer()
    world.crash("process")
    world.recall(position, b"a", 30_000)  # it is known still
    world.pass_to(40_000)
    assert world.timer.state.recalled == {}
    assert world.fired() == []


def test_a_recall_says_that_it_is_too_late_from_the_due_millisecond_on() -> None:
    world = TimerWorld()
    position = world.send(b"a", 1_000)
    world.pass_to(999)
    world.recall(position, b"a", 1_000)
    world.recall(position, b"a", 1_000)  # once more
    world.pass_to(1_000)
    with pytest.raises(StatusError) as caught:
        world.recall(position, b"a", 1_000)
    assert caught.value.code == Code.PRECONDITION_FAILED
    assert "unless it was recalled" in caught.value.message
    assert world.fired() == []


def test_what_stands_elsewhere_in_the_log_is_not_recalled() -> None:
    world = TimerWorld()
    position = world.send(b"a", 5_000)
    for root, body, due_ms in (
        (0, b"a", 5_000),
        (position, b"b", 5_000),
        (position, b"a", 5_001),
        (1 << 40, b"a", 5_000),
    ):
        with pytest.raises(StatusError) as caught:
            world.recall(root, body, due_ms)
        assert caught.value.code == Code.MESSAGE_NOT_FOUND
    assert world.timer.state.pending.total == 1
    world.pass_to(5_000)
    assert world.fired_bodies() == [b"a"]


def test_a_message_whose_topic_is_gone_is_not_there_to_be_recalled() -> None:
    world = TimerWorld()
    position = world.send(b"a", 9_000)
    world.pass_to(1_000)
    world.delete_topic(TOPIC)
    world.pass_to(4_000)  # it was to roll meanwhile, and was left out
    assert world.timer.state.pending.total == 0
    with pytest.raises(StatusError) as caught:
        world.recall(position, b"a", 9_000)
    assert caught.value.code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_nor_is_it_once_retention_has_deleted_its_record(is_made_anew: bool) -> None:
    world = TimerWorld()
    position, topic_id = world.send(b"a", 9_000), world.timer.intake.topic_id(TOPIC)
    world.pass_to(1_000)
    world.delete_topic(TOPIC)
    world.add_topic("filler")
    for number in range(20):
        world.put("filler", b"%0200d" % number)
    if is_made_anew:
        world.add_topic(TOPIC)
        other = world.send(b"b", 9_100)
    world.pass_to(4_000)  # the first was to roll meanwhile, and was left out
    assert world.core.store.delete_before(4096) == 1
    assert position < world.core.store.log.start_position
    # The second handle is one of a release that wrote no id of the topic.
    for shown in (topic_id,) if is_made_anew else (topic_id, 0):
        with pytest.raises(StatusError) as caught:
            world.recall(position, b"a", 9_000, topic_id=shown)
        assert caught.value.code == Code.MESSAGE_NOT_FOUND
    if is_made_anew:
        world.recall(other, b"b", 9_100)
    world.pass_to(30_000)
    assert (world.timer.state.recalled, world.timer.state.opened_slots) == ({}, {})
    assert world.fired() == []


def test_what_a_full_disk_delayed_is_left_out_if_its_topic_goes_meanwhile() -> None:
    world = TimerWorld()
    world.send(b"a", 1_000)
    recalled = world.send(b"b", 9_000)
    world.pass_to(999)
    world.disk.fill(0)
    world.clock.advance(1)
    assert world.turn().refusal is not None
    world.disk.fill(1 << 30)
    world.recall(recalled, b"b", 9_000)
    world.delete_topic(TOPIC)
    world.add_topic(TOPIC)
    world.pass_to(10_000)
    assert world.fired() == []
    assert world.timer.state.pending.total == 0


def test_what_a_full_disk_delayed_is_not_early_if_the_clock_is_set_back_meanwhile() -> None:
    world = TimerWorld()
    world.send(b"a", 1_500)
    world.turn()
    world.disk.fill(0)
    world.clock.set_wall_ms(world.begin_ms + 1_500)
    assert world.turn().refusal is not None
    world.clock.set_wall_ms(world.begin_ms)
    world.disk.fill(1 << 30)
    world.pass_to(1_499)
    assert world.fired() == []
    world.pass_to(1_500)
    assert [at_ms for _, at_ms in world.fired()] == [1_500]


def test_what_was_read_before_fires_though_the_timer_queue_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimerWorld()
    world.send(b"a", 1_000)
    world.turn()

    def damaged(count: int) -> int:
        raise CorruptDataError("an entry leads to another place")

    monkeypatch.setattr(world.timer._enqueue_get, "step", damaged)
    world.clock.advance(1_000)
    step = world.turn()
    assert step.refusal is not None
    for _ in range(5):
        world.timer.step()
    world.flush()
    assert world.fired_bodies() == [b"a"]


def test_what_stands_before_damage_in_the_timer_queue_fires_after_a_start() -> None:
    world = TimerWorld()
    _, damaged, _ = world.send_many([b"a", b"b", b"c"], [1500, 1600, 1700])
    world.remove_timer_files()
    world.crash("process")
    world.timer.state.handed.clear()  # as if there were too many
    path = FOLDER / "commitlog" / f"{0:020}.log"
    world.disk.flip_bit(path, 8 * (damaged + 80))
    world.pass_to(3000)
    assert world.fired_bodies() == [b"a"]
    assert world.core.store.log.damaged == {damaged}
    world.disk.flip_bit(path, 8 * (damaged + 80))
    world.pass_to(4000)
    assert world.fired_bodies() == [b"a", b"b", b"c"]


def test_a_message_that_stands_still_at_a_damaged_record_fires_when_that_is_mended() -> None:
    world = TimerWorld()
    world.send(b"a", 1_500)
    position = world.send(b"b", 1_600)
    world.turn()
    (path,) = [path for path in world.disk.files() if path.suffix == ".log"]
    world.disk.flip_bit(path, 8 * (position + 80))
    world.pass_to(2_000)
    assert world.fired_bodies() == [b"a"]
    assert world.timer.overdue_entries() == 1
    world.core.damage_mended()  # another one, not this
    world.pass_to(3_000)
    assert list(world.timer.state.damaged) == [position]
    world.disk.flip_bit(path, 8 * (position + 80))
    world.core.damage_mended()
    world.pass_to(4_000)
    assert world.fired_bodies() == [b"a", b"b"]
    assert world.timer.overdue_entries() == len(world.timer.state.damaged) == world.timer.state.pending.total == 0


def test_a_timer_log_that_is_damaged_under_the_running_broker_is_made_again_by_the_next() -> None:
    world = TimerWorld()
    for number in range(5):
        world.send(b"%d" % number, 1_500)
    world.turn()
    world.save_timer()
    [path] = [path for path in world.disk.files() if path.suffix == ".timerlog"]
    world.disk.flip_bit(path, 8 * 60)
    with pytest.raises(TimerLogDamagedError):
        world.pass_to(1_500)
    world.timer.distrust()
    assert not world.disk.exists(TIMER_FOLDER / "timercheck")
    world.crash("process")
    assert world.timer.state.pending.total == 5
    world.pass_to(2_000)
    assert world.fired_bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_failed_sync_is_notified_though_its_waiter_has_gone() -> None:
    """The device tells it once: the next save would count on what never reached it."""
    world = TimerWorld()
    world.send(b"a", 60_123)
    world.turn()
    world.disk.fail_syncs(1, lambda path: path.suffix == ".timerlog")

    async def give_up() -> None:
        world.disk.hold_syncs()
        saving = asyncio.create_task(world.service.save())
        await world.disk.until_stored()
        saving.cancel()
        world.disk.release_syncs()
        await asyncio.gather(saving, return_exceptions=True)
        assert saving.cancelled()

    asyncio.run(give_up())
    assert world.failures


def test_a_timer_begins_again_though_nobody_waited_for_its_end() -> None:
    world = TimerWorld()
    world.send(b"a", 60_123)
    world.turn()
    service = TimerService(world.timer, world.disk, world.clock, world._sync, lambda: None, lambda _: None)

    async def give_up() -> None:
        service.start()
        world.disk.hold_syncs()
        await world.disk.until_stored()
        stopping = asyncio.create_task(service.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.sleep(0)
        assert not stopping.done()
        world.disk.release_syncs()
        await asyncio.gather(stopping, return_exceptions=True)
        assert stopping.cancelled()
        service.start()
        assert service._tasks and not any(task.done() for task in service._tasks)
        await service.stop()

    asyncio.run(give_up())


def test_a_sync_of_the_timer_log_that_fails_ends_the_broker_and_no_checkpoint_counts_on_it() -> None:
    world = TimerWorld()
    world.send(b"a", 1_500)
    world.turn()
    before = world.disk.files()[TIMER_FOLDER / "timercheck"]
    world.disk.fail_syncs(1, lambda path: path.suffix == ".timerlog")
    for _ in range(2):  # until it has ended, the broker tries again
        with pytest.raises(OSError, match="error"):
            run_now(world.service.save())
    assert len(world.failures) == 1
    assert world.disk.files()[TIMER_FOLDER / "timercheck"] == before
    world.crash("power")
    world.pass_to(2_000)
    assert world.fired_bodies() == [b"a"]


def test_what_is_due_too_far_ahead_is_refused() -> None:
    world = TimerWorld(timer_options(delay_ms_max=5_000))
    world.send(b"a", 5_000)
    with pytest.raises(StatusError, match=r"broker\.timer\.delay_ms_max") as refused:
        world.send(b"b", 5_001)
    assert refused.value.code == Code.ILLEGAL_DELIVERY_TIME
    assert world.timer.state.pending.total == 1


def test_no_more_recalls_are_remembered_than_may_be_and_they_can_be_switched_off() -> None:
    world = TimerWorld(timer_options(recalls_max=1))
    positions = world.send_many([b"a", b"b"], [1_000, 1_000])
    world.recall(positions[0], b"a", 1_000)
    with pytest.raises(StatusError, match=r"broker\.timer\.recalls_max") as refused:
        world.recall(positions[1], b"b", 1_000)
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    world.pass_to(2_000)
    assert world.fired_bodies() == [b"b"]
    world = TimerWorld(timer_options(recall=False))
    (position,) = world.send_many([b"a"], [1_000])
    with pytest.raises(StatusError, match=r"broker\.timer\.recall") as refused:
        world.recall(position, b"a", 1_000)
    assert refused.value.code == Code.UNSUPPORTED


def test_a_message_for_which_there_is_no_room_for_a_queue_waits_alone() -> None:
    options = timer_options()
    world = TimerWorld(options.model_copy(update={"log": options.log.model_copy(update={"queues_max": 4})}))
    assert len(world.core.store.queues) == 1  # of the names
    for topic in ("t", "u"):
        world.add_topic(topic)
        world.put(topic, b"here")
    late = world.send(b"late", 1_000)
    assert late
    assert len(world.core.store.queues) == 4  # and the timers'
    run = MessageRun("t", 0, [b"a"], [b""], [""], PutKind.AT_TIME, [world.begin_ms + 1_500])
    batch = world.timer.intake.batch()
    batch.accept(run)
    world.core.store.put(batch.records)
    world.flush()
    world.pass_to(1_600)
    assert [stored.payload for _, stored in world.held("t")][-1] == b"a"
    assert world.fired() == []
    world.delete_topic("u")
    world.pass_to(3_000)
    assert world.fired_bodies() == [b"e"]
