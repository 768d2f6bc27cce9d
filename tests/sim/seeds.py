"""Runs of many seeds in tests: those that have found something before, and new ones."""

import gc
from collections.abc import Sequence
from pathlib import Path

from tests.sim.command import Run, run_and_clear


def failed_before(path: Path) -> list[int]:
    """The seeds of a file of those that have found something once; what follows a `#` is for people."""
    numbers = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    return [int(number) for number in numbers if number]


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
