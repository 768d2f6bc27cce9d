"""Rows as messages, and the requests that carry them (pure)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa

from popwheel_spark.errors import OptionError, RefusedError
from popwheel_spark.schema import COLUMNS, is_like
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Encoding, Message, MessageType
from services.common.pb.apache.rocketmq.v2.service_pb2 import SendMessageRequest

WRITTEN: Final = ("topic", "tag", "keys", "messageGroup", "body", "properties", "deliveryTimestamp")
"""Columns that a row to be sent may have; `body` it must have."""
MESSAGES_MAX: Final = 64
"""Of one request; proxies take 128 unless they are told otherwise."""
_BYTES_MAX = 2**20
"""No request gets a further message past so many bytes of bodies."""
_NS_PER_MS = 1_000_000


def check_columns(schema: pa.Schema, topic: str) -> None:
    """See, on the driver, that rows can be sent.

    Args:
        schema: of the rows.
        topic: where all of them go; empty: a column says it.

    Raises:
        OptionError: a column is missing, unknown or of a type that it can't have.
    """
    for field in schema:
        if field.name not in WRITTEN:
            wanted = ", ".join(WRITTEN)
            raise OptionError("schema", f"messages have no {field.name!r} that could be sent; select some of {wanted}")
        wanted_type = COLUMNS[field.name][1]
        if not is_like(field.type, wanted_type) and not (field.name == "body" and pa.types.is_string(field.type)):
            raise OptionError("schema", f"the column {field.name} must be {COLUMNS[field.name][0]}, not {field.type}")
    if "body" not in schema.names:
        raise OptionError("schema", "rows need a column body, BINARY or STRING: what the message says")
    if not topic and "topic" not in schema.names:
        raise OptionError("topic", "say where the rows go, by this option or by a column topic")


@dataclass(frozen=True)
class Origin:
    """Which part of which write rows belong to; the same when a task runs again.

    Args:
        query: of the stream, or of the write.
        batch: number of the micro-batch; 0 for a batch.
        partition: number of the task's part.
    """

    query: str
    batch: int
    partition: int

    def key(self, row: int) -> str:
        """The key of a row: messages with the same one are the same row, sent again."""
        return f"{self.query}/{self.batch}/{self.partition}/{row}"


def message_id(key: str) -> str:
    """The id of a row's message, in the form that clients give theirs; the same for the same key."""
    return f"01{sha256(key.encode()).hexdigest()[:32].upper()}"


class RowRequests:
    """Makes requests of a task's rows.

    Args:
        topic: where all rows go; empty: their column says it.
        origin: whose rows they are.
        born_ns: when the task began, since 1970.
    """

    def __init__(self, topic: str, origin: Origin, born_ns: int) -> None:
        self._topic = topic
        self._origin = origin
        self._born_s, self._born_nanos = divmod(born_ns // _NS_PER_MS * _NS_PER_MS, 10**9)
        self._row = 0

    def of(self, rows: pa.RecordBatch) -> Iterator[SendMessageRequest]:
        """The requests that carry some rows.

        Raises:
            RefusedError: a row has no body, or says no topic.
        """
        columns: dict[str, Sequence[Any]] = {}
        for name in rows.schema.names:
            column = rows.column(name)
            columns[name] = (column.cast(pa.int64()) if name == "deliveryTimestamp" else column).to_pylist()
        request = SendMessageRequest()
        size = 0
        for index in range(rows.num_rows):
            body = self._add(request.messages.add(), columns, index)
            size += len(body)
            if len(request.messages) == MESSAGES_MAX or size >= _BYTES_MAX:
                yield request
                request, size = SendMessageRequest(), 0
        if request.messages:
            yield request

    def _add(self, message: Message, columns: Mapping[str, Sequence[Any]], index: int) -> bytes:
        """Fill a message in from a row; its body."""
        key = self._origin.key(self._row)
        self._row += 1
        topic = self._topic or columns["topic"][index]
        body: bytes | str | None = columns["body"][index]
        if body is None or not topic:
            raise RefusedError(f"the row {key} has no {'body' if topic else 'topic'}")
        if isinstance(body, str):
            body = body.encode()
        message.topic.name = topic
        message.body = body
        properties = message.system_properties
        properties.message_id = message_id(key)
        properties.body_encoding = Encoding.IDENTITY
        properties.born_host = "spark"
        properties.born_timestamp.seconds = self._born_s
        properties.born_timestamp.nanos = self._born_nanos
        kind = MessageType.NORMAL
        for name, values in columns.items():
            value = values[index]
            if value is None:
                continue
            match name:
                case "tag":
                    properties.tag = value
                case "keys":
                    properties.keys.extend(value)
                case "messageGroup":
                    properties.message_group = value
                    kind = MessageType.FIFO
                case "properties":
                    message.user_properties.update(value)
                case "deliveryTimestamp":
                    properties.delivery_timestamp.seconds, micros = divmod(value, 10**6)
                    properties.delivery_timestamp.nanos = micros * 1000
                    kind = MessageType.DELAY
        properties.keys.append(key)
        properties.message_type = kind
        return body
