"""Compiled modules do what their sources do: each seed gives the same trace, to the last step (`make test-compiled`).

Records that fail by themselves are left out: that fault replaces parts of what is compiled, which nothing can.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.compiled import is_compiled

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """
import sys
from importlib import import_module
from tests.sim import failing_records

failing_records.SHARE = 0.0
run = import_module(sys.argv[1]).run_seed
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    outcome = run(seed)
    print(seed, outcome.digest, *outcome.violations)
"""


def traces(environment: dict[str, str], simulator: str, first: int, behind: int) -> list[str]:
    words = [sys.executable, "-c", _PROGRAM, simulator, str(first), str(behind)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(not is_compiled(), reason="of compiled modules: make test-compiled")
@pytest.mark.parametrize("simulator", ["tests.sim.run", "tests.sim.replicas.run", "tests.sim.cluster.run"])
def test_compiled_modules_give_the_same_traces_as_their_sources(simulator: str) -> None:
    source = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if Path(path).name != "compiled"]
    pure = os.environ | {"PYTHONPATH": os.pathsep.join(source)}
    first = int(os.environ.get("FIRST_SEED", "300"))
    seeds = first, first + int(os.environ.get("SEEDS", "8"))
    assert traces(dict(os.environ), simulator, *seeds) == traces(pure, simulator, *seeds)
