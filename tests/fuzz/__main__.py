"""`python -m tests.fuzz --seconds 60 --seed N`: fuzz; print what was done, or seed and input of what was found."""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.campaign import InputFoundError, run


def main() -> int:
    """Run; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long")
    parser.add_argument("--rounds", type=int, default=10**9, help="rounds after which it ends, if that comes first")
    parser.add_argument("--seed", type=int, default=None, help="the same seed sends the same; drawn if not given")
    parser.add_argument("--statuses", action="store_true", help="show how often each call was answered how")
    arguments = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "big") if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            report = asyncio.run(run(seed, Path(scratch) / "data", seconds=arguments.seconds, rounds=arguments.rounds))
        except InputFoundError as error:
            print(f"FOUND: {error}", file=sys.stderr)
            print(f"again: python -m tests.fuzz --seed {seed} --seconds 1e9", file=sys.stderr)
            if error.__cause__ is not None and error.__cause__.__cause__ is not None:
                raise error.__cause__.__cause__ from None
            return 1
    if arguments.statuses:
        for name, count in sorted({**report.statuses, **report.answered}.items()):
            print(f"{count:7} {name}")
    print(
        f"{report.rounds} rounds, {report.connections} connections of frames, {report.calls} calls and "
        f"{report.requests} requests of the admin API in "
        f"{time.monotonic() - began:.0f} s; memory grew by {report.growth_bytes / 2**20:.0f} MiB; "
        f"{report.turns}; "
        f"{report.asked} messages that were acknowledged were there after a restart; nothing found"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
