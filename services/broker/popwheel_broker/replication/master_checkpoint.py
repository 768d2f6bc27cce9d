"""The master's progress as a slave holds it: what it takes, what it refuses, and its bytes (checkpoint sync).

The file is a row of blocks, each a `ReplicaCheckpoint`: one that is whole, then the differences that came since. A
block: magic `PWMC`, version 2 bytes, length 4, CRC-32C 4 of the rest, then the message. A block that is not whole ends
the file: it was being written when the process died, and was not answered.
"""

import struct
from collections.abc import Iterator, Mapping
from itertools import islice

from google.protobuf.message import DecodeError
from google_crc32c import value

from popwheel_broker.core.core import BrokerCore
from popwheel_common.contract import names
from popwheel_common.errors import StatusError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import GroupOffsets, KnownName, ReplicaCheckpoint

_PREFIX = struct.Struct(">4sHII")
_MAGIC = b"PWMC"
_VERSION = 1
_GONE = -1

ProgressKey = tuple[str, str, int]
"""Consumer group, topic and queue."""


class MasterCheckpoint:
    """Checkpoint of a master's progress. Epochs and, within one, versions never go back (C4)."""

    def __init__(self) -> None:
        self.latest = ReplicaCheckpoint()
        """Last checkpoint that was taken, without its columns; its epoch is 0 if there was none."""
        self._offsets: dict[ProgressKey, tuple[int, int]] = {}
        self._topics: dict[str, int] = {}
        self._groups: dict[str, int] = {}

    @property
    def is_complete(self) -> bool:
        """True once all its parts have arrived."""
        return self.latest.epoch > 0 and not self.latest.rest_from

    @property
    def known_version(self) -> int:
        """Version up to which it has all changes; 0 if it is empty."""
        return known_version(self.latest)

    @property
    def offsets(self) -> Mapping[ProgressKey, tuple[int, int]]:
        """Committed and popped offset by consumer group, topic and queue."""
        return self._offsets

    @property
    def topics(self) -> Mapping[str, int]:
        """Ids of the topics that the master knew."""
        return self._topics

    @property
    def groups(self) -> Mapping[str, int]:
        """Ids of the consumer groups that the master knew."""
        return self._groups

    def check(self, given: ReplicaCheckpoint) -> None:
        """Find out whether a checkpoint may be taken; nothing is changed.

        Raises:
            StatusError: PRECONDITION_FAILED: it is of an older epoch or version, or a difference from a version that is
                not stored. BAD_REQUEST: its columns do not fit together.
        """
        latest = self.latest
        if given.epoch < latest.epoch:
            raise _refusal(f"epoch {given.epoch} is over, a checkpoint of epoch {latest.epoch} is stored")
        if given.epoch == latest.epoch and given.version < latest.version:
            raise _refusal(
                f"version {given.version} of epoch {given.epoch} is older than {latest.version}, which is stored"
            )
        if given.base_version and (given.epoch != latest.epoch or given.base_version > self.known_version):
            raise _refusal(
                f"it is a difference from version {given.base_version} of epoch {given.epoch}, but version "
                f"{self.known_version} of epoch {latest.epoch} is stored"
            )
        if given.epoch < 1 or given.version < 1 or not 0 <= given.base_version <= given.version:
            raise StatusError(Code.BAD_REQUEST, "a checkpoint needs an epoch and a version, which begin with 1")
        for each in given.offsets:
            if not len(each.queue_ids) == len(each.committed) == len(each.popped):
                raise StatusError(Code.BAD_REQUEST, "the columns of a checkpoint's offsets must have one length")

    def is_applied(self, given: ReplicaCheckpoint) -> bool:
        """Return whether this very checkpoint was applied before."""
        return (given.epoch, given.version) == (self.latest.epoch, self.latest.version)

    def take(self, given: ReplicaCheckpoint) -> None:
        """Take a checkpoint that was checked."""
        if not given.base_version:
            self._offsets.clear()
            self._topics.clear()
            self._groups.clear()
        offsets = self._offsets
        for each in given.offsets:
            group, topic = each.group, each.topic
            for queue_id, committed, popped in zip(each.queue_ids, each.committed, each.popped, strict=True):
                if committed == _GONE:
                    offsets.pop((group, topic, queue_id), None)
                else:
                    offsets[group, topic, queue_id] = (committed, popped)
        for ids, known, gone in (
            (self._topics, given.topics, given.gone_topics),
            (self._groups, given.groups, given.gone_groups),
        ):
            ids.update((name.name, name.id) for name in known)
            for name in gone:
                ids.pop(name, None)
        latest = ReplicaCheckpoint(
            group=given.group,
            epoch=given.epoch,
            version=given.version,
            base_version=given.base_version,
            time_ms=given.time_ms,
            high_watermark=given.high_watermark,
            revive_offsets=given.revive_offsets,
            rest_from=given.rest_from,
            scanned_position=given.scanned_position,
        )
        latest.timer.CopyFrom(given.timer)
        self.latest = latest

    def parts(self, entries_max: int) -> Iterator[ReplicaCheckpoint]:
        """Yield the whole checkpoint, as a base and differences from it. None may be stored meanwhile."""
        part = ReplicaCheckpoint()
        part.CopyFrom(self.latest)
        part.base_version = 0
        for ids, known in ((self._topics, part.topics), (self._groups, part.groups)):
            known.extend(KnownName(name=name, id=identity) for name, identity in ids.items())
        rest = iter(self._offsets.items())
        while True:
            columns: dict[tuple[str, str], GroupOffsets] = {}
            for (group, topic, queue_id), (committed, popped) in islice(rest, entries_max):
                of_topic = columns.get((group, topic))
                if of_topic is None:
                    of_topic = columns[group, topic] = part.offsets.add(group=group, topic=topic)
                of_topic.queue_ids.append(queue_id)
                of_topic.committed.append(committed)
                of_topic.popped.append(popped)
            if part.base_version and not columns:
                return
            yield part
            part = ReplicaCheckpoint()
            part.CopyFrom(self.latest)
            part.base_version = self.latest.version


def known_version(given: ReplicaCheckpoint) -> int:
    """Return the version up to which a replica has all changes, once it has this checkpoint and all before it."""
    return given.rest_from or given.version


def speaks_of(given: ReplicaCheckpoint, end_of_epoch: int | None) -> bool:
    """Return whether this replica has all of the log that a checkpoint was taken from.

    Args:
        given: the checkpoint.
        end_of_epoch: end of the records of its epoch in this replica's log; None if it has none.
    """
    return end_of_epoch is not None and given.high_watermark <= end_of_epoch


def encode(given: ReplicaCheckpoint) -> bytes:
    """Return a block of the file."""
    body = given.SerializeToString()
    return _PREFIX.pack(_MAGIC, _VERSION, len(body), value(body)) + body


def decode(data: bytes) -> tuple[list[ReplicaCheckpoint], int]:
    """Read the blocks of a file, as far as they are whole; and how many bytes those are.

    Raises:
        UnknownFormatError: it was written by a release that this one does not know.
    """
    found: list[ReplicaCheckpoint] = []
    at = 0
    while len(data) - at >= _PREFIX.size:
        magic, version, length, checksum = _PREFIX.unpack_from(data, at)
        begin = at + _PREFIX.size
        if magic != _MAGIC:
            break
        if version != _VERSION:
            raise UnknownFormatError(
                f"the master's checkpoint has format version {version}, this release knows {_VERSION}"
            )
        body = data[begin : begin + length]
        if len(body) < length or value(body) != checksum:
            break
        try:
            found.append(ReplicaCheckpoint.FromString(body))
        except DecodeError:
            break
        at = begin + length
    return found, at


def _refusal(why: str) -> StatusError:
    return StatusError(Code.PRECONDITION_FAILED, f"the checkpoint is refused: {why}")


def take_over_offsets(core: BrokerCore, checkpoint: MasterCheckpoint) -> int:
    """Advance consumer groups to the offsets of the old master; return how many offsets were moved.

    This broker's own log lacks one thing: a pop whose filter matches no message leaves no record. So consumer groups
    may be ahead of the log; then the larger offset counts, and the messages that the filter skipped are not read again.
    It is never used where it might take a message away: if it speaks of more of the log than there is here, of another
    topic or group of the same name, or of a time before somebody set the offset by hand, which is when the offsets were
    looked at.

    Args:
        core: all of the log is folded into it, and that holds all that the checkpoint speaks of.
        checkpoint: the old master's progress.
    """
    position = checkpoint.latest.scanned_position
    if not checkpoint.is_complete or core.begun_position > position:
        return 0
    moved = 0
    buffer = core.state.merge_buffer
    for (group, topic, queue_id), (committed, popped) in checkpoint.offsets.items():
        queue = core.store.queue(topic, queue_id)
        if queue is None or not _is_same(core, checkpoint, group, topic):
            continue
        if buffer.set_at(group, queue) < position:
            end = queue.max_offset
            moved += buffer.move_on(group, queue, min(committed, end), min(popped, end))
    return moved


def _is_same(core: BrokerCore, checkpoint: MasterCheckpoint, group: str, topic: str) -> bool:
    """Return whether a group and a topic are those that the old master knew by their names."""
    topic_ids, group_ids = core.topic_registry.topic_ids, core.topic_registry.group_ids
    if topic.startswith(names.DEAD_LETTER_PREFIX):
        owner = topic.removeprefix(names.DEAD_LETTER_PREFIX)
        topic_is_same = owner in group_ids and group_ids[owner] == checkpoint.groups.get(owner)
    else:
        base = names.topic_of_retry_topic(topic) or topic
        topic_is_same = base in topic_ids and topic_ids[base] == checkpoint.topics.get(base)
    return topic_is_same and group in group_ids and group_ids[group] == checkpoint.groups.get(group)
