"""Context of a proxy: what nearly all of its parts need."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from popwheel_common.clock import Clock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_proxy.brokers.background import Background
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol.metrics import ProxyMetrics


@dataclass(frozen=True, slots=True)
class ProxyContext:
    """Settings and surroundings of a proxy.

    Args:
        options: settings.
        clock: time.
        view: the cluster as the controller streams it.
        background: where work runs that outlives its call.
        metrics: what is counted of all calls.
        registry: where parts show metrics of their own.
        numbers: unique ids of calls and sends, across proxies.
    """

    options: ProxyOptions
    clock: Clock
    view: ClusterView
    background: Background
    metrics: ProxyMetrics
    registry: CollectorRegistry
    numbers: Iterator[int]
