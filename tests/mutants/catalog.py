"""The mutants: for each deciding class some changes that break what it promises."""

from tests.mutants.broker_catalog import FILTERS, LITE, POP, SHARES, STORE, TIMER
from tests.mutants.cluster_catalog import CONTROL, PROXIES, REPLICATION

MUTANTS = [*STORE, *POP, *TIMER, *LITE, *FILTERS, *REPLICATION, *CONTROL, *SHARES, *PROXIES]
