"""Hidden messages stay hidden for as long as they were to be, whatever clocks show, at the next master, too."""

import asyncio

import pytest

from popwheel_broker.consume.pop_clock import LogTime, PopClock
from popwheel_common.clock import Clock, SystemClock, Uptime
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.manual_clock import ManualClock
from tests.unit.broker.core_world import world_of
from tests.unit.broker.group_world import group_of, until

HOUR_MS = 3_600_000


class ShiftedClock:
    """A machine's clock that is wrong, by as much in all that it shows of the time of day."""

    def __init__(self, clock: Clock, shift_ms: int) -> None:
        self._clock = clock
        self._shift_ms = shift_ms
        self.monotonic = clock.monotonic
        self.uptime = clock.uptime

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self._shift_ms

    def steady_ms(self) -> int:
        return self._clock.steady_ms() + self._shift_ms


def test_it_goes_on_from_the_latest_that_the_log_says() -> None:
    clock = ManualClock(5_000_000)
    pop_clock = PopClock(clock)
    assert pop_clock.now_ms() == 5_000_000, "nothing says anything else"
    pop_clock.record(1_000, is_news=True)
    clock.advance(10)
    assert pop_clock.now_ms() == 1_010
    pop_clock.record(900, is_news=True)  # of a copy
    assert pop_clock.now_ms() == 1_010
    pop_clock.record(9_000_000, is_news=True)
    assert pop_clock.now_ms() == 9_000_000


def test_a_clock_that_goes_faster_is_ahead_only_by_what_it_gained_since_the_latest_record() -> None:
    clock = ManualClock()
    pop_clock = PopClock(clock)
    for passed_ms in range(10_000, 1_000_000, 10_000):
        clock.advance(10_100)
        pop_clock.record(passed_ms, is_news=True)
    assert pop_clock.now_ms() == 990_000


def test_what_was_read_from_the_log_does_not_revoke_what_an_earlier_process_saw() -> None:
    clock = ManualClock(5_000_000)
    clock.up_ms = 70_000
    pop_clock = PopClock(clock)
    pop_clock.resume(LogTime(1_000, Uptime(clock.boot, 60_000)))
    assert pop_clock.now_ms() == 11_000
    pop_clock.record(2_000, is_news=False)
    assert pop_clock.now_ms() == 11_000
    pop_clock.record(11_500, is_news=False)
    assert pop_clock.now_ms() == 11_500


def test_a_deposed_master_goes_by_its_successor_even_if_that_is_behind() -> None:
    """What the successor delivers is due by its own clock."""
    clock = ManualClock(5_000_000)
    pop_clock = PopClock(clock)
    pop_clock.resume(LogTime(10_000, clock.uptime()))
    pop_clock.record(9_000, is_news=True)
    assert pop_clock.now_ms() == 9_000


@pytest.mark.parametrize("shift_ms", [HOUR_MS, -HOUR_MS])
async def test_a_failover_to_a_replica_whose_clock_differs_brings_nothing_back_before_its_time(shift_ms: int) -> None:
    async with group_of(2, replication={"absence_ms_max": 60_000}) as world:
        first, second = world.members
        await second.stop()
        second.clock = ShiftedClock(SystemClock(), shift_ms)
        await second.start()
        await world.lead(0)
        await world.in_sync(0, 1)
        await world.put(*(b"%d" % number for number in range(100)))
        long = await world.pop(10, invisible_ms=60_000)
        assert len(long) == 10
        short = await world.pop(1, invisible_ms=300)
        await until(lambda: second.end == first.end)
        await first.kill()
        await world.lead(1)
        table = second.alive.core.state.table
        await until(lambda: table.open_messages == 10, 2.0)  # the short one has come back in its time
        await first.start()
        assert await world.ack(*long.values()) == [Code.OK] * 10, "all handles are good"
        again: set[bytes] = set()
        async with asyncio.timeout(5.0):
            while not again.issuperset(short):  # it is readable once the device has it
                again.update(await world.pop(32))
                await asyncio.sleep(0.001)
        assert not again & set(long)


def test_a_restart_costs_lateness_at_most() -> None:
    world = world_of()
    for number in range(3):
        world.put("t", b"%d" % number)
    world.pop("g", "t", 1, invisible_ms=30_000)
    world.clock.advance(10_000)
    world.pop("g", "t", 1, invisible_ms=30_000)
    for jump_ms in (HOUR_MS, -2 * HOUR_MS):
        world.clock = ManualClock(world.clock.steady_ms() + jump_ms)
        world.crash("process")
        assert world.revive() == 0
    world.clock.advance(19_999)
    assert world.revive() == 0
    world.clock.advance(1)
    assert world.revive() == 1
    world.clock.advance(10_000)
    assert world.revive() == 1


def test_a_process_that_is_started_again_knows_how_long_it_was_away() -> None:
    """Whatever the wall clock says meanwhile: of two processes of one machine the second brings nothing back late."""
    for wall_ms in (0, HOUR_MS, -HOUR_MS):
        world = world_of()
        world.put("t", b"1")
        world.pop("g", "t", 1, invisible_ms=30_000)
        world.clock.advance(5_000)
        world.save()
        world.clock.advance(5_000)
        restarted = ManualClock(world.clock.steady_ms() + 10_000 + wall_ms)
        restarted.up_ms = world.clock.uptime().ms + 10_000
        world.clock = restarted
        world.crash("process")
        world.clock.advance(9_999)
        assert world.revive() == 0
        world.clock.advance(1)
        assert world.revive() == 1


def test_a_machine_that_was_started_anew_says_nothing_of_the_time_between() -> None:
    world = world_of()
    world.put("t", b"1")
    world.pop("g", "t", 1, invisible_ms=30_000)
    world.clock.advance(5_000)
    world.save()
    world.clock = ManualClock(world.clock.steady_ms() + 10 * HOUR_MS)
    world.clock.boot = "another"
    world.clock.up_ms = 10 * HOUR_MS
    world.crash("power")
    world.clock.advance(24_999)
    assert world.revive() == 0
    world.clock.advance(1)
    assert world.revive() == 1


def test_a_checkpoint_says_how_late_it_was() -> None:
    """A message that is hidden for long is not hidden anew as the process ends."""
    world = world_of()
    world.put("t", b"1")
    world.pop("g", "t", 1, invisible_ms=12 * HOUR_MS)
    world.clock.advance(11 * HOUR_MS)
    world.save()
    world.crash("process")
    world.clock.advance(HOUR_MS - 1)
    assert world.revive() == 0
    world.clock.advance(1)
    assert world.revive() == 1
