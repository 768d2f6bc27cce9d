"""docs/reference/spark-options.md: the options of the data source for Spark, and the flags of its jobs."""

from collections.abc import Iterator

from popwheel_spark.options import OPTIONS, Kind, Option, Side
from tools.reference.markdown import head, table

_WORDS = {
    Side.ALL: "all",
    Side.READ: "read",
    Side.BATCH: "table",
    Side.STREAM: "stream",
    Side.LIST: "timers, inflight",
    Side.SINK: "sink",
}

_HEAD = """\
[Spark](../use/spark.md) shows how topics are read and written. *Of* says for what an option counts.
"""


def spark_options_page() -> str:
    """The whole page, in Markdown."""
    return "\n".join(
        [
            head(
                "Spark options",
                "the table that the data source goes by",
                _HEAD,
            ),
            table(("option", "of", "default", "meaning"), _options()),
            "## Flags of jobs\n\n`popwheel-spark JOB --help` has those of each [job](../use/spark-jobs.md).\n",
            table(("flag", "is the option", "default", "meaning"), _flags()),
        ]
    )


def _options() -> Iterator[tuple[str, str, str, str]]:
    for row in OPTIONS.values():
        yield f"`{row.name}`", ", ".join(_WORDS[side] for side in row.sides), _default(row), row.help


def _flags() -> Iterator[tuple[str, str, str, str]]:
    for row in OPTIONS.values():
        if row.flag:
            default = f"`{row.flag_default}`" if row.flag_default else _default(row)
            yield (
                f"`{row.flag}`",
                f"`{row.name}`",
                default,
                f"{row.help}{f'; better by `{row.variable}`' if row.variable else ''}",
            )


def _default(row: Option) -> str:
    if row.shown:
        return row.shown
    if row.kind in (Kind.CHOICE, Kind.TEXT) and row.default:
        return f"`{row.default}`"
    return row.default
