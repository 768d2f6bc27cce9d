"""Faults that are planted into a service, so that a simulator shows that it would notice them."""

from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Any

import pytest

from tests.sim.command import Run

Plant = Callable[[pytest.MonkeyPatch], None]
"""Plants a fault; its docstring says which."""


def assert_caught(
    plant: Plant,
    numbers: Collection[str],
    run_seed: Run,
    seeds: Iterable[int],
    only: tuple[str, ...],
    settings: dict[str, Any] | None = None,
) -> None:
    """Have some seed notice a fault, and be well without it.

    Args:
        plant: plants it.
        numbers: promises; one of them is broken.
        run_seed: runs a seed of the simulator.
        seeds: they are tried in this order.
        only: faults and workloads that may be on.
        settings: those that are not drawn.
    """
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            outcome = run_seed(seed, only, settings)
        if {violation.split(":")[0] for violation in outcome.violations} & set(numbers):
            assert not (report := _report_without_it(run_seed, seed, only, tuple((settings or {}).items()))), report
            return
    pytest.fail(f"no seed has noticed that {(plant.__doc__ or '').lower()}")


@cache
def _report_without_it(run_seed: Run, seed: int, only: tuple[str, ...], settings: tuple[tuple[str, Any], ...]) -> str:
    """Return the report of a seed without the planted fault if it fails, else nothing; many faults share a seed."""
    outcome = run_seed(seed, only, dict(settings))
    return outcome.report() if outcome.violations else ""
