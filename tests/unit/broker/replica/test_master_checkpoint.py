"""A slave's copy of its master's progress: equal to it, durable, and never of an epoch or version that is over (C4)."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.consume.merge_buffer import MergeBuffer
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.queue_index import QueueIndex
from popwheel_broker.replication import master_checkpoint
from popwheel_broker.replication.checkpoint_source import CheckpointSource
from popwheel_broker.replication.master_checkpoint import MasterCheckpoint
from popwheel_broker.replication.master_checkpoint_file import NAME, MasterCheckpointFile
from popwheel_broker.topics.topic_registry import Names, TopicRegistry
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import StatusError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import GroupOffsets, ReplicaCheckpoint, TimerProgress
from tests.harness import names_in_log
from tests.harness.memory_disk import CrashKind, MemoryDisk

FOLDER = Path("/broker")
PATH = FOLDER / NAME
DISK = MemoryDisk(random.Random(0))


class Master:
    """Progress that changes, and what is notified of it."""

    def __init__(self, epoch: int = 1, entries_max: int = 3, before: "Master | None" = None) -> None:
        self.buffer: MergeBuffer = MergeBuffer(1, 1, 100_000) if before is None else before.buffer
        self.names: TopicRegistry = TopicRegistry(ClusterView()) if before is None else before.names
        self.queues: dict[int, ConsumeQueue] = {} if before is None else before.queues
        self.source = CheckpointSource("b", epoch, entries_max, self.buffer, self.names)

    def queue(self, queue_id: int) -> ConsumeQueue:
        if queue_id not in self.queues:
            self.queues[queue_id] = ConsumeQueue(QueueIndex(DISK, FOLDER, 2, 0), "t", queue_id)
        return self.queues[queue_id]

    def set(self, group: int, queue_id: int, committed: int) -> None:
        self.buffer.restore(f"g{group}", self.queue(queue_id), committed, committed + 1)
        self.buffer.commit(f"g{group}", self.queue(queue_id), committed)

    def tell(self, known_version: int) -> ReplicaCheckpoint:
        source = self.source
        for _ in source.scan():
            pass
        return source.checkpoint(known_version, 5, 7, TimerProgress(last_read_time_ms=9), [1, 2])

    def equals(self, held: MasterCheckpoint) -> bool:
        offsets = {
            (each.group, each.queue.topic, each.queue.queue_id): (each.committed, each.popped) for each in self.buffer
        }
        names = self.names
        return (dict(held.offsets), dict(held.topics), dict(held.groups)) == (offsets, names.topic_ids, names.group_ids)

    def sync(self, held: MasterCheckpoint) -> int:
        """Give a slave all that it lacks; how many messages it took."""
        for times in range(1, 1000):
            known = held.known_version if held.latest.epoch == self.source.epoch else 0
            given = self.tell(known)
            held.check(given)
            held.take(given)
            if not given.rest_from:
                return times
        raise AssertionError("there is no end of it")


STEP = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 3), st.integers(0, 2), st.integers(0, 9)),
    st.tuples(st.just("queue gone"), st.just(0), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("group gone"), st.integers(0, 3), st.just(0), st.just(0)),
    st.tuples(st.just("topic"), st.integers(0, 3), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("group"), st.integers(0, 3), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("part"), st.integers(0, 1), st.just(0), st.just(0)),
    st.tuples(st.just("sync"), st.integers(0, 1), st.just(0), st.just(0)),
    st.tuples(st.just("epoch"), st.just(0), st.just(0), st.just(0)),
)


def run(steps: list[tuple[str, int, int, int]]) -> None:
    """A master and two slaves that take different parts of what it says, and what came late."""
    master, slaves = Master(), [MasterCheckpoint(), MasterCheckpoint()]
    late: list[ReplicaCheckpoint] = []
    for what, one, other, third in steps:
        name = f"n{one}"
        if what == "set":
            master.set(one, other, third)
        elif what == "queue gone":
            master.buffer.forget_queues([master.queue(other)])
            del master.queues[other]  # what is made in its place is another one
        elif what == "group gone":
            master.buffer.forget_group(f"g{one}")
        elif what == "topic":
            names_in_log.record(master.names, Names({name: other})) if other else names_in_log.forget_topic(
                master.names, name
            )
        elif what == "group":
            names_in_log.record(master.names, Names({}, {name: other})) if other else names_in_log.forget_group(
                master.names, name
            )
        elif what == "epoch":
            master = Master(master.source.epoch + 1, before=master)
        elif what == "part":
            held = slaves[one]
            given = master.tell(held.known_version if held.latest.epoch == master.source.epoch else 0)
            held.check(given)
            held.take(given)
            late.append(given)
        else:
            master.sync(slaves[one])
            assert master.equals(slaves[one])
        for held in slaves:
            for given in late:
                epoch, version = held.latest.epoch, held.latest.version
                before_offsets = dict(held.offsets)
                try:
                    held.check(given)
                except StatusError as error:
                    assert error.code == Code.PRECONDITION_FAILED
                    assert (epoch, dict(held.offsets)) == (held.latest.epoch, before_offsets)
                else:
                    held.take(given)
                    assert (held.latest.epoch, held.latest.version) >= (epoch, version), "it went back (C4)"
    for held in slaves:
        master.sync(held)
        assert master.equals(held)
        assert held.is_complete


@given(st.lists(STEP, max_size=30))
def test_a_base_and_differences_are_the_whole_and_what_is_over_is_refused(
    steps: list[tuple[str, int, int, int]],
) -> None:
    run(steps)


OLD_EPOCH_COMES_LATE = [("set", 0, 0, 1), ("part", 0, 0, 0), ("epoch", 0, 0, 0), ("sync", 0, 0, 0)]


def test_that_an_older_epochs_checkpoint_is_accepted_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check = MasterCheckpoint.check

    def check_no_epoch(self: MasterCheckpoint, given: ReplicaCheckpoint) -> None:
        if given.epoch >= self.latest.epoch:
            check(self, given)

    run(OLD_EPOCH_COMES_LATE)
    monkeypatch.setattr(MasterCheckpoint, "check", check_no_epoch)
    with pytest.raises(AssertionError, match="C4"):
        run(OLD_EPOCH_COMES_LATE)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (ReplicaCheckpoint(epoch=2, version=9), Code.PRECONDITION_FAILED),
        (ReplicaCheckpoint(epoch=3, version=4), Code.PRECONDITION_FAILED),
        (ReplicaCheckpoint(epoch=3, version=9, base_version=6), Code.PRECONDITION_FAILED),
        (ReplicaCheckpoint(epoch=4, version=9, base_version=5), Code.PRECONDITION_FAILED),
        (ReplicaCheckpoint(epoch=4, version=0), Code.BAD_REQUEST),
        (ReplicaCheckpoint(epoch=3, version=7, base_version=8), Code.PRECONDITION_FAILED),
        (ReplicaCheckpoint(epoch=4, version=3, offsets=[GroupOffsets(queue_ids=[1])]), Code.BAD_REQUEST),
    ],
)
def test_what_is_refused(given: ReplicaCheckpoint, code: Code.ValueType) -> None:
    held = MasterCheckpoint()
    held.take(ReplicaCheckpoint(epoch=3, version=5))
    with pytest.raises(StatusError) as caught:
        held.check(given)
    assert caught.value.code == code


def test_a_difference_goes_onto_a_later_version_too() -> None:
    master, held = Master(entries_max=100), MasterCheckpoint()
    master.set(0, 0, 1)
    master.sync(held)
    base = held.latest.version
    master.set(0, 1, 1)
    master.sync(held)
    master.set(0, 0, 2)
    given = master.tell(base)
    held.check(given)
    held.take(given)
    assert master.equals(held)


def test_one_who_claims_a_version_that_never_was_gets_everything() -> None:
    master = Master(entries_max=100)
    master.set(0, 0, 1)
    assert master.tell(1_000).base_version == 0


def stored(file: MasterCheckpointFile, given: ReplicaCheckpoint) -> bool:
    return asyncio.run(file.store(given))


@pytest.mark.parametrize("kind", ["process", "power"])
def test_what_was_answered_is_there_after_a_crash(kind: CrashKind) -> None:
    disk = MemoryDisk(random.Random(3))
    disk.make_folder(FOLDER)
    master, file = Master(entries_max=2), MasterCheckpointFile(disk, FOLDER)
    for number in range(40):
        master.set(number % 7, number % 3, number)
        known = file.checkpoint.latest.version if number % 11 else 0
        while True:
            given = master.tell(known)
            assert stored(file, given)
            assert not stored(file, given)  # once more: it is held
            if not given.rest_from:
                break
            known = given.rest_from
        disk.crash(kind)
        before, file = file.checkpoint, MasterCheckpointFile(disk, FOLDER)
        file.load()
        assert file.checkpoint.latest == before.latest
        assert master.equals(file.checkpoint)


def test_the_file_is_written_anew_before_it_grows_without_end() -> None:
    disk = MemoryDisk(random.Random(3), 1 << 30)
    disk.make_folder(FOLDER)
    master, file = Master(entries_max=10_000), MasterCheckpointFile(disk, FOLDER)
    for number in range(3000):
        master.set(number % 3000, 0, number)
    stored(file, master.tell(0))
    for number in range(60):
        for group in range(800):
            master.set(group, 0, number)
        stored(file, master.tell(file.checkpoint.latest.version))
        assert file.size_bytes < 700_000
    again = MasterCheckpointFile(disk, FOLDER)
    again.load()
    assert master.equals(again.checkpoint)


@pytest.mark.parametrize("damage", ["torn", "flipped", "appended"])
def test_what_is_damaged_at_the_end_is_left_out_and_written_over(damage: str) -> None:
    disk = MemoryDisk(random.Random(3))
    disk.make_folder(FOLDER)
    master, file = Master(entries_max=100), MasterCheckpointFile(disk, FOLDER)
    master.set(0, 0, 1)
    stored(file, master.tell(0))
    first = file.checkpoint.latest.version
    good_bytes = file.size_bytes
    master.set(0, 1, 2)
    stored(file, master.tell(first))
    handle = disk.open(PATH)
    if damage == "torn":
        handle.truncate(file.size_bytes - 3)
    elif damage == "flipped":
        disk.flip_bit(PATH, 8 * (good_bytes + 30))
    else:
        handle.write(file.size_bytes, [b"PW"])
    again = MasterCheckpointFile(disk, FOLDER)
    again.load()
    assert again.checkpoint.latest.version == (file.checkpoint.latest.version if damage == "appended" else first)
    master.set(0, 2, 3)
    stored(again, master.tell(again.checkpoint.latest.version))
    last = MasterCheckpointFile(disk, FOLDER)
    last.load()
    assert master.equals(last.checkpoint)


def test_a_failed_sync_is_not_answered_and_the_next_one_writes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk(random.Random(3))
    disk.make_folder(FOLDER)
    master, file = Master(entries_max=100), MasterCheckpointFile(disk, FOLDER)
    master.set(0, 0, 1)
    stored(file, master.tell(0))
    first = file.checkpoint.latest
    master.set(0, 1, 2)
    with monkeypatch.context() as patch:

        async def refuse(self: Any) -> None:
            raise OSError("the device says no")

        patch.setattr("tests.harness.memory_disk.MemoryFile.sync", refuse)
        with pytest.raises(OSError, match="says no"):
            stored(file, master.tell(first.version))
    assert file.checkpoint.latest == first
    stored(file, master.tell(first.version))
    again = MasterCheckpointFile(disk, FOLDER)
    again.load()
    assert master.equals(again.checkpoint)


@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_checkpoint_whose_sender_has_gone_is_stored_to_the_end(differs: bool, fails: bool) -> None:
    """Or a thread would sync a file that is closed, and the next one write into the same one meanwhile."""
    disk = MemoryDisk(random.Random(3))
    disk.make_folder(FOLDER)
    master, file = Master(entries_max=100), MasterCheckpointFile(disk, FOLDER)
    master.set(0, 0, 1)
    await file.store(master.tell(0))
    first = file.checkpoint.latest
    master.set(0, 1, 2)
    given = master.tell(first.version if differs else 0)
    disk.hold_syncs()
    if fails:
        disk.fail_syncs(1)
    task = asyncio.create_task(file.store(given))
    await disk.until_stored()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    disk.release_syncs()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, OSError) == fails
    assert file.checkpoint.latest.version == (first.version if fails else given.version)
    assert await file.store(given) == fails  # it was held already, unless it failed
    disk.crash("power")
    again = MasterCheckpointFile(disk, FOLDER)
    again.load()
    assert master.equals(again.checkpoint)


def test_a_newer_format_is_refused() -> None:
    block = bytearray(master_checkpoint.encode(ReplicaCheckpoint(epoch=1, version=1)))
    block[5] = 9
    with pytest.raises(UnknownFormatError):
        master_checkpoint.decode(bytes(block))
