"""`python -m tests.sim.replicas`: run seeds of masters and slaves by hand."""

import sys

from tests.sim.command import main
from tests.sim.replicas.run import run_seed

if __name__ == "__main__":
    sys.exit(main("tests.sim.replicas", run_seed))
