"""The simulator over many seeds: nothing that the server promises may break, whatever strikes it (docs/INVARIANTS.md).

`make sim SEEDS=20000` runs more of them.
"""

from pathlib import Path

import pytest

from tests.sim.run import run_seed
from tests.sim.seeds import failed_before, failures

SEEDS = range(1_000_000, 1_000_000 + 100)
JOBS = 2
FAILING_SEEDS = Path(__file__).with_name("failing_seeds.txt")


def test_seeds_that_have_found_something_before() -> None:
    failed = failures(run_seed, failed_before(FAILING_SEEDS), JOBS)
    assert not failed, "\n\n".join(failed)


@pytest.mark.timeout(600)  # some 60 s of one core; a machine may have others to serve
def test_many_seeds() -> None:
    failed = failures(run_seed, SEEDS, JOBS)
    assert not failed, "\n\n".join(failed)
