"""The cases of replicas: what a failover costs, and what it costs that a slave has every message first."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

from bench import process, requests
from bench.client import CallFailedError, Client, close_all, connect_all
from bench.cluster import ClusterServer, own_cluster
from bench.connection import ConnectionFailedError
from bench.load import SendLoop
from bench.process import Usage
from bench.server import PeerServer, Server
from bench.steps import BODY_BYTES, CONNECTIONS, Case, Figures, Scale, make_topic, percentiles
from popwheel_cli.drills.account import longest_gap

TOPICS = ("bench-failover",)

GROUP = "broker-0"

_SENDERS = 8
_CONCURRENCY = 64
_PAUSE_S = 0.005
_CALM_S = 0.5
_HEALTHY_S_MAX = 60.0
_POLL_S = 0.02
_PEER_HEALTHY_S_MAX = 300.0
_PEER_LOOK_S = 0.5
_LAG_LOOK_S = 0.1

Strike = Callable[[Server], Awaitable[None]]


async def failover(strike: Strike, server: Server, scale: Scale) -> Figures:
    """The time without a successful send, each time that the master goes; nobody looks when a peer has elected one."""
    cluster = server if isinstance(server, ClusterServer) else None
    clients = await connect_all(server.address, CONNECTIONS, TOPICS[0])
    sends = _Sends(clients)
    gaps, elected, healthy = [], [], []
    try:
        await make_topic(clients[0], TOPICS[0])
        await _healthy(server)
        sends.start()
        await asyncio.sleep(scale.warm_up_s)
        for _ in range(scale.failovers):
            await _healthy(server)
            epoch = (await asyncio.to_thread(cluster.group, GROUP))["epoch"] if cluster else 0
            await asyncio.sleep(_CALM_S)
            began = perf_counter()
            await strike(server)
            struck = perf_counter()
            if cluster:
                await _until(partial(_has_master_after, cluster, epoch))
                elected.append(perf_counter() - began)
            # A peer's replicas count as in sync until it has noticed: not before one of them has taken a send.
            await _until(partial(sends.one_begun_after, struck), _PEER_HEALTHY_S_MAX)
            await _healthy(server)
            healthy.append(perf_counter() - began)
            await asyncio.sleep(_CALM_S)
            gaps.append(longest_gap(sends.succeeded, began, perf_counter()))
        await sends.stop()
    finally:
        close_all(clients)
    figures = {"gap_p50_s": statistics.median(gaps), "gap_max_s": max(gaps)}
    if elected:
        figures |= {"elected_p50_s": statistics.median(elected), "elected_max_s": max(elected)}
    return {
        **figures,
        "healthy_p50_s": statistics.median(healthy),
        "failovers": float(len(gaps)),
        "calls": float(len(sends.succeeded)),
        "failed_calls": float(sends.failed),
    }


async def warm_up(server: Server, scale: Scale) -> None:
    """Sends of the same kind for the time that others are warmed up, measured by nobody."""
    clients = await connect_all(server.address, CONNECTIONS, TOPICS[0])
    sends = _Sends(clients)
    try:
        sends.start()
        await asyncio.sleep(scale.warm_up_s)
        await sends.stop()
    finally:
        close_all(clients)


async def _kill(server: Server) -> None:
    """Kill the master as kill -9 does."""
    if isinstance(server, PeerServer):
        await server.kill_master()
    else:
        await asyncio.to_thread(own_cluster(server).kill_master, GROUP)


async def _switch_over(server: Server) -> None:
    """Have the master hand its role over."""
    await asyncio.to_thread(own_cluster(server).post, f"/brokers/{GROUP}/switchover")


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


async def _healthy(server: Server) -> None:
    """Wait until all replicas are in sync with a master."""
    if isinstance(server, PeerServer):
        await _until(server.in_sync, _PEER_HEALTHY_S_MAX, _PEER_LOOK_S)
    else:
        await _until(partial(_all_in_sync, own_cluster(server)))


async def _all_in_sync(cluster: ClusterServer) -> bool:
    group = await asyncio.to_thread(cluster.group, GROUP)
    return group["master"] is not None and len(group["sync_state_set"]) == cluster.replicas


async def _has_master_after(cluster: ClusterServer, epoch: int) -> bool:
    """Return whether there is a master of a later epoch."""
    group = await asyncio.to_thread(cluster.group, GROUP)
    return group["epoch"] > epoch and group["master"] is not None


async def _until(
    look: Callable[[], Awaitable[bool]], at_most_s: float = _HEALTHY_S_MAX, pause_s: float = _POLL_S
) -> None:
    async with asyncio.timeout(at_most_s):
        while not await look():
            await asyncio.sleep(pause_s)


class _Sends:
    """Senders that each send one message after the other, and pause where that fails.

    Args:
        clients: over which they are spread.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        self.succeeded: list[float] = []
        self.failed = 0
        self._last_begun = 0.0
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

    async def one_begun_after(self, moment: float) -> bool:
        """Return whether a send that began after a moment has succeeded."""
        return self._last_begun > moment

    async def _send(self, client: Client) -> None:
        while True:
            begun = perf_counter()
            try:
                await client.send(self._template.make())
            except (CallFailedError, ConnectionFailedError):
                self.failed += 1
            else:
                self.succeeded.append(perf_counter())
                self._last_begun = max(self._last_begun, begun)
            await asyncio.sleep(_PAUSE_S)


CASES: dict[str, Case] = {
    "failover-kill": partial(failover, _kill),
    "failover-switchover": partial(failover, _switch_over),
    "replicas": sends_with_replicas,
}
"""Cases by name, in the order in which they run."""

SIDE_BY_SIDE = frozenset({"failover-kill"})
"""Cases that a peer takes part in, one with replicas whose master can be killed by a command."""


def servers_of(case: str, folder: Path, flushes: Sequence[str], *, forks: bool) -> list[ClusterServer]:
    """The clusters that a case is run on, none of them started.

    Args:
        case: its name.
        folder: for their data.
        flushes: values of `broker.flush`; only the first is used where sends are not counted.
        forks: as in `Scale`.
    """
    if case != "replicas":
        return [ClusterServer("2-replicas", folder, flushes[0], groups=1, replicas=2, forks=forks)]
    return [
        ClusterServer(f"{flush}-{replicas}-replicas", folder, flush, groups=1, replicas=replicas, forks=forks)
        for flush in flushes
        for replicas in (1, 2)
    ]
