"""The cases: each is one run of one measure against one server, and gives its figures by name.

Names end in their unit. What is measured begins after a warm-up and is taken as the difference of two readings, so
connecting, registering and ending are outside of it.
"""

import asyncio
import contextlib
import statistics
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

from bench import process, requests
from bench.client import CallFailedError, Client, close_all, connect_all
from bench.load import Outcome, ReceiveLoop, SendLoop, SteadySends, send_steadily
from bench.process import Usage
from bench.server import OwnServer, Server
from services.common.pb.apache.rocketmq.v2 import definition_pb2 as definition

BODY_BYTES = 1024
BATCH = 32
BATCH_CONCURRENCY = 16
POLLERS = 16
CONNECTIONS = 4
E2E_RATE = 50.0
TOPICS = ("bench-send", "bench-drain", "bench-e2e", "bench-idle", "bench-memory")
"""What must exist on a server that does not make topics on first use."""

_POLLS_PER_GROUP = 1000  # RocketMQ's broker holds at most 1,024 polls of a topic and group
_ARRIVAL_TIMEOUT_S = 15.0
_SETTLE_S = 2.0

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of everything.

    Args:
        seconds: of sending that are measured.
        warm_up_s: of sending before that.
        drain_messages: how many are received and acked.
        e2e_s: of steady sends.
        idle_s: of watching an idle server.
        polls: held on an idle server.
        memory_messages: sent before memory is read.
        crash_s: of sends before the kill.
    """

    seconds: float = 5.0
    warm_up_s: float = 2.0
    drain_messages: int = 200_000
    e2e_s: float = 20.0
    idle_s: float = 20.0
    polls: int = 2000
    memory_messages: int = 2_000_000
    crash_s: float = 2.0


TINY = Scale(
    seconds=0.2,
    warm_up_s=0.1,
    drain_messages=640,
    e2e_s=0.5,
    idle_s=0.3,
    polls=20,
    memory_messages=3200,
    crash_s=0.2,
)
"""Shows that all of it works, not how fast."""


async def send(concurrency: int, batch: int, server: Server, scale: Scale) -> Figures:
    """Sends as fast as `concurrency` callers go, each waiting for its answer."""
    topic = "bench-send"
    clients = await connect_all(server.address, min(CONNECTIONS, concurrency), topic)
    try:
        loop = SendLoop(clients, requests.SendTemplate(topic, BODY_BYTES, batch), batch, concurrency)
        loop.start()
        await asyncio.sleep(scale.warm_up_s)
        outcome = loop.outcome
        before, usage, began = outcome.messages, Usage.now(server.pids), perf_counter()
        outcome.latencies_ms.clear()
        await asyncio.sleep(scale.seconds)
        took, used, sent = perf_counter() - began, Usage.now(server.pids).since(usage), outcome.messages - before
        latencies = list(outcome.latencies_ms)
        await loop.stop()
    finally:
        close_all(clients)
    return {
        "messages_per_s": sent / took,
        **_percentiles("call", latencies),
        **_cpu(server, used, sent, took),
        "errors": float(outcome.errors.total()),
    }


async def drain(server: Server, scale: Scale) -> Figures:
    """Receive and ack messages that were stored before, in batches, each ack one call for one batch."""
    topic = group = "bench-drain"
    producers = await connect_all(server.address, CONNECTIONS, topic)
    consumers = await connect_all(server.address, CONNECTIONS, topic, group)
    try:
        await _make_topic(producers[0], topic)
        queues = await consumers[0].queues()
        await _prime(consumers[0], topic, group, queues)
        await _fill(producers, topic, scale.drain_messages)
        loop = ReceiveLoop(consumers, topic, group, queues, POLLERS, BATCH)
        usage, began = Usage.now(server.pids), perf_counter()
        loop.start()
        await loop.reach(scale.drain_messages)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        loop.stop()
    finally:
        close_all(producers)
        close_all(consumers)
    got = loop.outcome.messages
    return {
        "messages_per_s": got / took,
        "messages_per_poll": got / loop.polls,
        "duplicates": float(loop.duplicates),
        **_cpu(server, used, got, took),
        "errors": float(loop.outcome.errors.total()),
    }


async def end_to_end(polls: int, server: Server, scale: Scale) -> Figures:
    """From the start of a send to the arrival at a consumer that waits, at a steady pace far below what is possible."""
    topic = group = "bench-e2e"
    producer = await Client.connect(server.address, topic)
    consumers = await connect_all(server.address, min(CONNECTIONS, polls), topic, group)
    try:
        await _make_topic(producer, topic)
        queues = await consumers[0].queues()
        await _prime(consumers[0], topic, group, queues)
        sends = SteadySends.plan(max(1, int(scale.e2e_s * E2E_RATE)))
        loop = ReceiveLoop(consumers, topic, group, queues, polls, BATCH, sends.arrived)
        loop.start()
        await asyncio.sleep(min(_SETTLE_S, scale.warm_up_s))
        usage, began = Usage.now(server.pids), perf_counter()
        await send_steadily(producer, topic, BODY_BYTES, E2E_RATE, sends)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ARRIVAL_TIMEOUT_S):
                while sends.missing:
                    await asyncio.sleep(0.01)
        loop.stop()
    finally:
        producer.close()
        close_all(consumers)
    return {
        **_percentiles("e2e", sends.latencies_ms),
        **_percentiles("send", sends.send_ms),
        "missing": float(sends.missing),
        "duplicates": float(sends.duplicates),
        **_cpu(server, used, len(sends.sent_at), took),
        "errors": float(loop.outcome.errors.total()),
    }


async def idle(polls: int | None, server: Server, scale: Scale) -> Figures:
    """CPU of a server on which nothing happens, but for polls that wait (None: as many as the scale says)."""
    count = scale.polls if polls is None else polls
    topic = "bench-idle"
    clients: list[Client] = []
    loops: list[ReceiveLoop] = []
    try:
        if count:
            clients = [await Client.connect(server.address, topic)]
            await _make_topic(clients[0], topic)
        for first in range(0, count, _POLLS_PER_GROUP):
            group = f"bench-idle-{first}"
            consumers = await connect_all(server.address, CONNECTIONS, topic, group)
            clients += consumers
            queues = await consumers[0].queues()
            await _prime(consumers[0], topic, group, queues)
            held = min(_POLLS_PER_GROUP, count - first)
            loops.append(ReceiveLoop(consumers, topic, group, queues, held, BATCH))
        for loop in loops:
            loop.start()
        await asyncio.sleep(min(_SETTLE_S, scale.idle_s))
        before = sum(loop.polls for loop in loops)
        usage, began = Usage.now(server.pids), perf_counter()
        await asyncio.sleep(scale.idle_s)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        polled = sum(loop.polls for loop in loops) - before
        for loop in loops:
            loop.stop()
    finally:
        close_all(clients)
    figures = {"polls_per_s": polled / took, "others_cpu_cores": used.others_s / took}
    if server.pids:
        figures["server_cpu_percent"] = used.server_s / took * 100
        figures["anonymous_mib"] = process.anonymous_mib(server.pids)
    return figures


async def memory(server: Server, scale: Scale) -> Figures:
    """Memory after many messages were sent in batches, and a tenth of them received; our own server begins afresh."""
    if isinstance(server, OwnServer):
        await server.start_afresh()
    topic, group = "bench-memory", f"bench-memory-{uuid.uuid4().hex[:8]}"
    before = process.anonymous_mib(server.pids)
    clients = await connect_all(server.address, CONNECTIONS, topic, group)
    try:
        await _make_topic(clients[0], topic)
        queues = await clients[0].queues()
        await _prime(clients[0], topic, group, queues)
        await _fill(clients, topic, scale.memory_messages)
        loop = ReceiveLoop(clients, topic, group, queues, POLLERS, BATCH)
        loop.start()
        await loop.reach(scale.memory_messages // 10)
        loop.stop()
    finally:
        close_all(clients)
    return {
        "before_anonymous_mib": before,
        "anonymous_mib": process.anonymous_mib(server.pids),
        "resident_mib": process.resident_mib(server.pids),
    }


async def start(server: Server, scale: Scale) -> Figures:
    """From the start of the process without data to the first send that is answered with OK; memory then."""
    own = _own(server)
    took = await own.start_afresh()
    return {
        "first_send_s": took,
        "anonymous_mib": process.anonymous_mib(own.pids),
        "resident_mib": process.resident_mib(own.pids),
    }


async def crash(server: Server, scale: Scale) -> Figures:
    """kill -9 in the middle of sends, and from the restart on to the first send that is answered with OK."""
    own = _own(server)
    topic = "bench-send"
    clients = await connect_all(own.address, CONNECTIONS, topic)
    try:
        loop = SendLoop(clients, requests.SendTemplate(topic, BODY_BYTES), 1, BATCH_CONCURRENCY)
        loop.start()
        await asyncio.sleep(scale.crash_s)
        own.kill()
        loop_ended = loop.stop()
        took = await own.start()
        await loop_ended
    finally:
        close_all(clients)
    return {"first_send_s": took, "data_mib": own.log_mib}


async def warm_up(server: Server, scale: Scale) -> None:
    """Load of every kind, measured by nobody: a Java server is several times faster once its compiler has done."""
    await send(64, 1, server, scale)
    await send(BATCH_CONCURRENCY, BATCH, server, replace(scale, warm_up_s=scale.warm_up_s / 3))
    await drain(server, replace(scale, drain_messages=scale.drain_messages // 2))


Case = Callable[[Server, Scale], Awaitable[Figures]]

CASES: dict[str, Case] = {
    "start": start,
    "idle": partial(idle, 0),
    "send-1": partial(send, 1, 1),
    "send-16": partial(send, 16, 1),
    "send-64": partial(send, 64, 1),
    "send-256": partial(send, 256, 1),
    "send-batch": partial(send, BATCH_CONCURRENCY, BATCH),
    "drain": drain,
    "e2e-1": partial(end_to_end, 1),
    "e2e-16": partial(end_to_end, 16),
    "idle-polls": partial(idle, None),
    "memory": memory,
    "crash": crash,
}
"""By name, in the order in which they run: `crash` finds the data of all that went before."""

OWN_ONLY = {"start", "crash"}
"""Cases that start and kill the server."""


def _own(server: Server) -> OwnServer:
    if not isinstance(server, OwnServer):
        raise TypeError(f"{server.name} was not started here")
    return server


async def _make_topic(client: Client, topic: str) -> None:
    """Topics come into being with their first message, where they may."""
    await client.send(requests.SendTemplate(topic, BODY_BYTES).make())


async def _prime(client: Client, topic: str, group: str, queues: Sequence[definition.MessageQueue]) -> None:
    """Receive all there is: a group exists from its first poll on, and on some servers begins behind what was sent."""
    request = requests.receive(topic, group, queues[0], BATCH, 0.0)
    while True:
        messages, error = requests.received(await client.call(requests.RECEIVE, request))
        if error:
            raise CallFailedError(error)
        if not messages:
            return
        await client.call(requests.ACK, requests.ack(topic, group, messages))


async def _fill(clients: Sequence[Client], topic: str, count: int) -> Outcome:
    """Send so many messages in batches."""
    template = requests.SendTemplate(topic, BODY_BYTES, BATCH)
    loop = SendLoop(clients, template, BATCH, BATCH_CONCURRENCY, count)
    loop.start()
    return await loop.finished()


def _percentiles(name: str, values_ms: Sequence[float]) -> Figures:
    if len(values_ms) < 2:
        return {}
    hundredths = statistics.quantiles(values_ms, n=100, method="inclusive")
    return {f"{name}_p50_ms": hundredths[49], f"{name}_p99_ms": hundredths[98], f"{name}_max_ms": max(values_ms)}


def _cpu(server: Server, used: Usage, messages: int, took_s: float) -> Figures:
    """CPU per message and in all; `others` is what disturbed the run."""
    count = max(1, messages)
    figures = {
        "loader_cpu_us": used.loader_s / count * 1e6,
        "loader_cpu_cores": used.loader_s / took_s,
        "others_cpu_cores": used.others_s / took_s,
    }
    if server.pids:
        figures["server_cpu_us"] = used.server_s / count * 1e6
        figures["server_cpu_cores"] = used.server_s / took_s
    return figures
