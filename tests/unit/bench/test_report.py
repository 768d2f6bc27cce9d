"""Ratios stand between servers that promise the same."""

import io

from rich.console import Console

from bench.report import Run, table


def test_ratios_to_each_server_that_is_not_ours() -> None:
    rates = {"async": 100.0, "sync": 50.0, "valkey-everysec": 400.0, "valkey-always": 25.0, "peer": 200.0}
    runs = [Run("send-64", name, 1, {"messages_per_s": rate}, "") for name, rate in rates.items()]
    reported = io.StringIO()
    table(runs, Console(file=reported, width=300))
    lines = reported.getvalue().splitlines()
    (heads,) = [line.split("\u2503") for line in lines if "messages" not in line and "figure" in line]
    (cells,) = [line.split("\u2502") for line in lines if "messages_per_s" in line]
    found = {head.strip(): cell.strip() for head, cell in zip(heads, cells, strict=True) if "/" in head}
    assert found == {
        "async / valkey-everysec": "0.25",
        "sync / valkey-always": "2.00",
        "async / peer": "0.50",
        "sync / peer": "0.25",
    }
