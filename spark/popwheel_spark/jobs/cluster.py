"""Cluster of a job: its flags, and its topics as tables and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.errors import OptionError
from popwheel_spark.given_options import GivenOptions
from popwheel_spark.jobs.time_flags import Moment
from popwheel_spark.options import OPTIONS, Kind, Option, Side, find
from popwheel_spark.wire.columns import BAD_RECORD, ORIGIN, TYPES, ddl
from popwheel_spark.wire.queue_client import QueueClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = TypeVar("Function", bound=Any)

MESSAGES = ddl([name for name in TYPES if name not in (ORIGIN, BAD_RECORD)])
"""Columns of a table of messages."""
_GROUP = "spark-jobs"
_ANY = {"topic": "any"}
"""Placeholder for the job's topic while its options are checked."""


@dataclass(frozen=True)
class Window:
    """Window of store times of a topic's messages.

    Args:
        start_ms: since 1970; None: from the first that is stored.
        end_ms: likewise, and without it; None: up to the last.
    """

    start_ms: int | None = None
    end_ms: int | None = None

    @property
    def options(self) -> dict[str, str]:
        """Return the window as options of the data source."""
        found: dict[str, str] = {}
        if self.start_ms is not None:
            found |= {"startingTimestamp": str(self.start_ms), "startingTimestampStrategy": "latest"}
        if self.end_ms is not None:
            found["endingTimestamp"] = str(self.end_ms)
        return found


@dataclass(frozen=True)
class Cluster:
    """Cluster by its addresses.

    Args:
        options: of the data source: `endpoints`, and what else was given; those of the sink go to what is sent.
    """

    options: Mapping[str, str]

    @property
    def connection(self) -> ConnectionOptions:
        """Return the parsed connection options.

        Raises:
            OptionError: one is missing or impossible.
        """
        return ConnectionOptions.take(GivenOptions(self.options))

    def of(self, *sides: Side) -> dict[str, str]:
        """Return the options of a side, and the connection options."""
        found = {name: (find(name), text) for name, text in self.options.items()}
        return {name: text for name, (row, text) in found.items() if row and {Side.ALL, *sides} & set(row.sides)}

    def _and(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the cluster's options for reads of messages, and those of a job.

        Raises:
            OptionError: one of the cluster's is one that the job has, too.
        """
        own = {name.lower() for name in options}
        for name in self.options:
            if name.lower() in own:
                raise OptionError(name, "this job sets it itself, perhaps by a flag (--help); leave it out")
        return {**self.of(Side.READ, Side.BATCH, Side.STREAM), **options}

    def table(self, spark: SparkSession, **options: str) -> DataFrame:
        """Return a table that is read once; `options` of the data source define it.

        Raises:
            OptionError: one was given with the cluster's, too.
        """
        given = self._and(options)
        return spark.read.format("popwheel").options(**given).load()

    def stream(self, spark: SparkSession, **options: str) -> DataFrame:
        """Return messages as a stream; arguments as of `table`."""
        self.check_stream()
        given = self._and(options)
        return spark.readStream.format("popwheel").options(**given).load()

    def messages(self, spark: SparkSession, topics: Sequence[str], window: Window, **options: str) -> DataFrame:
        """Return the messages of topics in a window; a topic that does not exist has none.

        A group that never failed has no retry topic.
        """
        there = self.existing(topics)
        if there:
            return self.table(spark, topics=",".join(there), **window.options, **options)
        return spark.createDataFrame([], MESSAGES)

    def timers(self, spark: SparkSession, topics: Sequence[str]) -> DataFrame:
        """Return the delayed messages of topics that wait for their time."""
        return Cluster(self.of()).table(spark, table="timers", topics=",".join(topics))

    def send(self, rows: DataFrame, topic: str) -> None:
        """Send rows to a topic."""
        rows.write.format("popwheel").options(**self.of(Side.SINK), topic=topic).mode("append").save()

    def check_stream(self) -> None:
        """Check that the options can be those of a stream.

        Raises:
            OptionError: one says where to end.
        """
        for name in self.options:
            row = find(name)
            if row is not None and Side.BATCH in row.sides:
                raise OptionError(row.name, "a stream has no end; leave it out (--until-now ends with what is there)")

    def check(self, *, sends: bool) -> None:
        """Check, before Spark starts, that all options are valid.

        Args:
            sends: whether the job sends, so that it takes those of the sink, too.

        Raises:
            OptionError: one is misspelt or impossible, or is said by the job's own flags.
        """
        from popwheel_spark.sink.write_options import write_options
        from popwheel_spark.source.read_options import read_options

        for name in self.options:
            row = find(name)
            if row is not None and row.said_by_job:
                raise OptionError(name, "the flags of the job choose what is read (--help)")
        sink = self.of(Side.SINK) if sends else {}
        read_options({name: text for name, text in self.options.items() if name not in sink} | self.of() | _ANY)
        if sends:
            write_options(sink | _ANY)

    def existing(self, topics: Collection[str]) -> list[str]:
        """Return those of some topics that exist."""

        async def ask() -> list[str]:
            async with QueueClient(self.connection, _GROUP) as client:
                return [topic for topic in topics if await client.queues(topic) is not None]

        return asyncio.run(ask())


class _Option(click.ParamType[tuple[str, str]]):
    """Parameter of options of the data source."""

    name = "option"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if not (name and equals):
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


def _flag(row: Option) -> Callable[[Any], Any]:
    """Return the flag of an option."""
    text = row.help[:1].upper() + row.help[1:].partition(" ([")[0].replace("`", "")
    if row.kind is Kind.FLAG:
        return click.option(row.flag, row.name, is_flag=True, help=f"{text}.")
    or_variable = f", or {row.variable}" if row.variable else ""
    return click.option(
        row.flag,
        row.name,
        default=row.flag_default,
        show_default=row.shown if row.shown and not row.flag_default else True,
        envvar=row.variable or None,
        metavar=row.metavar,
        help=f"{text}{or_variable}.",
    )


_FLAGS = (
    *(_flag(row) for row in OPTIONS.values() if row.flag),
    click.option(
        "--option",
        "options",
        multiple=True,
        type=_Option(),
        metavar="NAME=VALUE",
        help="One more option of the data source (docs/use/spark.md), such as minPartitions=16; may be repeated.",
    ),
)


def cluster_flags(function: Function) -> Function:
    """Add the connection flags; the command gets them as `cluster`. No flags may be below it.

    The command raises `OptionError`, before Spark starts, for an option of the data source that is misspelt or wrong.
    """
    return _cluster_flags(function, sends=False)


def sending_cluster_flags(function: Function) -> Function:
    """Add the connection flags to a job that sends: it takes options of the sink, too."""
    return _cluster_flags(function, sends=True)


def _cluster_flags(function: Function, *, sends: bool) -> Function:
    @wraps(function)
    def with_cluster(options: Iterable[tuple[str, str]], **others: Any) -> Any:
        flags = {row.name: others.pop(row.name) for row in OPTIONS.values() if row.flag}
        texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in flags.items()}
        given = {name: text for name, text in texts.items() if text and text != "false"}
        cluster = Cluster(given | dict(options))
        cluster.check(sends=sends)
        return function(cluster=cluster, **others)

    return cast(Function, _flagged(with_cluster, _FLAGS))


_WINDOW_FLAGS = (
    click.option(
        "--from",
        "start_ms",
        type=Moment(),
        show_default="the first stored one",
        help="Messages that were stored then or later: 2026-01-31T12:00:00Z, or milliseconds since 1970.",
    ),
    click.option(
        "--until",
        "end_ms",
        type=Moment(),
        show_default="now",
        help="Messages that were stored before then, written likewise.",
    ),
)


def window_flags(function: Function) -> Function:
    """Add the flags of a window; the command gets them as `window`. Only cluster flags may be below it."""

    @wraps(function)
    def with_window(start_ms: int | None, end_ms: int | None, **others: Any) -> Any:
        return function(window=Window(start_ms, end_ms), **others)

    return cast(Function, _flagged(with_window, _WINDOW_FLAGS))


def _flagged(command: Any, flags: Sequence[Callable[[Any], Any]]) -> Any:
    for flag in reversed(flags):
        command = flag(command)
    return command
