"""The cases of replicas: what a failover costs, and what it costs that a slave has every message first."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import process, requests
from bench.client import CallFailedError, Client, close_all, connect_all
from bench.cluster import ClusterServer, own_cluster
from bench.connection import ConnectionFailedError
from bench.load import SendLoop
from bench.process import Usage
from bench.server import Server
from bench.steps import BODY_BYTES, CONNECTIONS, Case, Figures, Scale, make_topic, percentiles
from services.cli.drills.account import longest_gap

TOPICS = ("bench-failover",)

GROUP = "broker-0"

_SENDERS = 8
_CONCURRENCY = 64
_PAUSE_S = 0.005
_CALM_S = 0.5
_HEALTHY_S_MAX = 60.0
_LOOK_S = 0.02
_LAG_LOOK_S = 0.1

Strike = Callable[[ClusterServer], Awaitable[None]]


async def failover(strike: Strike, server: Server, scale: Scale) -> Figures:
    """The time without a successful send, each time that the master goes."""
    cluster = own_cluster(server)
    clients = await connect_all(server.address, CONNECTIONS, TOPICS[0])
    sends = _Sends(clients)
    gaps, elected, healthy = [], [], []
    try:
        await make_topic(clients[0], TOPICS[0])
        await _healthy(cluster)
        sends.start()
        await asyncio.sleep(scale.warm_up_s)
        for _ in range(scale.failovers):
            before = await _healthy(cluster)
            await asyncio.sleep(_CALM_S)
            began = perf_counter()
            await strike(cluster)
            await _until(cluster, _of_later_epoch(before["epoch"]))
            elected.append(perf_counter() - began)
            await _healthy(cluster)
            healthy.append(perf_counter() - began)
            await asyncio.sleep(_CALM_S)
            gaps.append(longest_gap(sends.succeeded, began, perf_counter()))
        await sends.stop()
    finally:
        close_all(clients)
    return {
        "gap_p50_s": statistics.median(gaps),
        "gap_max_s": max(gaps),
        "elected_p50_s": statistics.median(elected),
        "elected_max_s": max(elected),
        "healthy_p50_s": statistics.median(healthy),
        "failovers": float(len(gaps)),
        "calls": float(len(sends.succeeded)),
        "failed_calls": float(sends.failed),
    }


async def _kill(cluster: ClusterServer) -> None:
    """Kill the master as kill -9 does."""
    await asyncio.to_thread(cluster.kill_master, GROUP)


async def _switch_over(cluster: ClusterServer) -> None:
    """Have the master hand its role over."""
    await asyncio.to_thread(cluster.post, f"/brokers/{GROUP}/switchover")


async def sends_with_replicas(server: Server, scale: Scale) -> Figures:
    """Sends as fast as 64 callers go while all replicas are in the set; and how far the slave is behind meanwhile."""
    cluster = own_cluster(server)
    clients = await connect_all(server.address, CONNECTIONS, TOPICS[0])
    lags: list[tuple[float, float]] = []
    try:
        await make_topic(clients[0], TOPICS[0])
        await _healthy(cluster)
        loop = SendLoop(clients, requests.SendTemplate(TOPICS[0], BODY_BYTES), 1, _CONCURRENCY)
        loop.start()
        await asyncio.sleep(scale.warm_up_s)
        watching = asyncio.create_task(_watch_lag(cluster, lags))
        outcome = loop.outcome
        before, usage, began = outcome.messages, Usage.now(cluster.pids), perf_counter()
        brokers_s = process.cpu_s(cluster.broker_pids)
        outcome.latencies_ms.clear()
        await asyncio.sleep(scale.seconds)
        took, used, sent = perf_counter() - began, Usage.now(cluster.pids).since(usage), outcome.messages - before
        brokers_s = process.cpu_s(cluster.broker_pids) - brokers_s
        latencies = list(outcome.latencies_ms)
        in_sync = len((await asyncio.to_thread(cluster.group, GROUP))["sync_state_set"])
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await loop.stop()
    finally:
        close_all(clients)
    lag_ms, lag_kib = [each[0] for each in lags], [each[1] / 1024 for each in lags]
    return {
        "messages_per_s": sent / took,
        **percentiles("call", latencies),
        "brokers_cpu_us": brokers_s / max(1, sent) * 1e6,
        "server_cpu_cores": used.server_s / took,
        "loader_cpu_us": used.loader_s / max(1, sent) * 1e6,
        "others_cpu_cores": used.others_s / took,
        "in_sync": float(in_sync),
        **percentiles("lag", lag_ms),
        **({"lag_max_kib": max(lag_kib)} if lag_kib else {}),
        "errors": float(outcome.errors.total()),
    }


async def _watch_lag(cluster: ClusterServer, lags: list[tuple[float, float]]) -> None:
    """Take down how far each slave is behind, in ms and bytes."""
    while True:
        group = await asyncio.to_thread(cluster.group, GROUP)
        lags += [
            (replica["lag_ms"], replica["lag_bytes"])
            for replica in group["replicas"]
            if replica["number"] != group["master"] and replica["lag_bytes"] is not None
        ]
        await asyncio.sleep(_LAG_LOOK_S)


async def _healthy(cluster: ClusterServer) -> dict[str, Any]:
    """Wait until all replicas are in sync with a master; the group then."""
    return await _until(
        cluster, lambda group: group["master"] is not None and len(group["sync_state_set"]) == cluster.replicas
    )


def _of_later_epoch(epoch: int) -> Callable[[dict[str, Any]], bool]:
    """Whether a group has a master of a later epoch."""
    return lambda group: group["epoch"] > epoch and group["master"] is not None


async def _until(cluster: ClusterServer, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(_HEALTHY_S_MAX):
        while not wanted(group := await asyncio.to_thread(cluster.group, GROUP)):
            await asyncio.sleep(_LOOK_S)
    return group


class _Sends:
    """Senders that each send one message after the other, and pause where that fails.

    Args:
        clients: over which they are spread.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        self.succeeded: list[float] = []
        self.failed = 0
        self._clients = clients
        self._template = requests.SendTemplate(TOPICS[0], BODY_BYTES)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        clients = self._clients
        self._tasks = [asyncio.create_task(self._send(clients[each % len(clients)])) for each in range(_SENDERS)]

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, client: Client) -> None:
        while True:
            try:
                await client.send(self._template.make())
            except (CallFailedError, ConnectionFailedError):
                self.failed += 1
            else:
                self.succeeded.append(perf_counter())
            await asyncio.sleep(_PAUSE_S)


CASES: dict[str, Case] = {
    "failover-kill": partial(failover, _kill),
    "failover-switchover": partial(failover, _switch_over),
    "replicas": sends_with_replicas,
}
"""By name, in the order in which they run."""


def servers_of(case: str, folder: Path, flushes: Sequence[str]) -> list[ClusterServer]:
    """The clusters that a case is run on, none of them started.

    Args:
        case: its name.
        folder: for their data.
        flushes: values of `broker.flush`; only the first is used where sends are not counted.
    """
    if case != "replicas":
        return [ClusterServer("2-replicas", folder, flushes[0], groups=1, replicas=2)]
    return [
        ClusterServer(f"{flush}-{replicas}-replicas", folder, flush, groups=1, replicas=replicas)
        for flush in flushes
        for replicas in (1, 2)
    ]
