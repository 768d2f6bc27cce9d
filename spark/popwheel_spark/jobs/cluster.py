"""The cluster that a job works on: the flags that say where it is, and its topics as tables and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from popwheel_spark.columns import BAD_RECORD, ORIGIN, TYPES, ddl
from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.errors import OptionError
from popwheel_spark.given_options import GivenOptions
from popwheel_spark.jobs.time_flags import Moment
from popwheel_spark.queue_client import QueueClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = TypeVar("Function", bound=Any)

MESSAGES = ddl([name for name in TYPES if name not in (ORIGIN, BAD_RECORD)])
"""The columns of a table of messages."""
_GROUP = "spark-jobs"
_CONNECTION = ("endpoints", "admin", "tls", "tlscafile", "timeoutms")
"""The options that all reading and writing share, in lower case."""
_WHAT = ("table", "topic", "topics", "topicpattern", "assign", "group")
"""Those that say what is read, in lower case: jobs have flags for it."""


@dataclass(frozen=True)
class Window:
    """Which messages of a topic: those that were stored then.

    Args:
        start_ms: since 1970; None: from the first that is held.
        end_ms: likewise, and without it; None: up to the last.
    """

    start_ms: int | None = None
    end_ms: int | None = None

    @property
    def options(self) -> dict[str, str]:
        """The same for the data source."""
        found: dict[str, str] = {}
        if self.start_ms is not None:
            found |= {"startingTimestamp": str(self.start_ms), "startingTimestampStrategy": "latest"}
        if self.end_ms is not None:
            found["endingTimestamp"] = str(self.end_ms)
        return found


@dataclass(frozen=True)
class Cluster:
    """Where a cluster is.

    Args:
        options: of the data source: `endpoints`, and what else was given.
    """

    options: Mapping[str, str]

    @property
    def connection(self) -> ConnectionOptions:
        """The options that say where it is, parsed.

        Raises:
            OptionError: one is missing or impossible.
        """
        return ConnectionOptions.take(GivenOptions(self.options))

    def _and(self, options: Mapping[str, str]) -> dict[str, str]:
        """The cluster's options and those of a job.

        Raises:
            OptionError: one of the cluster's is one that the job has, too.
        """
        own = {name.lower() for name in options}
        for name in self.options:
            if name.lower() in own:
                raise OptionError(name, "this job says it itself, perhaps by a flag (--help); leave it out")
        return {**self.options, **options}

    def table(self, spark: SparkSession, **options: str) -> DataFrame:
        """What is read once; `options` of the data source say what.

        Raises:
            OptionError: one was given with the cluster's, too.
        """
        given = self._and(options)
        return spark.read.format("popwheel").options(**given).load()

    def stream(self, spark: SparkSession, **options: str) -> DataFrame:
        """Messages as a stream; as `table`."""
        given = self._and(options)
        return spark.readStream.format("popwheel").options(**given).load()

    def messages(self, spark: SparkSession, topics: Sequence[str], window: Window, **options: str) -> DataFrame:
        """What topics have of a window; nothing of topics that are not there, as a group that never failed has no
        retry topic.
        """
        there = self.existing(topics)
        if there:
            return self.table(spark, topics=",".join(there), **window.options, **options)
        return spark.createDataFrame([], MESSAGES)

    def timers(self, spark: SparkSession, topics: Sequence[str]) -> DataFrame:
        """The delayed messages of topics that wait for their time."""
        return self._reached.table(spark, table="timers", topics=",".join(topics))

    def send(self, rows: DataFrame, topic: str) -> None:
        """Send rows to a topic."""
        rows.write.format("popwheel").options(**self._reached.options, topic=topic).mode("append").save()

    @property
    def _reached(self) -> Cluster:
        """The same, without options that say how messages are read."""
        return Cluster({name: text for name, text in self.options.items() if name.lower() in _CONNECTION})

    def existing(self, topics: Collection[str]) -> list[str]:
        """Those of some topics that are there."""

        async def ask() -> list[str]:
            async with QueueClient(self.connection, _GROUP) as client:
                return [topic for topic in topics if await client.queues(topic) is not None]

        return asyncio.run(ask())


class _Option(click.ParamType[tuple[str, str]]):
    """An option of the data source."""

    name = "option"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if not (name and equals):
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


_FLAGS = (
    click.option(
        "--endpoints",
        default="127.0.0.1:8081",
        show_default=True,
        metavar="HOST:PORT",
        help="Where the proxies are; several with commas between.",
    ),
    click.option(
        "--admin",
        default="http://127.0.0.1:8080",
        show_default=True,
        metavar="URL",
        help="Where the controller's admin API is.",
    ),
    click.option("--tls", is_flag=True, help="Speak TLS with the proxies."),
    click.option(
        "--tls-ca-file",
        default="",
        show_default="the system's",
        metavar="FILE",
        help="Whose certificates are trusted, as PEM.",
    ),
    *(
        click.option(flag, default="", show_default="nobody's", envvar=variable, help=f"{what}, or {variable}.")
        for flag, variable, what in (
            ("--access-key", "POPWHEEL_ACCESS_KEY", "The user as which proxies are asked"),
            ("--secret", "POPWHEEL_SECRET", "That user's secret"),
            ("--token", "POPWHEEL_TOKEN", "The token of the admin API"),
        )
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        type=_Option(),
        metavar="NAME=VALUE",
        help="One more option of the data source (docs/spark.md), such as minPartitions=16; may be repeated.",
    ),
)


def cluster_flags(function: Function) -> Function:
    """Add the flags that say where the cluster is; the command gets them as `cluster`. No flags may be below it.

    The command raises `OptionError`, before Spark starts, for an option of the data source that is misspelt or wrong.
    """

    @wraps(function)
    def with_cluster(
        endpoints: str,
        admin: str,
        tls: bool,
        tls_ca_file: str,
        access_key: str,
        secret: str,
        token: str,
        options: Iterable[tuple[str, str]],
        **others: Any,
    ) -> Any:
        from popwheel_spark.read_options import read_options

        given = {
            "endpoints": endpoints,
            "admin": admin,
            "tls": "true" if tls else "",
            "tlsCaFile": tls_ca_file,
            "accessKey": access_key,
            "secretKey": secret,
            "adminToken": token,
        }
        cluster = Cluster({name: text for name, text in given.items() if text} | dict(options))
        for name in cluster.options:
            if name.lower() in _WHAT:
                raise OptionError(name, "what is read is said by the flags of the job (--help)")
        read_options({**cluster.options, "topic": "any"})  # says what is wrong before Spark starts
        return function(cluster=cluster, **others)

    return cast(Function, _flagged(with_cluster, _FLAGS))


_WINDOW_FLAGS = (
    click.option(
        "--from",
        "start_ms",
        type=Moment(),
        show_default="the first that is held",
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
    """Add the flags that say which messages; the command gets them as `window`. Only cluster flags may be below it."""

    @wraps(function)
    def with_window(start_ms: int | None, end_ms: int | None, **others: Any) -> Any:
        return function(window=Window(start_ms, end_ms), **others)

    return cast(Function, _flagged(with_window, _WINDOW_FLAGS))


def _flagged(command: Any, flags: Sequence[Callable[[Any], Any]]) -> Any:
    for flag in reversed(flags):
        command = flag(command)
    return command
