"""Entry of the quarantine: a poison message, and the bytes of its records.

A QUARANTINE record stands in queue 0 of the cluster's quarantine topic and holds a copy of the message. Its `origin` is
what it replaces, as that of a redelivered or fired message is: a message of a delivery (10 bytes), a timer (8), or
nothing, where the message stays where it is. So it is folded as those are.

| record | body |
| --- | --- |
| QUARANTINE | version 1, step, flags, kind of the record that failed (1 each), position 8, root 8, queue id 2, queue  |
|            | offset 8, lengths of group, topic, reason (2 each) and inner origin (1), group, topic, reason, inner  |
|            | origin, the message's payload |
| QUARANTINE_END | version 1, key |

`inner origin` is the origin of the record that failed: of a timer, where it goes and when. The message's system
properties, tag hash and attempts are those of the QUARANTINE record itself.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

from popwheel_broker.consume.delivery import ORIGIN_BYTES, Origin
from popwheel_broker.log.fault import REASON_LENGTH_MAX
from popwheel_broker.log.record import StoredRecord
from popwheel_common.errors import UnknownFormatError

QUARANTINE_QUEUE = 0

_HEAD = struct.Struct(">BBBBQQHQHHHB")
_VERSION = 1
_POSITION = struct.Struct(">Q")


class Step(IntEnum):
    """Step at which a record failed."""

    REDELIVERY = 1
    """Step on the way to the retry topic or the dead letter queue."""
    ANSWER = 2
    """Step of its delivery."""
    FIRING = 3
    """Step when its delivery time had come, or as it rolled."""
    SCHEDULING = 4
    """Step on the way from the timer queue into the wheel."""
    FOLD = 5
    """Step of the fold of the log into the state: at a start, or at a slave."""
    READING = 6
    """Step of a read by offset by a consumer."""
    RETENTION = 7
    """Step of the check whether its segment may be deleted."""

    @property
    def label(self) -> str:
        """Label in metrics and lists."""
        return self.name.lower()


class EntryFlag(IntFlag):
    """Flag of an entry."""

    COPIED = 1
    """The QUARANTINE record holds the message; else it stands where it failed, and its segment stays."""
    ATTEMPTED = 2
    """The delivery that ended counts as an attempt."""


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A poison message in quarantine.

    Args:
        step: at which step it failed.
        flags: further facts.
        origin: what it was taken from: a message of a delivery, or a timer; empty if it stayed where it was.
        position: of the record that failed, in the commit log.
        root: of a delayed message: position of its first record; else as `position`.
        group: whose delivery it was; empty for none.
        topic: its topic, as the client knows it; empty if that could not be read.
        queue_id, queue_offset: where it stands.
        reason: the error.
        quarantined_ms: when, by the wall clock.
        record_position, record_length: of the QUARANTINE record; -1 and 0 if there is none (`Step.FOLD`).
    """

    step: Step
    flags: EntryFlag
    origin: bytes
    position: int
    root: int
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    reason: str
    quarantined_ms: int = 0
    record_position: int = -1
    record_length: int = 0

    @property
    def key(self) -> bytes:
        """Key by which it is known, on every replica."""
        return self.origin or _POSITION.pack(self.position)

    @property
    def id(self) -> str:
        """Key for operators: a position, or a delivery's id and the message's index there."""
        if not self.is_delivery:
            return str(_POSITION.unpack(self.key)[0])
        origin = Origin.decode(self.origin)
        return f"{origin.delivery_id}.{origin.index}"

    @property
    def is_delivery(self) -> bool:
        """True if it was taken from a delivery."""
        return len(self.origin) == ORIGIN_BYTES

    @property
    def is_timer(self) -> bool:
        """True if it was taken from the timer."""
        return len(self.origin) == _POSITION.size

    @property
    def stored_position(self) -> int:
        """Position in the log of its copy, or of the message itself; the entry is gone when retention deletes that."""
        return self.record_position if self.flags & EntryFlag.COPIED else self.position

    @property
    def is_pinned(self) -> bool:
        """True if retention must keep its segment: the message was taken from its place, and has no copy."""
        return bool(self.origin) and not self.flags & EntryFlag.COPIED

    def encode(self, kind: int, inner_origin: bytes, payload: bytes) -> bytes:
        """Return the body of its QUARANTINE record.

        Args:
            kind: of the record that failed; 0 if it is not copied.
            inner_origin: of the record that failed.
            payload: the message's.
        """
        group, topic = self.group.encode(), self.topic.encode(errors="backslashreplace")
        reason = self.reason.encode(errors="backslashreplace")[: 2 * REASON_LENGTH_MAX]
        return b"".join(
            (
                _HEAD.pack(
                    _VERSION,
                    self.step,
                    self.flags,
                    kind,
                    self.position,
                    self.root,
                    self.queue_id,
                    self.queue_offset,
                    len(group),
                    len(topic),
                    len(reason),
                    len(inner_origin),
                ),
                group,
                topic,
                reason,
                inner_origin,
                payload,
            )
        )

    def saved(self) -> list[Any]:
        """Return its form in a checkpoint."""
        return [
            int(self.step),
            int(self.flags),
            self.origin.hex(),
            self.position,
            self.root,
            self.group,
            self.topic,
            self.queue_id,
            self.queue_offset,
            self.reason,
            self.quarantined_ms,
            self.record_position,
            self.record_length,
        ]

    @classmethod
    def restored(cls, saved: list[Any]) -> "QuarantineEntry":
        """Read what `saved` made."""
        step, flags, origin, *rest = saved
        return cls(Step(step), EntryFlag(flags), bytes.fromhex(origin), *rest)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """Content of a QUARANTINE record.

    Args:
        entry: the entry.
        kind: of the record that failed; 0 if it is not copied.
        inner_origin: of the record that failed.
        payload: the message's.
    """

    entry: QuarantineEntry
    kind: int
    inner_origin: bytes
    payload: bytes


def decode_stored_entry(found: StoredRecord) -> StoredEntry:
    """Read a QUARANTINE record.

    Raises:
        UnknownFormatError: it was written by a newer release.
    """
    body = found.payload
    _check_version(body)
    (
        _version,
        step,
        flags,
        kind,
        position,
        root,
        queue_id,
        queue_offset,
        group_length,
        topic_length,
        reason_length,
        origin_length,
    ) = _HEAD.unpack_from(body)
    at = _HEAD.size
    parts: list[bytes] = []
    for length in (group_length, topic_length, reason_length, origin_length):
        parts.append(body[at : at + length])
        at += length
    group, topic, reason, inner_origin = parts
    entry = QuarantineEntry(
        Step(step),
        EntryFlag(flags),
        found.origin,
        position,
        root,
        group.decode(),
        topic.decode(),
        queue_id,
        queue_offset,
        reason.decode(errors="replace"),
        found.store_time_ms,
        found.position,
        found.length,
    )
    return StoredEntry(entry, kind, inner_origin, body[at:])


def encode_end(key: bytes) -> bytes:
    """Return the body of a QUARANTINE_END record: an operator has ended an entry."""
    return bytes((_VERSION,)) + key


def decode_end(data: bytes) -> bytes:
    """Return the key that `encode_end` was given.

    Raises:
        UnknownFormatError: it was written by a newer release.
    """
    _check_version(data)
    return data[1:]


def key_of(entry_id: str) -> bytes | None:
    """Return the key that an operator names by `QuarantineEntry.id`; None if it is none."""
    number, dot, index = entry_id.partition(".")
    if not (number.isascii() and number.isdigit()) or (dot and not (index.isascii() and index.isdigit())):
        return None
    try:
        return Origin(int(number), int(index)).encode() if dot else _POSITION.pack(int(number))
    except (struct.error, ValueError):  # a number that is too large, or a text of thousands of digits
        return None


def _check_version(body: bytes) -> None:
    if body[:1] != bytes((_VERSION,)):
        raise UnknownFormatError(
            f"a record of the quarantine has format version {body[:1].hex()}, this release knows {_VERSION}"
        )
