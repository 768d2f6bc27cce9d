"""Consume queues: memory and files give the same entries, and files that are lost or short are told (S6)."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.store.consume_queue import ENTRY_BYTES, ConsumeQueue, Entry, packed_entry
from services.common.errors import CorruptDataError
from tests.harness.memory_disk import MemoryDisk

FOLDER = Path("/queue/t/0")
PER_FILE = 16


def queue_on(disk: MemoryDisk, in_memory: int = 8) -> ConsumeQueue:
    return ConsumeQueue(disk, FOLDER, "t", 0, PER_FILE, in_memory)


def new_disk() -> MemoryDisk:
    return MemoryDisk(random.Random(0))


def fill(queue: ConsumeQueue, count: int) -> list[Entry]:
    entries = [Entry(1000 + 10 * number, number + 1, number % 3) for number in range(count)]
    for offset, entry in enumerate(entries):
        assert queue.max_offset == offset
        queue.extend(packed_entry(*entry))
    return entries


def read_all(queue: ConsumeQueue, step: int = 1000) -> list[Entry]:
    found: list[Entry] = []
    at = queue.min_offset
    while at < queue.max_offset:
        part = queue.read(at, step)
        assert len(part) == min(step, queue.max_offset - at)
        found += part
        at += len(part)
    return found


@given(
    batches=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    in_memory=st.integers(0, 30),
    flushed=st.integers(0, 6),
    step=st.integers(1, 50),
)
def test_memory_and_files_give_the_same(batches: list[int], in_memory: int, flushed: int, step: int) -> None:
    queue = queue_on(new_disk(), in_memory)
    entries: list[Entry] = []
    for number, size in enumerate(batches):
        for _ in range(size):
            entry = Entry(len(entries) * 7, len(entries) + 1, len(entries) % 5)
            queue.extend(packed_entry(*entry))
            entries.append(entry)
        if number < flushed:
            for file in queue.flush():
                file.close()
            assert not queue.has_unflushed
    assert read_all(queue, step) == entries
    assert queue.read(len(entries), 5) == []
    assert queue.read(len(entries) + 5, 5) == []
    assert queue.read(0, 0) == []


@given(count=st.integers(0, 60), position=st.integers(900, 1700), min_offset=st.integers(0, 60))
def test_a_position_is_found(count: int, position: int, min_offset: int) -> None:
    queue = queue_on(new_disk())
    entries = fill(queue, count)
    queue.flush()
    queue.forget_before(min(min_offset, count))
    expected = next(
        (offset for offset in range(queue.min_offset, count) if entries[offset].position >= position), count
    )
    assert queue.first_at_or_after(position) == expected


@given(flushed=st.integers(0, 70), later=st.integers(0, 40), loaded=st.integers(0, 70), min_offset=st.integers(0, 70))
def test_it_is_loaded_as_any_checkpoint_saw_it(flushed: int, later: int, loaded: int, min_offset: int) -> None:
    """Also when more was written after that checkpoint: that comes from the log again, and may be other than it was."""
    disk = new_disk()
    queue = queue_on(disk)
    entries = fill(queue, flushed)
    queue.flush()
    for number in range(later):
        queue.extend(packed_entry(9_000_000 + number, 1, 1))
    queue.flush()
    loaded, min_offset = min(loaded, flushed), min(min_offset, loaded, flushed)
    found = queue_on(disk)
    assert found.load(min_offset, loaded)
    assert (found.min_offset, found.max_offset) == (min_offset, loaded)
    assert read_all(found) == entries[min_offset:loaded]
    found.extend(packed_entry(1, 2, 3))
    found.flush()
    assert read_all(found) == [*entries[min_offset:loaded], Entry(1, 2, 3)]
    again = queue_on(disk)
    assert again.load(min_offset, loaded + 1)
    assert read_all(again) == read_all(found)


@pytest.mark.parametrize("harm", ["removed", "shortened", "emptied"])
@pytest.mark.parametrize("file", [0, 16, 32])
def test_lost_and_short_files_are_told(harm: str, file: int) -> None:
    disk = new_disk()
    queue = queue_on(disk)
    fill(queue, 40)
    queue.flush()
    path = FOLDER / f"{file:020d}.queue"
    if harm == "removed":
        disk.remove(path)
    else:
        opened = disk.open(path)
        opened.truncate(0 if harm == "emptied" else opened.size() - 1)
    found = queue_on(disk)
    assert not found.load(0, 40)
    assert (found.min_offset, found.max_offset, found.read(0, 10)) == (0, 0, [])
    assert queue_on(disk).load(0, 40) is False


def test_a_file_that_is_needed_no_more_may_be_lost() -> None:
    disk = new_disk()
    queue = queue_on(disk)
    entries = fill(queue, 40)
    queue.flush()
    queue.forget_before(33)
    assert disk.list(FOLDER) == [f"{32:020d}.queue"]
    assert queue.read(0, 100) == entries[33:]
    found = queue_on(disk)
    assert found.load(33, 40)
    assert read_all(found) == entries[33:]


def test_a_file_that_gets_short_while_it_is_used_is_told() -> None:
    disk = new_disk()
    queue = queue_on(disk, in_memory=0)
    fill(queue, 40)
    queue.flush()
    disk.open(FOLDER / f"{16:020d}.queue").truncate(ENTRY_BYTES)
    with pytest.raises(CorruptDataError, match="t/0 has a short file 16"):
        queue.read(10, 20)


def test_it_begins_anywhere() -> None:
    disk = new_disk()
    queue = queue_on(disk)
    queue.begin_at(37)
    assert (queue.min_offset, queue.max_offset) == (37, 37)
    assert queue.max_offset == 37
    queue.extend(packed_entry(5, 6, 7))
    queue.flush()
    found = queue_on(disk)
    assert found.load(37, 38)
    assert read_all(found) == [Entry(5, 6, 7)]


@pytest.mark.parametrize("offset", [0, 16, 37])
def test_an_empty_one_that_has_begun_somewhere_is_loaded(offset: int) -> None:
    """All of it was past its time, or its topic was deleted: there is no file, and its offsets go on."""
    disk = new_disk()
    queue = queue_on(disk)
    queue.begin_at(offset)
    assert queue.flush() == []
    found = queue_on(disk)
    assert found.load(offset, offset)
    assert (found.min_offset, found.max_offset) == (offset, offset)


def test_the_window_keeps_what_is_not_flushed_and_some_of_what_is() -> None:
    queue = queue_on(new_disk(), in_memory=8)
    fill(queue, 100)
    assert len(queue._window) == 100 * ENTRY_BYTES
    queue.flush()
    assert len(queue._window) == 8 * ENTRY_BYTES
