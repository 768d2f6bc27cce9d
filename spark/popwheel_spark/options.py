"""Table of all options of reads, the sink and the jobs; code and docs are made from it (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """Kind of an option's text."""

    TEXT = "text"
    WORDS = "words, with commas between"
    FLAG = "true or false"
    NUMBER = "a whole number"
    CHOICE = "one of some words"


class Side(Enum):
    """Side of an option: the reads or writes that take it."""

    ALL = "all"
    """Reads and writes: connection options."""
    READ = "read"
    """Reads of messages and dead letters: tables and streams."""
    BATCH = "table"
    """Reads of messages and dead letters as tables alone."""
    STREAM = "stream"
    """Reads of messages and dead letters as streams alone."""
    LIST = "list"
    """The tables `timers` and `inflight`."""
    SINK = "sink"


_ALL: Final = (Side.ALL,)


@dataclass(frozen=True)
class Option:
    """An option.

    Args:
        name: its name.
        kind: type of its text.
        default: its text if it is not given.
        help: its meaning, for the docs and the jobs' `--help`.
        sides: where it goes.
        shown: the default in words, if its text says too little.
        least: of a number.
        choices: of a choice.
        said_by_job: whether jobs say it themselves, by flags of their own.
        flag: of all jobs; empty: jobs take it by `--option`.
        flag_default: of that flag.
        variable: of the environment that says the same as the flag.
        metavar: what stands for its value in `--help`.
    """

    name: str
    kind: Kind
    default: str
    help: str
    sides: tuple[Side, ...]
    shown: str = ""
    least: int = 0
    choices: tuple[str, ...] = ()
    said_by_job: bool = False
    flag: str = ""
    flag_default: str = ""
    variable: str = ""
    metavar: str = "TEXT"

    @property
    def is_connection(self) -> bool:
        """True for a connection option."""
        return Side.ALL in self.sides


_ROWS: Final = (
    Option(
        "endpoints",
        Kind.WORDS,
        "",
        "the proxies, `HOST:PORT` separated by commas; when one fails, the next is used",
        _ALL,
        shown="needed",
        flag="--endpoints",
        flag_default="127.0.0.1:8081",
        metavar="HOST:PORT",
    ),
    Option("timeoutMs", Kind.NUMBER, "60000", "how long a failed call is retried", _ALL, least=1),
    Option("tls", Kind.FLAG, "false", "use TLS to the proxies", _ALL, flag="--tls"),
    Option(
        "tlsCaFile",
        Kind.TEXT,
        "",
        "trusted certificates, a PEM file on the driver",
        _ALL,
        shown="the system's",
        flag="--tls-ca-file",
        metavar="FILE",
    ),
    Option(
        "admin",
        Kind.TEXT,
        "",
        "the admin API, `http://HOST:PORT`: for `topicPattern`, `timers`, `inflight`, and jobs",
        _ALL,
        flag="--admin",
        flag_default="http://127.0.0.1:8080",
        metavar="URL",
    ),
    Option(
        "accessKey",
        Kind.TEXT,
        "",
        "the user for proxies ([access](../operate/access.md))",
        _ALL,
        shown="nobody",
        flag="--access-key",
        variable="POPWHEEL_ACCESS_KEY",
    ),
    Option(
        "secretKey",
        Kind.TEXT,
        "",
        "that user's secret",
        _ALL,
        shown="nobody's",
        flag="--secret",
        variable="POPWHEEL_SECRET",
    ),
    Option(
        "adminToken",
        Kind.TEXT,
        "",
        "the token of the admin API",
        _ALL,
        shown="nobody's",
        flag="--token",
        variable="POPWHEEL_TOKEN",
    ),
    Option(
        "table",
        Kind.CHOICE,
        "messages",
        "what is read (above)",
        (Side.READ, Side.LIST),
        choices=("messages", "dlq", "timers", "inflight"),
        said_by_job=True,
    ),
    Option(
        "topic",
        Kind.TEXT,
        "",
        "one topic; for the sink, the topic of all rows",
        (Side.READ, Side.LIST, Side.SINK),
        shown="one of these",
        said_by_job=True,
    ),
    Option(
        "topics",
        Kind.WORDS,
        "",
        "several topics, separated by commas",
        (Side.READ, Side.LIST),
        shown="one of these",
        said_by_job=True,
    ),
    Option(
        "topicPattern",
        Kind.TEXT,
        "",
        "a regular expression for whole names of topics",
        (Side.READ,),
        shown="one of these",
        said_by_job=True,
    ),
    Option(
        "assign",
        Kind.TEXT,
        "",
        '`{"TOPIC": {"BROKER": [QUEUE, ...]}}`: these queues alone',
        (Side.READ,),
        shown="one of these",
        said_by_job=True,
    ),
    Option(
        "group",
        Kind.WORDS,
        "",
        "the consumer group of `dlq` and `inflight`",
        (Side.READ, Side.LIST),
        said_by_job=True,
    ),
    Option("withinMs", Kind.NUMBER, "31622400000", "how far from now `timers` looks", (Side.LIST,), "a year", 1),
    Option(
        "startingOffsets",
        Kind.TEXT,
        "",
        "`earliest`, `latest`, or offsets by queue (below)",
        (Side.READ,),
        shown="table `earliest`, stream `latest`",
    ),
    Option(
        "startingTimestamp",
        Kind.TEXT,
        "",
        "instead: the first message stored then or later (ms since 1970, or ISO 8601)",
        (Side.READ,),
    ),
    Option("startingOffsetsByTimestamp", Kind.TEXT, "", "instead: times by queue", (Side.READ,)),
    Option(
        "startingTimestampStrategy",
        Kind.CHOICE,
        "error",
        "where a queue has nothing that late: `error`, or `latest`",
        (Side.READ,),
        choices=("error", "latest"),
    ),
    Option(
        "endingOffsets",
        Kind.TEXT,
        "",
        "where a table ends, without that message: `latest`, or offsets by queue; a stream refuses it",
        (Side.BATCH,),
        shown="`latest`",
    ),
    Option("endingTimestamp", Kind.TEXT, "", "instead: a time, as `startingTimestamp`", (Side.BATCH,)),
    Option("endingOffsetsByTimestamp", Kind.TEXT, "", "instead: times by queue", (Side.BATCH,)),
    Option(
        "failOnDataLoss",
        Kind.FLAG,
        "true",
        "whether messages that are gone before they were read are an error, else a warning",
        (Side.READ,),
    ),
    Option(
        "badRecords",
        Kind.CHOICE,
        "fail",
        "treatment of a message that cannot be decoded: `fail`, `skip`, `column` "
        "([below](../use/spark.md#messages-that-cannot-be-decoded))",
        (Side.READ,),
        choices=("fail", "skip", "column"),
    ),
    Option("tags", Kind.TEXT, "", "the broker sends only messages with one of these tags (below)", (Side.READ,)),
    Option("sql", Kind.TEXT, "", "refused: pulls take no SQL92 filters; filter in Spark", (Side.READ,)),
    Option(
        "minPartitions",
        Kind.NUMBER,
        "1",
        "least number of tasks, if there are as many rows: long queues are split",
        (Side.READ,),
        least=1,
    ),
    Option(
        "targetRowsPerPartition",
        Kind.NUMBER,
        "10000",
        "offsets of a task, to which small queues are joined; 1: a task for each queue",
        (Side.READ,),
        least=1,
    ),
    Option("maxRowsPerPartition", Kind.NUMBER, "0", "limit of the offsets of one task", (Side.READ,), "no limit"),
    Option(
        "maxRowsPerTrigger",
        Kind.NUMBER,
        "0",
        "offsets of a micro-batch, divided by the backlog of the queues",
        (Side.STREAM,),
        "no limit",
    ),
    Option(
        "maxBytesPerTrigger",
        Kind.NUMBER,
        "0",
        "the same in bytes, estimated from a sample of each queue",
        (Side.STREAM,),
        "no limit",
    ),
    Option("minRowsPerTrigger", Kind.NUMBER, "0", "rows that a stream waits for", (Side.STREAM,)),
    Option("maxTriggerDelayMs", Kind.NUMBER, "900000", "longest wait for `minRowsPerTrigger`", (Side.STREAM,), least=1),
    Option("columns", Kind.WORDS, "", "the columns that are read", (Side.READ, Side.LIST), "all"),
    Option("includeBody", Kind.FLAG, "true", "whether the body is read", (Side.READ,)),
    Option(
        "groupIdPrefix",
        Kind.TEXT,
        "spark",
        "the consumer group `PREFIX-TOPIC` shows a stream's progress (below)",
        (Side.READ,),
    ),
    Option(
        "requestsAtOnce",
        Kind.NUMBER,
        "8",
        "requests of a task in flight at a time; message groups keep their order",
        (Side.SINK,),
        least=1,
    ),
    Option(
        "writeId",
        Kind.TEXT,
        "",
        "base of the ids of a batch's rows: a write with the same one is the same write (below)",
        (Side.SINK,),
        shown="a new one",
    ),
)

OPTIONS: Final[Mapping[str, Option]] = {row.name: row for row in _ROWS}
"""Options by name, in the order of the docs."""

_BY_LOWER_NAME: Final = {name.lower(): row for name, row in OPTIONS.items()}


def find(name: str) -> Option | None:
    """Return the option of a case-insensitive name."""
    return _BY_LOWER_NAME.get(name.lower())
