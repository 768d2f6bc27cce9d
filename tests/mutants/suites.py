"""What may notice a mutant beside the unit tests: the simulators."""

SERVER, REPLICAS, CLUSTER = "tests.sim", "tests.sim.replicas", "tests.sim.cluster"
