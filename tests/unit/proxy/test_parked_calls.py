"""How much is parked at one time."""

from typing import NoReturn

import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_proxy.brokers.background import Background
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.metrics import FailoverMetrics
from popwheel_proxy.brokers.parked_calls import ParkedCalls
from popwheel_proxy.options import FailoverOptions
from popwheel_proxy.protocol.errors import LimitError
from tests.unit.proxy.virtual import LoopClock, run


def no_way(info: BrokerInfo) -> NoReturn:
    raise AssertionError(f"nobody calls {info.name}")


def test_only_so_much_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popwheel_proxy.brokers.parked_calls.PARKED_CALLS_MAX", 2)
    monkeypatch.setattr("popwheel_proxy.brokers.parked_calls.PARKED_BYTES_MAX", 100)

    async def scenario() -> None:
        view, registry = ClusterView(), CollectorRegistry()
        brokers = Brokers(view, no_way, Background())
        parked_calls = ParkedCalls(view, brokers, FailoverOptions(), LoopClock(), FailoverMetrics(registry))

        def refused(size: int) -> str:
            with pytest.raises(LimitError) as raised, parked_calls.park(size):
                pass
            return raised.value.limit

        with parked_calls.park(500):  # a single large one
            assert refused(1) == "parked_bytes_max"
            with parked_calls.park() as parked:
                assert refused(0) == "parked_calls_max"
                assert (parked_calls.calls, parked_calls.bytes) == (2, 500)
                parked.served = True
        with parked_calls.park(100):
            assert (parked_calls.calls, parked_calls.bytes) == (1, 100)
        assert (parked_calls.calls, parked_calls.bytes) == (0, 0)
        count = "popwheel_proxy_parked_seconds_count"
        assert registry.get_sample_value(count, {"served": "yes"}) == 1
        assert registry.get_sample_value(count, {"served": "no"}) == 2, "refused ones were never parked"

    run(scenario())
