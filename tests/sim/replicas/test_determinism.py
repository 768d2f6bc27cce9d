"""The same seed of a broker group is the same run, down to the last step, in whatever process it runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.replicas.run import run_seed

ROOT = Path(__file__).resolve().parents[3]
SEEDS = (2, 5)


@pytest.mark.timeout(600)
def test_another_process_with_another_hash_seed_gives_the_same_traces() -> None:
    program = f"from tests.sim.replicas.run import run_seed\nfor seed in {SEEDS!r}: print(run_seed(seed).digest)"

    def digests(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout

    here = "".join(run_seed(seed).digest + "\n" for seed in SEEDS)
    assert len(set(here.split())) == len(SEEDS)
    assert digests("1") == here
