"""Many proxies, brokers and polls over many seeds: nothing that they promise may break (docs/INVARIANTS.md).

`make sim SEEDS=20000` runs more of them, `SIM=all` in the environment all that this file can.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sim.cluster.run import run_seed
from tests.sim.seeds import failed_before, failures, new, shares

SEEDS = new(15, 50)
FOUND_BEFORE = failed_before(Path(__file__).with_name("failing_seeds.txt"))


@pytest.mark.timeout(600)  # a machine may have others to serve
@pytest.mark.parametrize("seeds", shares(FOUND_BEFORE, 2))
def test_seeds_that_have_found_something_before(seeds: Sequence[int]) -> None:
    failed = failures(run_seed, seeds)
    assert not failed, "\n\n".join(failed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", shares(SEEDS, 3))
def test_many_seeds(seeds: Sequence[int]) -> None:
    failed = failures(run_seed, seeds)
    assert not failed, "\n\n".join(failed)
