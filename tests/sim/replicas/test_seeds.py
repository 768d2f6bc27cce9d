"""Masters and slaves over many seeds: nothing that they promise may break (docs/INVARIANTS.md).

`make sim SEEDS=20000` runs more of them.
"""

from pathlib import Path

import pytest

from tests.sim.replicas.run import run_seed
from tests.sim.seeds import failed_before, failures

SEEDS = range(1_000_000, 1_000_000 + 12)
JOBS = 1
FAILING_SEEDS = Path(__file__).with_name("failing_seeds.txt")


@pytest.mark.timeout(600)
def test_seeds_that_have_found_something_before() -> None:
    failed = failures(run_seed, failed_before(FAILING_SEEDS), JOBS)
    assert not failed, "\n\n".join(failed)


@pytest.mark.timeout(600)
def test_many_seeds() -> None:
    failed = failures(run_seed, SEEDS, JOBS)
    assert not failed, "\n\n".join(failed)
