"""The same seed is the same run, down to the last step: else a failure could not be looked at again."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.sim.run import run_seed

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(300, 306)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert run_seed(seed).digest == run_seed(seed).digest


def test_different_seeds_give_different_traces() -> None:
    assert len({run_seed(seed).digest for seed in SEEDS}) == len(SEEDS)


def digests(environment: Mapping[str, str]) -> str:
    """What another process gives."""
    program = f"from tests.sim.run import run_seed\nfor seed in {SEEDS!r}: print(run_seed(seed).digest)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def digests_here() -> str:
    return "".join(run_seed(seed).digest + "\n" for seed in SEEDS)


def test_other_processes_with_other_hash_seeds_give_the_same_traces() -> None:
    first, second = (digests({**os.environ, "PYTHONHASHSEED": seed}) for seed in ("1", "2"))
    assert first == second == digests_here()
