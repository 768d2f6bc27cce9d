"""The page of a timer forecast, from its figures (pure)."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from popwheel_spark.jobs import charts
from popwheel_spark.jobs.page import Cell, Section, Table, page

Row = Mapping[str, Any]

ROWS_MAX = 100
"""A page shows no more rows of a table; the Parquet files have all."""
_BARS_MAX = 500


def timer_page(lead: str, minutes: Sequence[Row], topics: Sequence[Row]) -> str:
    """The page.

    Args:
        lead: of which times and topics it is.
        minutes: rows of `timer_figures.totals`.
        topics: by `topic`, `count` and `overdue`.
    """
    peaks = sorted((row for row in minutes if row["peak"]), key=lambda row: -row["count"])[:ROWS_MAX]
    counts, crests, step_s = _columns(minutes)
    cells: list[Sequence[Cell]] = [[minute_words(row["minute"]), row["count"], row["largestTopic"]] for row in peaks]
    by_topic: list[Sequence[Cell]] = [[row["topic"], row["count"], row["overdue"]] for row in topics[:ROWS_MAX]]
    per = "a minute" if step_s == 60 else f"the fullest minute of {step_s // 60}"
    sections = [
        Section("What falls due", f"A column is {per}.", charts.columns(counts, crests, step_s, "messages a minute")),
        Section("Peaks", "" if peaks else "None.", table=Table(["minute (UTC)", "due", "most of them of"], cells)),
        Section("Topics", table=Table(["topic", "due", "overdue"], by_topic)),
    ]
    return page("Timer forecast", lead, sections)


def minute_words(minute: datetime) -> str:
    """A minute for people, in UTC."""
    return minute.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _columns(minutes: Sequence[Row]) -> tuple[list[tuple[datetime, float]], list[tuple[datetime, float]], int]:
    """The fullest minute of each column, those with a peak among them, and the seconds of a column: a picture has room
    for some hundred.
    """
    if not minutes:
        return [], [], 60
    first = minutes[0]["minute"].astimezone(UTC)
    span_s = (minutes[-1]["minute"].astimezone(UTC) - first).total_seconds() + 60
    step_s = 60 * max(1, -(-int(span_s) // (60 * _BARS_MAX)))
    fullest: dict[int, Row] = {}
    for row in minutes:
        number = int((row["minute"].astimezone(UTC) - first).total_seconds()) // step_s
        if number not in fullest or row["count"] > fullest[number]["count"]:
            fullest[number] = row
    counts = {
        datetime.fromtimestamp(first.timestamp() + number * step_s, UTC): row for number, row in sorted(fullest.items())
    }
    crests = [(time, float(row["count"])) for time, row in counts.items() if row["peak"]]
    return [(time, float(row["count"])) for time, row in counts.items()], crests, step_s
