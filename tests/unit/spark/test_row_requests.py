"""Rows as messages."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Encoding, Message, MessageType
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendMessageRequest
from popwheel_spark.errors import OptionError, RefusedError
from popwheel_spark.sink.row_requests import MESSAGES_MAX, WRITTEN, Origin, RowRequest, RowRequests, check_columns
from popwheel_spark.sink.write_options import WriteOptions, write_options
from popwheel_spark.wire.schema import arrow_schema

ORIGIN = Origin("query/4", 2)


def sent(rows: list[dict[str, Any]], topic: str = "orders", origin: Origin = ORIGIN) -> list[Message]:
    """The messages of rows, as the proxy reads them."""
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(WRITTEN))
    return read(RowRequests(topic, origin, 1_700_000_000_123_456_789).of(batch))


def read(requests: Iterable[RowRequest]) -> list[Message]:
    """The messages of requests."""
    return [
        message
        for request in requests
        for message in SendMessageRequest.FromString(b"".join(request.messages)).messages
    ]


def test_a_row_that_says_everything() -> None:
    row = {
        "body": b"x",
        "topic": "t",
        "tag": "a",
        "keys": ["k"],
        "properties": {"p": "q"},
        "deliveryTimestamp": 1_500_000,
    }
    (message,) = sent([row], topic="")
    properties = message.system_properties
    assert (message.topic.name, message.body, dict(message.user_properties)) == ("t", b"x", {"p": "q"})
    assert (properties.tag, list(properties.keys)) == ("a", ["k", "query/4/2/0"])
    assert len(properties.message_id) == 34
    assert (properties.body_encoding, properties.born_host) == (Encoding.IDENTITY, "spark")
    assert properties.message_type == MessageType.DELAY
    assert properties.delivery_timestamp.ToMilliseconds() == 1500
    assert properties.born_timestamp.ToMilliseconds() == 1_700_000_000_123


def test_a_row_that_says_little() -> None:
    (message,) = sent([{"body": b"x"}])
    properties = message.system_properties
    assert (message.topic.name, properties.message_type) == ("orders", MessageType.NORMAL)
    assert not properties.HasField("tag") and not properties.HasField("delivery_timestamp")


def test_a_row_with_a_message_group_is_in_order_within_it() -> None:
    (message,) = sent([{"body": b"x", "messageGroup": "g"}])
    assert message.system_properties.message_group == "g"
    assert message.system_properties.message_type == MessageType.FIFO


def test_a_row_with_a_priority() -> None:
    first, second = sent([{"body": b"x", "priority": 7}, {"body": b"y"}])
    assert (first.system_properties.priority, first.system_properties.message_type) == (7, MessageType.PRIORITY)
    assert not second.system_properties.HasField("priority")
    assert second.system_properties.message_type == MessageType.NORMAL


def test_the_option_wins_over_the_column() -> None:
    assert sent([{"body": b"x", "topic": "t"}], topic="o")[0].topic.name == "o"


def test_a_task_that_runs_again_sends_the_same_keys_and_ids() -> None:
    rows = [{"body": b"%d" % number} for number in range(200)]
    first, again = sent(rows), sent(rows)
    assert [each.system_properties.keys for each in first] == [each.system_properties.keys for each in again]
    other = sent(rows, origin=Origin("query/4", 3))
    assert [each.body for each in first] == [b"%d" % number for number in range(200)]
    assert len({each.system_properties.message_id for each in [*first, *again]}) == 200
    assert len({each.system_properties.message_id for each in [*first, *other]}) == 400


def test_requests_have_limits_of_messages_and_bytes() -> None:
    def sizes(count: int, body: bytes) -> list[int]:
        rows = pa.RecordBatch.from_pylist([{"body": body}] * count, schema=arrow_schema(("body",)))
        return [len(request.messages) for request in RowRequests("t", ORIGIN, 0).of(rows)]

    assert sizes(2 * MESSAGES_MAX + 1, b"x") == [MESSAGES_MAX, MESSAGES_MAX, 1]
    assert sizes(3, bytes(2**22)) == [1, 1, 1]
    assert sizes(5, bytes(600_000)) == [2, 2, 1]
    assert sizes(0, b"") == []


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"topic": "t"}, "the row query/4/2/0 has no body"),
        ({"body": b"x"}, "the row query/4/2/0 has no topic"),
        ({"topic": "t", "body": b"x", "keys": ["a", None]}, "the row query/4/2/0 has a key that is null"),
        ({"topic": "t", "body": b"x", "properties": {"a": None}}, "the row query/4/2/0 has a property that is null"),
    ],
)
def test_a_row_that_can_not_be_sent_is_named(row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        sent([row], topic="")


@pytest.mark.parametrize(
    ("schema", "topic", "words"),
    [
        (pa.schema([("text", pa.string())]), "t", "messages have no 'text'"),
        (pa.schema([("topic", pa.string())]), "t", "rows need a column body"),
        (pa.schema([("body", pa.int64())]), "t", "the column body must be BINARY, not int64"),
        (pa.schema([("body", pa.binary())]), "", "by this option or by a column topic"),
    ],
)
def test_columns_that_can_not_be_sent_are_notified_on_the_driver(schema: pa.Schema, topic: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check_columns(schema, topic)


def test_elements_that_can_not_be_null_are_as_good() -> None:
    value = pa.field("value", pa.string(), nullable=False)
    check_columns(
        pa.schema([("body", pa.binary()), ("properties", pa.map_(pa.string(), value)), ("keys", pa.list_(value))]), "t"
    )


def test_bodies_may_be_text() -> None:
    check_columns(pa.schema([("body", pa.string())]), "t")
    rows = pa.RecordBatch.from_pylist([{"body": "grün"}], schema=pa.schema([("body", pa.string())]))
    (message,) = read(RowRequests("t", ORIGIN, 0).of(rows))
    assert message.body.decode() == "grün"


def test_rows_are_numbered_on_over_all_batches_of_a_task() -> None:
    requests = RowRequests("t", ORIGIN, 0)
    rows = pa.RecordBatch.from_pylist([{"body": b"x"}] * 70, schema=arrow_schema(("body",)))
    found = [*requests.of(rows), *requests.of(rows)]
    assert [request.first for request in found] == [f"query/4/2/{row}" for row in (0, 64, 70, 134)]
    assert [message.system_properties.keys[0] for message in read(found)] == [f"query/4/2/{row}" for row in range(140)]


def test_options_of_a_write() -> None:
    options = write_options({"endpoints": "h:1", "topic": "t", "checkpointlocation": "x"})
    assert isinstance(options, WriteOptions) and options.topic == "t"
    with pytest.raises(OptionError, match="option topic: '%DLQ%g' is a dead letter topic and cannot be sent to"):
        write_options({"endpoints": "h:1", "topic": "%DLQ%g"})
    with pytest.raises(OptionError, match="did you mean requestsAtOnce"):
        write_options({"endpoints": "h:1", "requestAtOnce": "3"})
