"""Consume queues: memory and files give the same entries, and files that are lost or short are told (S6)."""

import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_broker.log import index_file
from popwheel_broker.log.consume_queue import ConsumeQueue, Entry, packed_entry
from popwheel_broker.log.index_file import ENTRY_BYTES, Run, key_of
from popwheel_broker.log.queue_index import QueueIndex
from popwheel_common.cold_reads import NotInMemory
from popwheel_common.errors import CorruptDataError, UnknownFormatError
from tests.harness.memory_disk import MemoryDisk, MemoryFile
from tests.unit.broker.index_bytes import index_files, rot_entry
from tests.unit.broker.world import run_now

FOLDER = Path("/index")


class World:
    """Some queues on one index; their records stand one behind the other, ten bytes each."""

    def __init__(self, queues: int = 3, entries_max: int = 1000, in_memory: int = 8) -> None:
        self.disk = MemoryDisk(random.Random(0))
        self.entries_max = entries_max
        self.index = QueueIndex(self.disk, FOLDER, entries_max, in_memory)
        self.queues = [ConsumeQueue(self.index, "t", number) for number in range(queues)]
        self.entries: list[list[Entry]] = [[] for _ in self.queues]
        self.end = 0
        self.saved = 0

    def arrive(self, number: int, count: int = 1) -> None:
        for _ in range(count):
            entry = Entry(self.end, 10, len(self.entries[number]) % 5)
            self.queues[number].extend(packed_entry(*entry))
            self.entries[number].append(entry)
            self.end += 10

    def save(self) -> None:
        run_now(self.index.write(dict.fromkeys(self.queues), self.end))
        run_now(self.index.merge(self.saved))
        self.saved = self.end

    def read_all(self, number: int, step: int = 1000) -> list[Entry]:
        queue = self.queues[number]
        found: list[Entry] = []
        at = queue.min_offset
        while at < queue.max_offset:
            part = queue.read(at, step)
            assert len(part) == min(step, queue.max_offset - at)
            found += part
            at += len(part)
        return found

    def again(self, log_start: int = 0) -> list[tuple[int, int]]:
        """A new process, with what was saved; which ranges have no file."""
        self.index = QueueIndex(self.disk, FOLDER, self.entries_max, 8)
        gaps = self.index.load(log_start, self.saved)
        for number, queue in enumerate(self.queues):
            saved = sum(entry.position < self.saved for entry in self.entries[number])
            self.queues[number] = ConsumeQueue(self.index, "t", number)
            self.queues[number].restore(queue.begin_offset, saved)
        return gaps


ARRIVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12)), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(
    arrivals=ARRIVALS,
    saved=st.sets(st.integers(0, 11)),
    in_memory=st.integers(0, 10),
    step=st.integers(1, 50),
    entries_max=st.sampled_from([2, 10, 1000]),
    gone=st.floats(0, 1),
)
def test_memory_and_files_give_the_same(
    arrivals: list[tuple[int, int]], saved: set[int], in_memory: int, step: int, entries_max: int, gone: float
) -> None:
    world = World(3, entries_max, in_memory)
    for number, (to, count) in enumerate(arrivals):
        world.arrive(to, count)
        if number in saved:
            world.save()
    start = int(gone * world.end)
    world.index.forget_before(start)
    for number, (queue, entries) in enumerate(zip(world.queues, world.entries, strict=True)):
        held = [entry for entry in entries if entry.position >= start]
        assert queue.min_offset == len(entries) - len(held)
        assert world.read_all(number, step) == held
        assert queue.read(len(entries), 5) == queue.read(len(entries) + 5, 5) == queue.read(0, 0) == []
        for position in range(0, world.end, 7):
            wanted = max(position, start)
            expected = next((at for at, entry in enumerate(entries) if entry.position >= wanted), len(entries))
            assert queue.first_at_or_after(position) == expected
    world.save()
    assert world.again(start) == []
    for number, entries in enumerate(world.entries):
        assert world.read_all(number, step) == [entry for entry in entries if entry.position >= start]


def test_what_was_written_after_the_checkpoint_that_counts_is_dropped() -> None:
    world = World()
    world.arrive(0, 5)
    world.save()
    world.arrive(0, 5)
    run_now(world.index.write(dict.fromkeys(world.queues), world.end))
    assert world.again() == []
    assert world.read_all(0) == world.entries[0][:5]
    assert len(index_files(world.disk)) == 1


def test_what_a_queue_holds_is_reported_once_its_range_was_made_again() -> None:
    """Who asks before that must not have it taken for empty, nor for beginning with what arrives next."""
    world = World()
    world.arrive(0, 8)
    world.save()
    for path in index_files(world.disk):
        world.disk.remove(path)
    (gap,) = world.again(20)
    queue = world.queues[0]
    assert queue.min_offset == 0
    with pytest.raises(CorruptDataError, match="not made again yet"):
        queue.first_at_or_after(20)
    world.index.add(*gap, [Run(key_of("t", 0), 2, b"".join(packed_entry(*each) for each in world.entries[0][2:]))])
    world.arrive(0, 1)
    assert world.read_all(0) == world.entries[0][2:]
    world.index.forget_before(45)
    assert world.read_all(0) == world.entries[0][5:]


@pytest.mark.parametrize("harm", ["removed", "shortened", "emptied", "rotten"])
@pytest.mark.parametrize("file", [0, 1, 2])
def test_a_range_without_a_whole_file_is_reported(harm: str, file: int) -> None:
    world = World(entries_max=2)  # none are merged
    for _ in range(3):
        world.arrive(0, 4)
        world.save()
    path = index_files(world.disk)[file]
    if harm == "removed":
        world.disk.remove(path)
    elif harm == "rotten":
        world.disk.flip_bit(path, 8 * 40)
    else:
        opened = world.disk.open(path)
        opened.truncate(0 if harm == "emptied" else opened.size() - 1)
    assert world.again() == [(file * 40, file * 40 + 40)]
    assert len(index_files(world.disk)) == 2


def test_what_retention_takes_while_it_is_brought_to_the_device_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(entries_max=2)
    world.arrive(0, 4)
    world.save()
    world.arrive(0, 4)
    world.save()
    world.disk.remove(index_files(world.disk)[0])
    assert world.again() == [(0, 40)]
    world.index.add(0, 40, [Run(key_of("t", 0), 0, b"".join(packed_entry(*each) for each in world.entries[0][:4]))])
    sync = MemoryFile.sync

    async def sync_while_the_log_is_cut(file: MemoryFile) -> None:
        await sync(file)
        world.index.forget_before(40)

    monkeypatch.setattr(MemoryFile, "sync", sync_while_the_log_is_cut)
    world.arrive(0, 4)
    world.save()
    assert world.index.failed is None
    assert [(file.begin, file.end) for file in world.index.files] == [(40, 80), (80, 120)]
    assert len(index_files(world.disk)) == 2


def test_small_neighbours_are_merged_so_that_there_are_few() -> None:
    world = World(entries_max=10_000)
    for number in range(200):
        world.arrive(number % 3)
        world.save()
    sizes = [file.entries for file in world.index.files]
    assert sum(sizes) == 200
    assert len(sizes) < 12
    assert len(index_files(world.disk)) == len(sizes)
    assert [world.read_all(number) for number in range(3)] == world.entries


def test_an_old_entry_is_found_with_few_looks_where_there_are_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(queues=2, entries_max=2, in_memory=0)
    for number in range(256):
        world.arrive(0, 2)
        world.arrive(1, number % 100 == 0)
        world.save()
    assert len(world.index.files) >= 256
    looks: list[index_file.IndexFile] = []
    find = index_file.IndexFile.find

    def counted(file: index_file.IndexFile, key: bytes) -> index_file.Row | None:
        looks.append(file)
        return find(file, key)

    monkeypatch.setattr(index_file.IndexFile, "find", counted)
    assert world.queues[0].read(3, 1) == world.entries[0][3:4]
    assert len(looks) < 10
    assert world.read_all(0) == world.entries[0]
    looks.clear()
    assert world.queues[1].read(1, 1) == world.entries[1][1:2]
    assert len(looks) == len(set(looks)), "a file that says nothing of the queue is looked at once"


def test_who_had_to_give_up_looks_into_no_file_again_that_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(queues=2, entries_max=2, in_memory=0)
    for number in range(129):
        world.arrive(0, 2)
        world.arrive(1, number in (0, 100, 128))
        world.save()
    left, find = 10, index_file.IndexFile._find
    looks = 0

    def given_up(file: index_file.IndexFile, key: bytes) -> index_file.Row | None:
        nonlocal left, looks
        left, looks = left - 1, looks + 1
        if left < 0:
            raise NotInMemory([])
        return find(file, key)

    monkeypatch.setattr(index_file.IndexFile, "_find", given_up)
    for _ in range(20):
        left = 10
        with suppress(NotInMemory):
            assert world.queues[1].read(1, 1) == world.entries[1][1:2]
            break
    else:
        pytest.fail("it never came to the end")
    assert looks < 150


def test_what_is_merged_does_not_outgrow_its_limit() -> None:
    world = World(entries_max=20)
    for number in range(60):
        world.arrive(number % 3)
        world.save()
    assert max(file.entries for file in world.index.files) <= 20
    assert world.again() == []
    assert [world.read_all(number) for number in range(3)] == world.entries


def test_a_file_remembers_only_that_many_queues_that_it_has_not() -> None:
    world = World()
    world.arrive(0)
    world.save()
    (file,) = world.index.files
    for number in range(2 * index_file.ABSENT_MAX):
        for _ in range(2):
            assert file.find(index_file.key_of("other", number)) is None
        assert file.absent == min(number + 1, index_file.ABSENT_MAX)


def test_files_that_were_merged_do_not_count_twice_after_a_crash() -> None:
    world = World()
    for _ in range(2):
        world.arrive(0)
        world.save()
    before = {path: world.disk.files()[path] for path in index_files(world.disk)}
    world.arrive(0)
    world.save()
    for path, contents in before.items():
        world.disk.open(path).write(0, [bytes(contents)])  # their removal was not on the device
    assert world.again() == []
    assert world.read_all(0) == world.entries[0]


def test_damage_is_notified_and_its_file_is_not_merged() -> None:
    world = World(in_memory=0)
    world.arrive(0, 4)
    world.save()
    world.arrive(1, 4)
    world.save()
    rot_entry(world.disk, world.entries[0][2], 159)  # of the tag's hash
    with pytest.raises(CorruptDataError, match="is damaged at byte"):
        world.queues[0].read(0, 4)
    for _ in range(3):
        world.arrive(1, 4)
        world.save()
    assert world.read_all(1) == world.entries[1]
    with pytest.raises(CorruptDataError, match="is damaged at byte"):
        world.queues[0].read(0, 4)


def test_damage_that_a_merge_meets_leaves_the_files_as_they_are() -> None:
    world = World(in_memory=0)
    world.arrive(0, 4)
    world.save()
    rot_entry(world.disk, world.entries[0][2], 0)
    for _ in range(3):
        world.arrive(1, 4)
        world.save()
    assert world.read_all(1) == world.entries[1]


def test_a_deleted_topic_of_the_same_name_is_not_read() -> None:
    world = World(1, in_memory=0)
    world.arrive(0, 3)
    world.save()
    world.queues[0] = ConsumeQueue(world.index, "t", 0, 3)  # goes on where the one before ended
    world.entries[0].clear()
    world.arrive(0, 2)
    world.save()
    world.save()
    assert (world.queues[0].min_offset, world.read_all(0)) == (3, world.entries[0])
    world.queues[0] = ConsumeQueue(world.index, "t", 0, 9)
    world.entries[0].clear()
    world.arrive(0, 2)
    world.save()
    world.save()
    assert (world.queues[0].min_offset, world.read_all(0)) == (9, world.entries[0])


def test_it_begins_anywhere() -> None:
    world = World(1)
    world.queues[0].begin_at(37)
    assert (world.queues[0].min_offset, world.queues[0].max_offset) == (37, 37)
    world.arrive(0)
    world.save()
    assert (world.queues[0].min_offset, world.read_all(0)) == (37, world.entries[0])


def test_the_window_keeps_what_is_not_written_and_some_of_what_is_as_long_as_messages_come() -> None:
    world = World(2, in_memory=8)
    world.arrive(0, 100)
    queue = world.queues[0]
    assert len(queue._window or b"") == 100 * ENTRY_BYTES
    run_now(world.index.write({queue: None}, world.end))
    assert len(queue._window or b"") == 8 * ENTRY_BYTES
    world.arrive(1)
    run_now(world.index.write({world.queues[1]: None}, world.end))
    assert queue._window is None


def test_a_file_of_a_newer_release_is_refused() -> None:
    world = World()
    world.arrive(0)
    world.save()
    (path,) = index_files(world.disk)
    page = bytearray(world.disk.files()[path][4:])
    page[5] = 2
    world.disk.open(path).write(0, index_file._pages(page))
    with pytest.raises(UnknownFormatError, match="format version 2"):
        world.again()


def test_a_key_that_stands_across_two_rows_is_not_taken_for_one() -> None:
    rows = b"".join(index_file._ROW.pack(bytes([number]) * 16, number, 1, number) for number in range(1, 4))
    across = rows[30:46]
    assert index_file._row_in(rows, across) is None
    with_it = rows + index_file._ROW.pack(across, 7, 8, 9)
    assert index_file._row_in(with_it, across) == (across, 7, 8, 9)
