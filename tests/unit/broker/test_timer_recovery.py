"""Recovery of the timer: exactly once (T2), recalls (T4), exact counts, and files that are lost or damaged (S6)."""

import numpy as np
import pytest
from structlog.testing import capture_logs

from popwheel_broker.delay.pending import PendingTimers
from popwheel_broker.delay.unit import hash_topic
from popwheel_broker.log.timer_record import TIMER_QUEUE, TIMER_TOPIC
from popwheel_broker.options import RetentionOptions
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.unit.broker.index_bytes import rot_entry
from tests.unit.broker.timer_world import TIMER_FOLDER, TOPIC, TimerWorld, timer_options


def test_what_fired_is_known_through_two_crashes_though_its_record_was_never_chained_in() -> None:
    world = TimerWorld()
    world.send(b"a", 1_000)
    world.pass_to(1_000)
    assert world.fired_bodies() == [b"a"]
    world.crash("process")  # its unit was not saved
    world.crash("process")  # the checkpoint that the start has saved must still tell where to look
    world.pass_to(5_000)
    assert world.fired_bodies() == [b"a"]


def test_what_fired_of_a_slot_that_is_not_done_does_not_fire_again() -> None:
    world = TimerWorld()
    for number, due_ms in enumerate((1_100, 1_200, 1_900)):
        world.send(b"%d" % number, due_ms)
    world.turn()
    world.save_timer()
    world.pass_to(1_200)
    world.save_timer()
    world.crash("process")
    assert world.timer.state.pending.total == 1
    world.pass_to(3_000)
    assert world.fired_bodies() == [b"0", b"1", b"2"]


def test_a_slot_that_is_not_done_is_begun_again_though_the_next_is_being_read_already() -> None:
    world = TimerWorld()
    world.send(b"a", 1_900)
    world.pass_to(1_600)  # slots are read half a second before their time
    state = world.timer.state
    assert (list(state.opened_slots), state.curr_read_time_ms) == ([world.begin_ms + 1_000], world.begin_ms + 2_000)
    world.save_timer()
    world.crash("process")
    world.start()
    world.pass_to(3_000)
    assert [at_ms for _, at_ms in world.fired()] == [1_900]


def test_what_was_put_into_a_later_slot_because_that_was_being_read_already_does_not_fire_again() -> None:
    world = TimerWorld()
    world.send(b"a", 4_900)
    world.pass_to(4_600)
    world.send(b"b", 4_700)  # by now the slot of 5 s is being read
    world.turn()
    world.save_timer()
    world.pass_to(4_950)
    assert world.fired_bodies() == [b"b", b"a"]
    world.crash("process")
    world.pass_to(9_000)
    assert world.fired_bodies() == [b"b", b"a"]
    assert world.timer.state.pending.total == len(world.timer.state.done) == 0


@pytest.mark.parametrize("saved", [False, True])
def test_what_rolled_is_counted_and_fired_once(saved: bool) -> None:
    world = TimerWorld()
    world.send(b"a", 9_000)
    for time_ms in range(500, 9_000, 500):
        world.pass_to(time_ms)
        if saved:
            world.save_timer()
        world.crash("process")
        assert world.timer.state.pending.total == 1
    world.pass_to(12_000)
    assert world.fired_bodies() == [b"a"]
    assert world.timer.state.pending.total == 0


@pytest.mark.parametrize("lose_files", [False, True])
@pytest.mark.parametrize("saved_ms", [0, 1_000, 2_000, 2_500, 3_000])
def test_recalls_are_matched_with_messages_wherever_both_are(saved_ms: int, lose_files: bool) -> None:
    world = TimerWorld()
    taken, kept = world.send(b"a", 7_300), world.send(b"b", 7_300)
    world.pass_to(saved_ms)
    world.save_timer()
    world.pass_to(2_200)
    world.recall(taken, b"a", 7_300)
    for time_ms in range(2_500, 7_300, 400):
        world.pass_to(time_ms)
        world.crash("process")
        if lose_files:
            world.remove_timer_files()
            world.start()
        assert world.timer.state.pending.by_topic() == {TOPIC: 1}
        assert set(world.timer.state.recalled) == {taken}
        world.recall(taken, b"a", 7_300)  # again, at once after the start
    world.pass_to(9_000)
    assert world.fired_bodies() == [b"b"]
    assert world.timer.state.recalled == {}
    assert kept != taken


def test_a_recall_right_after_the_start_finds_messages_that_have_no_unit_yet() -> None:
    world = TimerWorld()
    position = world.send(b"a", 5_000)
    world.crash("process")
    world.recall(position, b"a", 5_000)
    assert world.timer.state.pending.total == 0
    world.pass_to(6_000)
    assert world.fired() == []


def test_what_fired_is_too_late_to_recall_though_the_clock_was_set_back_and_the_broker_started_anew() -> None:
    world = TimerWorld()
    position = world.send(b"a", 60_000)
    world.clock.set_wall_ms(world.begin_ms + 60_000)
    world.turn()
    assert world.fired_bodies() == [b"a"]
    world.clock.set_wall_ms(world.begin_ms)
    world.crash("process")
    with pytest.raises(StatusError) as caught:
        world.recall(position, b"a", 60_000)
    assert caught.value.code == Code.PRECONDITION_FAILED


def test_what_fired_stays_too_late_to_recall_though_the_timer_was_made_again_at_an_earlier_time() -> None:
    world = TimerWorld()
    position = world.send(b"a", 60_000)
    world.clock.set_wall_ms(world.begin_ms + 60_000)
    world.turn()
    world.clock.set_wall_ms(world.begin_ms)
    world.remove_timer_files()
    world.crash("process")
    world.turn()
    world.save_timer()  # now the scan position is behind the record that tells of it
    world.crash("process")
    with pytest.raises(StatusError) as caught:
        world.recall(position, b"a", 60_000)
    assert caught.value.code == Code.PRECONDITION_FAILED


def test_a_recall_outlives_its_message_in_a_recovery() -> None:
    world = TimerWorld()
    position = world.send(b"a", 1_000)
    world.send(b"b", 1_900)
    world.turn()
    world.recall(position, b"a", 1_000)
    world.pass_to(1_500)
    world.save_timer()
    world.crash("process")
    world.delete_topic(TOPIC)
    world.pass_to(3_000)
    world.save_timer()
    world.crash("process")
    assert world.timer.state.pending.total == 0
    assert world.fired() == []


def test_without_its_files_the_timer_is_the_same() -> None:
    world = TimerWorld()
    for number in range(9):
        world.send(b"%d" % number, 1_000 * number + 500)
    world.pass_to(4_000)
    world.save_timer()
    world.crash("process")
    world.remove_timer_files()
    world.start()
    assert world.timer.state.pending.total == 5
    world.pass_to(10_000)
    assert world.fired_bodies() == [b"%d" % number for number in range(9)]


def test_a_timer_log_that_was_made_again_and_is_empty_is_not_taken_for_damaged() -> None:
    world = TimerWorld()
    world.send(b"a", 500)
    world.pass_to(3_000)
    world.save_timer()
    world.crash("process")
    [path] = [path for path in world.disk.files() if path.suffix == ".timerlog"]
    world.disk.flip_bit(path, 8 * 20)
    with capture_logs() as logs:
        world.start()
    assert any("damaged" in entry["event"] for entry in logs)
    world.crash("process")
    with capture_logs() as logs:
        world.start()
    assert not any("damaged" in entry["event"] for entry in logs)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_checkpoint_does_not_count_on_a_timer_log_that_was_made_again_since(is_lost: bool) -> None:
    """The one that was made again is written, and no checkpoint is saved for it."""
    world = TimerWorld()
    for number in range(4):
        world.send(b"%d" % number, 1_000 * number + 500)
    world.turn()
    world.save_timer()
    world.pass_to(1_000)
    world.save_timer()
    for number in range(4, 9):
        world.send(b"%d" % number, 1_000 * number + 500)
    world.turn()
    world.crash("process")
    [path] = [path for path in world.disk.files() if path.suffix == ".timerlog"]
    if is_lost:
        world.disk.remove(path)
    else:
        world.disk.flip_bit(path, 8 * 60)
    for _ in range(3):
        world.start()
        world.turn()
        world.timer.state.log.write()
        assert world.timer.state.pending.total == 8
        world.crash("process")
    world.pass_to(10_000)
    assert world.fired_bodies() == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("whole", [False, True])
def test_units_behind_the_saved_position_are_made_again_whatever_they_hold(whole: bool) -> None:
    world = TimerWorld()
    world.send(b"a", 1_500)
    world.turn()
    world.save_timer()
    world.send(b"b", 1_600)
    world.turn()
    world.timer.state.log.write()
    [path] = [path for path in world.disk.files() if path.suffix == ".timerlog"]
    if not whole:
        world.disk.flip_bit(path, 8 * 70)
    world.crash("process")
    assert world.timer.state.log.end_position == 52
    assert world.timer.state.wheel.units_total == 1
    assert world.timer.state.pending.total == 2
    world.pass_to(2_000)
    assert world.fired_bodies() == [b"a", b"b"]


def test_a_damaged_entry_of_the_timer_queue_does_not_hide_what_the_commit_log_holds() -> None:
    world = TimerWorld()
    position = world.send(b"a", 1_500)
    world.send(b"b", 1_600)
    world.recall(position, b"a", 1_500)
    world.save()  # the index file is written
    entry = world.core.store.queues[TIMER_TOPIC, TIMER_QUEUE].read(0, 1)[0]
    world.crash("process")
    rot_entry(world.disk, entry, 7 * 8)
    world.start()
    assert world.timer.state.pending.total == 1
    assert set(world.timer.state.recalled) == {position}
    assert world.timer.step().refusal is None


def test_a_damaged_checkpoint_is_made_again() -> None:
    world = TimerWorld()
    world.send(b"a", 500)
    world.send(b"b", 5_000)
    world.pass_to(1_000)
    world.save_timer()
    world.crash("process")
    world.disk.flip_bit(TIMER_FOLDER / "timercheck", 8 * 20)
    world.start()
    assert world.timer.state.pending.total == 1
    world.pass_to(6_000)
    assert world.fired_bodies() == [b"a", b"b"]


def test_a_wheel_made_smaller_drops_nothing() -> None:
    world = TimerWorld(timer_options(slots=400, roll_window_ms=100_000))
    for number, due_ms in enumerate((3_000, 19_000, 50_000)):
        world.send(b"%d" % number, due_ms)
    world.turn()
    world.save_timer()
    world.options = timer_options(slots=16, roll_window_ms=8_000)
    world.crash("process")
    assert world.timer.state.pending.total == 3
    world.pass_to(52_000)
    assert world.fired_bodies() == [b"0", b"1", b"2"]


def test_a_missing_oldest_file_of_the_timer_log_is_noticed() -> None:
    world = TimerWorld()
    for number in range(150):
        world.send(b"%d" % (number % 10), 4_000 + number % 3 * 1_000)
    world.turn()
    world.save_timer()
    first = min(path for path in world.disk.files() if path.suffix == ".timerlog")
    world.disk.remove(first)
    world.crash("process")
    assert world.timer.state.pending.total == 150
    world.pass_to(8_000)
    assert len(world.fired()) == 150


def test_two_topics_of_one_hash_do_not_end_the_broker() -> None:
    one, other = "t15385", "t210367"
    assert hash_topic(one) == hash_topic(other)
    pending = PendingTimers(60_000)
    pending.add_many(one, 2, np.array([5_000, 6_000]))  # as a recovery counts them
    pending.remove(other, 5_000)
    pending.remove(one, 6_000)
    assert (pending.total, pending.by_topic()) == (0, {})


def test_what_pends_is_not_deleted_after_a_rebuild_that_waits_for_longer_than_the_window() -> None:
    options = timer_options(slots=400, roll_window_ms=100_000)
    options = options.model_copy(update={"retention": RetentionOptions(hours=150 / 3600)})
    world = TimerWorld(options)
    position = world.send(b"a", 195_000)
    world.pass_to(95_000)
    world.remove_timer_files()
    world.crash("process")
    world.pass_to(100_000)
    world.save_timer()
    for time_ms in range(100_000, 190_000, 10_000):
        world.send(bytes(1_000), time_ms + 1)
        world.pass_to(time_ms)
        world.save_timer()
        world.core.store.delete_before(world.core.expiry.expired_before())
        world.flush()
    assert world.core.store.log.start_position <= position
    world.pass_to(196_000)
    assert b"a" in world.fired_bodies()
