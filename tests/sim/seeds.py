"""Runs of many seeds in tests: those that have found something before, and new ones."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.sim.command import Run, run_and_clear

_SEEDS_AT_ONCE = 5


def failed_before(path: Path) -> list[int]:
    """The seeds of a file of those that have found something once; what follows a `#` is for people."""
    numbers = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    return [int(number) for number in numbers if number]


def failures(run_seed: Run, seeds: Sequence[int], jobs: int) -> list[str]:
    """Reports of those that fail, run side by side; each is the same wherever it runs.

    Args:
        run_seed: runs a seed; of a module, as it is called in other processes.
        seeds: which.
        jobs: so many processes at one time at the most.
    """
    jobs = min(jobs, os.cpu_count() or 1)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        outcomes = pool.map(partial(run_and_clear, run_seed), seeds, chunksize=_SEEDS_AT_ONCE)
        return [outcome.report() for outcome in outcomes if outcome.violations]
