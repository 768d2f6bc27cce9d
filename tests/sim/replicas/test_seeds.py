"""Masters and slaves over many seeds: nothing that they promise may break (RELIABILITY 2.2).

`make sim SEEDS=20000` runs more of them.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.sim.replicas.run import run_seed

SEEDS = range(1_000_000, 1_000_000 + 12)
JOBS = 1
FAILING_SEEDS = Path(__file__).with_name("failing_seeds.txt")


def failed_before() -> list[int]:
    """Seeds that have found something once."""
    lines = FAILING_SEEDS.read_text().splitlines()
    return [int(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]


def failures(seeds: list[int]) -> list[str]:
    """Reports of those that fail, run side by side; each is the same wherever it runs."""
    jobs = min(JOBS, os.cpu_count() or 1)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        return [outcome.report() for outcome in pool.map(run_seed, seeds, chunksize=5) if outcome.violations]


@pytest.mark.timeout(600)
def test_seeds_that_have_found_something_before() -> None:
    failed = failures(failed_before())
    assert not failed, "\n\n".join(failed)


@pytest.mark.timeout(600)
def test_many_seeds() -> None:
    failed = failures(list(SEEDS))
    assert not failed, "\n\n".join(failed)
