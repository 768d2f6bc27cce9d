"""The same seed is the same run, down to the last step: else a failure could not be looked at again."""

import os
import subprocess
import sys
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


def test_other_processes_with_other_hash_seeds_give_the_same_traces() -> None:
    def digests(hash_seed: str) -> str:
        program = f"from tests.sim.run import run_seed\nfor seed in {SEEDS!r}: print(run_seed(seed).digest)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    here = "".join(run_seed(seed).digest + "\n" for seed in SEEDS)
    assert digests("1") == digests("2") == here
