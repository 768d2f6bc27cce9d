"""The cases of many brokers: few polls beside them, very many that wait, and what more processes give."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

from bench import process, requests
from bench.client import Client, close_all, connect_all
from bench.cluster import ClusterServer, own_cluster
from bench.load import POLL_S, ReceiveLoop, SendLoop, SteadySends, send_steadily
from bench.process import Usage
from bench.server import Server
from bench.steps import (
    BATCH,
    BODY_BYTES,
    CONNECTIONS,
    POLLERS,
    QUIET_S,
    Case,
    Figures,
    Scale,
    cpu,
    make_topic,
    percentiles,
    prime,
)

TOPICS = ("bench-many",)

WAYS = ("notify", "plain", "sliced")
"""Kinds of polls, `proxy.poll_mode`."""

RATE = 20.0

_ACKS_S = 0.1
_POLLS_PER_CONNECTION = 800
_POLLS_AT_ONCE = 200
_RAMP_PAUSE_S = 0.04
_ALL_WAIT_S = 10.0
_QUIET_S = 10.0
_SENDERS = 64
_SCALE_CONNECTIONS = 16


async def few_polls(polls: int, server: Server, scale: Scale) -> Figures:
    """Measure from a send to its arrival at a steady, slow pace: fewer polls than brokers, or twice as many."""
    topic = group = "bench-many"
    producer = await Client.connect(server.address, topic)
    consumers = await connect_all(server.address, min(CONNECTIONS, polls), topic, group)
    cluster = server if isinstance(server, ClusterServer) else None
    try:
        await make_topic(producer, topic)
        queues = await consumers[0].queues()
        for queue in {queue.broker.name: queue for queue in queues}.values():
            await prime(consumers[0], topic, group, [queue])
        sends = SteadySends.plan(max(1, int(scale.e2e_s * RATE)))
        loop = ReceiveLoop(consumers, topic, group, queues, polls, BATCH, sends.arrived)
        loop.start()
        await asyncio.sleep(min(QUIET_S, scale.warm_up_s))
        calls = await cluster.broker_calls() if cluster else {}
        usage, began = Usage.now(server.pids), perf_counter()
        await send_steadily(producer, topic, BODY_BYTES, RATE, sends)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(scale.late_s):
                while sends.missing:
                    await asyncio.sleep(0.01)
        await asyncio.sleep(_ACKS_S)
        delivered = len(sends.latencies_ms())
        figures = {
            **percentiles("e2e", sends.latencies_ms()),
            **percentiles("send", sends.send_ms()),
            "undelivered": float(sends.missing),
            "duplicates": float(sends.duplicates),
            **cpu(server, used, len(sends.sent_at), took),
            "errors": float(loop.outcome.errors.total()),
        }
        if cluster:
            figures |= _calls_per_message(calls, await cluster.broker_calls(), delivered)
        loop.stop()
    finally:
        producer.close()
        close_all(consumers)
    return figures


async def warm_up(server: Server, scale: Scale) -> None:
    """Load of the same kind for the time that others are warmed up, measured by nobody."""
    await few_polls(16, server, replace(scale, e2e_s=scale.warm_up_s))


def _calls_per_message(before: dict[str, float], after: dict[str, float], delivered: int) -> Figures:
    """Calls between proxies and brokers for each delivered message: to store it, and from its poll to its ack."""
    made = {method: count - before.get(method, 0.0) for method, count in after.items()}
    count = max(1, delivered)
    return {
        "puts_per_message": made.get("Put", 0.0) / count,
        "pops_per_message": made.get("Pop", 0.0) / count,
        "rpcs_per_message": (sum(made.values()) - made.get("Put", 0.0)) / count,
    }


async def idle_many(server: Server, scale: Scale) -> Figures:
    """CPU and memory while very many polls wait over few connections; then what it costs that each begins anew."""
    cluster = own_cluster(server)
    topic = group = "bench-many"
    count = scale.many_polls
    per_connection = min(_POLLS_PER_CONNECTION, count)
    clients = await connect_all(server.address, -(-count // per_connection), topic, group)
    loops: list[ReceiveLoop] = []
    try:
        await make_topic(clients[0], topic)
        queues = await clients[0].queues()
        await prime(clients[0], topic, group, queues)
        before_mib = process.anonymous_mib(cluster.proxy_pids)
        for number, client in enumerate(clients):
            there = min(per_connection, count - number * per_connection)
            for first in range(0, there, _POLLS_AT_ONCE):
                polls = min(_POLLS_AT_ONCE, there - first)
                loops.append(ReceiveLoop([client], topic, group, queues, polls, BATCH))
                loops[-1].start()
                await asyncio.sleep(_RAMP_PAUSE_S)
        async with asyncio.timeout(_ALL_WAIT_S):
            while await cluster.metric("proxy", "popwheel_proxy_polls_waiting") < count:
                await asyncio.sleep(0.2)
        poll_kib = (process.anonymous_mib(cluster.proxy_pids) - before_mib) * 1024 / count
        await asyncio.sleep(min(1.0, scale.idle_s))
        quiet = await _watch(cluster, loops, min(_QUIET_S, scale.idle_s))
        busy = await _watch(cluster, loops, min(POLL_S, scale.idle_s))
        errors = sum(loop.outcome.errors.total() for loop in loops)
        for loop in loops:
            loop.stop()
    finally:
        close_all(clients)
    return {
        **quiet,
        "anonymous_mib": process.anonymous_mib(cluster.proxy_pids),
        "poll_kib": poll_kib,
        **{f"repoll_{name}": value for name, value in busy.items()},
        "errors": float(errors),
    }


async def _watch(cluster: ClusterServer, loops: Sequence[ReceiveLoop], seconds: float) -> Figures:
    """Return the CPU time of proxies and brokers in that time."""
    polls = sum(loop.polls for loop in loops)
    usage, began = Usage.now(cluster.pids), perf_counter()
    proxies_s = process.cpu_s(cluster.proxy_pids)
    brokers_s = [process.cpu_s([pid]) for pid in cluster.broker_pids]
    await asyncio.sleep(seconds)
    took, used = perf_counter() - began, Usage.now(cluster.pids).since(usage)
    proxies_s = process.cpu_s(cluster.proxy_pids) - proxies_s
    each_s = [process.cpu_s([pid]) - before for pid, before in zip(cluster.broker_pids, brokers_s, strict=True)]
    polled = sum(loop.polls for loop in loops) - polls
    figures = {
        "polls_per_s": polled / took,
        "proxy_cpu_percent": proxies_s / took * 100,
        "broker_cpu_percent": sum(each_s) / len(each_s) / took * 100,
        "broker_cpu_max_percent": max(each_s) / took * 100,
        "others_cpu_cores": used.others_s / took,
    }
    if polled:
        figures |= {"proxy_cpu_us": proxies_s / polled * 1e6, "brokers_cpu_us": sum(each_s) / polled * 1e6}
    return figures


async def throughput(server: Server, scale: Scale) -> Figures:
    """Sends as fast as 64 callers over all proxies go, then receiving and acking what they sent, in batches."""
    cluster = own_cluster(server)
    topic = group = "bench-scale"
    each = _SCALE_CONNECTIONS // len(cluster.addresses)
    clients = [client for at in cluster.addresses for client in await connect_all(at, each, topic, group)]
    # Neighbours in this list are at different proxies.
    clients = [client for number in range(each) for client in clients[number::each]]
    try:
        await make_topic(clients[0], topic)
        queues = await clients[0].queues()
        await prime(clients[0], topic, group, queues)
        loop = SendLoop(clients, requests.SendTemplate(topic, BODY_BYTES), 1, _SENDERS)
        loop.start()
        await asyncio.sleep(scale.warm_up_s)
        outcome = loop.outcome
        calls = await cluster.broker_calls()
        before, tiers = outcome.messages, _Tiers(cluster)
        outcome.latencies_ms.clear()
        await asyncio.sleep(scale.seconds)
        sent = outcome.messages - before
        figures = {
            "messages_per_s": sent / tiers.took_s,
            **tiers.figures(sent),
            **percentiles("call", list(outcome.latencies_ms)),
        }
        # Read a little before and a little after what is counted: a few milliseconds of many seconds.
        figures["puts_per_message"] = _calls_per_message(calls, await cluster.broker_calls(), sent)["puts_per_message"]
        await loop.stop()
        wanted = min(outcome.messages, scale.drain_messages)
        receive = ReceiveLoop(clients, topic, group, queues, POLLERS, BATCH)
        tiers = _Tiers(cluster)
        receive.start()
        await receive.reach(wanted)
        got, took_s = receive.outcome.messages, tiers.took_s
        receive.stop()
        figures |= {
            "received_per_s": got / took_s,
            **{f"received_{name}": value for name, value in tiers.figures(got).items()},
            "duplicates": float(receive.duplicates),
            "errors": float(outcome.errors.total() + receive.outcome.errors.total()),
        }
    finally:
        close_all(clients)
    return figures


class _Tiers:
    """CPU of proxies and of brokers since it was made.

    Args:
        cluster: whose.
    """

    def __init__(self, cluster: ClusterServer) -> None:
        self._cluster = cluster
        self._usage = Usage.now(cluster.pids)
        self._proxies_s = process.cpu_s(cluster.proxy_pids)
        self._brokers_s = process.cpu_s(cluster.broker_pids)
        self._began = perf_counter()

    @property
    def took_s(self) -> float:
        """Seconds since it was made."""
        return perf_counter() - self._began

    def figures(self, messages: int) -> Figures:
        """CPU per message."""
        took = self.took_s
        used = Usage.now(self._cluster.pids).since(self._usage)
        count = max(1, messages)
        return {
            "proxy_cpu_us": (process.cpu_s(self._cluster.proxy_pids) - self._proxies_s) / count * 1e6,
            "brokers_cpu_us": (process.cpu_s(self._cluster.broker_pids) - self._brokers_s) / count * 1e6,
            "loader_cpu_us": used.loader_s / count * 1e6,
            "server_cpu_cores": used.server_s / took,
            "others_cpu_cores": used.others_s / took,
        }


_FEW = {f"many-{polls}": partial(few_polls, polls) for polls in (1, 4, 16)}

_SHAPES = {
    "scale-1b-1p": (1, 1, 1),
    "scale-1b-1p-2w": (1, 1, 2),
    "scale-1b-2p": (1, 2, 1),
    "scale-2b-1p": (2, 1, 1),
    "scale-2b-2p": (2, 2, 1),
}
"""Brokers, proxies, workers of each."""

CASES: dict[str, Case] = {**_FEW, "idle-many": idle_many, **dict.fromkeys(_SHAPES, throughput)}
"""Cases by name, in the order in which they run."""

SIDE_BY_SIDE = frozenset(_FEW)
"""Cases that a peer takes part in, one with as many brokers."""


def servers_of(
    case: str, folder: Path, flushes: Sequence[str], ways: Sequence[str], scale: Scale
) -> list[ClusterServer]:
    """The clusters that a case is run on, none of them started.

    Args:
        case: its name.
        folder: for their data.
        flushes: values of `broker.flush`; of cases about polls, only the first is used.
        ways: of `WAYS`, for cases that compare them.
        scale: how many brokers, where the case's name does not say it.
    """
    if case in _SHAPES:
        groups, proxies, workers = _SHAPES[case]
        return [
            ClusterServer(flush, folder, flush, groups=groups, proxies=proxies, workers=workers, forks=scale.forks)
            for flush in flushes
        ]
    flush = flushes[0]
    return [
        ClusterServer(
            way,
            folder,
            flush,
            groups=scale.brokers,
            settings=[f"proxy.poll_mode={way}"],
            way=way,
            forks=scale.forks,
        )
        for way in (ways if case in SIDE_BY_SIDE else WAYS[:1])
    ]
