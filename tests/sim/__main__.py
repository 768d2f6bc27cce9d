"""`python -m tests.sim`: run seeds by hand."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.sim.run import Outcome, run_seed


def main() -> int:
    """Run one seed and print its trace, or many and print those that fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Run the simulator.")
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
    return run_many(range(int(first), int(behind)), given.jobs, given.lines)


def run_many(seeds: range, jobs: int, lines: int) -> int:
    """Run seeds, print the failing ones as they come; the exit code."""
    began = time.monotonic()
    failed: list[Outcome] = []
    with ProcessPoolExecutor(jobs) as pool:
        for outcome in pool.map(run_seed, seeds, chunksize=4):
            if outcome.violations:
                failed.append(outcome)
                print(outcome.report(lines), flush=True)
    took_s = time.monotonic() - began
    print(f"{len(seeds)} seeds, {len(failed)} failed, {len(seeds) / took_s * 60:.0f} a minute")
    if failed:
        print("failed:", *(outcome.seed for outcome in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
