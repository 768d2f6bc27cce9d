"""Options for reads, of `spark.read` and `spark.readStream`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256

from popwheel_common.contract import names
from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.errors import OptionError
from popwheel_spark.given_options import SPARKS_OWN, GivenOptions, words
from popwheel_spark.source.bounds import Bound, Strategy, ending, starting
from popwheel_spark.wire.columns import BAD_RECORD, ORIGIN
from popwheel_spark.wire.offsets import Queue
from popwheel_spark.wire.schema import COLUMNS

_DIGEST = "0" * 12
_SUBSCRIPTIONS = ("topic", "topics", "topicPattern", "assign")


class BadRecords(Enum):
    """Handling of a message that cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"
    COLUMN = "column"


@dataclass(frozen=True)
class Subscription:
    """Subscription to the queues that are read.

    Args:
        option: the option that gives it, with one of the following.
        topics: all queues of these.
        pattern: all queues of the topics whose whole names it matches.
        assign: these queues: topic -> broker -> numbers.
    """

    option: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assign: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None

    def has(self, queue: Queue) -> bool:
        """Return whether a queue belongs to the subscription."""
        if self.assign is not None:
            return queue.number in self.assign.get(queue.topic, {}).get(queue.broker, ())
        return bool(re.fullmatch(self.pattern, queue.topic)) if self.pattern else queue.topic in self.topics

    @property
    def words(self) -> str:
        """Return the subscription on one line."""
        return self.pattern or ",".join(sorted(self.assign or self.topics))


@dataclass(frozen=True)
class ReadOptions:
    """Options of reads, of batches and streams.

    Args:
        connection: where the cluster is.
        subscription: what is read.
        start: where a batch or a new stream begins; None: a batch with the earliest message, a stream with the next.
        end: where a batch ends; None: with the latest message.
        strategy: what to do where nothing is as late as the time to begin with.
        fail_on_data_loss: whether messages that are gone before they were read are an error.
        bad_records: what is done about messages that can't be decoded.
        rows_per_trigger_min: rows that a stream waits for, but not longer than `trigger_delay_s_max`.
        rows_per_trigger_max: a micro-batch has no more; 0: no limit.
        bytes_per_trigger_max: a micro-batch has about as many bytes of messages at the most; 0: no limit.
        trigger_delay_s_max: see `rows_per_trigger_min`.
        partitions_min: least number of partitions of a batch or micro-batch, if it has as many rows.
        rows_per_partition_max: no partition has more; 0: no limit.
        rows_per_partition_target: rows of a partition, to which small ranges are joined.
        tags: what the broker filters by, `a || b`; empty: nothing.
        columns: that are read.
        group_prefix: of the consumer group that shows a stream's progress.
    """

    connection: ConnectionOptions
    subscription: Subscription
    start: Bound | None
    end: Bound | None
    strategy: Strategy
    fail_on_data_loss: bool
    bad_records: BadRecords
    rows_per_trigger_min: int
    rows_per_trigger_max: int
    bytes_per_trigger_max: int
    trigger_delay_s_max: float
    partitions_min: int
    rows_per_partition_max: int
    rows_per_partition_target: int
    tags: str
    columns: tuple[str, ...]
    group_prefix: str

    def of_columns(self, columns: tuple[str, ...]) -> "ReadOptions":
        """Return the options with other columns."""
        return replace(self, columns=columns)

    @property
    def group(self) -> str:
        """Return the consumer group that pulls messages, and that shows the progress of a stream."""
        words = self.subscription.words
        name = f"{self.group_prefix}-{words}"
        return (
            name
            if names.is_group(name)
            else f"{self.group_prefix}-{sha256(words.encode()).hexdigest()[: len(_DIGEST)]}"
        )


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse all options of a read.

    Args:
        options: as Spark hands them over.

    Raises:
        OptionError: one is unknown, missing or impossible.
    """
    given = GivenOptions(options, SPARKS_OWN)
    given.not_yet("sql", "a pull takes no SQL92 filters yet; filter by tags, or in Spark")
    table = given.choice("table")
    ways = ("group",) if table == "dlq" else _SUBSCRIPTIONS
    chosen = {name: text for name in ways if (text := given.text(name))}
    prefix = given.text("groupIdPrefix")
    if not names.is_group(f"{prefix}-{_DIGEST}"):
        raise OptionError(
            "groupIdPrefix", f"{prefix!r} is not the beginning of a group's name: letters, digits, %, _, -"
        )
    bad_records = BadRecords(given.choice("badRecords"))
    return ReadOptions(
        connection=ConnectionOptions.take(given),
        start=starting(given),
        end=ending(given),
        strategy=Strategy(given.choice("startingTimestampStrategy")),
        fail_on_data_loss=given.flag("failOnDataLoss"),
        bad_records=bad_records,
        rows_per_trigger_min=given.number("minRowsPerTrigger"),
        rows_per_trigger_max=given.number("maxRowsPerTrigger"),
        bytes_per_trigger_max=given.number("maxBytesPerTrigger"),
        trigger_delay_s_max=given.number("maxTriggerDelayMs") / 1000,
        partitions_min=given.number("minPartitions"),
        rows_per_partition_max=given.number("maxRowsPerPartition"),
        rows_per_partition_target=given.number("targetRowsPerPartition"),
        tags=given.text("tags"),
        columns=_columns(given, table, bad_records),
        group_prefix=prefix,
        subscription=_subscription(given, ways, chosen),
    )


def _subscription(given: GivenOptions, ways: Sequence[str], chosen: Mapping[str, str]) -> Subscription:
    given.check_all_taken()  # first: a missing topic may be a misspelt option
    if ways == ("group",) and not chosen:
        raise OptionError("group", "say whose dead letters are to be read: a consumer group")
    if len(chosen) != 1:
        what = f"{' and '.join(chosen)} are given" if chosen else "none is given"
        raise OptionError("topic", f"say what to read by exactly one of {', '.join(_SUBSCRIPTIONS)}; {what}")
    ((option, text),) = chosen.items()
    match option:
        case "assign":
            return Subscription("assign", assign=_assigned(text))
        case "topicPattern":
            try:
                re.compile(text)
            except re.error as error:
                raise OptionError("topicPattern", f"{text!r} is not a regular expression: {error}") from None
            return Subscription("topicPattern", pattern=text)
        case "group":
            return Subscription("group", tuple(names.dead_letter_topic(group) for group in words(text)))
        case "topic":
            return Subscription("topic", (text,))
        case _:
            return Subscription("topics", words(text))


def _assigned(text: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the queues that `assign` names."""
    wrong = OptionError("assign", 'it must be JSON: {"TOPIC": {"BROKER": [QUEUE, ...]}}, with a queue at the least')
    try:
        tree = json.loads(text)
        found = {
            topic: {broker: tuple(numbers) for broker, numbers in brokers.items()} for topic, brokers in tree.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise wrong from None
    numbers = [number for brokers in found.values() for queues in brokers.values() for number in queues]
    if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
        raise wrong
    return found


def _columns(given: GivenOptions, table: str, bad_records: BadRecords) -> tuple[str, ...]:
    """The columns to be read, in the order of the table."""
    there = [name for name in COLUMNS if name != BAD_RECORD and (name != ORIGIN or table == "dlq")]
    columns = given.columns(there)
    body = given.flag("includeBody")
    why = (BAD_RECORD,) if bad_records is BadRecords.COLUMN else ()
    return (*(name for name in columns if body or name != "body"), *why)
