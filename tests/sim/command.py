"""The command line of a simulator: one seed with its trace, or many and those that fail."""

import argparse
import gc
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.sim.outcome import Outcome

Run = Callable[..., Outcome]
"""Runs a seed; with `whole_trace=True` it gives its trace even if all is well."""


_PROGRESS_S = 60.0


def main(module: str, run_seed: Run) -> int:
    """Run one seed and print its trace, or many and print those that fail; the exit code.

    Args:
        module: what comes after `python -m`.
        run_seed: runs a seed; of a module, as it is called in other processes.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description="Run the simulator.")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", help="A:B, from A up to and without B")
    parser.add_argument("--jobs", type=int, default=1, help="processes at one time")
    parser.add_argument("--trace", action="store_true", help="print the whole trace")
    parser.add_argument("--lines", type=int, default=60, help="lines of the trace that are printed of a failure")
    given = parser.parse_args()
    if given.seed is not None:
        outcome = run_seed(given.seed, whole_trace=given.trace)
        print(outcome.report(10**9 if given.trace else given.lines))
        return 1 if outcome.violations else 0
    first, _, behind = (given.seeds or "0:200").partition(":")
    return _run_many(run_seed, range(int(first), int(behind)), given.jobs, given.lines)


def _run_many(run_seed: Run, seeds: range, jobs: int, lines: int) -> int:
    """Run seeds, print the failing ones as they come; the exit code."""
    began = time.monotonic()
    said = began
    failed: list[Outcome] = []
    with ProcessPoolExecutor(jobs) as pool:
        for done, outcome in enumerate(pool.map(partial(run_and_clear, run_seed), seeds, chunksize=4), 1):
            if outcome.violations:
                failed.append(outcome)
                print(outcome.report(lines), flush=True)
            if time.monotonic() - said >= _PROGRESS_S:
                said = time.monotonic()
                a_minute = done / (said - began) * 60
                print(f"... {done} of {len(seeds)} seeds, {len(failed)} failed, {a_minute:.0f} a minute", flush=True)
    took_s = time.monotonic() - began
    print(f"{len(seeds)} seeds, {len(failed)} failed, {len(seeds) / took_s * 60:.0f} a minute")
    if failed:
        print("failed:", *(outcome.seed for outcome in failed))
    return 1 if failed else 0


def run_and_clear(run_seed: Run, seed: int) -> Outcome:
    """Run one seed of many in this process. Garbage is collected once, when it is over; what there was before it, which
    is most, is not looked through again.
    """
    gc.disable()
    gc.freeze()
    try:
        return run_seed(seed)
    finally:
        gc.collect()
