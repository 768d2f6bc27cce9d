"""Page of a delivery report, from its figures (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from popwheel_spark.jobs import charts
from popwheel_spark.jobs.page import Cell, Section, Table, page

Row = Mapping[str, Any]

ROWS_MAX = 200
"""Limit of the rows of a table on the page; the Parquet files have all."""

_SPREAD = ("P50Ms", "P90Ms", "P99Ms", "P999Ms", "MaxMs")
_SPREAD_HEADINGS = ("p50", "p90", "p99", "p99.9", "max")

TOPIC_COLUMNS = {
    "topic": "topic",
    "messages": "messages",
    "timers": "of them delayed",
    "storedTwice": "stored twice",
    "offsetGaps": "offsets missing",
    "storedP50Ms": "stored p50 ms",
    "storedP99Ms": "p99 ms",
    "lateP50Ms": "timer late p50 ms",
    "lateP99Ms": "p99 ms",
    "lateMaxMs": "max ms",
}
GROUP_COLUMNS = {
    "topic": "topic",
    "group": "group",
    "messages": "messages",
    "delivered": "delivered",
    "acked": "acked",
    "gaps": "gaps",
    "repeats": "repeats",
    "retried": "retried",
    "retries": "retries",
    "deadLetters": "dead letters",
    "endToEndP50Ms": "end to end p50 ms",
    "endToEndP99Ms": "p99 ms",
    "endToEndMaxMs": "max ms",
}
_FINDING_COLUMNS = {"kind": "kind", "topic": "topic", "group": "group", "messageId": "message id", "times": "times"}


def table(rows: Iterable[Row], columns: Mapping[str, str], flag: Sequence[str] = ()) -> Table:
    """Return a table of some columns of rows.

    Args:
        rows: of which the first are shown.
        columns: their names -> headings.
        flag: columns that highlight a row if one of them is more than 0.
    """
    shown = list(rows)[:ROWS_MAX]
    cells: list[list[Cell]] = [[row[name] for name in columns] for row in shown]
    flagged = frozenset(number for number, row in enumerate(shown) if any(row[name] for name in flag))
    return Table(list(columns.values()), cells, flagged)


def delivery_page(
    lead: str, topics: Sequence[Row], groups: Sequence[Row], course: Sequence[Row], findings: Sequence[Row], step_s: int
) -> str:
    """Return the page.

    Args:
        lead: of which messages it is.
        topics, groups, course, findings: rows as `delivery_figures` has them.
        step_s: seconds of a step of `course`.
    """
    stored = [row for row in course if row["group"] is None]
    given = [row for row in course if row["group"] is not None]
    sections = [
        Section(
            "Topics",
            "Stored: from the birth of a message until its topic had it. Late: from its delivery time until then.",
            table=table(topics, TOPIC_COLUMNS, ("storedTwice", "offsetGaps")),
        ),
        Section(
            f"Messages stored, in steps of {step_s} s",
            picture=charts.lines(_series(stored, "count"), "messages"),
        ),
    ]
    if any(row["timers"] for row in topics):
        sections.append(_spread("Timers: how late, after the delivery time", topics, "late", ("topic",)))
    sections.append(
        Section(
            "Groups",
            "End to end: from the delivery time of a message, or else its birth, until a consumer first had it. What "
            "comes from the consumers' own record is – where there is none.",
            table=table(groups, GROUP_COLUMNS, ("gaps", "repeats", "deadLetters")),
        )
    )
    if given:
        latency = {
            f"{name} {label}": points
            for label in ("p50", "p99")
            for name, points in _series(given, f"{label}Ms").items()
        }
        sections += [
            _spread("End-to-end latency", groups, "endToEnd", ("topic", "group")),
            Section(
                "End-to-end latency over time",
                f"In steps of {step_s} s.",
                charts.lines(latency, "ms", logarithmic=True),
            ),
        ]
    if any(row["retries"] or row["deadLetters"] for row in groups):
        sections.append(
            Section(
                "Retries and dead letters",
                picture=charts.bars(
                    {
                        "retries": [row["retries"] for row in groups[: charts.LABELS_MAX]],
                        "dead letters": [row["deadLetters"] for row in groups[: charts.LABELS_MAX]],
                    },
                    [f"{row['topic']}\n{row['group']}" for row in groups[: charts.LABELS_MAX]],
                    "messages",
                ),
            )
        )
    note = f"The first {ROWS_MAX} of them; all are in the Parquet files." if len(findings) > ROWS_MAX else ""
    sections.append(Section("Findings", note or ("" if findings else "None."), table=table(findings, _FINDING_COLUMNS)))
    return page("Delivery report", lead, sections)


def _series(rows: Iterable[Row], value: str) -> dict[str, list[tuple[datetime, float]]]:
    """Return a column over time, by topic and group."""
    found: dict[str, list[tuple[datetime, float]]] = {}
    for row in rows:
        name = row["topic"] if row["group"] is None else f"{row['topic']} → {row['group']}"
        found.setdefault(name, []).append((row["time"].astimezone(UTC), row[value]))
    return found


def _spread(title: str, rows: Sequence[Row], prefix: str, names: Sequence[str]) -> Section:
    """Return a chart of percentiles side by side, of rows that have them."""
    series = {
        " → ".join(row[name] for name in names): [row[f"{prefix}{label}"] for label in _SPREAD]
        for row in rows
        if row[f"{prefix}MaxMs"] is not None
    }
    return Section(title, picture=charts.bars(series, _SPREAD_HEADINGS, "ms", logarithmic=True))
