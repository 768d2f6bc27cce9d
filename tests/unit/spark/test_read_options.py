"""Options of a read: what they mean, and what is said about those that can't be."""

from typing import Any

import pytest

from popwheel_spark.errors import OptionError
from popwheel_spark.source.bounds import Bound
from popwheel_spark.source.read_options import ReadOptions, read_options
from popwheel_spark.wire.columns import BAD_RECORD, ORIGIN
from popwheel_spark.wire.offsets import EARLIEST, LATEST, Instant, Queue
from popwheel_spark.wire.schema import COLUMNS

TABLE = tuple(name for name in COLUMNS if name not in (ORIGIN, BAD_RECORD))


def parsed(**options: str) -> ReadOptions:
    """The options, with an endpoint; with a topic unless something else is to be read."""
    needed = {"endpoints": "127.0.0.1:8081"}
    if not {"topics", "topicpattern", "assign", "table"} & {name.lower() for name in options}:
        needed["topic"] = "orders"
    return read_options(needed | {name.lower(): text for name, text in options.items()})


def test_little_has_to_be_said() -> None:
    options = parsed()
    assert options.connection.endpoints == ("127.0.0.1:8081",)
    assert options.subscription.topics == ("orders",)
    assert options.start is None and options.end is None
    assert options.fail_on_data_loss
    assert options.columns == TABLE
    assert options.group == "spark-orders"


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ({"endpoints": ""}, "endpoints", "HOST:PORT"),
        ({"endpoints": "localhost"}, "endpoints", "'localhost' is not HOST:PORT"),
        ({"topic": ""}, "topic", "exactly one of topic, topics, topicPattern, assign; none is given"),
        ({"topic": "a", "topics": "b"}, "topic", "topic and topics are given"),
        ({"topicPattern": "("}, "topicPattern", "regular expression"),
        ({"assign": '{"a": 3}'}, "assign", "must be JSON"),
        ({"assign": '{"a": {"b": ["0"]}}'}, "assign", "must be JSON"),
        ({"assign": "{}"}, "assign", "must be JSON"),
        ({"table": "queues"}, "table", "none of messages, dlq, timers, inflight"),
        ({"table": "dlq"}, "group", "whose dead letters"),
        ({"table": "dlq", "group": "g", "topic": "a"}, "topic", "no such option here"),
        ({"startingOffsets": "soon"}, "startingOffsets", "neither earliest nor latest"),
        ({"startingOffsets": '{"a": {"b": {"x": 1}}}'}, "startingOffsets", "not the number of a queue"),
        ({"startingOffsets": '{"a": {"b": {"1": -3}}}'}, "startingOffsets", "-3 is not an offset"),
        ({"startingOffsets": '{"a": {"b": {"1": true}}}'}, "startingOffsets", "True is not an offset"),
        ({"startingOffsets": '{"a": {"b": 1}}'}, "startingOffsets", "there must be queues"),
        ({"startingOffsets": '{"a": 1}'}, "startingOffsets", "there must be brokers"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "'earliest' is neither latest"),
        ({"endingOffsets": '{"a": {"b": {"1": -2}}}'}, "endingOffsets", "can't end at the earliest"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp", "milliseconds since 1970"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "startingTimestamp", "with its zone"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "startingOffsets", "give one of them"),
        ({"startingTimestampStrategy": "guess"}, "startingTimestampStrategy", "none of error, latest"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss", "neither true nor false"),
        ({"maxRowsPerTrigger": "-1"}, "maxRowsPerTrigger", "whole number"),
        ({"minPartitions": "0"}, "minPartitions", "whole number from 1 on"),
        ({"columns": "body,colour"}, "columns", "no column 'colour'"),
        ({"sql": "a > 3"}, "sql", "a pull takes no SQL92 filters"),
        ({"accessKey": "k"}, "secretKey", "belong together"),
        ({"secretKey": "k"}, "secretKey", "belong together"),
        ({"tlsCaFile": "ca.pem"}, "tlsCaFile", "no meaning without tls=true"),
        ({"tls": "true", "tlsCaFile": "/no/such/file"}, "tlsCaFile", "cannot read"),
        ({"admin": "localhost:8080"}, "admin", "http://HOST:PORT"),
        ({"groupIdPrefix": "a b"}, "groupIdPrefix", "beginning of a group's name"),
        ({"startingOfsets": "latest"}, "startingofsets", "did you mean startingOffsets?"),
        ({"topic": "", "topik": "a"}, "topik", "did you mean topic?"),
        ({"colour": "red"}, "colour", "no such option"),
    ],
)
def test_what_can_not_be_is_refused_by_name(options: dict[str, str], name: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parsed(**options)
    assert caught.value.name == name
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"startingOffsets": "Earliest"}, Bound("startingOffsets", EARLIEST)),
        ({"startingOffsets": "latest"}, Bound("startingOffsets", LATEST)),
        (
            {"startingOffsets": '{"orders": {"b-0": {"1": 7, "0": -2}}}'},
            Bound("startingOffsets", None, {Queue("orders", "b-0", 0): EARLIEST, Queue("orders", "b-0", 1): 7}),
        ),
        ({"startingTimestamp": "1700000000123"}, Bound("startingTimestamp", Instant(1700000000123))),
        ({"startingTimestamp": "1970-01-01T01:00:00.5+01:00"}, Bound("startingTimestamp", Instant(500))),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"b-0": {"1": "1970-01-01T00:00:01Z", "0": 5}}}'},
            Bound(
                "startingOffsetsByTimestamp",
                None,
                {Queue("orders", "b-0", 0): Instant(5), Queue("orders", "b-0", 1): Instant(1000)},
            ),
        ),
    ],
)
def test_where_to_begin(options: dict[str, str], bound: Bound) -> None:
    assert parsed(**options).start == bound


def test_a_bound_by_queue_names_all_queues_and_no_others() -> None:
    here, there = Queue("orders", "b-0", 0), Queue("orders", "b-0", 1)
    bound = Bound("startingOffsets", None, {here: 3})
    assert bound.of([here]) == {here: 3}
    with pytest.raises(OptionError, match="it leaves out queue 1 of orders at b-0"):
        bound.of([here, there])
    with pytest.raises(OptionError, match="there is no queue 0 of orders at b-0"):
        bound.of([there])


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"columns": "messageid, TOPIC"}, ("topic", "messageId")),
        ({"columns": "topic,body", "includeBody": "false"}, ("topic",)),
        ({"includeBody": "false"}, tuple(name for name in TABLE if name != "body")),
    ],
)
def test_columns_come_in_the_order_of_the_table(options: dict[str, str], columns: tuple[str, ...]) -> None:
    assert parsed(**options).columns == columns


@pytest.mark.parametrize(
    ("options", "group"),
    [
        ({"groupIdPrefix": "night"}, "night-orders"),
        ({"topics": "b, a,b"}, "spark-1eb7c54d5283"),
        ({"topics": "a,b"}, "spark-1eb7c54d5283"),
    ],
)
def test_a_stream_keeps_its_group_over_restarts(options: dict[str, Any], group: str) -> None:
    assert parsed(**options).group == group


def test_dead_letters_are_those_of_groups_and_say_where_they_come_from() -> None:
    options = parsed(table="dlq", group="a,b")
    assert options.subscription.topics == ("%DLQ%a", "%DLQ%b")
    assert options.columns == (*TABLE, ORIGIN)


def test_a_sql_table_without_its_options_is_refused_by_a_sentence() -> None:
    with pytest.raises(OptionError, match="Of a SQL table: say CREATE TABLE NAME USING popwheel OPTIONS"):
        read_options({})
