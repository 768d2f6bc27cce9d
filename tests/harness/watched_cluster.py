"""A cluster under load that loses its master, watched by a Prometheus: for tests and pictures of dashboards."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, start_http_server

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.kubernetes.reconciler import DeclarationMetrics
from tests.harness.certificates import CertificateVolume, certificate_by, new_authority
from tests.harness.client import MessagingClient
from tests.harness.failover import TOPICS, FailoverLoad, ReplicatedCluster
from tests.harness.prometheus import Prometheus

_SEEN_S_MAX = 20.0
_TOPIC = TOPICS[1][0]
_BODY_BYTES_MAX = 1024


@dataclass
class Times:
    """When what happened, in seconds since 1970.

    Args:
        quiet: all was well from here on.
        struck: the master was killed.
        over: all that was to happen has.
    """

    quiet: float = 0.0
    struck: float = 0.0
    over: float = 0.0


class ResourcesPage:
    """What a controller on Kubernetes shows of topics and groups as resources, on a page of its own: this cluster's
    controller keeps its state in files, and has none. Use as a context manager.
    """

    def __init__(self) -> None:
        registry = CollectorRegistry()
        metrics = DeclarationMetrics(registry)
        for kind in ("topics", "consumergroups"):
            metrics.show(kind, declared=2, shown=1, refused=0, left_out=False)
            metrics.writes.labels(kind).inc()
        self._registry = registry

    def __enter__(self) -> str:
        self._server, self._thread = start_http_server(0, "127.0.0.1", self._registry)
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class WatchedCluster:
    """The cluster and its Prometheus. Use as a context manager.

    Args:
        folder: for all that they write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        certificates = CertificateVolume(folder / "tls")
        authority = new_authority()
        certificates.hold(certificate_by(authority), authority)
        self._cluster = ReplicatedCluster(
            folder, "--set", f"proxy.message.body_bytes_max={_BODY_BYTES_MAX}", *certificates.settings
        )
        self._resources = ResourcesPage()
        self._prometheus: Prometheus | None = None
        self.times = Times()

    @property
    def prometheus(self) -> Prometheus:
        """Who watches."""
        assert self._prometheus is not None
        return self._prometheus

    async def live(self, flow: int, flows: int = 1) -> None:
        """Have it go through load, the loss of its master, and load again.

        Args:
            flow: messages of one load.
            flows: loads before, and as many after.
        """
        cluster, times = self._cluster, self.times
        await cluster.make_topics()
        group = await cluster.wait_until_healthy()
        await self._is_informed()
        times.quiet = time.time()
        with FailoverLoad(self._folder / "load", cluster.address, "watched") as load:
            for _ in range(flows):
                await load.flows(cluster, flow)
            await self._do_what_is_rare()
            for metric in ("rocketmq_consumer_lag_latency", "rocketmq_consumer_queueing_latency"):
                await self._seen(partial(self.prometheus.has, metric))
            await self._read_twice()
            times.struck = time.time()
            cluster.signal(cluster.replica(group["master"]), signal.SIGKILL)
            await cluster.wait_for_epoch_after(group["epoch"])
            for _ in range(flows):
                await load.flows(cluster, flow)
            await cluster.wait_until_healthy()
            await self._read_twice()
        times.over = time.time()

    async def rest(self, duration_s: float) -> None:
        """Have it serve a steady load, and nothing go wrong.

        Args:
            duration_s: for so long.
        """
        cluster, times = self._cluster, self.times
        await cluster.make_topics()
        await cluster.wait_until_healthy()
        await self._is_informed()
        with FailoverLoad(self._folder / "load", cluster.address, "watched") as load:
            times.quiet = time.time()
            while time.time() < times.quiet + duration_s:
                await load.flows(cluster)
        times.struck = times.over = time.time()

    async def _do_what_is_rare(self) -> None:
        """What a load of good clients does not do: exceed a limit, give a message up, leave one unacknowledged and one
        unread.
        """
        async with MessagingClient(self._cluster.address) as client:
            refused = await client.send(_TOPIC, b"x" * (_BODY_BYTES_MAX + 1))
            assert refused.status.code == Code.MESSAGE_BODY_TOO_LARGE
            assert (await client.send(_TOPIC, b"1", b"2")).status.code == Code.OK
            given_up, *kept = await client.receive_all("rare", _TOPIC, 2)
            assert kept
            assert (await client.forward_to_dead_letters("rare", _TOPIC, given_up)).code == Code.OK
            assert (await client.send(_TOPIC, b"3")).status.code == Code.OK

    async def _is_informed(self) -> None:
        """Wait until Prometheus has read the first pages of controllers and proxies: an alert that was pending before
        stays so until it is judged again.
        """
        await self._seen(lambda: self.prometheus.has("popwheel_controller_group_sync_state_set_size == 2"))
        await self._seen(lambda: self.prometheus.has("rocketmq_proxy_up == 1"))
        seen_s = time.time()
        await self._seen(lambda: self.prometheus.has_judged_since(seen_s))

    async def _read_twice(self) -> None:
        """Wait until Prometheus has read each page two more times: a rate needs two values."""
        for _ in range(2):
            query = f"min(timestamp(up)) > {time.time():.3f}"
            await self._seen(partial(self.prometheus.has, query))

    async def _seen(self, wanted: Callable[[], bool]) -> None:
        await self._cluster.wait_until(wanted, _SEEN_S_MAX, "seen by Prometheus")

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        resources = self._resources.__enter__()
        try:
            targets = {name: row[1] for name, row in self._cluster.command.rows().items()}
            targets["controller-on-kubernetes"] = resources
            self._prometheus = Prometheus(self._folder / "prometheus", targets)
            self._prometheus.__enter__()
        except BaseException:
            self._resources.__exit__()
            self._cluster.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.prometheus.__exit__(kind, error, traceback)
        self._resources.__exit__()
        self._cluster.__exit__(kind, error, traceback)
