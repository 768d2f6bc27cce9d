"""The timer wheel: chains by second, the search for the next, bulk making, and the file that it is compared by."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.delay.wheel import SLOT_BYTES, Slot, TimerWheel
from tests.harness.memory_disk import MemoryDisk

FOLDER = Path("/timer")
PATH = FOLDER / "timerwheel"
FIRST_S = 1_700_000_000


def slots_of(wheel: TimerWheel) -> dict[int, Slot]:
    """All that a wheel holds, found by search."""
    found: dict[int, Slot] = {}
    at = wheel.next_occupied(0, 1 << 50)
    while at is not None:
        slot = wheel.slot(at)
        assert slot is not None
        found[at] = slot
        at = wheel.next_occupied(at + 1, 1 << 50)
    assert wheel.occupied_total == len(found)
    assert wheel.units_total == sum(slot.count for slot in found.values())
    return found


def added(units: list[tuple[int, int]], slots: int = 16) -> TimerWheel:
    wheel = TimerWheel(slots)
    for slot_ms, position in units:
        wheel.add(slot_ms, position)
    return wheel


def add_in_bulk(wheel: TimerWheel, units: list[tuple[int, int]]) -> None:
    """What `added` does, in one step."""
    wheel.rebuild(np.array([each[0] for each in units], np.int64), np.array([each[1] for each in units], np.int64))


def test_units_of_one_second_are_chained() -> None:
    wheel = TimerWheel(16)
    assert [wheel.add(5000, position) for position in (0, 52, 520)] == [-1, 0, 52]
    assert wheel.add(6000, 572) == -1
    assert wheel.slot(5000) == Slot(0, 520, 3)
    assert (wheel.last(5000), wheel.last(6000), wheel.last(7000), wheel.last(21_000)) == (520, 572, -1, -1)
    assert (wheel.occupied_total, wheel.units_total) == (2, 4)
    assert wheel.slot(7000) is None


def test_a_slot_belongs_to_one_time_at_a_time() -> None:
    wheel = TimerWheel(16)
    wheel.add(5000, 0)
    assert (wheel.holds(5000), wheel.holds(21_000)) == (True, False)
    assert wheel.slot(21_000) is None
    with pytest.raises(ValueError, match="the slot of 21000 has units of 5000"):
        wheel.add(21_000, 52)
    wheel.clear(21_000)
    assert slots_of(wheel) == {5000: Slot(0, 0, 1)}
    wheel.clear(5000)
    assert wheel.add(21_000, 52) == -1
    assert slots_of(wheel) == {21_000: Slot(52, 52, 1)}


def test_time_zero_is_a_time() -> None:
    wheel = TimerWheel(16)
    assert not wheel.holds(0)
    wheel.add(0, 0)
    assert wheel.holds(0)
    assert wheel.next_occupied(0, 1) == 0
    wheel.rebuild(np.array([0]), np.array([52]))
    assert wheel.slot(0) == Slot(0, 52, 2)


@given(
    seconds=st.sets(st.integers(0, 40), max_size=16),
    begin=st.integers(0, 45_000),
    length=st.integers(0, 60_000),
    offset=st.integers(0, 16),
)
def test_the_next_is_found_wherever_the_search_begins(seconds: set[int], begin: int, length: int, offset: int) -> None:
    wheel = TimerWheel(16)
    held: set[int] = set()
    for second in seconds:
        at = (second + offset) * 1000
        if at // 1000 % 16 not in {each // 1000 % 16 for each in held}:
            wheel.add(at, second)
            held.add(at)
    expected = min((at for at in held if begin <= at < begin + length), default=None)
    assert wheel.next_occupied(begin, begin + length) == expected


@pytest.mark.parametrize("slots", [100_000, 65_536])
@pytest.mark.parametrize("ahead_s", [0, 1, 4, 5, 6, 16_383, 16_384, 16_390, 65_535, 99_999, 150_000])
def test_the_next_is_found_far_ahead(slots: int, ahead_s: int) -> None:
    wheel = TimerWheel(slots)
    at = (FIRST_S + ahead_s) * 1000
    wheel.add(at, 0)
    wheel.add(at - 1000 * (ahead_s + 7), 52)
    assert wheel.next_occupied(FIRST_S * 1000, at) is None
    assert wheel.next_occupied(FIRST_S * 1000, at + 1) == at
    assert wheel.next_occupied(FIRST_S * 1000, at + 10**12) == at
    assert wheel.next_occupied(at + 1, at + 10**12) is None


def test_an_empty_wheel_has_no_next() -> None:
    assert TimerWheel(16).next_occupied(0, 1 << 50) is None


def test_the_oldest_unit_is_known() -> None:
    wheel = TimerWheel(16)
    assert wheel.oldest_position() == -1
    for number, second in enumerate((9, 3, 5, 9)):
        wheel.add(second * 1000, number * 52)
    assert wheel.oldest_position() == 0
    wheel.clear(9000)
    assert wheel.oldest_position() == 52


@given(
    steps=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 6)), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    known=st.integers(0, 60),
)
def test_in_bulk_comes_the_same_as_one_by_one(steps: list[tuple[int, int]], cuts: list[int], known: int) -> None:
    """Seconds pass between the units and are cleared, so that the wheel comes round."""
    now_s = 0
    wheel = TimerWheel(16)
    units: list[tuple[int, int]] = []
    for ahead, passed in steps:
        slot_ms = (now_s + ahead) * 1000
        units.append((slot_ms, 52 * len(units)))
        wheel.add(*units[-1])
        for second in range(now_s, now_s + passed):
            wheel.clear(second * 1000)
        now_s += passed
    bulk = TimerWheel(16)
    edges = [0, *sorted(min(cut, len(units)) for cut in cuts), len(units)]
    for begin, end in itertools.pairwise(edges):
        part = [each for each in units[begin:end] if each[0] >= now_s * 1000]
        add_in_bulk(bulk, part)
    assert slots_of(bulk) == slots_of(wheel)
    # Units of seconds that are done may be among them: the later time has the slot.
    everything = added([])
    add_in_bulk(everything, units)
    for second in range(now_s):
        everything.clear(second * 1000)
    assert slots_of(everything) == slots_of(wheel)
    parts = added([])
    for part in (units[:known], units[known:]):
        add_in_bulk(parts, part)
    for second in range(now_s):
        parts.clear(second * 1000)
    assert slots_of(parts) == slots_of(wheel)


@given(
    before=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 1)), max_size=20),
    after=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=40),
)
def test_of_two_times_the_later_has_the_slot(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    units = [((second + 8 * turn) * 1000, 52 * place) for place, (second, turn) in enumerate([*before, *after])]
    wheel = TimerWheel(8)
    for part in (units[: len(before)], units[len(before) :]):
        add_in_bulk(wheel, part)
    expected: dict[int, list[int]] = {}
    for slot_ms, position in units:
        if slot_ms == max(other for other, _ in units if (other - slot_ms) % 8000 == 0):
            expected.setdefault(slot_ms, []).append(position)
    assert slots_of(wheel) == {at: Slot(held[0], held[-1], len(held)) for at, held in expected.items()}


def test_columns_of_a_table_are_taken_as_they_are() -> None:
    table = np.zeros(4, [("other", np.uint32), ("slot", np.int64)])
    table["slot"] = [3000, 2000, 3000, 3000]
    wheel = TimerWheel(16)
    wheel.rebuild(table["slot"], np.array([0, 52, 104, 156]))
    assert slots_of(wheel) == {2000: Slot(52, 52, 1), 3000: Slot(0, 156, 3)}


class FileWorld:
    """A wheel of several blocks and its file."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(random.Random(0))
        self.disk.make_folder(FOLDER)
        self.file = self.disk.open(PATH)
        self.wheel = TimerWheel(1000)

    def read(self) -> tuple[bool, dict[int, Slot]]:
        """What another wheel finds in the file."""
        found = TimerWheel(1000)
        return found.read(self.file), slots_of(found)


def test_what_is_written_is_read() -> None:
    world = FileWorld()
    for second in (0, 1, 127, 128, 500, 999):
        world.wheel.add(second * 1000, second * 52)
    world.wheel.write(world.file)
    assert world.file.size() == 1000 * SLOT_BYTES
    assert world.read() == (True, slots_of(world.wheel))
    world.wheel.add(500_000, 52_000)
    world.wheel.clear(127_000)
    world.wheel.clear(999_000)
    world.wheel.add(1_999_000, 52_052)
    world.wheel.write(world.file)
    assert world.read() == (True, slots_of(world.wheel))
    changes = world.file._inode.changes
    world.wheel.write(world.file)
    assert world.file._inode.changes == changes, "what was written is not written again"
    assert world.read() == (True, slots_of(world.wheel))


def test_only_blocks_that_changed_are_written() -> None:
    world = FileWorld()
    world.wheel.add(1000, 0)
    world.wheel.add(999_000, 0)
    world.wheel.write(world.file)
    before = world.disk.unsynced_bytes
    assert before == 4096 + (1000 - 7 * 128) * SLOT_BYTES
    world.wheel.write(world.file)
    assert world.disk.unsynced_bytes == before
    world.wheel.add(300_000, 52)
    world.wheel.write(world.file)
    assert world.disk.unsynced_bytes == before + 4096


def test_a_wheel_that_was_made_anew_begins_the_file_anew() -> None:
    world = FileWorld()
    world.wheel.add(1000, 0)
    world.wheel.write(world.file)
    world.wheel = TimerWheel(1000)
    world.wheel.rebuild(np.array([700_000]), np.array([52]))
    world.wheel.write(world.file)
    assert world.read() == (True, {700_000: Slot(52, 52, 1)})
    world.wheel.clear_all()
    world.wheel.write(world.file)
    assert world.read() == (True, {})


def test_a_wheel_that_was_read_goes_on_with_the_file() -> None:
    world = FileWorld()
    world.wheel.add(1000, 0)
    world.wheel.write(world.file)
    world.wheel = TimerWheel(1000)
    world.wheel.add(2000, 0)
    assert world.wheel.read(world.file)
    world.wheel.add(3000, 52)
    world.wheel.write(world.file)
    assert world.read() == (True, {1000: Slot(0, 0, 1), 3000: Slot(52, 52, 1)})


@pytest.mark.parametrize("bit", [7, 31 * 8, 28 * 8])
@pytest.mark.parametrize("slot", [1, 2])
def test_a_damaged_file_is_reported(slot: int, bit: int) -> None:
    """Of an empty slot every bit, of another those that a glance at it shows; the wheel is not made from it."""
    world = FileWorld()
    world.wheel.add(1000, 5200)
    world.wheel.write(world.file)
    world.disk.flip_bit(PATH, slot * SLOT_BYTES * 8 + bit)
    assert world.read() == (False, {})


@pytest.mark.parametrize("size", [0, 1, 31_999])
def test_a_short_file_is_reported(size: int) -> None:
    world = FileWorld()
    world.wheel.write(world.file)
    world.file.truncate(size)
    assert world.read() == (False, {})


def test_what_a_failed_write_left_is_written_the_next_time() -> None:
    world = FileWorld()
    for second in (1, 300, 999):
        world.wheel.add(second * 1000, 52)
    for _ in range(3):
        world.disk.fail_writes(1)
        with pytest.raises(OSError, match="error"):
            world.wheel.write(world.file)
    world.wheel.write(world.file)
    assert world.read() == (True, slots_of(world.wheel))


def test_the_whole_wheel_has_the_size_of_the_articles() -> None:
    wheel = TimerWheel()
    assert wheel.slots == 1_209_600
    assert wheel.span_ms == 14 * 24 * 3600 * 1000
