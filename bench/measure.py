"""The cases: each is one run of one measure against one server, and gives its figures by name.

Names end in their unit. What is measured begins after a warm-up and is taken as the difference of two readings, so
connecting, registering and ending are outside of it.
"""

import asyncio
import contextlib
import uuid
from dataclasses import replace
from functools import partial
from time import perf_counter

from bench import (
    access,
    bulk,
    failover,
    fifo,
    growth,
    loss,
    many,
    process,
    promotion,
    requests,
    soak,
    spark,
    timers,
)
from bench.client import Client, close_all, connect_all
from bench.load import ReceiveLoop, SendLoop, SteadySends, send_steadily
from bench.process import Usage
from bench.server import OwnServer, Server
from bench.steps import (
    ARRIVAL_TIMEOUT_S,
    BATCH,
    BATCH_CONCURRENCY,
    BODY_BYTES,
    CONNECTIONS,
    E2E_RATE,
    POLLERS,
    QUIET_S,
    Case,
    Figures,
    Scale,
    cpu,
    fill,
    make_topic,
    own_server,
    percentiles,
    prime,
)

TOPICS = (
    "bench-send",
    "bench-drain",
    "bench-drain-sql",
    "bench-e2e",
    "bench-idle",
    "bench-memory",
    fifo.TOPIC,
    soak.TOPIC,
    *timers.TOPICS,
    *many.TOPICS,
)
"""Topics that must exist on a server that makes none on first use; those of `timers.TOPICS` of type DELAY."""

_POLLS_PER_GROUP = 1000  # RocketMQ's broker holds at most 1,024 polls of a topic and group


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
        **percentiles("call", latencies),
        **cpu(server, used, sent, took),
        "errors": float(outcome.errors.total()),
    }


async def drain(server: Server, scale: Scale) -> Figures:
    """Receive and ack messages that were stored before, in batches, each ack one call for one batch."""
    return await _drain("bench-drain", requests.SendTemplate, scale.drain_messages, server, scale)


async def drain_sql(server: Server, scale: Scale) -> Figures:
    """The same by an SQL92 filter, which keeps a quarter of the messages back."""
    passing = scale.drain_messages // BATCH * requests.DescribedTemplate.passing(BATCH)
    return await _drain("bench-drain-sql", requests.DescribedTemplate, passing, server, scale)


async def _drain(
    topic: str, template: type[requests.SendTemplate], expected: int, server: Server, scale: Scale
) -> Figures:
    group = topic
    condition = requests.DescribedTemplate.CONDITION if template is requests.DescribedTemplate else ""
    producers = await connect_all(server.address, CONNECTIONS, topic)
    consumers = await connect_all(server.address, CONNECTIONS, topic, group)
    try:
        await make_topic(producers[0], topic)
        queues = await consumers[0].queues()
        await prime(consumers[0], topic, group, queues)
        stored = await fill(producers, topic, scale.drain_messages, template=template)
        loop = ReceiveLoop(consumers, topic, group, queues, POLLERS, BATCH, condition=condition)
        usage, began = Usage.now(server.pids), perf_counter()
        loop.start()
        await loop.reach(expected)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        loop.stop()
    finally:
        close_all(producers)
        close_all(consumers)
    got = loop.outcome.messages
    return {
        "messages_per_s": got / took,
        **({"looked_at_per_s": stored.messages / took} if condition else {}),
        "messages_per_poll": got / loop.polls,
        "duplicates": float(loop.duplicates),
        **cpu(server, used, got, took),
        "errors": float(loop.outcome.errors.total()),
    }


async def end_to_end(polls: int, server: Server, scale: Scale) -> Figures:
    """Measure the time from the start of a send to the arrival at a consumer that waits, at a steady pace far below
    what is possible.
    """
    topic = group = "bench-e2e"
    producer = await Client.connect(server.address, topic)
    consumers = await connect_all(server.address, min(CONNECTIONS, polls), topic, group)
    try:
        await make_topic(producer, topic)
        queues = await consumers[0].queues()
        await prime(consumers[0], topic, group, queues)
        sends = SteadySends.plan(max(1, int(scale.e2e_s * E2E_RATE)))
        loop = ReceiveLoop(consumers, topic, group, queues, polls, BATCH, sends.arrived)
        loop.start()
        await asyncio.sleep(min(QUIET_S, scale.warm_up_s))
        usage, began = Usage.now(server.pids), perf_counter()
        await send_steadily(producer, topic, BODY_BYTES, E2E_RATE, sends)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                while sends.missing:
                    await asyncio.sleep(0.01)
        loop.stop()
    finally:
        producer.close()
        close_all(consumers)
    return {
        **percentiles("e2e", sends.latencies_ms()),
        **percentiles("send", sends.send_ms()),
        "missing": float(sends.missing),
        "duplicates": float(sends.duplicates),
        **cpu(server, used, len(sends.sent_at), took),
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
            await make_topic(clients[0], topic)
        for first in range(0, count, _POLLS_PER_GROUP):
            group = f"bench-idle-{first}"
            consumers = await connect_all(server.address, CONNECTIONS, topic, group)
            clients += consumers
            queues = await consumers[0].queues()
            await prime(consumers[0], topic, group, queues)
            polls = min(_POLLS_PER_GROUP, count - first)
            loops.append(ReceiveLoop(consumers, topic, group, queues, polls, BATCH))
        for loop in loops:
            loop.start()
        await asyncio.sleep(min(QUIET_S, scale.idle_s))
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
        await make_topic(clients[0], topic)
        queues = await clients[0].queues()
        await prime(clients[0], topic, group, queues)
        await fill(clients, topic, scale.memory_messages)
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
    """Measure the time from the start of the process without data to the first send that is answered with OK; its CPU,
    memory then.

    Its CPU says more than its time where others use the machine too: it hardly waits.
    """
    own = own_server(server)
    took = await own.start_afresh()
    used_s = process.cpu_s(own.pids)
    return {
        "first_send_s": took,
        "first_send_cpu_s": used_s,
        "anonymous_mib": process.anonymous_mib(own.pids),
        "resident_mib": process.resident_mib(own.pids),
    }


async def crash(server: Server, scale: Scale) -> Figures:
    """kill -9 in the middle of sends, and from the restart on to the first send that is answered with OK."""
    own = own_server(server)
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


CASES: dict[str, Case] = {
    "start": start,
    "idle": partial(idle, 0),
    "send-1": partial(send, 1, 1),
    "send-16": partial(send, 16, 1),
    "send-64": partial(send, 64, 1),
    "send-256": partial(send, 256, 1),
    "send-batch": partial(send, BATCH_CONCURRENCY, BATCH),
    "drain": drain,
    "drain-sql": drain_sql,
    "e2e-1": partial(end_to_end, 1),
    "e2e-16": partial(end_to_end, 16),
    "idle-polls": partial(idle, None),
    "memory": memory,
    "crash": crash,
    **soak.CASES,
    **fifo.CASES,
    **timers.CASES,
    **bulk.CASES,
    **many.CASES,
    **failover.CASES,
    **promotion.CASES,
    **spark.CASES,
    **access.CASES,
    **loss.CASES,
    **growth.cases(partial(send, 64, 1)),
}
"""Cases by name, in the order in which they run: `crash` finds the data of all that went before."""

OWN_ONLY = {
    "start",
    "crash",
    *bulk.CASES,
    *timers.OWN_ONLY,
    *promotion.CASES,
    *spark.CASES,
    *access.CASES,
    *loss.CASES,
    *growth.FILLS,
}
"""Cases that start and kill the server."""
