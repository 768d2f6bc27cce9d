"""`python -m tests.mutants`: run each mutant against the unit tests and the simulator that are to notice it."""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import UNIT_TESTS, Mutant, copy_repository, environment_of

_PYTEST_S_MAX = 900.0
_SEEDS_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who has noticed a mutant.

    Args:
        mutant: which.
        by_tests: the first unit test that failed; empty for none.
        by_simulator: the first seed that failed and what it says; empty for none.
    """

    mutant: Mutant
    by_tests: str
    by_simulator: str


def main() -> int:
    """Run the mutants that are asked for and print a table; 0 if the marks are met."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=200, help="of the simulator, for each mutant")
    parser.add_argument("--jobs", type=int, default=2, help="processes of a simulator at one time")
    parser.add_argument("--only", choices=("tests", "simulator"))
    given = parser.parse_args()
    mutants = [each for each in MUTANTS if not given.names or each.name in given.names]
    unknown = set(given.names) - {each.name for each in mutants}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        place = Path(folder)
        copy_repository(place)
        for mutant in mutants:
            began = time.monotonic()
            with mutant.applied_in(place):
                by_tests = "" if given.only == "simulator" else _by_tests(mutant, place)
                by_simulator = ""
                if given.only != "tests" and mutant.simulator:
                    by_simulator = _by_simulator(
                        mutant, place, range(given.first_seed, given.first_seed + given.seeds), given.jobs
                    )
            verdicts.append(Verdict(mutant, by_tests, by_simulator))
            took_s = time.monotonic() - began
            print(f"{mutant.name:<44} {by_tests or '-'}  |  {by_simulator or '-'}  ({took_s:.0f} s)", flush=True)
    tests = sum(bool(each.by_tests) for each in verdicts)
    simulators = sum(bool(each.by_simulator) for each in verdicts)
    simulated = sum(bool(each.mutant.simulator) for each in verdicts)
    print(f"{len(verdicts)} mutants: unit tests notice {tests}, simulators {simulators} of {simulated}")
    needed = round(simulated * 0.85)
    return 0 if (given.only or tests == len(verdicts)) and (given.only == "tests" or simulators >= needed) else 1


def _run(place: Path, words: list[str], timeout_s: float) -> tuple[int, str]:
    """Return the exit code and what was printed; the last line is that of the error, if a process ended by one."""
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=place,
            env=environment_of(place),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "time out"
    return done.returncode, f"{done.stdout}{done.stderr}" or f"ended with {done.returncode}"


def _by_tests(mutant: Mutant, place: Path) -> str:
    """The first unit test that notices."""
    words = ["-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", f"{UNIT_TESTS}/{mutant.tests}"]
    code, output = _run(place, words, _PYTEST_S_MAX)
    if code == 0:
        return ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].partition(" ")[2].rpartition("/")[2] if failed else output.strip()[-60:]


def _by_simulator(mutant: Mutant, place: Path, seeds: range, jobs: int) -> str:
    """The first seeds that notice, and what they say."""
    for first in range(seeds.start, seeds.stop, _SEEDS_AT_ONCE):
        behind = min(first + _SEEDS_AT_ONCE, seeds.stop)
        words = ["-m", mutant.simulator, "--seeds", f"{first}:{behind}", "--jobs", str(jobs), "--lines", "0"]
        code, output = _run(place, words, _PYTEST_S_MAX)
        if code != 0:
            lines = output.splitlines()
            failed = next((line for line in lines if line.startswith("failed:")), "failed: ?").split()[1]
            said = next((line for line in lines if line[:1].isupper() and line[1:2].isdigit()), lines[-1])
            return f"seed {failed}: {said[:60]}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
