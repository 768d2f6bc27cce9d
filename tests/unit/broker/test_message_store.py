"""The message store: what is confirmed is readable, and recovery gives the same queues again (S1, S3, S6)."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_broker.log.message_store import MessageStore, StoreCheckpoint
from popwheel_broker.log.raw_records import checked_records
from popwheel_broker.log.record import Record, RecordKind, hash_tag
from popwheel_broker.options import LogOptions
from popwheel_common.contract.put import MessageRun
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk

FOLDER = Path("/broker")
OPTIONS = LogOptions(segment_bytes=4096, index_entries_max=16, queue_entries_in_memory=4)

QUEUES = [("a", 0), ("a", 1), ("b", 0)]
PUTS = st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(0, 400)), min_size=1, max_size=30)


def message(topic: str, queue_id: int, payload: bytes = b"", tag: str = "") -> Record:
    return Record(RecordKind.MESSAGE, topic, queue_id, payload, tag_hash=hash_tag(tag))


class World:
    """A store, and what was put into it."""

    def __init__(self, seed: int = 0, options: LogOptions = OPTIONS) -> None:
        self.disk = MemoryDisk(random.Random(seed))
        self.clock = ManualClock()
        self.options = options
        self.arrived: list[tuple[str, int, int]] = []
        self.open()

    def open(self) -> None:
        self.store = MessageStore(
            self.disk,
            FOLDER,
            self.options,
            self.clock,
            lambda queue, tag_hashes: self.arrived.extend((queue.topic, queue.queue_id, each) for each in tag_hashes),
        )

    def put(self, *records: Record) -> None:
        appended = self.store.put(records)
        self.store.commit(appended.end_position)

    def put_all(self, puts: list[tuple[tuple[str, int], int]]) -> None:
        for number, ((topic, queue_id), size) in enumerate(puts):
            self.put(message(topic, queue_id, bytes([number % 256]) * size))
            self.clock.advance(10)

    async def checkpoint(self) -> StoreCheckpoint:
        queues: dict[str, dict[int, tuple[int, int]]] = {}
        for queue in self.store.queues:
            queues.setdefault(queue.topic, {})[queue.queue_id] = (queue.begin_offset, queue.max_offset)
        checkpoint = replace(self.store.checkpoint(), queues=queues)
        await self.store.log.sync()
        await self.store.write_index()
        await self.store.index.merge(checkpoint.position)
        return checkpoint

    def recover(self, checkpoint: StoreCheckpoint) -> list[int]:
        """A new process: positions of the records that the checkpoint does not cover."""
        self.open()
        store, newer = self.store, []
        store.log.check_contiguous(checkpoint.synced_position)
        for found in store.log.scan(store.begin(checkpoint), checkpoint.synced_position):
            store.take_up(found)
            if found.position >= checkpoint.position:
                newer.append(found.position)
        store.finish()
        return newer

    def contents(self) -> dict[tuple[str, int], tuple[int, int, list[tuple[int, bytes]]]]:
        """All that can be read."""
        found = {}
        for queue in self.store.queues:
            entries, at = [], queue.min_offset
            while at < queue.max_offset:
                entries += queue.read(at, 100)
                at = queue.min_offset + len(entries)
            records = [(each.queue_offset, each.payload) for each in self.store.records.read_many(entries)]
            found[queue.topic, queue.queue_id] = (queue.min_offset, queue.max_offset, records)
        return found


def test_only_what_is_confirmed_is_readable() -> None:
    world = World()
    first = world.store.put([message("a", 0, b"1", "x"), message("b", 0, b"2")])
    second = world.store.put([message("a", 0, b"3")])
    assert (list(first.queue_offsets), list(second.queue_offsets)) == ([0, 0], [1])
    assert (world.arrived, world.store.next_offset("a", 0)) == ([], 2)
    assert world.contents() == {("a", 0): (0, 0, []), ("b", 0): (0, 0, [])}
    world.store.commit(first.end_position)
    assert world.arrived == [("a", 0, hash_tag("x")), ("b", 0, 0)]
    assert world.contents() == {("a", 0): (0, 1, [(0, b"1")]), ("b", 0): (0, 1, [(0, b"2")])}
    world.store.commit(second.end_position)
    assert world.contents()[("a", 0)] == (0, 2, [(0, b"1"), (1, b"3")])


RUNS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 5)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(RUNS, max_size=4))
def test_runs_are_stored_as_their_messages_would_be_one_by_one(batches: list[list[tuple[str, int, int]]]) -> None:
    together, single = World(), World()
    number = 0
    for batch in batches:
        runs = []
        records = []
        for topic, queue_id, count in batch:
            payloads = [b"%d" % (number + index) for index in range(count)]
            number += count
            runs.append(MessageRun(topic, queue_id, payloads, [b"p"] * count, ["tag", ""][number % 2 :] * count))
            runs[-1].tags = runs[-1].tags[:count]
            records.append(
                [
                    Record(RecordKind.MESSAGE, topic, queue_id, payload, b"p", hash_tag(tag))
                    for payload, tag in zip(payloads, runs[-1].tags, strict=True)
                ]
            )
        put = together.store.put_runs(runs)
        one_by_one = single.store.put([record for run in records for record in run])
        firsts = [sum(map(len, records[:index])) for index in range(len(records))]
        assert list(put.queue_offsets) == [one_by_one.queue_offsets[first] for first in firsts]
        assert put.end_position == one_by_one.end_position
        together.store.commit(put.end_position)
        single.store.commit(put.end_position)
    assert together.contents() == single.contents()
    assert together.arrived == single.arrived
    assert together.disk.files() == single.disk.files()


@settings(max_examples=60, deadline=None)
@given(puts=PUTS, checkpoint_after=st.integers(0, 30))
def test_recovery_from_any_checkpoint_gives_the_same(
    puts: list[tuple[tuple[str, int], int]], checkpoint_after: int
) -> None:
    world = World()
    world.put_all(puts[:checkpoint_after])
    checkpoint = asyncio.run(world.checkpoint())
    world.put_all(puts[checkpoint_after:])
    before, end = world.contents(), world.store.log.end_position
    world.disk.crash("process")
    newer = world.recover(checkpoint)
    assert (world.contents(), world.store.log.end_position) == (before, end)
    assert len(newer) == len(puts[checkpoint_after:])
    rebuilt = World()
    rebuilt.disk, rebuilt.clock = world.disk, world.clock
    rebuilt.recover(StoreCheckpoint())
    assert rebuilt.contents() == before


@settings(max_examples=60, deadline=None)
@given(puts=PUTS, lost=st.integers(0, 5), shortened=st.integers(0, 5))
def test_lost_queue_files_are_made_again(puts: list[tuple[tuple[str, int], int]], lost: int, shortened: int) -> None:
    world = World()
    world.put_all(puts)
    checkpoint = asyncio.run(world.checkpoint())
    before = world.contents()
    files = [path for path in world.disk.files() if path.suffix == ".index"]
    for path in files[lost : lost + 1]:
        world.disk.remove(path)
    for path in files[shortened : shortened + 1]:
        if path != (files[lost] if lost < len(files) else None):
            world.disk.open(path).truncate(3)
    assert world.recover(checkpoint) == []
    assert world.contents() == before
    asyncio.run(world.checkpoint())
    assert World.recover(world, asyncio.run(world.checkpoint())) == []
    assert world.contents() == before


def test_retention_takes_what_leads_into_the_segments_that_go() -> None:
    world = World()
    world.put_all([(QUEUES[number % 3], 300) for number in range(40)])
    before = world.contents()
    second = world.store.log.segments()[1][0]
    assert world.store.delete_before(second) == 1
    after = world.contents()
    for name, (min_offset, max_offset, records) in after.items():
        assert min_offset > 0
        assert (max_offset, records) == (before[name][1], before[name][2][min_offset:])
        assert all(entry.position >= second for entry in world.store.queues[name].read(0, 100))
    checkpoint = asyncio.run(world.checkpoint())
    world.recover(checkpoint)
    assert world.contents() == after
    world.recover(StoreCheckpoint())
    assert world.contents() == after


def test_offsets_go_on_though_all_of_a_queue_is_gone_and_its_files_are_lost() -> None:
    """S3: an offset names one message for good; and who has read up to 5 must not miss a new message 0."""
    world = World()
    world.put_all([(("a", 0), 300)] * 5 + [(("b", 0), 300)] * 20)
    second = world.store.log.segments()[1][0]
    world.store.delete_before(second)
    assert world.contents()[("a", 0)] == (5, 5, [])
    checkpoint = asyncio.run(world.checkpoint())
    for path in world.disk.files():
        if path.suffix == ".index":
            world.disk.remove(path)
    world.recover(checkpoint)
    assert world.contents()[("a", 0)] == (5, 5, [])
    world.put(message("a", 0, b"new"))
    assert world.contents()[("a", 0)] == (5, 6, [(5, b"new")])


def test_a_deleted_topic_stays_empty_and_its_offsets_go_on() -> None:
    world = World()
    world.put_all([(("a", 0), 10)] * 3)
    world.put(Record(RecordKind.FORGET_TOPIC, "system", 0, b"a"))
    world.put(message("a", 0, b"new"))
    expected = (3, 4, [(3, b"new")])
    assert world.contents()[("a", 0)] == expected
    for checkpoint in (StoreCheckpoint(), asyncio.run(world.checkpoint())):
        world.recover(checkpoint)
        assert world.contents()[("a", 0)] == expected


def test_a_queue_that_was_made_for_a_refused_put_begins_where_the_next_master_begins_it() -> None:
    worlds = deposed, master = World(), World()
    for world in worlds:
        world.put_all([(("a", 0), 10)] * 3)
        world.put(Record(RecordKind.FORGET_TOPIC, "system", 0, b"a"))
    end = deposed.store.log.end_position
    deposed.disk.fill(10)
    with pytest.raises(StatusError, match="takes no messages"):
        deposed.put(message("b", 0))
    deposed.disk.fill(100_000)
    checkpoint = asyncio.run(deposed.checkpoint())
    assert checkpoint.queues is not None and checkpoint.queues["b"] == {0: (3, 3)}
    master.put_all([(("c", 0), 10)] * 2)
    master.put(Record(RecordKind.FORGET_TOPIC, "system", 0, b"c"))
    master.put(message("b", 0, b"new"))
    data = master.store.log.read(end, 10_000)
    deposed.store.log.append_raw([each.length for each in checked_records(end, data)], data)
    deposed.recover(checkpoint)
    assert deposed.contents() == master.contents()
    assert deposed.contents()["b", 0] == (5, 6, [(5, b"new")])


def test_damage_in_the_log_is_refused_at_recovery() -> None:
    world = World()
    world.put_all([(("a", 0), 100)] * 5)
    checkpoint = StoreCheckpoint(0, world.store.log.end_position)
    world.disk.flip_bit(FOLDER / "commitlog" / f"{0:020d}.log", 8 * 300)
    with pytest.raises(CorruptDataError, match="nothing was changed"):
        world.recover(checkpoint)


@pytest.mark.parametrize(("between", "reads"), [(0, 1), (30, 1), (60, 2)])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 4096])
def test_records_that_stand_close_together_are_read_at_once(between: int, reads: int, segment_bytes: int) -> None:
    world = World(options=LogOptions(segment_bytes=segment_bytes))
    others = [(("b", 0), 400)] * between
    world.put_all([(("a", 0), 10), (("a", 0), 11), *others, (("a", 0), 12), (("a", 0), 13)])
    entries = world.store.queues["a", 0].read(0, 10)
    lengths: list[int] = []
    read = world.store.log.read

    def counted(position: int, length: int) -> bytes:
        lengths.append(length)
        return read(position, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store.log, "read", counted)
        records = world.store.records.read_many(entries)
    assert [len(each.payload) for each in records] == [10, 11, 12, 13]
    if segment_bytes > 4096:
        assert len(lengths) == reads


def test_an_offset_is_found_by_time() -> None:
    world = World()
    start_ms = world.clock.wall_ms()
    world.put_all([(("a", 0), 10)] * 10)
    queue = world.store.queues["a", 0]
    for after_ms, expected in ((-5, 0), (0, 0), (1, 1), (10, 1), (89, 9), (90, 9), (91, 10)):
        assert world.store.records.offset_at(queue, start_ms + after_ms) == expected


@pytest.mark.parametrize("fault", ["full", "error"])
def test_a_refused_write_changes_nothing(fault: str) -> None:
    world = World()
    world.put(message("a", 0, b"1"))
    before = world.contents()
    if fault == "full":
        world.disk.fill(100)
    else:
        world.disk.fail_writes(1)
    with pytest.raises(StatusError, match="takes no messages" if fault == "full" else "nothing was stored; try again"):
        world.store.put([message("a", 0, bytes(50)), message("a", 1, bytes(50))])
    assert {name: each for name, each in world.contents().items() if each[1]} == before
    world.disk.fill(100_000)
    world.put(message("a", 0, b"2"))
    world.recover(StoreCheckpoint())
    assert world.contents()[("a", 0)] == (0, 2, [(0, b"1"), (1, b"2")])


async def test_an_index_file_that_could_not_be_written_leaves_nothing() -> None:
    world = World()
    for _ in range(3):
        world.put(message("a", 0, b"x"))
        world.disk.fail_writes(1)
        with pytest.raises(OSError, match="Input/output"):
            await world.checkpoint()
    assert not world.disk.list(FOLDER / "queueindex")
    await world.checkpoint()
    assert len(world.disk.list(FOLDER / "queueindex")) == 1


def test_no_more_queues_than_allowed() -> None:
    world = World(options=LogOptions(queues_max=2))
    world.put(message("a", 0), message("a", 1))
    with pytest.raises(StatusError, match=r"broker\.log\.queues_max") as caught:
        world.store.put([message("a", 0), message("a", 2)])
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    assert world.store.next_offset("a", 0) == 1
    world.put(message("a", 1))
