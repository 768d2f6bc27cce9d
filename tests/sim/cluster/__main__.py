"""`python -m tests.sim.cluster`: run seeds of the cluster by hand."""

import sys

from tests.sim.cluster.run import run_seed
from tests.sim.command import main

if __name__ == "__main__":
    sys.exit(main("tests.sim.cluster", run_seed))
