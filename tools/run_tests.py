"""Run all folders of tests and say how long each took (run by `make test`).

The last line is always `N passed, N failed, N skipped`; the exit code is 0 only if nothing failed.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent

TURNS = ((("unit",),), (("integration",), ("ui", "interop", "e2e")))
"""Folders, from quick to slow, so that a plain mistake shows itself first. The last two rows are run beside each other,
as much of their time is waiting.
"""

MEANWHILE = ("sim",)
"""Folders that run beside all turns with what these leave of the cores: virtual time, so nothing there hurries."""

LESS_URGENT = 10
"""Steps of nice(1) by which they are."""

AT_ONCE = ("-n", "2", "--dist", "worksteal")
"""Parts whose tests share nothing, and keep a core busy each. A process that has no more to do takes from the others'
rest. More of them would gain little: each collects all tests.
"""

WHENEVER = (*AT_ONCE, "--timeout", "900")
"""The same with time for others to go first."""

FILES_AT_ONCE = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
"""Parts whose tests of a file share servers, and much of the time is waiting: each process does a file at a time."""

WORDS = {"unit": AT_ONCE, "sim": WHENEVER, "integration": FILES_AT_ONCE, "interop": FILES_AT_ONCE}
"""Further arguments of pytest, by folder."""

BUDGET_S = 480
"""Time limit of all of them together on two cores."""


@dataclass(slots=True)
class Outcome:
    """Results of a folder's tests by outcome, and their duration."""

    folder: str
    passed: int
    failed: int
    skipped: int
    seconds: float

    def __str__(self) -> str:
        counts = f"{self.passed:5} passed {self.failed:4} failed {self.skipped:4} skipped"
        return f"{self.folder:<18}{counts} {self.seconds:8.1f} s"


def main() -> int:
    """Run what is there, and print a table."""
    began = time.monotonic()
    arguments = sys.argv[1:]
    with ThreadPoolExecutor(len(MEANWHILE)) as pool:
        meanwhile = [pool.submit(run, name, arguments, is_shown=False, nice=LESS_URGENT) for name in MEANWHILE]
        outcomes = [outcome for rows in TURNS for outcome in run_rows(rows, arguments)]
        outcomes += [each.result() for each in meanwhile]
    total = Outcome(
        "all",
        sum(outcome.passed for outcome in outcomes),
        sum(outcome.failed for outcome in outcomes),
        sum(outcome.skipped for outcome in outcomes),
        time.monotonic() - began,
    )
    print("", *outcomes, total, sep="\n")
    if total.seconds > BUDGET_S:
        print(f"took longer than the {BUDGET_S} s that all tests together should take")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


def run_rows(rows: Sequence[Sequence[str]], arguments: list[str]) -> list[Outcome]:
    """Run rows of folders beside each other, each in turn. Of the first one is shown at once what it says."""

    def run_row(row: Sequence[str]) -> list[Outcome]:
        there = [name for name in row if any((ROOT / "tests" / name).rglob("test_*.py"))]
        return [run(name, arguments, is_shown=row is rows[0]) for name in there]

    with ThreadPoolExecutor(len(rows)) as pool:
        return [outcome for outcomes in pool.map(run_row, rows) for outcome in outcomes]


def run(name: str, arguments: list[str], *, is_shown: bool = True, nice: int = 0) -> Outcome:
    """Run the tests of one folder with pytest. A run that broke off counts as one more failure."""
    if is_shown:
        print(f"--- tests/{name}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        words = ["-q", f"--junit-xml={report}", f"tests/{name}", *WORDS.get(name, ()), *arguments]
        command = ["nice", "-n", str(nice), sys.executable, "-m", "pytest", *words]
        # Tests start hundreds of processes: each would compile all modules anew.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        with (Path(scratch) / "output").open("w+b") as output:
            said = None if is_shown else output
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=said, stderr=said and subprocess.STDOUT, check=False
            )
            output.seek(0)
            if not is_shown:
                print(f"--- tests/{name}\n{output.read().decode(errors='replace')}", flush=True)
        code = ended.returncode
        counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                for key in counts:
                    counts[key] += int(suite.get(key, 0))
    failed = counts["failures"] + counts["errors"]
    passed = max(0, counts["tests"] - failed - counts["skipped"])
    if code not in (0, 5) and failed == 0:
        failed = 1
    return Outcome(f"tests/{name}", passed, failed, counts["skipped"], time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
