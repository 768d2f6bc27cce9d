"""Conversion of a log's records to rows of Arrow, column by column (pure)."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from popwheel_common.contract.names import topic_of_retry_topic
from popwheel_common.contract.record_block import HEAD, VERSION, RecordBlock
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import DeadLetterQueue, Encoding, Message, SystemProperties
from popwheel_spark.errors import FormatError
from popwheel_spark.wire.columns import BAD_RECORD
from popwheel_spark.wire.offsets import Queue
from popwheel_spark.wire.schema import TIME, arrow_schema
from popwheel_spark.wire.wire_fields import Fields, FieldsByNumber, fields_within, read_fields

UNPACKED_BYTES_MAX: Final = 64 * 2**20
"""Limit of an unpacked body. A message of 4 MiB could fill 4 GiB."""
_GZIP = int(Encoding.GZIP)
_MICROS_PER_S = 1_000_000
_MICROS_PER_MS = 1000
_NANOS_PER_MICRO = 1000
_SECONDS = 1
_NANOS = 2
_KEY = 1
_VALUE = 2


class UnreadableError(ValueError):
    """Error of a block with a record that can't be decoded; it does not say which one."""


def record_batch(queue: Queue, block: RecordBlock, columns: Sequence[str]) -> pa.RecordBatch:
    """Convert records of one queue to rows.

    Args:
        queue: where they are from.
        block: in the order of the rows.
        columns: those of `schema.COLUMNS` that are wanted; of no others anything is read.

    Raises:
        FormatError: the broker is of a newer release.
        UnreadableError: a record can't be decoded.
    """
    schema = arrow_schema(columns)
    rows = _Rows(block)
    arrays = []
    for field in schema:
        if field.name in _OF_QUEUE:
            value = pa.scalar(_OF_QUEUE[field.name](queue), field.type)
            arrays.append(pa.repeat(value, rows.count))
        else:
            arrays.append(_column(rows, field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def stored_batch(queue: Queue, block: RecordBlock, columns: Sequence[str], reason: str | None = None) -> pa.RecordBatch:
    """Return a row for a record that can't be decoded: null for unreadable parts, and the body as it is stored.

    Args:
        queue: where it is from.
        block: of the record alone.
        columns: that are wanted.
        reason: what is wrong with it, for the column `badRecord`.
    """
    schema = arrow_schema(columns)
    rows = _Rows(block)

    def array(field: pa.Field) -> pa.Array:
        if field.name in _OF_QUEUE:
            return pa.array([_OF_QUEUE[field.name](queue)], field.type)
        if field.name == BAD_RECORD:
            return pa.array([reason], field.type)
        try:
            return _stored_bodies(rows) if field.name == "body" else _column(rows, field.name)
        except UnreadableError:
            return pa.nulls(1, field.type)

    return pa.RecordBatch.from_arrays([array(field) for field in schema], schema=schema)


def _column(rows: "_Rows", name: str) -> pa.Array:
    """Return a column of the records.

    Raises:
        UnreadableError: one can't be decoded.
    """
    try:
        found = _OF_RECORDS[name](rows)
        if name in _TEXTS:
            found.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UnreadableError(f"its column {name} is not UTF-8: {error}") from None
    except ValueError as error:
        raise UnreadableError(str(error)) from None
    return found


_OF_QUEUE: Final[Mapping[str, Callable[[Queue], str | int]]] = {
    "topic": lambda queue: queue.topic,
    "brokerName": lambda queue: queue.broker,
    "queueId": lambda queue: queue.number,
}


class _Rows:
    """Records whose parts are decoded when a column needs them.

    Args:
        block: the records.
    """

    def __init__(self, block: RecordBlock) -> None:
        self.data = block.data
        self.count = len(block.begins)
        self.heads = block.heads()
        if np.any(self.heads["version"] != VERSION):
            raise FormatError(
                f"records have the format {self.heads['version'].max()}, this release knows {VERSION}: bring the jobs "
                "to the release of the brokers"
            )
        heads = self.heads
        self._system_begins = block.begins + HEAD.itemsize + heads["topic_length"] + heads["origin_length"]
        self._payload_begins = self._system_begins + heads["system_length"].astype(np.int64)
        self._ends = block.begins + block.lengths
        if np.any(self._payload_begins > self._ends):
            raise UnreadableError("its parts are longer than all of it")

    @cached_property
    def properties(self) -> FieldsByNumber:
        """Return the fields of the system properties."""
        return read_fields(self.data, self._system_begins, self._payload_begins)

    @cached_property
    def payload(self) -> FieldsByNumber:
        """Return the fields of the messages without system properties."""
        return read_fields(self.data, self._payload_begins, self._ends)

    def property(self, number: int) -> Fields:
        """Return one of the system properties."""
        return self.properties.of(number)

    def last(self, fields: Fields, kind: pa.DataType) -> pa.Array:
        """Return the last value of each row as bytes or text; null where it has none."""
        return _nullable(self.values(fields, kind), fields.last(self.count))

    def values(self, fields: Fields, kind: pa.DataType) -> pa.Array:
        """Return all values as bytes or text."""
        if not len(fields.begin):
            return pa.array([], kind)
        # Every second piece of the data is a value; the others lie between two.
        bounds = np.empty(2 * len(fields.begin), np.int32)
        bounds[0::2], bounds[1::2] = fields.begin, fields.end
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        pieces = pa.Array.from_buffers(kind, len(bounds) - 1, buffers)
        return pieces.take(pa.array(np.arange(0, len(bounds) - 1, 2)))

    def numbers(self, fields: Fields, missing: int = 0) -> npt.NDArray[np.int64]:
        """Return the last value of each row as a number."""
        found = np.full(self.count, missing)
        found[fields.message] = fields.value
        return found

    def micros(self, times: Fields) -> npt.NDArray[np.int64]:
        """Return points in time, in microseconds since 1970; 0 where a row has none."""
        parts = fields_within(self.data, times)
        seconds, nanos = self.numbers(parts.of(_SECONDS)), self.numbers(parts.of(_NANOS))
        return seconds * _MICROS_PER_S + nanos // _NANOS_PER_MICRO

    def lists_of(self, fields: Fields) -> pa.Array:
        """Return where the values of each row begin among all of them."""
        return pa.array(np.searchsorted(fields.message, np.arange(self.count + 1)).astype(np.int32))


def _nullable(values: pa.Array, places: npt.NDArray[np.int64]) -> pa.Array:
    """Return values at their places; null where the place is -1."""
    if np.array_equal(places, np.arange(len(values))):
        return values
    return values.take(pa.array(places, mask=places < 0))


def _filled(values: pa.Array, missing: str | bytes) -> pa.Array:
    """Return values with a replacement of null."""
    return pc.fill_null(values, missing) if values.null_count else values


def _text_or_null(number: int) -> Callable[[_Rows], pa.Array]:
    """Return a property; null if it is empty."""

    def column(rows: _Rows) -> pa.Array:
        found = rows.property(number)
        return rows.last(found.at(found.end > found.begin), pa.string())

    return column


def _message_ids(rows: _Rows) -> pa.Array:
    return _filled(rows.last(rows.property(SystemProperties.MESSAGE_ID_FIELD_NUMBER), pa.string()), "")


def _stored_bodies(rows: _Rows) -> pa.Array:
    try:
        return _filled(rows.last(rows.payload.of(Message.BODY_FIELD_NUMBER), pa.binary()), b"")
    except ValueError as error:
        raise UnreadableError(str(error)) from None


def _bodies(rows: _Rows) -> pa.Array:
    bodies = _stored_bodies(rows)
    packed = rows.numbers(rows.property(SystemProperties.BODY_ENCODING_FIELD_NUMBER)) == _GZIP
    if not packed.any():
        return bodies
    return pa.array(
        [
            _unpacked(body) if is_packed else body
            for body, is_packed in zip(bodies.to_pylist(), packed.tolist(), strict=True)
        ],
        pa.binary(),
    )


def _unpacked(packed: bytes) -> bytes:
    """Return a body decompressed from its gzip members.

    Raises:
        ValueError: it is something else.
    """
    body = b""
    left = packed
    marked = "its body is marked GZIP and can not be unpacked"
    while left:
        machine = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            body += machine.decompress(left, UNPACKED_BYTES_MAX + 1 - len(body))
        except zlib.error as error:
            raise ValueError(f"{marked}: {error}") from None
        if len(body) > UNPACKED_BYTES_MAX:
            raise ValueError(f"{marked}: it would have more than {UNPACKED_BYTES_MAX // 2**20} MiB")
        if not machine.eof:
            raise ValueError(f"{marked}: it ends in the middle")
        left = machine.unused_data.lstrip(b"\0")
    return body


def _keys(rows: _Rows) -> pa.Array:
    keys = rows.property(SystemProperties.KEYS_FIELD_NUMBER)
    return pa.ListArray.from_arrays(rows.lists_of(keys), rows.values(keys, pa.string()))


def _user_properties(rows: _Rows) -> pa.Array:
    entries = rows.payload.of(Message.USER_PROPERTIES_FIELD_NUMBER)
    inner = read_fields(rows.data, entries.begin, entries.end)
    count = len(entries.begin)
    names, values = (
        _filled(_nullable(rows.values(found, pa.string()), found.last(count)), "")
        for found in (inner.of(_KEY), inner.of(_VALUE))
    )
    if count:
        # The last property of a message with a name is valid.
        codes = names.dictionary_encode().indices.to_numpy().astype(np.int64)
        backwards = (entries.message * count + codes)[::-1]
        kept = np.sort(count - 1 - np.unique(backwards, return_index=True)[1])
        if len(kept) < count:
            names, values = names.take(pa.array(kept)), values.take(pa.array(kept))
            entries = entries.at(kept)
    return pa.MapArray.from_arrays(rows.lists_of(entries), names, values)


def _times(number: int) -> Callable[[_Rows], pa.Array]:
    return lambda rows: pa.array(rows.micros(rows.property(number)), TIME)


def _delivery_times(rows: _Rows) -> pa.Array:
    times = rows.property(SystemProperties.DELIVERY_TIMESTAMP_FIELD_NUMBER)
    return pa.array(rows.micros(times), TIME, mask=times.last(rows.count) < 0)


def _priorities(rows: _Rows) -> pa.Array:
    said = rows.property(SystemProperties.PRIORITY_FIELD_NUMBER)
    return pa.array(rows.numbers(said).astype(np.int32), mask=said.last(rows.count) < 0)


def _attempts(rows: _Rows) -> pa.Array:
    """Return the deliveries before each record was stored: of retries some, of others 0, of dead letters unknown."""
    counts = rows.heads["attempts"].astype(np.int32)
    return pa.array(counts, mask=counts == 0)


def _origins(rows: _Rows) -> pa.Array:
    queues = rows.property(SystemProperties.DEAD_LETTER_QUEUE_FIELD_NUMBER)
    topics = rows.last(fields_within(rows.data, queues).of(DeadLetterQueue.TOPIC_FIELD_NUMBER), pa.string())
    return pa.array([topic_of_retry_topic(topic or "") or topic or None for topic in topics.to_pylist()], pa.string())


_OF_RECORDS: Final[Mapping[str, Callable[[_Rows], pa.Array]]] = {
    "tag": _text_or_null(SystemProperties.TAG_FIELD_NUMBER),
    "keys": _keys,
    "messageGroup": _text_or_null(SystemProperties.MESSAGE_GROUP_FIELD_NUMBER),
    "body": _bodies,
    "properties": _user_properties,
    "queueOffset": lambda rows: pa.array(rows.heads["queue_offset"].astype(np.int64)),
    "bornTimestamp": _times(SystemProperties.BORN_TIMESTAMP_FIELD_NUMBER),
    "storeTimestamp": lambda rows: pa.array(rows.heads["store_time_ms"].astype(np.int64) * _MICROS_PER_MS, TIME),
    "deliveryTimestamp": _delivery_times,
    "messageId": _message_ids,
    "attempts": _attempts,
    "priority": _priorities,
    "originTopic": _origins,
    BAD_RECORD: lambda rows: pa.nulls(rows.count, pa.string()),
}
_TEXTS: Final = frozenset(("tag", "keys", "messageGroup", "properties", "messageId", "originTopic"))
"""Columns whose bytes must be UTF-8: Arrow accepts other bytes, but Spark would fail."""
