"""Report of the measurements, as JSON lines for machines and as a table for people."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.table import Table

SHOWN = (
    "messages_per_s",
    "plain_per_s",
    "to_plain",
    "read_per_s",
    "parquet_per_s",
    "to_parquet",
    "read_start_ms",
    "parquet_start_ms",
    "sender_per_s",
    "to_sender",
    "job_start_s",
    "running_to_sender",
    "trigger_p50_ms",
    "empty_trigger_p50_ms",
    "received_per_s",
    "first_send_s",
    "first_send_cpu_s",
    "ordinary_cpu_s",
    "idle_cpu_s",
    "whole_cpu_s",
    "ordinary_kib",
    "whole_kib",
    "master_blocked_max_ms",
    "promotion_ms",
    "follow_cpu_us",
    "gap_p50_s",
    "gap_max_s",
    "elected_p50_s",
    "elected_max_s",
    "healthy_p50_s",
    "failed_calls",
    "in_sync",
    "lag_p50_ms",
    "lag_p99_ms",
    "lag_max_ms",
    "lag_max_kib",
    "late_p50_ms",
    "late_p99_ms",
    "late_max_ms",
    "e2e_p50_ms",
    "e2e_before_p99_ms",
    "e2e_p99_ms",
    "e2e_max_ms",
    "e2e_p99_ratio",
    "call_p50_ms",
    "call_before_p99_ms",
    "call_p99_ms",
    "call_p99_ratio",
    "server_cpu_us",
    "normal_server_cpu_us",
    "delayed_to_normal",
    "server_cpu_percent",
    "proxy_cpu_us",
    "brokers_cpu_us",
    "received_proxy_cpu_us",
    "received_brokers_cpu_us",
    "proxy_cpu_percent",
    "broker_cpu_percent",
    "broker_cpu_max_percent",
    "polls_per_s",
    "repoll_polls_per_s",
    "repoll_proxy_cpu_us",
    "repoll_brokers_cpu_us",
    "loader_cpu_us",
    "others_cpu_cores",
    "rpcs_per_message",
    "puts_per_message",
    "poll_kib",
    "anonymous_mib",
    "peak_mib",
    "data_mib",
    "messages_per_poll",
    "turn_max_ms",
    "topics",
    "open",
    "timers",
    "acknowledged",
    "lost",
    "early",
    "missing",
    "undelivered",
    "duplicates",
    "errors",
)
"""Figures that the table shows, in this order; the JSON lines have them all."""

BESIDE = {
    "peer": "",
    "valkey-snapshots": "async",
    "valkey-everysec": "async",
    "valkey-always": "sync",
    "empty": "filled",
}
"""Servers that others are set beside, by name, and what begins the names of these: they promise the same."""

_HIDDEN_IF_ZERO = {"early", "missing", "undelivered", "duplicates", "errors"}


@dataclass(frozen=True)
class Run:
    """Run of a case.

    Args:
        case: its name.
        server: whose figures they are.
        number: which run, from 1.
        figures: by name.
        words: what chooses the server on the command line.
    """

    case: str
    server: str
    number: int
    figures: dict[str, float]
    words: str

    def write(self, file: TextIO) -> None:
        """Write it as one line of JSON."""
        rounded = {name: float(f"{value:.5g}") for name, value in self.figures.items()}
        line = {"case": self.case, "server": self.server, "run": self.number, **rounded, "command": command(self)}
        print(json.dumps(line), file=file, flush=True)


def command(run: Run) -> str:
    """Return the command that repeats a run by itself."""
    return f"python -m bench --case {run.case} {run.words}".strip()


def medians(runs: Iterable[Run]) -> dict[tuple[str, str, str], list[float]]:
    """Median, least and greatest by (case, server, figure)."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for run in runs:
        for name, value in run.figures.items():
            values.setdefault((run.case, run.server, name), []).append(value)
    return {key: [statistics.median(found), min(found), max(found)] for key, found in values.items()}


def table(runs: Sequence[Run], console: Console) -> None:
    """Print medians, their spread, and ratios to the servers that they stand beside, where there are any."""
    servers = list(dict.fromkeys(run.server for run in runs))
    cases = list(dict.fromkeys(run.case for run in runs))
    found = medians(runs)
    pairs = [
        (ours, other)
        for other in servers
        for ours in servers
        if other in BESIDE and ours not in BESIDE and ours.startswith(BESIDE[other])
    ]
    count = max((run.number for run in runs), default=0)
    title = f"median of {count} (least to greatest)" if count > 1 else "one run"
    shown = Table("case", "figure", *servers, *(f"{ours} / {other}" for ours, other in pairs), title=title)
    for column in shown.columns[2:]:
        column.justify = "right"
    for case in cases:
        first = True
        for name in SHOWN:
            values = [found.get((case, server, name)) for server in servers]
            if not any(values) or (name in _HIDDEN_IF_ZERO and not any(value and value[2] for value in values)):
                continue
            ratios = [_ratio(found.get((case, ours, name)), found.get((case, other, name))) for ours, other in pairs]
            shown.add_row(case if first else "", name, *map(_cell, values), *ratios)
            first = False
        shown.add_section()
    console.print(shown)


def _cell(value: list[float] | None) -> str:
    if value is None:
        return ""
    median, least, greatest = value
    text = _number(median)
    return text if least == greatest else f"{text} ({_number(least)} to {_number(greatest)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _ratio(value: list[float] | None, peer: list[float] | None) -> str:
    return f"{value[0] / peer[0]:.2f}" if value and peer and peer[0] else ""
