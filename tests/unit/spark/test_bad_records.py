"""One message that cannot be decoded: named, left out, or shown, and counted; all others are rows."""

import asyncio
import gzip
import logging
from collections.abc import Sequence

import pytest

from popwheel_common.contract.record_block import RecordBlock
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Encoding, Message
from popwheel_spark.errors import BadRecordError, OptionError
from popwheel_spark.source.bad_records import decode
from popwheel_spark.source.plan import QueueRange
from popwheel_spark.source.range_reader import RangeReader
from popwheel_spark.source.read_options import BadRecords, read_options
from popwheel_spark.wire.offsets import Queue
from popwheel_spark.wire.queue_client import QueueClient
from popwheel_spark.wire.record_rows import UNPACKED_BYTES_MAX
from popwheel_spark.wire.schema import COLUMNS, arrow_schema
from tests.harness.records import block_of, record_of

QUEUE = Queue("orders", "b-0", 3)
GARBLED = b"\x0f"


def message(number: int, body: bytes = b"x", *, packed: bool = False) -> Message:
    made = Message(body=body)
    properties = made.system_properties
    properties.queue_offset, properties.message_id = number, f"id-{number}"
    properties.body_encoding = Encoding.GZIP if packed else Encoding.IDENTITY
    return made


def garbled(number: int) -> bytes:
    """A record whose payload is no protobuf message."""
    record = record_of(message(number))
    return record.replace(Message(body=b"x").SerializeToString(), GARBLED * 3)


def with_a_tag_that_is_no_text(number: int) -> bytes:
    made = message(number)
    made.system_properties.tag = "abc"
    return record_of(made).replace(b"abc", b"a\xff\xfe")


BAD = {
    "not packed": (record_of(message(7, b"no gzip", packed=True)), "its body is marked GZIP and can not be unpacked"),
    "torn": (record_of(message(7, gzip.compress(b"abc" * 99)[:-9], packed=True)), "it ends in the middle"),
    "something behind": (record_of(message(7, gzip.compress(b"a") + b"bc", packed=True)), "can not be unpacked"),
    "a bomb": (
        record_of(message(7, gzip.compress(bytes(UNPACKED_BYTES_MAX + 1)), packed=True)),
        "it would have more than 64 MiB",
    ),
    "garbled": (garbled(7), "a stored message is not well-formed"),
    "no text": (with_a_tag_that_is_no_text(7), "not UTF-8"),
}
kinds = pytest.mark.parametrize(("record", "reason"), BAD.values(), ids=BAD)


def around(record: bytes) -> RecordBlock:
    """A bad record among good ones."""
    good = [record_of(message(number, gzip.compress(b"x"), packed=True)) for number in (5, 6, 8, 9)]
    return block_of([*good[:2], record, *good[2:]])


@kinds
def test_a_bad_record_is_named(record: bytes, reason: str) -> None:
    with pytest.raises(BadRecordError) as caught:
        decode(QUEUE, around(record), ("tag", "body"), BadRecords.FAIL)
    said = str(caught.value)
    assert said.startswith("queue 3 of orders at b-0: the message at offset 7 (id id-7) can not be read: ")
    assert reason in said
    assert "badRecords=skip" in said and "badRecords=column" in said


@kinds
def test_a_bad_record_is_left_out_and_counted(record: bytes, reason: str) -> None:
    rows, bad = decode(QUEUE, around(record), ("queueOffset", "tag", "body"), BadRecords.SKIP)
    assert rows.column("queueOffset").to_pylist() == [5, 6, 8, 9]
    assert rows.column("body").to_pylist() == [b"x"] * 4
    assert [(one.offset, one.message_id) for one in bad] == [(7, "id-7")]
    assert reason in bad[0].reason


@kinds
def test_a_bad_record_is_a_row_that_says_why(record: bytes, reason: str) -> None:
    columns = ("messageId", "tag", "body", "queueOffset", "storeTimestamp", "badRecord")
    rows, bad = decode(QUEUE, around(record), columns, BadRecords.COLUMN)
    assert len(bad) == 1
    rows.validate(full=True)
    assert rows.schema.equals(arrow_schema(columns))
    assert rows.column("queueOffset").to_pylist() == [5, 6, 7, 8, 9]
    said = rows.column("badRecord").to_pylist()
    assert reason in said.pop(2) and said == [None] * 4
    assert rows.column("messageId").to_pylist()[2] == "id-7"


def test_the_body_of_a_bad_record_is_shown_as_it_is_stored() -> None:
    record = BAD["not packed"][0]
    rows, _ = decode(QUEUE, around(record), ("body", "badRecord"), BadRecords.COLUMN)
    assert rows.column("body").to_pylist() == [b"x", b"x", b"no gzip", b"x", b"x"]


def test_what_is_not_read_can_not_be_bad() -> None:
    rows, bad = decode(QUEUE, around(BAD["not packed"][0]), ("queueOffset",), BadRecords.FAIL)
    assert rows.num_rows == 5 and not bad


@pytest.mark.parametrize("bad", [range(300), range(0, 300, 7), (299,)], ids=["all", "some", "last"])
def test_any_number_may_be_bad(bad: Sequence[int]) -> None:
    block = block_of(record_of(message(number, b"zip?", packed=number in bad)) for number in range(300))
    rows, found = decode(QUEUE, block, ("queueOffset", "body"), BadRecords.SKIP)
    assert [one.offset for one in found] == list(bad)
    assert rows.column("queueOffset").to_pylist() == [number for number in range(300) if number not in bad]


class Stored(QueueClient):
    """A queue that holds these records."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self._records = records

    async def pull(self, queue: Queue, offset: int, count: int, tags: str) -> RecordBlock:
        return block_of(self._records[offset : offset + count], min(offset + count, len(self._records)))


def test_a_task_says_how_many_it_has_left_out(caplog: pytest.LogCaptureFixture) -> None:
    records = [record_of(message(number, b"zip?", packed=number % 3 == 1)) for number in range(9)]
    options = read_options({"endpoints": "h:1", "topic": "orders", "badRecords": "skip"})
    reader = RangeReader(Stored(records), options, QueueRange(QUEUE, 0, 9))
    part = asyncio.run(anext(reader.parts()))
    with caplog.at_level(logging.WARNING):
        assert sum(batch.num_rows for batch in reader.batches(part)) == 6
    assert "queue 3 of orders at b-0: 3 messages can not be read and are left out (badRecords=skip)" in caplog.text
    assert "offset 1 (id id-1)" in caplog.text


def test_the_column_is_there_if_it_is_asked_for() -> None:
    given = {"endpoints": "h:1", "topic": "orders"}
    assert "badRecord" not in read_options(given).columns
    assert read_options(given | {"badRecords": "column"}).columns[-1] == "badRecord"
    assert read_options(given | {"badRecords": "column", "columns": "body"}).columns == ("body", "badRecord")
    assert set(COLUMNS) - set(read_options(given | {"badRecords": "column"}).columns) == {"originTopic"}
    with pytest.raises(OptionError, match="'drop' is none of fail, skip, column"):
        read_options(given | {"badRecords": "drop"})
