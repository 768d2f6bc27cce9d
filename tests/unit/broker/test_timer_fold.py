"""A slave's timer: what it knows by the log alone, and that a new master goes on exactly where the old one was."""

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.memory_disk import CrashKind
from tests.unit.broker.timer_pair import TimerPair
from tests.unit.broker.timer_world import timer_options


def test_a_slave_gives_nothing_out_and_knows_what_pends() -> None:
    pair = TimerPair()
    for number in range(4):
        pair.send(b"%d" % number, 1_000 * number + 300)
    pair.pass_to(1_500)
    pair.follow()
    assert [body for body, _ in pair.fired()] == [b"0", b"1"]
    assert pair.slave.timer.state.pending.by_topic() == {"orders": 2}
    assert pair.slave.timer.state.wheel.units_total == pair.master.timer.state.wheel.units_total
    assert pair.slave.end_position == pair.master.end_position


@pytest.mark.parametrize("kind", ["process", "power"])
def test_a_new_master_fires_what_fell_due_meanwhile_and_nothing_twice(kind: CrashKind) -> None:
    pair = TimerPair()
    for number in range(6):
        pair.send(b"%d" % number, 500 * number + 100)
    pair.pass_to(1_200)
    pair.clock.advance(1_000)  # nobody leads
    pair.fail_over(kind)
    pair.pass_to(5_000)
    assert pair.fired() == [(b"0", 100), (b"1", 600), (b"2", 1_100), (b"3", 2_200), (b"4", 2_200), (b"5", 2_600)]
    assert pair.master.timer.state.pending.total == 0


def test_what_fired_and_was_not_at_the_slave_is_cut_off_and_fires_at_the_new_master() -> None:
    pair = TimerPair()
    pair.send(b"a", 1_000)
    pair.turn()
    pair.clock.advance(1_000)
    while pair.master.timer.step().busy:
        pass  # the slave does not learn of it
    assert pair.master.end_position > pair.slave.end_position
    pair.fail_over()
    pair.turn()
    assert pair.fired() == [(b"a", 1_000)]
    assert pair.slave.end_position == pair.master.end_position


def test_the_slave_may_learn_that_a_timer_fired_before_it_has_chained_it_in() -> None:
    pair = TimerPair()
    pair.send(b"a", 1_000)
    pair.pass_to(2_000)  # the slave's timer does nothing all the while
    assert len(pair.slave.timer.state.done) == 1
    assert pair.slave.timer.state.pending.total == 1
    pair.follow()
    assert not pair.slave.timer.state.done
    assert pair.slave.timer.state.pending.total == 0
    assert pair.slave.timer.state.wheel.units_total == 0


def test_what_fires_of_a_slot_that_the_slave_reads_does_not_fire_again_at_a_new_master() -> None:
    pair = TimerPair()
    pair.send(b"a", 300)
    pair.send(b"b", 800)
    pair.turn()
    pair.follow()
    assert len(pair.slave.timer.state.awaited) == 2
    pair.pass_to(500)
    pair.fail_over()
    pair.pass_to(2_000)
    assert pair.fired() == [(b"a", 300), (b"b", 800)]


@pytest.mark.parametrize("follows", [False, True])
def test_recalls_hold_at_the_new_master(follows: bool) -> None:
    pair = TimerPair()
    taken = pair.send(b"a", 7_300)
    pair.send(b"b", 7_300)
    pair.pass_to(2_200)
    pair.recall(taken, b"a", 7_300)
    for time_ms in range(2_600, 7_300, 900):
        pair.pass_to(time_ms)
        if follows:
            pair.follow()
        pair.fail_over()
        assert pair.master.timer.state.pending.by_topic() == {"orders": 1}
        pair.recall(taken, b"a", 7_300)  # again: it is remembered
    pair.pass_to(9_000)
    assert [body for body, _ in pair.fired()] == [b"b"]
    assert pair.master.timer.state.recalled == {}


def test_what_has_fired_is_too_late_to_recall_at_a_new_master_whose_clock_is_behind() -> None:
    pair = TimerPair()
    position = pair.send(b"a", 5_000)
    pair.pass_to(5_000)
    pair.follow()
    pair.clock.set_wall_ms(pair.begin_ms + 1_000)
    pair.fail_over()
    with pytest.raises(StatusError) as caught:
        pair.recall(position, b"a", 5_000)
    assert caught.value.code == Code.PRECONDITION_FAILED


def test_a_timer_fires_in_time_though_a_clock_that_was_ahead_had_brought_it_into_a_far_slot() -> None:
    pair = TimerPair()

    def send(body: bytes, due_ms: int, clock_ms: int) -> None:
        pair.clock.set_wall_ms(pair.begin_ms + clock_ms)
        pair.send(body, due_ms)
        pair.replicate()
        pair.follow()

    send(b"x", 9_000, clock_ms=6_400)
    send(b"a", 3_000, clock_ms=0)
    send(b"y", 9_000, clock_ms=7_400)  # the clock is set right before the master's timer looks at it
    send(b"b", 4_000, clock_ms=0)
    assert list(pair.slave.timer.state.opened_slots) == [pair.begin_ms + 6_000, pair.begin_ms + 7_000]
    pair.slave.save_timer()
    pair.slave.crash("process")
    pair.fail_over()
    pair.pass_to(5_000)
    assert pair.fired() == [(b"a", 3_000), (b"b", 4_000)]


def test_what_leaves_no_record_is_let_go_when_the_master_says_that_its_slots_are_done() -> None:
    pair = TimerPair(topics=("orders", "gone"))
    taken = pair.send(b"a", 1_300)
    pair.send(b"b", 1_400, "gone")
    pair.send(b"c", 9_000)
    pair.turn()
    pair.recall(taken, b"a", 1_300)
    pair.delete_topic("gone")
    pair.follow()
    pair.pass_to(4_000)
    pair.follow()
    state = pair.slave.timer.state
    assert state.pending.by_topic() == {"orders": 1, "gone": 1}
    assert state.commit_read_time_ms < pair.begin_ms + 2_000
    pair.save_master()
    pair.report_progress()
    pair.follow()
    assert state.pending.by_topic() == {"orders": 1}
    assert (state.recalled, state.awaited) == ({}, {})
    assert state.commit_read_time_ms >= pair.begin_ms + 2_000
    pair.slave.save_timer()
    saved = pair.slave.timer.saved
    assert saved is not None and saved.scan_position == pair.slave.end_position


def test_progress_is_not_heeded_before_the_log_is_known_that_it_speaks_of() -> None:
    pair = TimerPair()
    taken = pair.send(b"a", 1_300)
    pair.turn()
    pair.recall(taken, b"a", 1_300)
    pair.pass_to(4_000)
    pair.save_master()
    saved = pair.master.timer.saved
    assert saved is not None
    pair.slave.timer._following.progress(saved.log_position + 1, saved.last_read_time_ms)
    pair.follow()
    assert set(pair.slave.timer.state.recalled) == {taken}


@pytest.mark.parametrize("kind", ["process", "power"])
@pytest.mark.parametrize("core_saved", [False, True])
@pytest.mark.parametrize("lose_files", [False, True])
def test_a_slave_that_dies_goes_on_from_its_own_files(kind: CrashKind, core_saved: bool, lose_files: bool) -> None:
    pair = TimerPair()
    taken = pair.send(b"a", 6_300)
    for number in range(8):
        pair.send(b"%d" % number, 1_000 * number + 500)
    pair.recall(taken, b"a", 6_300)
    for time_ms in range(700, 8_000, 700):
        pair.pass_to(time_ms)
        pair.follow()
        pair.slave.save_timer()
        if core_saved:
            pair.slave.save()
        pair.replicate()
        if lose_files:
            pair.slave.remove_timer_files()
        pair.slave.crash(kind)
        pair.slave.fold_to(pair.master.core.store.high_watermark)
        pair.follow()
        assert pair.slave.timer.state.pending.by_topic() == pair.master.timer.state.pending.by_topic()
    pair.fail_over()
    pair.pass_to(9_000)
    assert [body for body, _ in pair.fired()] == [b"%d" % number for number in range(8)]


def test_a_timer_that_was_saved_of_a_log_that_is_cut_is_made_again() -> None:
    pair = TimerPair()
    pair.send(b"a", 1_000)
    pair.turn()
    pair.clock.advance(1_000)
    while pair.master.timer.step().busy:
        pass
    pair.master.save_timer()  # as `ack_mode: master` does, before the slave has it
    pair.fail_over()
    pair.follow()
    assert pair.slave.timer.state.pending.total == 1
    pair.fail_over()
    pair.turn()
    assert pair.fired() == [(b"a", 1_000)]


def test_rolling_does_not_hold_back_what_the_slave_must_read_again() -> None:
    pair = TimerPair()
    for number in range(40):
        pair.send(b"%d" % (number % 10), 100 * number + 20_000)
    for time_ms in range(0, 19_000, 500):
        pair.pass_to(time_ms)
        pair.follow()
    pair.slave.save_timer()
    saved = pair.slave.timer.saved
    assert saved is not None
    assert pair.slave.end_position - saved.scan_position < 40 * 400
    assert pair.slave.timer.state.pending.by_topic() == {"orders": 40}
    pair.fail_over()
    pair.pass_to(25_000)
    assert len(pair.fired()) == 40


def test_a_slave_with_a_wheel_of_another_size_goes_on_as_well() -> None:
    pair = TimerPair()
    pair.slave.options = timer_options(slots=400, roll_window_ms=100_000)
    pair.slave.begin()
    pair.replicate()
    for number in range(9):
        pair.send(b"%d" % number, 3_000 * number + 500)
    pair.pass_to(8_000)
    pair.follow()
    pair.fail_over()
    pair.pass_to(30_000)
    assert [body for body, _ in pair.fired()] == [b"%d" % number for number in range(9)]
    assert pair.master.timer.state.pending.total == 0


def test_what_is_put_in_after_a_restart_goes_by_the_time_of_the_log_that_was_known_before() -> None:
    """Else a recall would stand in an earlier slot than its message, and be forgotten before that."""
    pair = TimerPair()
    taken = pair.send(b"a", 2_300)
    pair.turn()
    pair.recall(taken, b"a", 2_300)  # leaves no record: its slot stays open on the slave
    pair.follow()
    pair.pass_to(7_000)
    taken = pair.send(b"b", 8_400)
    pair.turn()
    pair.follow()
    pair.slave.save_timer()
    pair.recall(taken, b"b", 8_400)
    pair.turn()
    pair.follow()
    pair.slave.save()
    pair.slave.crash("process")
    state = pair.slave.timer.state
    assert state.commit_read_time_ms < pair.begin_ms + 4_000
    pair.follow()
    slot = pair.slave.timer.state.wheel.slot(pair.begin_ms + 8_000)
    assert slot is not None and slot.count == 2, "the message and what recalls it"
