"""A broker's core on a disk and a clock of the tests, with calls as short as tests want them."""

import random
import struct
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.holders import client_of
from popwheel_broker.consume.merge_buffer import Offsets
from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_broker.core.checkpoint import Checkpoint, CheckpointChanges, CheckpointFrames, CheckpointReader, Row
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.core.offset_reset import ResetPlan
from popwheel_broker.log.consume_queue import Entry
from popwheel_broker.log.message_store import StoreCheckpoint
from popwheel_broker.log.record import Record, RecordKind, StoredRecord, hash_tag
from popwheel_broker.options import BrokerOptions, LogOptions, PopOptions
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.send_id import encode_send_id
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, Resource, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Group, Topic, TopicType
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import CrashKind, MemoryDisk

FOLDER = Path("/broker")
KEY = b"key of the tests"
OPTIONS = BrokerOptions(
    log=LogOptions(segment_bytes=4096, index_entries_max=16, queue_entries_in_memory=4),
    pop=PopOptions(buffer_deliveries_max=5, rewrite_after_records=16),
)
SMALL_TIMER = {"slots": 4096, "roll_window_ms": 2_000_000, "delay_ms_max": 2 * 24 * 3_600_000}
"""A whole wheel, its file of 39 MB and the counts of forty days take longer to make than all else here."""
INVISIBLE_MS = 30_000

Result = TypeVar("Result")


def with_small_timer(options: BrokerOptions) -> BrokerOptions:
    """The same options, but for the sizes of the timer that they do not name."""
    timer = options.timer
    sizes = SMALL_TIMER | {"roll_window_ms": min(options.roll_window_ms, SMALL_TIMER["roll_window_ms"])}
    sizes = {key: value for key, value in sizes.items() if key not in timer.model_fields_set}
    return options.model_copy(update={"timer": timer.model_copy(update=sizes)})


def run_now(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that has nothing to wait for but its next turn, without a loop."""
    try:
        while work.send(None) is None:
            pass
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise AssertionError("it waits for something")


def tag_filter(expression: str) -> pb.Filter:
    """The filter of an expression such as `a || b`."""
    return pb.Filter(kind=pb.TAG, expression=expression)


def wire_message(
    topic: str,
    body: bytes,
    tag: str = "",
    message_group: str = "",
    priority: int | None = None,
    keys: Sequence[str] = (),
) -> tuple[bytes, bytes]:
    """A client's message as a proxy hands it on: all but the system properties, and the inside of those with the id of
    its send, which is the same for the same body.
    """
    properties = SystemProperties(message_id=body.hex(), keys=keys)
    if tag:
        properties.tag = tag
    if message_group:
        properties.message_group = message_group
    if priority is not None:
        properties.priority = priority
    send_id = int.from_bytes(blake2b(body, digest_size=8).digest())
    payload = Message(topic=Resource(name=topic), body=body).SerializeToString()
    return payload, properties.SerializeToString() + encode_send_id(send_id)


def saved_after(before: bytes | None, rows: Iterable[Row], head: Checkpoint) -> bytes:
    """A checkpoint file that was saved once more; `before` is None for one that is written anew."""
    reader = CheckpointReader(before or checkpoint_file.encode(Checkpoint()))
    for _ in reader.steps():
        pass
    frames, kept = reader.frames or CheckpointFrames(), b"" if before is None else before[checkpoint_file.BEGIN :]
    if before is None:
        frames = CheckpointFrames()
    data = b"".join([kept, *frames.of(rows), frames.last(head)])
    return checkpoint_file.slot(frames.end) * checkpoint_file.SLOTS + data


class World:
    """A core that can crash and come back.

    Args:
        seed: of the disk's faults and of where pops begin.
        options: the broker's.
    """

    def __init__(self, seed: int = 0, options: BrokerOptions = OPTIONS) -> None:
        self.random = random.Random(seed)
        self.disk = MemoryDisk(self.random)
        self.clock = ManualClock()
        # Its log is not filled ahead: where a disk is full, even a small record finds no room.
        self.options = with_small_timer(options).model_copy(update={"flush": "async"})
        self.view = ClusterView()
        self.saved: bytes | None = None
        """The checkpoint file; how it is written is tested elsewhere."""
        self._whole: list[Row] | None = None
        self._next_id = 1
        self.view.apply(
            ClusterUpdate(version=1, snapshot=True, cluster=Cluster(name="test", receipt_key=KEY)),
        )
        self.start()

    def start(self) -> None:
        """Recover from what the disk holds, as a replica does that is alone and leads."""
        self._is_broken_off = False
        self.core = BrokerCore(
            self.options,
            self.disk,
            FOLDER,
            self.clock,
            self.random,
            self.view,
            lambda topic, late_ms: None,
        )
        if self.saved is None:
            checkpoint = Checkpoint(store=StoreCheckpoint(synced_position=self.core.store.log.end_position))
        else:
            checkpoint = checkpoint_file.decode(self.saved)
        log = self.core.store.log
        log.check_contiguous(checkpoint.store.synced_position)
        for found in log.scan(self.core.begin(checkpoint), checkpoint.store.synced_position):
            self.core.fold(found)
        self.core.finish()
        self.flush()
        self.save()
        self.core.cluster_changes.apply()
        self.flush()

    def crash(self, kind: CrashKind) -> None:
        """End the process, or the machine, and start anew."""
        self.disk.crash(kind)
        self.start()

    def add_topic(
        self, name: str, queues: int = 1, kind: "TopicType.ValueType" = TopicType.TOPIC_TYPE_UNSPECIFIED
    ) -> None:
        """The controller says that there is a topic."""
        self._apply(topics=[Topic(name=name, queues=queues, id=self._next_id, type=kind)])

    def add_group(self, name: str, max_attempts: int = 3, *, fifo: bool = False) -> None:
        """The controller says that there is a group."""
        self._apply(groups=[Group(name=name, max_attempts=max_attempts, id=self._next_id, fifo=fifo)])

    def delete_topic(self, name: str) -> None:
        """The controller says that a topic is no more."""
        self._apply(deleted_topics=[name])

    def delete_group(self, name: str) -> None:
        """The controller says that a group is no more."""
        self._apply(deleted_groups=[name])

    def _apply(self, **changes: Any) -> None:
        self._next_id += 1
        self.learn(ClusterUpdate(version=self._next_id, **changes))
        self.core.cluster_changes.apply()

    def learn(self, update: ClusterUpdate) -> None:
        """The controller says this."""
        self.core.cluster_changes.receive(update)
        self.view.apply(update)
        self.core.cluster_changed(update)

    def flush(self) -> None:
        """Sync the log and make all of it readable, as the flusher does."""
        log = self.core.store.log
        run_now(log.sync())
        self.core.store.commit(log.synced_position)

    def begin_save(self) -> CheckpointChanges:
        """The part of saving a checkpoint that is done before anything is synced."""
        self._whole = list(self.core.rows()) if self._is_broken_off else None
        self._is_broken_off = True
        return self.core.checkpoint()

    def save(self) -> None:
        """Save a checkpoint, as `BrokerApp` does."""
        changes = self.begin_save()
        self.flush()
        run_now(self.core.store.write_index())
        rows = [*(self._whole or ()), *changes.rows()]
        self.saved = saved_after(None if self._whole else self.saved, rows, self.core.synced(changes.head))
        self._is_broken_off = False

    def put(
        self,
        topic: str,
        body: bytes,
        tag: str = "",
        queue_id: int = 0,
        message_group: str = "",
        priority: int | None = None,
        keys: Sequence[str] = (),
    ) -> int:
        """Store a message and make it readable; its offset."""
        payload, properties = wire_message(topic, body, tag, message_group, priority, keys)
        record = Record(RecordKind.MESSAGE, topic, queue_id, payload, properties, hash_tag(tag))
        offset = self.core.store.put([record]).queue_offsets[0]
        self.flush()
        return offset

    def pop(
        self,
        group: str,
        topic: str,
        max_messages: int = 32,
        expression: str = "*",
        queue_id: int = -1,
        invisible_ms: int = INVISIBLE_MS,
    ) -> list[Message]:
        """Take messages."""
        return [
            Message.FromString(each)
            for each in self.answer(group, topic, max_messages, expression, queue_id, invisible_ms).messages
        ]

    def answer(
        self,
        group: str,
        topic: str,
        max_messages: int = 32,
        expression: str = "*",
        queue_id: int = -1,
        invisible_ms: int = INVISIBLE_MS,
        attempt_id: str = "",
        receive: int = 0,
        client_id: str = "",
    ) -> PopAnswer:
        """The broker's answer to a pop."""
        self.core.cluster_changes.record_reader(group, topic)
        return self.core.pops.pop(
            pb.PopRequest(
                group=group,
                topic=topic,
                queue_id=queue_id,
                max_messages=max_messages,
                invisible_ms=invisible_ms,
                filter=tag_filter(expression),
                attempt_id=attempt_id,
                receive=receive,
                client_id=client_id,
            ),
            self.core.pops.rotation(),
        )

    def ack(self, group: str, topic: str, *handles: str) -> list[int]:
        """Say that messages are done with; a code for each."""
        results = self.core.acks.ack(group, topic, handles)
        assert not results or len(results) == len(handles)
        return [result.code for result in results] or [Code.OK] * len(handles)

    def revive(self) -> int:
        """Redeliver all that is due, as the reviver does; how many."""
        count = 0
        table = self.core.state.table
        while due := table.take_due(self.core.pop_clock.now_ms(), 512):
            for delivery, indexes in due:
                for index in indexes:
                    self.core.acks.redeliver([(delivery, index)], attempted=True)
                    count += 1
        return count

    def carry_out(self, plan: ResetPlan) -> None:
        """Reset offsets, as `GroupServer` does."""
        reset = self.core.offset_reset
        reset.begin(plan)
        try:
            while plan.deliveries and reset.revoke_some(plan):
                pass
        finally:
            reset.end(plan)

    def relocate(self) -> int:
        """Move what is hidden for long out of segments that are past their time; how many messages."""
        core = self.core
        before = core.relocation.messages
        waiting = core.expiry.to_relocate()
        while waiting:
            copied = core.relocation.copy(waiting, core.revive_topic)
            self.flush()
            core.relocation.rewrite(copied)
            self.flush()
        return core.relocation.messages - before

    def retain(self) -> int:
        """Delete all segments that are past their time, as `BrokerApp` does; how many."""
        self.relocate()
        count = 0
        while self.core.store.delete_before(self.core.expiry.expired_before()):
            count += 1
            self.flush()
        return count

    def held(self, topic: str, queue_id: int = 0) -> list[tuple[int, StoredRecord]]:
        """Offset and record of all that a queue holds, also of what is not readable yet."""
        store = self.core.store
        queue = store.queue(topic, queue_id)
        if queue is None:
            return []
        found: list[tuple[int, StoredRecord]] = []
        at = queue.min_offset
        while at < queue.max_offset:
            for entry in queue.read(at, 100):
                found.append((at, store.records.read(entry)))
                at += 1
        for _, uncommitted, entries, _ in store._uncommitted:
            for fields in struct.iter_unpack(">QIQ", entries) if uncommitted is queue else ():
                stored = store.records.read(Entry(*fields))
                if stored.queue_offset >= queue.min_offset:
                    found.append((stored.queue_offset, stored))
        return found

    def deliveries(self) -> dict[int, tuple[object, ...]]:
        """All that the open CKs say, by id; to compare tables."""
        table = self.core.state.table
        in_flight = Counter[tuple[str, ...]]()
        held = Counter[tuple[str, str]]()
        of_queue = Counter[tuple[str, str, int, int]]()
        for each in table:
            if not each.is_blocked:
                in_flight[each.group, each.topic] += each.open_bits.bit_count()
                held[each.group, client_of(each)] += each.open_bits.bit_count()
            of_queue[each.group, each.topic, each.origin, each.queue_id] += each.open_bits.bit_count()
        assert table.in_flight == in_flight
        groups = {group for group, _ in held}
        counted = {
            (group, each.client_id): each.in_flight for group in groups for each in table.holders.of_group(group)
        }
        assert counted == held
        assert len(table.holders) == sum(client_id != "" for _, client_id in held)
        assert table.holders.clients_by_group().keys() <= groups
        assert {queue: table.in_flight_of(*queue) for queue in of_queue} == of_queue
        assert list(table.begin_at(0, "")) == sorted(table, key=lambda each: each.id)
        return {each.id: _contents(each) for each in table}

    def progress(self) -> dict[tuple[str, str, int], Offsets]:
        """Saved offsets by group, topic and queue."""
        return {
            (each.group, each.queue.topic, each.queue.queue_id): each.offsets for each in self.core.state.merge_buffer
        }

    def bodies(self, messages: Sequence[Message]) -> list[bytes]:
        """What they carry."""
        return [message.body for message in messages]


def handles(messages: Sequence[Message]) -> list[str]:
    """Their receipt handles."""
    return [message.system_properties.receipt_handle for message in messages]


def attempts(messages: Sequence[Message]) -> list[int]:
    """Their delivery attempts."""
    return [message.system_properties.delivery_attempt for message in messages]


def _contents(delivery: Delivery) -> tuple[object, ...]:
    open_now = delivery.open_indexes()
    return (
        delivery.group,
        delivery.topic,
        delivery.origin,
        delivery.queue_id,
        [(delivery.offsets[index], delivery.due_of(index)) for index in open_now],
        delivery.revive_offset,
    )
