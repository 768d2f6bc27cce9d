"""`python -m tests.sim`: run seeds by hand."""

import sys

from tests.sim.command import main
from tests.sim.run import run_seed

if __name__ == "__main__":
    sys.exit(main("tests.sim", run_seed))
