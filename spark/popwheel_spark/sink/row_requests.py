"""Conversion of rows to messages, and to requests that carry them (pure)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from popwheel_common.contract.wire_format import varint
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Encoding, Message, MessageType, SystemProperties
from popwheel_spark.errors import OptionError, RefusedError
from popwheel_spark.wire.schema import COLUMNS, is_like

WRITTEN: Final = ("topic", "tag", "keys", "messageGroup", "body", "properties", "deliveryTimestamp", "priority")
"""Columns of rows to be sent; `body` is required."""
MESSAGES_MAX: Final = 64
"""Limit of messages of one request; proxies take 128 by default."""
_BYTES_MAX = 2**20
"""Size of the bodies of a request after which it gets no further message."""
_NS_PER_MS = 1_000_000
# Encoded by hand, as objects of protobuf take four times as long. Consecutive fields are one message to
# protobuf, so what rows have in common is encoded once. What is in hexadecimal is a field's tag, and 34 as \x22.
_PROPERTIES = b"%b\x1a\x22%b%012X\x12%b%b"
"""SystemProperties: given ones, message_id (34 characters), keys."""
_MESSAGE = b"%b\x1a%b%b\x22%b%b"
"""Message: topic and user properties, system_properties, body."""
_MESSAGES = b"\x0a%b%b"
"""SendMessageRequest: messages."""


def check_columns(schema: pa.Schema, topic: str, *, of_table: bool = False) -> None:
    """Check, on the driver, that rows can be sent.

    Args:
        schema: of the rows.
        topic: where all of them go; empty: a column says it.
        of_table: they go to a SQL table, so those columns may be there that only reads have.

    Raises:
        OptionError: a column is missing, unknown or of a type that it can't have.
    """
    for field in schema:
        if of_table and field.name in COLUMNS and field.name not in WRITTEN:
            continue
        if field.name not in WRITTEN:
            wanted = ", ".join(WRITTEN)
            raise OptionError("schema", f"messages have no {field.name!r} that could be sent; select some of {wanted}")
        wanted_type = COLUMNS[field.name][1]
        if not is_like(field.type, wanted_type) and not (field.name == "body" and pa.types.is_string(field.type)):
            raise OptionError("schema", f"the column {field.name} must be {COLUMNS[field.name][0]}, not {field.type}")
    if "body" not in schema.names:
        raise OptionError("schema", "rows need a column body, BINARY or STRING")
    if not topic and "topic" not in schema.names:
        raise OptionError("topic", "give the topic of the rows, by this option or by a column topic")


@dataclass(frozen=True)
class Origin:
    """Origin of rows: the write and the part of it; the same when a task runs again.

    Args:
        root: of the write: `QUERY/BATCH` of a stream, or what a batch says by `writeId`.
        partition: number of the task's part.
    """

    root: str
    partition: int

    @property
    def prefix(self) -> str:
        """Prefix of the keys of its rows."""
        return f"{self.root}/{self.partition}/"

    def key(self, row: int) -> str:
        """Return the key of a row: messages with the same key are retries of one row."""
        return f"{self.prefix}{row}"


@dataclass(frozen=True)
class RowRequest:
    """Rows that are sent together.

    Args:
        first: the key of the first of them.
        messages: theirs, each encoded as a field of `SendMessageRequest`.
        send_queue: requests of one send queue have the same message groups, and are sent one after another; None for
            rows without a message group.
    """

    first: str
    messages: Sequence[bytes]
    send_queue: int | None = None


class _Sized(NamedTuple):
    """An encoded message.

    Args:
        row: whose it is.
        message: as a field of `SendMessageRequest`.
        size: of its body.
    """

    row: int
    message: bytes
    size: int


class _Bundle:
    """Messages that are collected for the next request.

    Args:
        origin: whose rows they are.
        send_queue: of the requests.
    """

    def __init__(self, origin: Origin, send_queue: int | None) -> None:
        self._origin = origin
        self._send_queue = send_queue
        self._messages: list[_Sized] = []
        self._size = 0

    def add(self, message: _Sized) -> Iterator[RowRequest]:
        """Add a message; yield a request if that makes it full."""
        self._messages.append(message)
        self._size += message.size
        if len(self._messages) == MESSAGES_MAX or self._size >= _BYTES_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[RowRequest]:
        """Yield a request of the remaining messages, if there are any."""
        if self._messages:
            first = self._origin.key(self._messages[0].row)
            yield RowRequest(first, [each.message for each in self._messages], self._send_queue)
        self._messages, self._size = [], 0


class RowRequests:
    """Converts a task's rows to requests.

    The message id of a row follows from its key: a digest of the prefix of all keys of the task, and the row's number,
    in the form of clients' message ids.

    Args:
        topic: where all rows go; empty: their column says it.
        origin: whose rows they are.
        born_ns: when the task began, since 1970.
        send_queues: number of send queues that the message groups are spread over.
    """

    def __init__(self, topic: str, origin: Origin, born_ns: int, send_queues: int = 1) -> None:
        self._topic = topic
        self._send_queues = send_queues
        self._origin = origin
        self._prefix = origin.prefix.encode()
        self._id = f"01{sha256(self._prefix).hexdigest()[:20].upper()}".encode()
        common = SystemProperties(body_encoding=Encoding.IDENTITY, born_host="spark")
        common.born_timestamp.FromMilliseconds(born_ns // _NS_PER_MS)
        self._common = common.SerializeToString()
        self._row = 0

    def of(self, rows: pa.RecordBatch) -> Iterator[RowRequest]:
        """Yield the requests that carry some rows.

        Raises:
            RefusedError: a row has no body, says no topic, or has a key or property that is null.
        """
        columns = {name: _values(name, rows.column(name)) for name in rows.schema.names}
        bodies: Sequence[bytes | None] = columns.pop("body")
        if self._topic:
            columns.pop("topic", None)
        said: Iterable[tuple[bytes, bytes]] = (
            (self._said(columns, index) for index in range(len(bodies))) if columns else repeat(self._said({}, 0))
        )
        groups: Iterable[str | None] = columns.get("messageGroup", repeat(None))
        places: Iterable[str | None] = columns.get("topic", repeat(self._topic))
        by_group: dict[tuple[int, str, str], list[_Sized]] = {}
        plain = _Bundle(self._origin, None)
        for body, (head, properties), group, topic in zip(bodies, said, groups, places, strict=False):
            if body is None:
                raise RefusedError(f"the row {self._origin.key(self._row)} has no body")
            message = _Sized(self._row, self._message(head, properties, body), len(body))
            self._row += 1
            if group:
                send_queue = crc32(f"{topic} {group}".encode()) % self._send_queues
                by_group.setdefault((send_queue, str(topic), group), []).append(message)
            else:
                yield from plain.add(message)
        yield from plain.rest()
        # One group at a time: a proxy stores the messages of a request's group in one go.
        for send_queue, ones in groupby(sorted(by_group), key=itemgetter(0)):
            bundle = _Bundle(self._origin, send_queue)
            for one in ones:
                for message in by_group[one]:
                    yield from bundle.add(message)
            yield from bundle.rest()

    def _message(self, head: bytes, properties: bytes, body: bytes) -> bytes:
        """Return the encoded message of the next row."""
        row = self._row
        key = b"%b%d" % (self._prefix, row)
        properties = _PROPERTIES % (properties, self._id, row, varint(len(key)), key)
        message = _MESSAGE % (head, varint(len(properties)), properties, varint(len(body)), body)
        return _MESSAGES % (varint(len(message)), message)

    def _said(self, columns: Mapping[str, Sequence[Any]], index: int) -> tuple[bytes, bytes]:
        """Return a row's properties besides its body, encoded.

        These are topic and user properties of its message, and system properties.

        Raises:
            RefusedError: it says no topic, or has a key or property that is null.
        """
        topic = self._topic
        head = Message()
        properties = SystemProperties()
        kind = MessageType.NORMAL
        for name, values in columns.items():
            value = values[index]
            if value is None:
                continue
            match name:
                case "topic":
                    topic = value
                case "tag":
                    properties.tag = value
                case "keys":
                    self._check_nulls("key", value)
                    properties.keys.extend(value)
                case "messageGroup":
                    properties.message_group = value
                    kind = MessageType.FIFO
                case "properties":
                    self._check_nulls("property", (text for _, text in value))
                    head.user_properties.update(value)
                case "priority":
                    properties.priority = value
                    kind = MessageType.PRIORITY
                case "deliveryTimestamp":
                    properties.delivery_timestamp.seconds, micros = divmod(value, 10**6)
                    properties.delivery_timestamp.nanos = micros * 1000
                    kind = MessageType.DELAY
        if not topic:
            raise RefusedError(f"the row {self._origin.key(self._row)} has no topic")
        head.topic.name = topic
        properties.message_type = kind
        return head.SerializeToString(), self._common + properties.SerializeToString()

    def _check_nulls(self, what: str, texts: Iterable[str | None]) -> None:
        if None in texts:
            raise RefusedError(f"the row {self._origin.key(self._row)} has a {what} that is null; leave it out")


def _values(name: str, column: pa.Array) -> list[Any]:
    """Return a column's values in Python; times as microseconds since 1970, bodies as bytes."""
    match name:
        case "deliveryTimestamp":
            column = column.cast(pa.int64())
        case "body":
            column = column.cast(pa.binary())
    values: list[Any] = column.to_pylist()
    return values
