"""The reviver in virtual time: at the millisecond, through full disks and damaged messages."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from popwheel_broker.role.reviver import Reviver
from popwheel_common.cold_reads import Range
from popwheel_common.contract import names
from tests.harness.manual_clock import run_virtually
from tests.unit.broker.world import INVISIBLE_MS, World, handles

WAITING_MAX = 20_000


class Reviving:
    """A reviver on a world's core; when it redelivered is written down."""

    def __init__(self) -> None:
        self.world = World()
        self.world.add_topic("t")
        self.world.add_group("g")
        self.start_ms = self.world.clock.steady_ms()
        self.revived_ms: list[int] = []
        self.failures: list[Exception] = []
        self.device_follows = True
        self.reviver = Reviver(self.world.core, self.world.clock, WAITING_MAX, self._confirm, self.failures.append)

    def _confirm(self) -> None:
        if not self.device_follows:
            return
        self.world.flush()
        count = len(self.world.held(names.retry_topic("g", "t"))) - len(self.revived_ms)
        self.revived_ms += [self.world.clock.steady_ms() - self.start_ms] * count

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def all_of_it() -> None:
            self.reviver.start()
            await asyncio.sleep(0)
            await work()
            await self.reviver.stop()

        run_virtually(self.world.clock, all_of_it())

    def pop(self, invisible_ms: int = INVISIBLE_MS) -> list[str]:
        self.world.put("t", b"1")
        given = handles(self.world.pop("g", "t", 1, invisible_ms=invisible_ms))
        self.reviver.due_changed()
        return given


def test_each_comes_at_its_millisecond() -> None:
    each = Reviving()

    async def work() -> None:
        for invisible_ms in (30_000, 10_001, 10_002, 17):
            each.pop(invisible_ms)
        await asyncio.sleep(31)

    each.run(work)
    assert each.revived_ms == [17, 10_001, 10_002, 30_000]
    assert each.reviver.redelivered == 4


def test_a_change_to_an_earlier_time_is_seen() -> None:
    each = Reviving()

    async def work() -> None:
        (handle,) = each.pop(30_000)
        await asyncio.sleep(5)
        each.world.core.acks.change_invisible("g", "t", handle, 100)
        each.reviver.due_changed()
        await asyncio.sleep(1)

    each.run(work)
    assert each.revived_ms == [5100]


def test_what_is_acked_does_not_come() -> None:
    each = Reviving()

    async def work() -> None:
        each.world.ack("g", "t", *each.pop())
        await asyncio.sleep(60)

    each.run(work)
    assert each.revived_ms == []


def test_a_wall_clock_that_jumps_changes_nothing() -> None:
    each = Reviving()

    async def work() -> None:
        each.pop(10_000)
        each.world.clock.set_wall_ms(each.world.clock.wall_ms() - 3_600_000)
        await asyncio.sleep(5)
        each.world.clock.set_wall_ms(each.world.clock.wall_ms() + 7_200_000)
        await asyncio.sleep(4.9)
        assert each.revived_ms == []
        await asyncio.sleep(0.2)

    each.run(work)
    assert each.revived_ms == [10_000]


def test_many_at_once_leave_the_loop_to_others() -> None:
    each = Reviving()
    for number in range(1200):
        each.world.put("t", b"%d" % number)
    turns = 0

    async def work() -> None:
        nonlocal turns
        while each.world.pop("g", "t"):
            pass
        each.reviver.due_changed()
        await asyncio.sleep(INVISIBLE_MS / 1000 - 0.001)
        while each.reviver.redelivered < 1200:
            turns += 1
            await asyncio.sleep(0 if each.reviver.redelivered else 0.001)

    each.run(work)
    assert turns > 2
    assert len(each.revived_ms) == 1200


@pytest.mark.parametrize("fault", ["full", "error"])
def test_it_keeps_trying_while_the_disk_refuses_and_loses_nothing(fault: str) -> None:
    each = Reviving()

    async def work() -> None:
        for _ in range(3):
            each.pop(1000)
        if fault == "full":
            each.world.disk.fill(10)
        else:
            each.world.disk.fail_writes(1000)
        await asyncio.sleep(60)
        assert (each.revived_ms, each.reviver.redelivered) == ([], 0)
        assert each.reviver.failing_since_ms == each.start_ms + 1000
        assert len(each.world.core.state.table) == 3
        each.world.disk.fill(1 << 20)
        each.world.disk.fail_writes(0)
        await asyncio.sleep(1.1)
        assert each.reviver.failing_since_ms is None

    each.run(work)
    assert len(each.revived_ms) == 3


def test_a_damaged_message_does_not_stop_the_others() -> None:
    each = Reviving()

    async def work() -> None:
        for _ in range(3):
            each.pop(1000)
        second = each.world.core.store.queues["t", 0].read(1, 1)[0]
        (path,) = [path for path in each.world.disk.files() if path.suffix == ".log"]
        each.world.disk.flip_bit(path, 8 * (second.position + 70))
        await asyncio.sleep(10)

    each.run(work)
    assert each.revived_ms == [1000, 1000]
    (left,) = each.world.core.state.table
    assert left.offsets[0] == 1


def test_an_error_that_nobody_thought_of_ends_the_broker_and_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    each = Reviving()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("unthinkable")

    monkeypatch.setattr(each.world.core.acks, "redeliver", broken)

    async def work() -> None:
        each.pop(10)
        await asyncio.sleep(1)

    each.run(work)
    assert [str(failure) for failure in each.failures] == ["unthinkable"]
    assert "a part of the broker has failed" in capsys.readouterr().out


def test_one_damaged_message_of_a_delivery_holds_up_no_other() -> None:
    each = Reviving()
    for number in range(3):
        each.world.put("t", b"body %d to be found" % number)

    async def work() -> None:
        assert len(each.world.pop("g", "t")) == 3
        each.reviver.due_changed()
        path, contents = next(each for each in each_file(each.world) if b"body 1 to be found" in each[1])
        each.world.disk.flip_bit(path, 8 * contents.index(b"body 1 to be found"))
        await asyncio.sleep(INVISIBLE_MS / 1000 + 0.5)
        assert each.reviver.redelivered == 2
        each.world.disk.flip_bit(path, 8 * contents.index(b"body 1 to be found"))
        await asyncio.sleep(1)
        assert each.reviver.redelivered == 3

    each.run(work)


def each_file(world: World) -> list[tuple[Path, bytes]]:
    return list(world.disk.files().items())


def test_a_device_that_does_not_follow_is_waited_for() -> None:
    """Else all that waits were redelivered messages, and sends would be refused."""
    each = Reviving()
    for _ in range(400):
        each.world.put("t", b"y" * 1000)
    while each.world.pop("g", "t", 8):
        pass

    async def work() -> None:
        each.device_follows = False
        each.reviver.due_changed()
        await asyncio.sleep(INVISIBLE_MS / 1000 + 5)
        before = each.reviver.redelivered
        assert 0 < before <= 64, "one step: it appends more than may wait"
        await asyncio.sleep(5)
        assert each.reviver.redelivered == before
        each.device_follows = True
        each.world.flush()
        await asyncio.sleep(5)

    each.run(work)
    assert each.reviver.redelivered == 400


def test_of_cold_messages_that_are_overdue_the_first_does_not_wait_for_reads_of_the_others() -> None:
    """Bytes that were read for it may be gone by then, as files are merged, and then none would ever come."""
    each = Reviving()
    disk = each.world.disk
    for _ in range(40):
        each.pop()
        each.world.clock.advance(1)
    disk.cached_bytes = 0
    fetch, came = disk.reads._fetch, list[int]()

    async def slow(ranges: Sequence[Range]) -> Sequence[bytes]:
        came.append(each.reviver.redelivered)
        await asyncio.sleep(0.005)
        return await fetch(ranges)

    disk.reads._fetch = slow

    async def work() -> None:
        each.world.clock.advance(INVISIBLE_MS)
        each.reviver.due_changed()
        await asyncio.sleep(1)

    each.run(work)
    assert each.reviver.redelivered == 40
    assert came == sorted(came) and came.count(0) <= 2
