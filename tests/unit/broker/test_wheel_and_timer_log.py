"""The wheel and the timer log together, against a plain sorted list: units come, slots are read in order and cleared,
the wheel comes round, and crashes take away what was not synced (S6)."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_broker.delay.timer_log import TimerLog
from popwheel_broker.delay.unit import Unit
from popwheel_broker.delay.wheel import Slot, TimerWheel
from tests.harness.memory_disk import CrashKind, MemoryDisk

FOLDER = Path("/timer/timerlog")
WHEEL_PATH = Path("/timer/timerwheel")
FILE_BYTES = 700
SLOTS = 16


class World:
    """A wheel and a timer log, and beside them the list that they must equal.

    Args:
        seed: of the disk's faults.
    """

    def __init__(self, seed: int) -> None:
        self.disk = MemoryDisk(random.Random(seed))
        self.log = TimerLog(self.disk, FOLDER, FILE_BYTES)
        self.wheel = TimerWheel(SLOTS)
        self.read_s = 0
        """Seconds before it are done."""
        self.saved_s = 0
        """As the last checkpoint has it: what was done since is read again after a crash."""
        self.units: list[tuple[int, Unit]] = []
        """All that is in the log or was before files of it were deleted, done or not, by position."""
        self.pending: list[tuple[int, int]] = []
        """Slot time and position of each unit that is not done."""
        self.made = 0
        self.written = 0
        self.crashes: Counter[tuple[CrashKind, bool]] = Counter()
        """By whether they took units away."""

    def add(self, ahead_s: int) -> None:
        """Chain in a unit; the wheel reaches as far ahead as it can without coming round to what is not done."""
        slot_ms = min(self.read_s + ahead_s, self.saved_s + SLOTS - 1) * 1000
        if slot_ms < self.read_s * 1000:
            return
        each = Unit(self.wheel.last(slot_ms), 1, slot_ms - 300, slot_ms + 700, slot_ms, 100 * self.made, 99, 5)
        self.made += 1
        position = self.log.append(each)
        assert self.wheel.add(slot_ms, position) == each.previous
        self.units.append((position, each))
        self.pending.append((slot_ms, position))
        self.pending.sort()

    def read_next(self, part: int) -> None:
        """Read the next slot in parts, and clear it."""
        slot_ms = self.wheel.next_occupied(self.read_s * 1000, 1 << 50)
        assert slot_ms == (self.pending[0][0] if self.pending else None)
        if slot_ms is None:
            return
        slot = self.wheel.slot(slot_ms)
        assert slot is not None
        found, position = [], slot.last
        while position >= 0:
            units, position = self.log.read_chain(position, part)
            assert 0 < len(units) <= part
            found += units
        assert found == [each for each in reversed(self.units) if (slot_ms, each[0]) in self.pending]
        assert slot == Slot(found[-1][0], found[0][0], len(found))
        self.wheel.clear(slot_ms)
        self.pending = [each for each in self.pending if each[0] != slot_ms]
        self.read_s = slot_ms // 1000 + 1

    def pass_by(self) -> None:
        """Time passes up to the next slot that is occupied, or to the wheel's end."""
        next_ms = self.wheel.next_occupied(self.read_s * 1000, 1 << 50)
        until_s = self.read_s + 5 if next_ms is None else next_ms // 1000
        self.read_s = max(self.read_s, min(self.saved_s + SLOTS - 1, until_s))

    def write(self) -> None:
        """Bring all into the page cache."""
        self.log.write()
        self.written = self.log.end_position

    async def save(self) -> None:
        """Bring all to the device: units, then slots, then how far it is."""
        end, read_s = self.log.end_position, self.read_s
        self.write()
        for file in self.log.write():
            await file.sync()
        if self.log.names_changed:
            self.log.names_changed = False
            await self.disk.sync_folder(FOLDER)
        self.log.synced(end)
        assert self.log.write() == []
        file = self.disk.open(WHEEL_PATH)
        self.wheel.write(file)
        await file.sync()
        found = TimerWheel(SLOTS)
        assert found.read(file)
        assert held(found) == held(self.wheel)
        self.saved_s = read_s

    async def crash(self, kind: CrashKind) -> None:
        """A new process finds the files and makes the wheel anew."""
        flushed = self.log.flushed_position
        on_disk = self.written if kind == "process" else flushed
        self.disk.crash(kind)
        self.log = TimerLog(self.disk, FOLDER, FILE_BYTES)
        self.log.synced(flushed)
        self.wheel = TimerWheel(SLOTS)
        self.read_s = self.saved_s
        found: list[tuple[int, Unit]] = []
        for positions, columns in self.log.scan():
            units = [Unit(*each) for each in columns.tolist()]
            found += zip(positions.tolist(), units, strict=True)
            kept = columns["slot_ms"] >= self.read_s * 1000
            self.wheel.rebuild(columns["slot_ms"][kept], positions[kept])
        # A power loss may have brought a deleted file back.
        deleted = [each for each in self.units if each[0] < self.log.start_position]
        assert found == self.units[len(deleted) :][: len(found)]
        assert self.log.valid_end >= on_disk
        self.crashes[kind, len(deleted + found) < len(self.units)] += 1
        self.log.cut(self.log.valid_end)
        self.units = deleted + found
        self.pending = sorted((each.slot_ms, at) for at, each in found if each.slot_ms >= self.read_s * 1000)
        one_by_one = TimerWheel(SLOTS)
        for position, each in found:
            if each.slot_ms >= self.read_s * 1000:
                assert one_by_one.add(each.slot_ms, position) == each.previous
        assert held(one_by_one) == held(self.wheel)
        await self.save()

    def delete(self) -> None:
        """Remove a file whose units are all done."""
        needed = self.wheel.oldest_position()
        assert needed == min((position for _, position in self.pending), default=-1)
        # What was done since the checkpoint is needed, too: it is read again after a crash.
        unsaved = [at for at, each in self.units if each.slot_ms >= self.saved_s * 1000]
        self.log.delete_before(min(unsaved, default=self.log.flushed_position))

    def check(self) -> None:
        """The wheel holds what the list does."""
        chains: dict[int, list[int]] = {}
        for slot_ms, position in self.pending:
            chains.setdefault(slot_ms, []).append(position)
        assert held(self.wheel) == {at: Slot(chain[0], chain[-1], len(chain)) for at, chain in chains.items()}
        assert (self.wheel.units_total, self.wheel.occupied_total) == (len(self.pending), len(chains))


def held(wheel: TimerWheel) -> dict[int, Slot]:
    """All slots of a wheel that are occupied, in order."""
    return dict(_held(wheel))


def _held(wheel: TimerWheel) -> Iterator[tuple[int, Slot]]:
    at = wheel.next_occupied(0, 1 << 50)
    while at is not None:
        slot = wheel.slot(at)
        assert slot is not None
        yield at, slot
        at = wheel.next_occupied(at + 1, 1 << 50)


STEP = st.one_of(
    st.tuples(st.just("add"), st.integers(0, SLOTS)),
    st.tuples(st.just("add"), st.integers(0, 3)),
    st.tuples(st.just("read"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["pass", "write", "save", "delete", "process", "power"]), st.just(0)),
)


@settings(max_examples=400)
@given(st.lists(STEP, min_size=1, max_size=80), st.integers(0, 1000))
def test_wheel_and_timer_log_are_a_sorted_list(steps: list[tuple[str, int]], seed: int) -> None:
    asyncio.run(run(World(seed), steps))


STEPS = {
    ("add", 0): 12,
    ("add", 1): 12,
    ("add", 9): 12,
    ("add", 16): 12,
    ("read", 3): 9,
    ("pass", 0): 3,
    ("write", 0): 6,
    ("save", 0): 6,
    ("delete", 0): 3,
    ("process", 0): 3,
    ("power", 0): 3,
}


@pytest.mark.parametrize("first_seed", range(0, 100, 20))
def test_long_histories_stay_a_sorted_list(first_seed: int) -> None:
    """What few steps cannot bring about."""
    crashes: Counter[tuple[CrashKind, bool]] = Counter()
    for seed in range(first_seed, first_seed + 20):
        world = World(seed)
        asyncio.run(run(world, random.Random(seed).choices(list(STEPS), list(STEPS.values()), k=200)))
        crashes += world.crashes
    assert len(crashes) == 4, "of both kinds, with and without loss"


async def run(world: World, steps: list[tuple[str, int]]) -> None:
    """Take the steps, and look at everything after each."""
    for step, number in steps:
        match step:
            case "add":
                world.add(number)
            case "read":
                world.read_next(number)
            case "pass":
                world.pass_by()
            case "write":
                world.write()
            case "save":
                await world.save()
            case "delete":
                world.delete()
            case "process":
                await world.crash("process")
            case _:
                await world.crash("power")
        world.check()
    while world.pending:
        world.read_next(3)
    world.check()
