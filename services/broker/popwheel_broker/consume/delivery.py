"""The delivery (the articles' CK): the record of one pop, and the compact records of a revive queue that go with it.

The articles store CK and ACK as JSON messages; here they are packed numbers, because every pop and every ack writes
one. An id names a delivery within its broker for good; modulo the number of revive queues it is its revive queue.

| record | body |
| --- | --- |
| delivery | id, start offset, next offset, pop time, due time, invisible, first position (8 each), queue id 2, |
|    | count 2, origin, flags, lengths of group and topic (1 each), group, topic; then, by flags: offsets (4 each, |
|    | from the start offset), what it replaces (id 8, index 2), open bits, due times (8 each), call (8), |
|    | copies (8 each, all bits for none), and of an ordered group: line 8, attempts 2, source (id 8, index 2; 0 for |
|    | none) of each message |
| ACK | id 8, bits; as its origin: call (8), one byte 0 if no client has asked for it, or nothing |
| renewal | id 8, due time 8, bits |
| origin of a redelivered message | id 8, index 2 |
| offset | offset 8, queue id 2, length of group 1, group, topic; as its origin: one byte for a reset, or nothing |
| origin of a redriven dead letter | its offset in its queue 8, 0 4: its length distinguishes it from other origins |
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from popwheel_broker.consume.holder import Holder
from popwheel_broker.log.record import Record, RecordKind

REVIVE_QUEUES: Final = 8

_ORDERED_REVIVE_QUEUE: Final = 999
"""Revive queue in receipt handles of ordered groups, as in the articles; the delivery's id leads to the real one."""

_DELIVERY: Final = struct.Struct(">QQQQQQQHHBBBB")
_ORIGIN: Final = struct.Struct(">QH")
_ACK: Final = struct.Struct(">Q")
_RENEWAL: Final = struct.Struct(">QQ")
_OFFSET: Final = struct.Struct(">QHB")
_CALL: Final = struct.Struct(">Q")
_REDRIVEN: Final = struct.Struct(">QI")
_MEMBER: Final = struct.Struct(">QHQH")
_ATTEMPTS_MASK: Final = 0xFFFF
_BELOW_0: Final = 0x8000
"""Value from which on attempts are negative: an earlier release wrote one less for each suspended delivery."""

ORIGIN_BYTES: Final = _ORIGIN.size
REDRIVEN_BYTES: Final = _REDRIVEN.size
MESSAGES_MAX: Final = 65_535
"""The number of messages that fit in one delivery."""
RESET: Final = b"\x01"
"""The origin of an offset's record by which a group is set back or forward: what was read before does not count."""

CLOSED: Final = b"\x00"
"""The origin of an ACK record that no client has asked for. A release before this reads it as a call that is not known.
"""

_SPARSE: Final = 1
_REPLACES: Final = 2
_PARTLY_OPEN: Final = 4
_RENEWED: Final = 8
_CALLED: Final = 16
_COPIED: Final = 32
_ORDERED: Final = 64
_BLOCKED: Final = 128

_NO_COPY: Final = (1 << 64) - 1
_NO_COPIES: dict[int, int] = {}


@dataclass(frozen=True, slots=True)
class Origin:
    """Names one message of one delivery.

    Args:
        delivery_id: the delivery.
        index: of the message within it.
    """

    delivery_id: int
    index: int

    def encode(self) -> bytes:
        """Return its ten bytes."""
        return _ORIGIN.pack(self.delivery_id, self.index)

    @classmethod
    def decode(cls, data: bytes) -> "Origin":
        """Read what `encode` made."""
        return cls(*_ORIGIN.unpack(data))


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A group's offset in a queue, as a consumer that reads by offset has set it.

    Args:
        group: the group.
        topic: the queue's topic.
        queue_id: the queue.
        offset: everything below it is done with.
    """

    group: str
    topic: str
    queue_id: int
    offset: int

    def encode(self) -> bytes:
        """Return the body of its record."""
        group = self.group.encode()
        return _OFFSET.pack(self.offset, self.queue_id, len(group)) + group + self.topic.encode()

    @classmethod
    def decode(cls, data: bytes) -> "OffsetCommit":
        """Read what `encode` made."""
        offset, queue_id, group_length = _OFFSET.unpack_from(data)
        topic_start = _OFFSET.size + group_length
        return cls(data[_OFFSET.size : topic_start].decode(), data[topic_start:].decode(), queue_id, offset)


def redriven_origin(queue_offset: int) -> bytes:
    """Return the origin of a record that replaces a group's dead letter.

    Args:
        queue_offset: of the dead letter in its queue.
    """
    return _REDRIVEN.pack(queue_offset, 0)


def decode_redriven(origin: bytes) -> int | None:
    """Return the offset of the dead letter that a record takes the place of; None if it is no origin of that kind."""
    return int(_REDRIVEN.unpack(origin)[0]) if len(origin) == REDRIVEN_BYTES else None


_NO_SOURCE: Final = Origin(0, 0)
_SUSPENDED: Final = Origin(0, 1)


@dataclass(slots=True, eq=False)
class Delivery:
    """Messages of one queue that were given to one consumer, until each is done with.

    Args:
        id: names it within the broker.
        group: who they are hidden from.
        topic: the topic the client asked for; the messages come from it or from its retry topic.
        origin: `receipt.FROM_TOPIC` or `receipt.FROM_RETRY_TOPIC`.
        queue_id: their queue.
        start_offset: where the pop began to read.
        next_offset: where the next pop goes on.
        pop_time_ms: when they were popped (`PopClock`).
        invisible_ms: for how long.
        due_ms: when those that are still open are redelivered.
        first_position: of the first message in the commit log, or of its copy: retention stops before it.
        offsets: of the messages in their queue, ascending.
        replaces: the message of an older delivery that this one replaces (changed invisible duration).
        open_bits: bit i is set while message i is not done with.
        renewed: due times of messages that were renewed, by index.
        revive_offset: of its record in its revive queue.
        call: which call of a client has made it, 0 if unknown; set if it replaces another.
        scheduled_ms: when it is checked next, as the revive table says; not on disk.
        copies: where in the revive queue messages stand that were copied there, by index; never changed in place.
        lines: hashes of the messages' message groups, 0 for none, if their group consumes in order; else empty.
        attempts: of such messages: how often each was delivered before, at most 32,767.
        sources: the messages of older deliveries that these are, if they were read before; all of one revive queue.
        is_blocked: no client has them: they wait until they are the first of their message-group queues
            (`consume.message_group_queues`). An older release, which does not know this, redelivers them at once.
        holder: the client that has it, or had it; None if unknown. In memory only.
        is_suspended: whether the delivery of its only message, of a message-group queue, is no attempt when it ends. On
            disk it has one attempt less, so that an older release counts right, too.
    """

    id: int
    group: str
    topic: str
    origin: int
    queue_id: int
    start_offset: int
    next_offset: int
    pop_time_ms: int
    invisible_ms: int
    due_ms: int
    first_position: int
    offsets: tuple[int, ...] | range
    replaces: Origin | None = None
    open_bits: int = -1
    renewed: dict[int, int] = field(default_factory=dict)
    revive_offset: int = -1
    call: int = 0
    copies: dict[int, int] = field(default_factory=lambda: _NO_COPIES)
    scheduled_ms: int = -1
    lines: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    sources: tuple[Origin, ...] = ()
    is_blocked: bool = False
    is_suspended: bool = False
    holder: Holder | None = None

    def __post_init__(self) -> None:
        if self.open_bits < 0:
            self.open_bits = (1 << len(self.offsets)) - 1

    @property
    def revive_queue(self) -> int:
        """Queue of its records."""
        return self.id % REVIVE_QUEUES

    @property
    def shown_revive_queue(self) -> int:
        """Revive queue as its receipt handles have it."""
        return _ORDERED_REVIVE_QUEUE if self.lines else self.revive_queue

    def index_of(self, queue_offset: int) -> int:
        """Index of the message with this offset, -1 if it is none of its messages."""
        try:
            return self.offsets.index(queue_offset)
        except ValueError:
            return -1

    def due_of(self, index: int) -> int:
        """Return when message `index` is redelivered (`PopClock`)."""
        return self.renewed.get(index, self.due_ms)

    def open_indexes(self) -> list[int]:
        """Return the indexes of the open messages."""
        return bit_indexes(self.open_bits)

    def changed(
        self, index: int, identity: int, now_ms: int, invisible_ms: int, *, call: int = 0, suspends: bool = False
    ) -> "Delivery":
        """Return the delivery that replaces one of its messages, as that one's invisible duration is changed.

        Args:
            index: of the message.
            identity: of the new delivery, in the same revive queue.
            now_ms: when it is changed (`PopClock`).
            invisible_ms: for how long the message is hidden from now on.
            call: which call of a client changes it, 0 if none does.
            suspends: the delivery that ends is no attempt, which only groups that consume in order can say; it stays
                so however often its time is changed.
        """
        offset = self.offsets[index]
        return Delivery(
            id=identity,
            group=self.group,
            topic=self.topic,
            origin=self.origin,
            queue_id=self.queue_id,
            start_offset=offset,
            next_offset=offset + 1,
            pop_time_ms=now_ms,
            invisible_ms=invisible_ms,
            due_ms=now_ms + invisible_ms,
            first_position=self.first_position,
            offsets=(offset,),
            replaces=Origin(self.id, index),
            call=call,
            copies={0: self.copies[index]} if index in self.copies else {},
            lines=self.lines[index : index + 1],
            attempts=self.attempts[index : index + 1],
            is_suspended=bool(self.lines) and (suspends or self.is_suspended),
            holder=self.holder,
        )

    def encode(self) -> bytes:
        """Return the body of its record, as it is now."""
        count = len(self.offsets)
        assert 0 <= self.open_bits < 1 << count, "a bit is open of no message"
        assert not count or self.start_offset <= self.offsets[0] <= self.offsets[-1] < self.next_offset, "not read"
        group, topic = self.group.encode(), self.topic.encode()
        flags = 0
        extra: list[bytes] = []
        if count and self.offsets[-1] - self.start_offset != count - 1:
            flags |= _SPARSE
            extra.append(struct.pack(f">{count}I", *(offset - self.start_offset for offset in self.offsets)))
        if self.replaces is not None:
            flags |= _REPLACES
            extra.append(self.replaces.encode())
        if self.open_bits != (1 << count) - 1:
            flags |= _PARTLY_OPEN
            extra.append(self.open_bits.to_bytes((count + 7) // 8, "big"))
        if self.renewed:
            flags |= _RENEWED
            extra.append(struct.pack(f">{count}Q", *(self.due_of(index) for index in range(count))))
        if self.call:
            flags |= _CALLED
            extra.append(_CALL.pack(self.call))
        if self.copies:
            flags |= _COPIED
            assert max(self.copies.values()) < _NO_COPY, "a copy where none can be"
            extra.append(struct.pack(f">{count}Q", *(self.copies.get(index, _NO_COPY) for index in range(count))))
        if self.lines:
            flags |= _ORDERED | (_BLOCKED if self.is_blocked else 0)
            assert all(0 <= each < _BELOW_0 for each in self.attempts), "attempts that no record can hold"
            assert not self.is_suspended or (count == 1 and not self.sources), "only a change suspends, of one message"
            assert not self.sources or self.sources[0].delivery_id, "a source that would be read as none"
            less = int(self.is_suspended)
            sources = self.sources or ((_SUSPENDED,) if self.is_suspended else (_NO_SOURCE,) * count)
            extra += [
                _MEMBER.pack(line, attempts - less & _ATTEMPTS_MASK, source.delivery_id, source.index)
                for line, attempts, source in zip(self.lines, self.attempts, sources, strict=True)
            ]
        return b"".join(
            (
                _DELIVERY.pack(
                    self.id,
                    self.start_offset,
                    self.next_offset,
                    self.pop_time_ms,
                    self.due_ms,
                    self.invisible_ms,
                    self.first_position,
                    self.queue_id,
                    count,
                    self.origin,
                    flags,
                    len(group),
                    len(topic),
                ),
                group,
                topic,
                *extra,
            )
        )

    @classmethod
    def decode(cls, data: bytes, revive_offset: int) -> "Delivery":
        """Read the body of a delivery record that stands at `revive_offset` of its revive queue."""
        (
            identity,
            start_offset,
            next_offset,
            pop_time_ms,
            due_ms,
            invisible_ms,
            first_position,
            queue_id,
            count,
            origin,
            flags,
            group_length,
            topic_length,
        ) = _DELIVERY.unpack_from(data)
        at = _DELIVERY.size
        group = data[at : at + group_length].decode()
        at += group_length
        topic = data[at : at + topic_length].decode()
        at += topic_length
        offsets: tuple[int, ...] | range = range(start_offset, start_offset + count)
        if flags & _SPARSE:
            offsets = tuple(start_offset + difference for difference in struct.unpack_from(f">{count}I", data, at))
            at += 4 * count
        replaces = None
        if flags & _REPLACES:
            replaces = Origin.decode(data[at : at + _ORIGIN.size])
            at += _ORIGIN.size
        open_bits = (1 << count) - 1
        if flags & _PARTLY_OPEN:
            length = (count + 7) // 8
            open_bits = int.from_bytes(data[at : at + length], "big")
            at += length
        renewed: dict[int, int] = {}
        if flags & _RENEWED:
            dues = struct.unpack_from(f">{count}Q", data, at)
            renewed = {index: due for index, due in enumerate(dues) if due != due_ms}
            at += 8 * count
        call = 0
        if flags & _CALLED:
            (call,) = _CALL.unpack_from(data, at)
            at += _CALL.size
        copies = _NO_COPIES
        if flags & _COPIED:
            places = struct.unpack_from(f">{count}Q", data, at)
            copies = {index: place for index, place in enumerate(places) if place != _NO_COPY}
            at += 8 * count
        lines: tuple[int, ...] = ()
        attempts: tuple[int, ...] = ()
        sources: tuple[Origin, ...] = ()
        is_suspended = False
        if flags & _ORDERED:
            members = list(_MEMBER.iter_unpack(data[at : at + count * _MEMBER.size]))
            lines = tuple(line for line, _, _, _ in members)
            _, made, source, index = members[0]
            is_suspended = count == 1 and not source and (index == _SUSPENDED.index or made >= _BELOW_0)
            attempts = tuple(0 if made >= _BELOW_0 else made + is_suspended for _, made, _, _ in members)
            if source:
                sources = tuple(Origin(identity, index) for _, _, identity, index in members)
        return cls(
            id=identity,
            group=group,
            topic=topic,
            origin=origin,
            queue_id=queue_id,
            start_offset=start_offset,
            next_offset=next_offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            due_ms=due_ms,
            first_position=first_position,
            offsets=offsets,
            replaces=replaces,
            open_bits=open_bits,
            renewed=renewed,
            revive_offset=revive_offset,
            call=call,
            copies=copies,
            lines=lines,
            attempts=attempts,
            sources=sources,
            is_blocked=bool(flags & _BLOCKED),
            is_suspended=is_suspended,
        )


def encode_ack(delivery_id: int, bits: int) -> bytes:
    """Return the body of an ACK record: the messages of a delivery that are done."""
    assert bits > 0, "an ACK of no message"
    return _ACK.pack(delivery_id) + bits.to_bytes((bits.bit_length() + 7) // 8, "big")


def delivery_record(revive_topic: str, delivery: Delivery, decoded: object = None) -> Record:
    """Return the record of a delivery.

    Args:
        revive_topic: where it stands.
        delivery: the delivery.
        decoded: what a follower of the record is to apply in its place, if that is more than the delivery.
    """
    body = delivery.encode()
    queue = delivery.revive_queue
    return Record(RecordKind.DELIVERY, revive_topic, queue, body, decoded=decoded or delivery)


def renewal_record(revive_topic: str, delivery_id: int, bits: int, due_ms: int) -> Record:
    """Return the record by which messages of a delivery are hidden until `due_ms`."""
    body = encode_renewal(delivery_id, bits, due_ms)
    return Record(RecordKind.RENEWAL, revive_topic, delivery_id % REVIVE_QUEUES, body)


def ack_record(revive_topic: str, delivery_id: int, bits: int, call: int = 0) -> Record:
    """Return the record by which a client acknowledges messages of a delivery.

    Args:
        revive_topic: where it stands.
        delivery_id: the delivery.
        bits: the messages.
        call: which call of a client asked for it; 0 if that is not known.
    """
    queue = delivery_id % REVIVE_QUEUES
    return Record(RecordKind.ACK, revive_topic, queue, encode_ack(delivery_id, bits), origin=encode_call(call))


def close_record(revive_topic: str, delivery_id: int, bits: int) -> Record:
    """Return the record that takes messages out of a delivery, though no client has acknowledged them."""
    queue = delivery_id % REVIVE_QUEUES
    return Record(RecordKind.ACK, revive_topic, queue, encode_ack(delivery_id, bits), origin=CLOSED)


def close_records(revive_topic: str, deliveries: Iterable[Delivery]) -> list[Record]:
    """Return such records for all open messages of deliveries."""
    return [close_record(revive_topic, each.id, each.open_bits) for each in deliveries]


def decode_ack(data: bytes) -> tuple[int, int]:
    """Return delivery id and bits of an ACK record."""
    (identity,) = _ACK.unpack_from(data)
    return identity, int.from_bytes(data[_ACK.size :], "big")


def encode_call(call: int) -> bytes:
    """Return the origin of an ACK record: the call of a client that asked for it; 0 if unknown."""
    return _CALL.pack(call) if call else b""


def decode_call(data: bytes) -> int:
    """Read what `encode_call` made; 0 if that is not known."""
    return int.from_bytes(data, "big")


def encode_renewal(delivery_id: int, bits: int, due_ms: int) -> bytes:
    """Return the body of a renewal record: the messages of a delivery that are hidden until `due_ms`."""
    assert bits > 0, "a renewal of no message"
    return _RENEWAL.pack(delivery_id, due_ms) + bits.to_bytes((bits.bit_length() + 7) // 8, "big")


def decode_renewal(data: bytes) -> tuple[int, int, int]:
    """Return delivery id, bits and due time of a renewal record."""
    identity, due_ms = _RENEWAL.unpack_from(data)
    return identity, int.from_bytes(data[_RENEWAL.size :], "big"), due_ms


def bit_indexes(bits: int) -> list[int]:
    """Return the indexes of the bits that are set, lowest first."""
    indexes: list[int] = []
    while bits:
        lowest = bits & -bits
        indexes.append(lowest.bit_length() - 1)
        bits ^= lowest
    return indexes
