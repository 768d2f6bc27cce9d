"""Headers of transactions' records besides their message, byte by byte.

A half message is a record HALF in queue 0 of `rmq_sys_trans_half`, with all the sender's bytes. Its `origin` has its
target once it is committed. The MESSAGE that it becomes then has `committed_origin` as its own: one record both ends
the transaction and puts the message into its queue, so a crash can neither lose nor double it (X2).

| what | bytes |
| --- | --- |
| origin of a HALF | version 1, first check 8, topic id 8, queue id 2, topic |
| origin of a committed message | version 1, position of the HALF 8 |
| body of a HALF_CHECK, in queue 1 | version 1, checks 2, position of the HALF 8 |
| body of a HALF_END, in queue 1 | version 1, resolution 1, position of the HALF 8 |
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_common.errors import UnknownFormatError

HALF_TOPIC = "rmq_sys_trans_half"
HALF_QUEUE = 0
STEP_QUEUE = 1
NONE = -1

_HALF = struct.Struct(">BqqH")
_COMMITTED = struct.Struct(">BQ")
_CHECK = struct.Struct(">BHQ")
_END = struct.Struct(">BBQ")
_VERSION = 1


class Resolution(IntEnum):
    """Resolution of a transaction."""

    COMMITTED = 1
    ROLLED_BACK = 2
    EXPIRED = 3
    """No producer reported an outcome in all checks: it is rolled back."""


class HalfTarget(NamedTuple):
    """Target of a half message once it is committed.

    Args:
        topic: the topic.
        queue_id: its queue.
        topic_id: id of the topic.
        first_check_ms: time to the first check in milliseconds; 0: as the broker's settings have it.
    """

    topic: str
    queue_id: int
    topic_id: int
    first_check_ms: int

    def encode(self) -> bytes:
        """Return the origin of its record."""
        return _HALF.pack(_VERSION, self.first_check_ms, self.topic_id, self.queue_id) + self.topic.encode()


def decode_half(origin: bytes) -> HalfTarget:
    """Read what `HalfTarget.encode` made.

    Raises:
        UnknownFormatError: it was written by a newer release.
    """
    version, first_check_ms, topic_id, queue_id = _HALF.unpack_from(origin)
    _check_version(version)
    return HalfTarget(origin[_HALF.size :].decode(), queue_id, topic_id, first_check_ms)


def committed_record(target: HalfTarget, half: StoredRecord) -> Record:
    """Return the message that a half message becomes as it is committed."""
    return Record(
        RecordKind.MESSAGE,
        target.topic,
        target.queue_id,
        half.payload,
        half.system_properties,
        half.tag_hash,
        origin=_COMMITTED.pack(_VERSION, half.position),
    )


def is_committed(origin: bytes) -> bool:
    """Return whether the message with this origin was a half message before it was committed."""
    return len(origin) == _COMMITTED.size


def committed_half(found: StoredRecord) -> int:
    """Return the position of the half message that a message was before it was committed, `NONE` if it was none.

    Raises:
        UnknownFormatError: it was written by a newer release.
    """
    if not is_committed(found.origin):
        return NONE
    version, position = _COMMITTED.unpack(found.origin)
    _check_version(version)
    return int(position)


def check_record(position: int, checks: int) -> Record:
    """Return the record of the number of checks of the half message at a position."""
    return Record(RecordKind.HALF_CHECK, HALF_TOPIC, STEP_QUEUE, _CHECK.pack(_VERSION, checks, position))


def decode_check(payload: bytes) -> tuple[int, int]:
    """Return position and number of checks. Raises UnknownFormatError: it was written by a newer release."""
    version, checks, position = _CHECK.unpack(payload)
    _check_version(version)
    return position, checks


def end_record(position: int, resolution: Resolution) -> Record:
    """Return the record by which a transaction ends without a message."""
    return Record(RecordKind.HALF_END, HALF_TOPIC, STEP_QUEUE, _END.pack(_VERSION, resolution, position))


def decode_end(payload: bytes) -> tuple[int, Resolution]:
    """Return position and resolution. Raises UnknownFormatError: it was written by a newer release."""
    version, resolution, position = _END.unpack(payload)
    _check_version(version)
    return position, Resolution(resolution)


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise UnknownFormatError(
            f"a record of a transaction has format version {version}, this release knows {_VERSION}"
        )
