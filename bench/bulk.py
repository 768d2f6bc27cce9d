"""The cases of what comes in bulk: many messages that come due at once, or that are read from a cold disk, and what
others feel of it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

from bench import requests
from bench.client import CallFailedError, Client, close_all, connect_all
from bench.load import ReceiveLoop, SteadySends, send_steadily
from bench.process import Usage
from bench.server import Server
from bench.slow_device import can_slow_down, drop_cache, slowed_down
from bench.steps import (
    BATCH,
    BODY_BYTES,
    CONNECTIONS,
    POLLERS,
    QUIET_S,
    Case,
    Figures,
    Scale,
    fill,
    make_topic,
    own_server,
    percentiles,
    prime,
)
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition

_STEADY_TOPIC = "bench-e2e"
_STEADY_RATE = 200.0
_COLD_TOPIC = "bench-cold"
_FLOOR_MS = 5.0
"""Ratios count from here: of a calm p99 below it nobody feels twice as much."""
_POP_RATE = 15_000.0
"""Lower bound of the rate at which messages are delivered before they are due, per second."""
_REVIVE_RATE = 8000.0
_COLD_BYTES_PER_S = 20_000_000
_COLD_RATE = 10_000.0
_TIMEOUT_S = 300.0


@dataclass
class Others:
    """Neighbour that sends and receives steadily through another topic meanwhile."""

    sends: SteadySends
    loop: ReceiveLoop
    sending: "asyncio.Task[None]"

    def figures(self, bulk_at: float, bulk_end: float) -> Figures:
        """Return their latencies before, and from the one time to the other."""
        sends = self.sends
        figures = {
            **percentiles("call_before", sends.send_ms(end_s=bulk_at)),
            **percentiles("call", sends.send_ms(bulk_at, bulk_end)),
            **percentiles("e2e_before", sends.latencies_ms(end_s=bulk_at)),
            **percentiles("e2e", sends.latencies_ms(bulk_at, bulk_end)),
        }
        for name in ("call", "e2e"):
            if f"{name}_before_p99_ms" in figures and f"{name}_p99_ms" in figures:
                calm_ms = max(_FLOOR_MS, figures[f"{name}_before_p99_ms"])
                figures[f"{name}_p99_ratio"] = figures[f"{name}_p99_ms"] / calm_ms
        return figures


@asynccontextmanager
async def _others(server: Server, seconds: float) -> AsyncIterator[Others]:
    """Others go on for so long."""
    topic = _STEADY_TOPIC
    producer = await Client.connect(server.address, topic)
    receivers = await connect_all(server.address, CONNECTIONS, topic, topic)
    sending: asyncio.Task[None] | None = None
    try:
        await make_topic(producer, topic)
        queues = await receivers[0].queues()
        await prime(receivers[0], topic, topic, queues)
        sends = SteadySends.plan(int(seconds * _STEADY_RATE))
        loop = ReceiveLoop(receivers, topic, topic, queues, POLLERS, BATCH, sends.arrived)
        loop.start()
        sending = asyncio.create_task(send_steadily(producer, topic, BODY_BYTES, _STEADY_RATE, sends))
        yield Others(sends, loop, sending)
        loop.stop()
    finally:
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        close_all([producer, *receivers])


@dataclass
class _Redelivered:
    """Messages that came a second time, and when they were put where they came from."""

    stored_ms: list[int] = field(default_factory=list)

    def arrived(self, message: definition.Message) -> None:
        properties = message.system_properties
        if properties.delivery_attempt > 1:
            self.stored_ms.append(properties.store_timestamp.ToMilliseconds())


async def revive(server: Server, scale: Scale) -> Figures:
    """Many messages of one group that are in flight and due at the same millisecond: how long it takes until all
    have been put into the retry topic, and what others feel of it. They are received afterwards; the server says when
    each was put.
    """
    topic = group = "bench-revive"
    count = scale.bulk_messages
    clients = await connect_all(server.address, CONNECTIONS, topic, group)
    redelivered = _Redelivered()
    try:
        await make_topic(clients[0], topic)
        queues = await clients[0].queues()
        await prime(clients[0], topic, group, queues)
        await fill(clients, topic, count)
        due_at = perf_counter() + count / _POP_RATE + scale.calm_s + 12.0  # the least invisible duration is 10 s
        due_ms = (time.time() + due_at - perf_counter()) * 1000
        got = await _take(clients, topic, group, queues, due_at, count)
        await asyncio.sleep(max(0.0, due_at - scale.calm_s - perf_counter()))
        seconds = scale.calm_s + count / _REVIVE_RATE + QUIET_S
        async with _others(server, seconds) as others:
            await asyncio.sleep(max(0.0, due_at - perf_counter()))
            usage, began = Usage.now(server.pids), perf_counter()
            await others.sending
            others_cores = Usage.now(server.pids).since(usage).others_s / (perf_counter() - began)
            loop = ReceiveLoop(clients, topic, group, queues, POLLERS, BATCH, redelivered.arrived)
            loop.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    await loop.reach(got)
            loop.stop()
    finally:
        close_all(clients)
    revived_s = (max(redelivered.stored_ms, default=due_ms) - due_ms) / 1000
    return {
        "delivered": float(got),
        "revived_s": revived_s,
        "messages_per_s": len(redelivered.stored_ms) / max(1e-3, revived_s),
        **others.figures(due_at, due_at + revived_s),
        "early": float(sum(each < int(due_ms) - 1 for each in redelivered.stored_ms)),
        "missing": float(got - len(redelivered.stored_ms) + others.sends.missing),
        "others_cpu_cores": others_cores,
    }


async def _take(
    clients: list[Client],
    topic: str,
    group: str,
    queues: list[definition.MessageQueue],
    due_at: float,
    count: int,
) -> int:
    """Receive messages that are all due at the same time; return their number."""
    got = 0

    async def poller(client: Client, number: int) -> None:
        nonlocal got
        misses = 0
        while got < count and misses < 2 * len(queues) and due_at - perf_counter() > 10.5:
            queue = queues[number % len(queues)]
            number += 1
            request = requests.receive(topic, group, queue, BATCH, 0.0, due_at - perf_counter())
            messages, error = requests.received(await client.call(requests.RECEIVE, request))
            if error:
                raise CallFailedError(error)
            got += len(messages)
            misses = 0 if messages else misses + 1

    await asyncio.gather(*(poller(clients[each % len(clients)], each) for each in range(POLLERS)))
    return got


async def cold_drain(server: Server, scale: Scale) -> Figures:
    """Messages received and acked first as they are in memory, then as many of which nothing is.

    These come from a device of 20 MB/s, where this machine lets us slow one down. What others feel of both.
    """
    own = own_server(server)
    clients = await connect_all(server.address, CONNECTIONS, _COLD_TOPIC, _COLD_TOPIC)
    slow = can_slow_down()
    figures: Figures = {"device_mb_per_s": _COLD_BYTES_PER_S / 1e6 if slow else 0.0}
    try:
        await make_topic(clients[0], _COLD_TOPIC)
        queues = await clients[0].queues()
        await prime(clients[0], _COLD_TOPIC, _COLD_TOPIC, queues)
        for name in ("hot", "cold"):
            await fill(clients, _COLD_TOPIC, scale.bulk_messages)
            await asyncio.sleep(min(6.0, scale.calm_s * 2))  # a checkpoint has written the queues
            with ExitStack() as device:
                if name == "cold":
                    await asyncio.to_thread(drop_cache, own.data_dir)
                    if slow:
                        device.enter_context(slowed_down(server.pids, own.data_dir, _COLD_BYTES_PER_S))
                figures |= await _drain_beside_others(name, server, scale, clients, queues)
    finally:
        close_all(clients)
    for each in ("call", "e2e"):
        if f"{each}_hot_p99_ms" in figures and f"{each}_cold_p99_ms" in figures:
            hot_ms = max(_FLOOR_MS, figures[f"{each}_hot_p99_ms"])
            figures[f"{each}_p99_ratio"] = figures[f"{each}_cold_p99_ms"] / hot_ms
    return figures


async def _drain_beside_others(
    name: str, server: Server, scale: Scale, clients: list[Client], queues: list[definition.MessageQueue]
) -> Figures:
    """Receive and ack all there is; figures of that name."""
    count = scale.bulk_messages
    async with _others(server, scale.calm_s + count / _COLD_RATE) as others:
        loop = ReceiveLoop(clients, _COLD_TOPIC, _COLD_TOPIC, queues, POLLERS, BATCH)
        begin, usage = perf_counter(), Usage.now(server.pids)
        loop.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await loop.reach(count)
        end, used = perf_counter(), Usage.now(server.pids).since(usage)
        loop.stop()
        await asyncio.sleep(min(1.0, scale.calm_s))
    took_s = end - begin
    return {
        f"{name}_messages_per_s": loop.outcome.messages / took_s,
        **percentiles(f"call_{name}", others.sends.send_ms(begin, end)),
        **percentiles(f"e2e_{name}", others.sends.latencies_ms(begin, end)),
        f"{name}_server_cpu_cores": used.server_s / took_s,
        f"{name}_missing": float(count - loop.outcome.messages),
        "others_cpu_cores": used.others_s / took_s,
    }


CASES: dict[str, Case] = {"revive-burst": revive, "cold-drain": cold_drain}
