"""What may notice a mutant: the simulators, and the folders of unit tests."""

SERVER, REPLICAS, CLUSTER = "tests.sim", "tests.sim.replicas", "tests.sim.cluster"
BROKER, CONTROLLER, PROXY = "tests/unit/broker", "tests/unit/controller", "tests/unit/proxy"
