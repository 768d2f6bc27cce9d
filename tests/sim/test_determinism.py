"""The same seed is the same run, down to the last step: else a failure could not be looked at again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.run import run_seed

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(300, 306)

pytestmark = pytest.mark.timeout(600)  # a machine may have others to serve


@pytest.fixture(scope="module")
def digests() -> list[str]:
    """Digests of the seeds' traces, in this process."""
    return [run_seed(seed).digest for seed in SEEDS]


def test_the_same_seed_gives_the_same_trace(digests: list[str]) -> None:
    assert [run_seed(seed).digest for seed in (SEEDS[0], SEEDS[-1])] == [digests[0], digests[-1]]


def test_different_seeds_give_different_traces(digests: list[str]) -> None:
    assert len(set(digests)) == len(SEEDS)


def test_another_process_with_another_hash_seed_gives_the_same_traces(digests: list[str]) -> None:
    program = f"from tests.sim.run import run_seed\nfor seed in {SEEDS!r}: print(run_seed(seed).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == digests
