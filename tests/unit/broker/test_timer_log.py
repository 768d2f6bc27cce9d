"""The timer log: files, chains, the bulk scan, torn tails, damage and a full disk (S6, S7)."""

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.delay import timer_log, unit
from popwheel_broker.delay.timer_log import TimerLog
from popwheel_broker.delay.unit import UNIT_BYTES, Unit
from popwheel_common.errors import CorruptDataError
from tests.harness.memory_disk import MemoryDisk

FOLDER = Path("/timerlog")
FILE_BYTES = 500
PER_FILE = 9
"""Nine units are 468 bytes; a tenth and the blank unit have no room."""


class World:
    """A log on a disk, with a memory of what was appended."""

    def __init__(self, file_bytes: int = FILE_BYTES) -> None:
        self.disk = MemoryDisk(random.Random(0))
        self.file_bytes = file_bytes
        self.log = TimerLog(self.disk, FOLDER, file_bytes)
        self.appended: dict[int, Unit] = {}

    def append(self, count: int, chain_length: int = 1) -> list[int]:
        """Append units, each chained to the one `chain_length` before it."""
        places = []
        for _ in range(count):
            number = len(self.appended)
            before = list(self.appended)[-chain_length:]
            previous = before[0] if len(before) == chain_length else -1
            each = Unit(previous, 1, 5000 + number, 9000 + number, 9000, 100 * number, 100, 7)
            expected = self.log.next_position
            places.append(self.log.append(each))
            assert places[-1] == expected
            self.appended[places[-1]] = each
        return places

    def save(self) -> None:
        """Bring all to the device."""
        asyncio.run(self._save())

    async def _save(self) -> None:
        end = self.log.end_position
        for file in self.log.write():
            await file.sync()
        if self.log.names_changed:
            self.log.names_changed = False
            await self.disk.sync_folder(FOLDER)
        self.log.synced(end)
        assert self.log.flushed_position == end
        assert self.log.write() == []

    def reopen(self, file_bytes: int = FILE_BYTES) -> dict[int, Unit]:
        """A new process finds the files, reads and cuts them."""
        self.log = TimerLog(self.disk, FOLDER, file_bytes)
        found = scanned(self.log)
        self.log.cut(self.log.valid_end)
        assert self.log.end_position == self.log.valid_end
        return found

    @property
    def file_starts(self) -> list[int]:
        """Position at which each file begins."""
        return [int(Path(name).stem) for name in self.disk.list(FOLDER)]

    def path(self, start: int) -> Path:
        return FOLDER / f"{start:020d}.timerlog"


def scanned(log: TimerLog) -> dict[int, Unit]:
    """What the bulk scan finds."""
    found: dict[int, Unit] = {}
    for positions, units in log.scan():
        assert len(positions) == len(units) > 0
        found |= {place: Unit(*each) for place, each in zip(positions.tolist(), units.tolist(), strict=True)}
    return found


def chained(log: TimerLog, position: int, count: int = 1000) -> list[tuple[int, Unit]]:
    """A whole chain, read in parts."""
    found: list[tuple[int, Unit]] = []
    while position >= 0:
        part, position = log.read_chain(position, count)
        assert 0 < len(part) <= count
        found += part
    return found


@pytest.mark.parametrize("count", [0, 1, PER_FILE - 1, PER_FILE, PER_FILE + 1, 2 * PER_FILE, 5 * PER_FILE + 3])
@pytest.mark.parametrize("written", [False, True])
def test_all_that_was_appended_is_scanned(count: int, written: bool) -> None:
    world = World()
    world.append(count)
    if written:
        world.log.write()
    assert scanned(world.log) == world.appended
    assert world.log.valid_end == world.log.end_position
    if written:
        assert world.reopen() == world.appended
        world.append(PER_FILE + 2)
        world.log.write()
        assert world.reopen() == world.appended


@pytest.mark.parametrize("file_bytes", [68, 69, 119, 120, 121, 500, 520, 535, 536])
def test_files_begin_where_the_one_before_ends(file_bytes: int) -> None:
    world = World(file_bytes)
    world.append(50)
    assert world.file_starts == list(range(0, world.file_starts[-1] + 1, file_bytes))
    world.log.write()
    for start in world.file_starts[:-1]:
        assert world.disk.open(world.path(start)).size() == file_bytes
    assert world.reopen(file_bytes) == world.appended


@pytest.mark.parametrize("other_bytes", [68, 100, 700, 10_000])
def test_files_of_another_size_go_on(other_bytes: int) -> None:
    world = World()
    world.append(2 * PER_FILE + 4)
    world.log.write()
    assert world.reopen(other_bytes) == world.appended
    world.append(30)
    world.log.write()
    assert world.reopen() == world.appended
    world.append(30)
    assert scanned(world.log) == world.appended


def test_a_file_too_small_for_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="68 bytes at the least"):
        World(67)


@given(
    batches=st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=6),
    chains=st.integers(1, 12),
    count=st.integers(1, 20),
)
def test_chains_are_followed_in_memory_and_files(batches: list[tuple[int, bool]], chains: int, count: int) -> None:
    world = World()
    for size, written in batches:
        world.append(size, chains)
        if written:
            world.log.write()
    for place in world.appended:
        expected = []
        at = place
        while at >= 0:
            expected.append((at, world.appended[at]))
            at = world.appended[at].previous
        assert chained(world.log, place, count) == expected


@pytest.mark.parametrize("apart", [1, 7, 63, 65, 1000])
def test_chains_are_followed_however_far_apart_their_units_stand(apart: int) -> None:
    world = World(300_000)
    previous: dict[int, int] = {}
    expected: list[int] = []
    for number in range(9000):
        chain = number % apart
        each = Unit(previous.get(chain, -1), 1, 0, 0, 0, number, 1, 1)
        previous[chain] = world.log.append(each)
        if chain == 0:
            expected.append(previous[chain])
    assert [place for place, _ in chained(world.log, expected[-1])] == expected[::-1]


def test_a_chain_is_read_as_far_as_is_asked() -> None:
    world = World()
    places = world.append(5)
    assert world.log.read_chain(-1, 10) == ([], -1)
    assert world.log.read_chain(places[4], 0) == ([], places[4])
    assert world.log.read_chain(places[4], 2) == (
        [(places[4], world.appended[places[4]]), (places[3], world.appended[places[3]])],
        places[2],
    )


@pytest.mark.parametrize("position", [3, 52 * 400, 477])
def test_where_no_unit_stands_none_is_read(position: int) -> None:
    world = World()
    world.append(20)
    with pytest.raises(CorruptDataError):
        world.log.read_chain(position, 1)


def test_a_unit_that_follows_itself_is_damage() -> None:
    world = World()
    world.log.append(Unit(-1, 1, 0, 0, 0, 0, 1, 1))
    world.log.append(Unit(52, 1, 0, 0, 0, 0, 1, 1))
    with pytest.raises(CorruptDataError, match="follows itself"):
        world.log.read_chain(52, 10)


def test_a_chain_into_a_removed_file_is_damage() -> None:
    world = World()
    places = world.append(2 * PER_FILE)
    world.save()
    assert world.log.delete_before(FILE_BYTES) == 1
    with pytest.raises(CorruptDataError, match="which begins at 500"):
        chained(world.log, places[-1])


def test_the_tail_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_log, "_TAIL_BYTES", 4 * UNIT_BYTES)
    world = World(10_000)
    world.append(11)
    assert world.disk.open(world.path(0)).size() == 8 * UNIT_BYTES
    assert scanned(world.log) == world.appended
    assert len(chained(world.log, 10 * UNIT_BYTES)) == 11


@pytest.mark.parametrize("scan_units", [1, 2, 4, 9, 100])
def test_chunks_end_anywhere(scan_units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_log, "_SCAN_BYTES", scan_units * UNIT_BYTES)
    world = World()
    world.append(3 * PER_FILE + 2)
    assert scanned(world.log) == world.appended
    assert max(len(positions) for positions, _ in world.log.scan()) == min(scan_units, PER_FILE)
    world.log.write()
    for length in range(2 * FILE_BYTES, 2 * FILE_BYTES + PER_FILE * UNIT_BYTES, 13):
        copy = World()
        for start in world.file_starts:
            copy.disk.open(world.path(start)).write(0, [world.disk.open(world.path(start)).read(0, 10_000)])
        copy.disk.open(world.path(1000)).truncate(length - 1000)
        found = copy.reopen()
        assert found == {place: each for place, each in world.appended.items() if place + UNIT_BYTES <= length}


@pytest.mark.parametrize("damaged", [0, 3, PER_FILE - 1, PER_FILE, 2 * PER_FILE + 4])
@pytest.mark.parametrize("bit", [0, 200, 415])
def test_the_scan_stops_before_damage_and_the_rest_is_cut(damaged: int, bit: int) -> None:
    world = World()
    places = world.append(3 * PER_FILE)
    world.save()
    at = places[damaged]
    start = at - at % FILE_BYTES
    world.disk.flip_bit(world.path(start), (at - start) * 8 + bit)
    with pytest.raises(CorruptDataError):
        world.log.read_chain(at, 1)
    whole = dict(list(world.appended.items())[:damaged])
    assert world.reopen() == whole
    assert world.log.end_position == at
    assert world.file_starts == list(range(0, start + 1, FILE_BYTES))
    world.appended = whole
    world.save()
    world.append(2 * PER_FILE)
    world.save()
    assert world.reopen() == world.appended


def test_a_damaged_blank_unit_ends_the_scan() -> None:
    world = World()
    places = world.append(2 * PER_FILE)
    world.save()
    world.disk.flip_bit(world.path(0), (places[PER_FILE - 1] + UNIT_BYTES) * 8 + 31)
    assert list(world.reopen()) == places[:PER_FILE]
    assert world.log.end_position == PER_FILE * UNIT_BYTES


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_file_ends_the_scan(missing: int) -> None:
    world = World()
    places = world.append(3 * PER_FILE)
    world.log.write()
    world.disk.remove(world.path(missing * FILE_BYTES))
    found = world.reopen()
    if missing:
        assert list(found) == places[: missing * PER_FILE]
        assert world.log.end_position == places[missing * PER_FILE - 1] + UNIT_BYTES
    else:
        # The oldest may have been removed on purpose.
        assert list(found) == places[PER_FILE:]


def test_nothing_is_appended_to_what_was_found_before_it_is_cut() -> None:
    world = World()
    world.append(2)
    world.log.write()
    world.log = TimerLog(world.disk, FOLDER, FILE_BYTES)
    with pytest.raises(ValueError, match="was not cut"):
        world.append(1)
    assert len(world.reopen()) == 2
    world.append(1)


@given(count=st.integers(0, 30), at=st.integers(0, 30), more=st.integers(0, 30), written=st.booleans())
def test_it_is_cut_anywhere(count: int, at: int, more: int, written: bool) -> None:
    world = World()
    places = [*world.append(count), world.log.next_position]
    if written:
        world.log.write()
    at = min(at, count)
    position = places[at] if at < count else world.log.end_position
    world.log.cut(position)
    assert world.log.end_position == position
    world.appended = dict(list(world.appended.items())[:at])
    assert scanned(world.log) == world.appended
    world.append(more)
    assert scanned(world.log) == world.appended
    world.save()
    assert world.reopen() == world.appended


def test_it_is_not_cut_behind_its_end() -> None:
    world = World()
    world.append(1)
    with pytest.raises(ValueError, match="ends at 52"):
        world.log.cut(53)


def test_what_was_cut_off_is_synced_before_it_counts() -> None:
    world = World()
    world.append(5)
    world.save()
    world.log.cut(2 * UNIT_BYTES)
    assert world.log.flushed_position == 2 * UNIT_BYTES
    assert len(world.log.write()) == 1
    world.save()
    world.disk.crash("power")
    assert len(world.reopen()) == 2


def test_reset_begins_anew_further_on() -> None:
    world = World()
    world.append(25)
    world.log.write()
    world.log.reset(70_000)
    assert world.file_starts == []
    assert (world.log.start_position, world.log.end_position, world.log.flushed_position) == (70_000, 70_000, 70_000)
    assert scanned(world.log) == {}
    world.appended.clear()
    assert world.append(12)[0] == 70_000
    world.save()
    assert world.reopen() == world.appended
    assert world.file_starts == [70_000, 70_500]


def test_files_are_deleted_one_at_a_time_and_only_what_is_synced() -> None:
    world = World()
    world.append(4 * PER_FILE)
    world.log.write()
    assert world.log.delete_before(10_000) == 0
    world.save()
    assert world.log.delete_before(FILE_BYTES - 1) == 0
    assert world.log.delete_before(10_000) == 1
    assert world.log.delete_before(10_000) == 0, "the name is not synced"
    world.save()
    assert world.log.delete_before(10_000) == 1
    world.save()
    assert world.log.delete_before(10_000) == 1
    world.save()
    assert world.log.delete_before(10_000) == 0, "the last one stays"
    assert world.log.start_position == 3 * FILE_BYTES
    assert list(world.reopen()) == list(world.appended)[3 * PER_FILE :]


@pytest.mark.parametrize("reopened", [False, True])
def test_files_go_when_all_their_slots_are_done(reopened: bool) -> None:
    """The slot that is latest counts, wherever in its file the unit stands."""
    world = World()
    for latest_s in (30, 10, 20):
        for second in [5, latest_s, *[6] * (PER_FILE - 2)]:
            world.log.append(Unit(-1, 1, 0, second * 1000, second * 1000, 0, 1, 1))
    if reopened:
        world.log.write()
        world.reopen()
    world.save()
    assert world.log.delete_done(30_000) == 0
    assert world.log.delete_done(30_001) == 1
    world.save()
    assert world.log.delete_done(10_000) == 0
    assert world.log.delete_done(10_001) == 1
    world.save()
    assert world.log.delete_done(1 << 50) == 0, "the last one stays"


def test_only_files_that_changed_are_to_be_synced() -> None:
    world = World()
    world.append(2 * PER_FILE - 2)
    assert len(world.log.write()) == 2
    assert len(world.log.write()) == 2, "nobody said that they were synced"
    world.save()
    world.append(1)
    end = world.log.end_position
    assert len(world.log.write()) == 1
    world.append(1)
    world.log.write()
    world.log.synced(end)
    assert len(world.log.write()) == 1, "more was written since"
    world.log.synced(world.log.end_position)
    assert world.log.write() == []


def test_what_was_found_is_synced_unless_a_checkpoint_says_that_it_was() -> None:
    world = World()
    world.append(2 * PER_FILE)
    world.log.write()
    world.reopen()
    assert world.log.names_changed
    assert len(world.log.write()) == 2
    world.log.synced(FILE_BYTES)
    assert len(world.log.write()) == 1
    world.log.synced(1 << 60)
    assert world.log.flushed_position == world.log.end_position


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_failed_write_loses_and_adds_nothing(failures: int) -> None:
    world = World()
    world.append(PER_FILE)
    world.disk.fail_writes(failures)
    for _ in range(failures):
        with pytest.raises(OSError, match="error"):
            world.append(1)
    assert scanned(world.log) == world.appended
    world.append(1)
    world.append(3)
    world.disk.fail_writes(failures)
    for _ in range(failures):
        with pytest.raises(OSError, match="error"):
            world.log.write()
    assert scanned(world.log) == world.appended
    world.save()
    assert world.reopen() == world.appended


def test_a_file_that_cannot_be_made_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.append(PER_FILE)
    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "open", _fail)
        for _ in range(2):
            with pytest.raises(OSError, match="no more files"):
                world.append(1)
        assert world.log.next_position == FILE_BYTES
        assert scanned(world.log) == world.appended
        world.log.cut(world.log.end_position)
    assert world.append(1) == [FILE_BYTES]
    world.save()
    assert world.reopen() == world.appended


def _fail(path: Path) -> None:
    raise OSError("no more files")


def test_columns_are_plain_numbers() -> None:
    world = World()
    world.append(3)
    [(positions, units)] = world.log.scan()
    assert positions.dtype == np.int64
    assert units.dtype == unit.COLUMNS_DTYPE
    assert units["slot_ms"].tolist() == [9000] * 3
