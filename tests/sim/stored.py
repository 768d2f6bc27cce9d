"""Reads a broker's disk apart from the running one: what is in the log, and what follows from it (S6)."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from popwheel_broker.consume.delivered_message import pulled_message
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_broker.core.checkpoint import Checkpoint
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.index_file import ABSENT_MAX, key_of
from popwheel_broker.log.message_store import StoreCheckpoint
from popwheel_broker.log.record import RecordKind, StoredRecord, decode
from popwheel_broker.options import BrokerOptions
from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message, SystemProperties
from tests.harness.memory_disk import MemoryDisk
from tests.sim.consumers import is_same


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message in the log.

    Args:
        message_id: the sender's.
        topic, queue_id, offset: where it is.
        attempts: how often it was delivered before.
        record: all of it.
    """

    message_id: str
    topic: str
    queue_id: int
    offset: int
    attempts: int
    record: StoredRecord

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.topic}/{self.queue_id}@{self.offset}"

    @property
    def group_of_retry(self) -> str:
        """The group whose retry topic it is in."""
        return self.topic.removeprefix(names.RETRY_PREFIX).partition("+")[0]

    def is_as_sent(self, sent: Message) -> bool:
        """Whether its bytes are those that were sent."""
        return is_same(sent, Message.FromString(pulled_message(self.record, b"")))


def records_in_log(disk: MemoryDisk, folder: Path, segment_bytes: int) -> list[StoredRecord]:
    """All records from the log's beginning to its end."""
    log = CommitLog(disk.copy("/timer/"), folder / "commitlog", segment_bytes)
    return list(log.scan(log.start_position, log.end_position))


def records_of(data: bytes) -> list[StoredRecord]:
    """The records of a log, from its position 0 on."""
    found: list[StoredRecord] = []
    offset = 0
    while offset < len(data):
        found.append(decode(data, offset, offset))
        offset += found[-1].length
    return found


def messages_in_log(disk: MemoryDisk, folder: Path, segment_bytes: int) -> list[StoredMessage]:
    """All messages from the log's beginning to its end, in their order."""
    return messages_of(records_in_log(disk, folder, segment_bytes))


def messages_of(records: Iterable[StoredRecord]) -> list[StoredMessage]:
    """The messages among records, in their order."""
    found = []
    for record in records:
        if record.kind == RecordKind.MESSAGE:
            properties = SystemProperties.FromString(record.system_properties)
            found.append(
                StoredMessage(
                    properties.message_id, record.topic, record.queue_id, record.queue_offset, record.attempts, record
                )
            )
    return found


def recovered(disk: MemoryDisk, folder: Path, options: BrokerOptions, clock: Clock, cluster: str) -> BrokerCore:
    """A broker's core recovered from a disk."""
    view = ClusterView()
    view.name = cluster
    core = BrokerCore(
        options,
        disk,
        folder,
        clock,
        random.Random(0),
        view,
        lambda topic, late_ms: None,
    )
    path = folder / "checkpoint"
    if disk.exists(path):
        file = disk.open(path)
        checkpoint = checkpoint_file.decode(file.read(0, file.size()))
    else:
        checkpoint = Checkpoint(store=StoreCheckpoint(synced_position=core.store.log.end_position))
    log = core.store.log
    log.check_contiguous(checkpoint.store.synced_position)
    for found in log.scan(core.begin(checkpoint), checkpoint.store.synced_position):
        core.fold(found)
    # What the log says has fired counts as pending until its unit is met: a replica's timer is at that all the time.
    while core.timer.state.done and core.timer.step().busy:
        pass
    core.finish()
    return core


def derived_state(core: BrokerCore) -> dict[str, Any]:
    """All that follows from the log: entries of queues, open CKs; comparable."""
    _mark_absent(core)
    queues = {
        f"{queue.topic}/{queue.queue_id}": (
            queue.min_offset,
            queue.read(queue.min_offset, queue.max_offset - queue.min_offset),
        )
        for queue in sorted(core.store.queues, key=lambda queue: (queue.topic, queue.queue_id))
        if queue.max_offset
    }
    deliveries = {
        each.id: (
            each.group,
            each.topic,
            each.queue_id,
            each.open_bits,
            [(each.offsets[index], each.due_of(index)) for index in each.open_indexes()],
            each.attempts,
            each.is_blocked,
        )
        for each in core.state.table
    }
    # What could not be folded in is known to who folded it, and to nobody who wrote it.
    set_aside = {entry.id: entry for entry in core.quarantine.table if entry.step != Step.FOLD}
    open_halves = {half.position: half._replace(asked_ms=0) for half in core.transactions.table}
    lines = {
        (*place, key, offset): delivery
        for place, key, offset, delivery in core.state.table.message_group_queues.members()
    }
    return {
        "queues": queues,
        "deliveries": dict(sorted(deliveries.items())),
        "set aside": set_aside,
        "transactions": open_halves,
        "lines": lines,
    }


def _mark_absent(core: BrokerCore) -> None:
    """Mark in each index file the queues it has nothing of: there may be thousands of files, and all of them would be
    read again for each queue.
    """
    keys = {key_of(queue.topic, queue.queue_id) for queue in core.store.queues}
    if len(keys) > ABSENT_MAX:
        return
    for file in core.store.index.files:
        try:
            file._absent |= keys - {run.key for run in file.runs()}
        except CorruptDataError:
            continue  # whoever reads in it says so
