"""What an earlier try of a send has stored is found, wherever the queue's end is kept."""

import random
from pathlib import Path

import pytest

from services.broker.again import AgainFinder
from services.broker.options import LogOptions
from services.broker.store.consume_queue import ENTRY_BYTES
from services.broker.store.message_store import MessageStore
from services.common.errors import CorruptDataError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from services.common.put import MessageRun
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk

TOPIC = "topic"
COUNT = 50
OPTIONS = LogOptions(segment_bytes=4096, queue_entries_per_file=16, queue_entries_in_memory=4)


def run_of(*numbers: int, again: bool = False) -> MessageRun:
    count = len(numbers)
    properties = [SystemProperties(message_id=f"id-{number}").SerializeToString() for number in numbers]
    return MessageRun(TOPIC, 0, [b"payload"] * count, properties, [""] * count, again=again)


@pytest.mark.parametrize("saved", [0, 1, 16, 17, 40, COUNT - 1, COUNT])
async def test_all_are_found_whether_they_are_in_files_or_in_memory(saved: int) -> None:
    clock = ManualClock()
    store = MessageStore(MemoryDisk(random.Random(1)), Path("/broker"), OPTIONS, clock, lambda queue, tag_hashes: None)
    for number in range(COUNT):
        appended = store.put_runs([run_of(number)])
        store.confirm(appended.end_position)
        if number + 1 == saved:
            _, files = store.checkpoint()
            for file in files:
                await file.sync()
                file.close()
    finder = AgainFinder(store, clock)
    found = finder.find(run_of(*range(COUNT + 1), again=True))
    assert [each and each.queue_offset for each in found] == [*range(COUNT), None]
    store.put_runs([run_of(COUNT)])  # not confirmed
    assert [each and each.queue_offset for each in finder.find(run_of(COUNT, again=True))] == [COUNT]


async def saved_store() -> tuple[MessageStore, MemoryDisk, Path, Path]:
    """A store with two queues, and the first file of each."""
    disk = MemoryDisk(random.Random(1))
    store = MessageStore(disk, Path("/broker"), OPTIONS, ManualClock(), lambda queue, tag_hashes: None)
    for number in range(COUNT):
        store.confirm(store.put_runs([run_of(number)]).end_position)
        store.confirm(store.put_runs([MessageRun("other", 0, [b""], [b""], [""])]).end_position)
    _, files = store.checkpoint()
    for file in files:
        await file.sync()
        file.close()
    first, other = (
        next(each for each in sorted(disk.files()) if f"/{topic}/" in str(each)) for topic in (TOPIC, "other")
    )
    return store, disk, first, other


@pytest.mark.parametrize("bit", range(3 * 8 * ENTRY_BYTES, 3 * 8 * ENTRY_BYTES + 64))
async def test_a_rotten_entry_is_told_of_wherever_it_leads(bit: int) -> None:
    store, disk, path, _ = await saved_store()
    disk.flip_bit(path, bit)
    with pytest.raises(CorruptDataError):
        AgainFinder(store, ManualClock()).find(run_of(1, again=True))


async def test_an_entry_that_leads_to_the_record_of_another_queue_is_told_of() -> None:
    store, disk, path, other = await saved_store()
    entry = disk.files()[other][3 * ENTRY_BYTES : 4 * ENTRY_BYTES]
    disk.open(path).write(3 * ENTRY_BYTES, [entry])
    with pytest.raises(CorruptDataError, match="leads to the record"):
        AgainFinder(store, ManualClock()).find(run_of(1, again=True))
