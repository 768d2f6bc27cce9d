"""Runs of many seeds in tests: those that have found something before, and new ones."""

import gc
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tests.sim.command import Run, run_and_clear

ALL = os.environ.get("SIM") == "all"
FIRST_SEED = 100_000_000
"""From here on all workloads are drawn; kept seeds are below, and some of these go without the latest."""
_OF_A_SIMULATOR = re.compile(r" *((the )?simulator|checker|as \d+)\b")
"""What was found is the simulator's own fault, or the same as another seed found."""


def failed_before(path: Path) -> list[int]:
    """The seeds of a file of those that have found something once: with `SIM=all` each, else one for each fault of a
    service. What follows a `#` is for people, and says who was at fault.
    """
    found = [line.partition("#") for line in path.read_text().splitlines()]
    return [int(seed) for seed, _, fault in found if seed.strip() and (ALL or not _OF_A_SIMULATOR.match(fault))]


def new(few: int, many: int) -> range:
    """Seeds that are looked at beside those: `many` with `SIM=all`, else `few`."""
    return range(FIRST_SEED, FIRST_SEED + (many if ALL else few))


def shares(seeds: Sequence[int], count: int) -> list[Sequence[int]]:
    """Split seeds into parts of about the same length, each a test of its own: so none keeps one of two processes busy
    while the other has nothing left to do.
    """
    return [seeds[first::count] for first in range(count)]


def failures(run_seed: Run, seeds: Sequence[int]) -> list[str]:
    """Reports of those that fail; each is the same wherever it runs."""
    try:
        outcomes = [run_and_clear(run_seed, seed) for seed in seeds]
    finally:
        gc.unfreeze()
        gc.enable()
    return [outcome.report() for outcome in outcomes if outcome.violations]
