"""The mutants: for each deciding class some changes that break what it promises."""

from tests.mutants.broker_catalog import POP, SHARES, STORE, TIMER
from tests.mutants.cluster_catalog import CONTROL, PROXIES, REPLICATION

MUTANTS = [*STORE, *POP, *TIMER, *REPLICATION, *CONTROL, *SHARES, *PROXIES]
