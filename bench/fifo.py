"""The cases of message groups: what keeping their order costs, and what those that wait cost the others.

A peer needs a topic `bench-fifo` of type FIFO, and a group `bench-fifo` that consumes in order.
"""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import httpx

from bench import requests
from bench.client import CallFailedError, Client, close_all, connect_all
from bench.load import ReceiveLoop, SendLoop, SteadySends, send_steadily
from bench.process import Usage
from bench.server import OwnServer, Server
from bench.steps import (
    ARRIVAL_TIMEOUT_S,
    BATCH,
    BODY_BYTES,
    CONNECTIONS,
    POLLERS,
    QUIET_S,
    Case,
    Figures,
    Scale,
    cpu,
    fill,
    make_topic,
    percentiles,
    prime,
)

TOPIC = "bench-fifo"
LINES = 1000
_FILLERS = 256
_RATE = 50.0
_INVISIBLE_S = 3600.0
_BLOCKED_PER_MESSAGE = 2
"""Messages per message group of `fifo-blocked`: one in flight and never acknowledged, the others blocked."""


async def _make_group(server: Server, group: str) -> None:
    """Have a group that consumes in order; that of a peer is there."""
    if isinstance(server, OwnServer):
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{server.http_url}/api/v1/groups", json={"name": group, "fifo": True})
            answer.raise_for_status()


@dataclass
class _Rates:
    """Messages a second, and what they cost."""

    messages_per_s: float
    latencies_ms: list[float]
    costs: Figures
    errors: float


async def _send(server: Server, scale: Scale, template: requests.Template, topic: str) -> _Rates:
    clients = await connect_all(server.address, CONNECTIONS, topic)
    try:
        loop = SendLoop(clients, template, 1, 64)
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
    return _Rates(sent / took, latencies, cpu(server, used, sent, took), float(outcome.errors.total()))


async def send(server: Server, scale: Scale) -> Figures:
    """64 callers that send as fast as they go: messages without a message group, then of 1,000 in turn."""
    plain = await _send(server, scale, requests.SendTemplate("bench-send", BODY_BYTES), "bench-send")
    ordered = await _send(server, scale, requests.OrderedTemplate(TOPIC, BODY_BYTES, 1, names=_names()), TOPIC)
    return {
        "messages_per_s": ordered.messages_per_s,
        "plain_messages_per_s": plain.messages_per_s,
        "share_of_plain": ordered.messages_per_s / max(1.0, plain.messages_per_s),
        **percentiles("call", ordered.latencies_ms),
        **ordered.costs,
        "errors": plain.errors + ordered.errors,
    }


def _names() -> Iterator[str]:
    return itertools.cycle([f"line-{number:06d}" for number in range(LINES)])


async def drain(server: Server, scale: Scale) -> Figures:
    """Receive and ack what is stored, with acks in one call for a batch: by a plain group, then by one in order."""
    figures: Figures = {"errors": 0.0, "duplicates": 0.0}
    for kind in ("plain", "ordered"):
        topic = f"{TOPIC}-{kind}-{uuid.uuid4().hex[:8]}" if isinstance(server, OwnServer) else TOPIC
        group = topic
        producers = await connect_all(server.address, CONNECTIONS, topic)
        if kind == "ordered":
            await _make_group(server, group)
        consumers = await connect_all(server.address, CONNECTIONS, topic, group)
        try:
            await make_topic(producers[0], topic)
            queues = await consumers[0].queues()
            await prime(consumers[0], topic, group, queues)
            template = requests.OrderedTemplate(topic, BODY_BYTES, 1, names=_names())
            filling = SendLoop(producers, template, 1, _FILLERS, scale.drain_messages)
            filling.start()
            await filling.finished()
            loop = ReceiveLoop(consumers, topic, group, queues, POLLERS, BATCH)
            usage, began = Usage.now(server.pids), perf_counter()
            loop.start()
            await loop.reach(scale.drain_messages)
            took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
            loop.stop()
        finally:
            close_all(producers)
            close_all(consumers)
        figures[f"{kind}_messages_per_s"] = loop.outcome.messages / took
        figures[f"{kind}_messages_per_poll"] = loop.outcome.messages / loop.polls
        figures["errors"] += float(loop.outcome.errors.total())
        figures["duplicates"] += float(loop.duplicates)
        costs = cpu(server, used, loop.outcome.messages, took)
    return {
        "messages_per_s": figures["ordered_messages_per_s"],
        "share_of_plain": figures["ordered_messages_per_s"] / max(1.0, figures["plain_messages_per_s"]),
        **figures,
        **costs,
    }


async def blocked(server: Server, scale: Scale) -> Figures:
    """Latency from send to arrival of new message groups, beside very many with one message in flight and the next one
    blocked.
    """
    topic = f"{TOPIC}-blocked-{uuid.uuid4().hex[:8]}" if isinstance(server, OwnServer) else TOPIC
    lines = min(100_000, scale.drain_messages // _BLOCKED_PER_MESSAGE)
    await _make_group(server, topic)
    clients = await connect_all(server.address, CONNECTIONS, topic, topic)
    try:
        await make_topic(clients[0], topic)
        queues = await clients[0].queues()
        await prime(clients[0], topic, topic, queues)
        names = (f"blocked-{number:06d}" for number in itertools.count())
        await fill(
            clients,
            topic,
            _BLOCKED_PER_MESSAGE * lines,
            _BLOCKED_PER_MESSAGE,
            partial(requests.OrderedTemplate, names=names),
        )
        taken = await _take_all(clients, topic, lines)
        sends = SteadySends.plan(max(1, int(scale.e2e_s * _RATE)))
        loop = ReceiveLoop(clients, topic, topic, queues, POLLERS, BATCH, sends.arrived)
        loop.start()
        await asyncio.sleep(min(QUIET_S, scale.e2e_s))
        polls, usage, began = loop.polls, Usage.now(server.pids), perf_counter()
        await asyncio.sleep(min(QUIET_S, scale.e2e_s))
        idle = Usage.now(server.pids).since(usage).server_s / (perf_counter() - began)
        await send_steadily(clients[0], topic, BODY_BYTES, _RATE, sends, requests.fresh_line)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                while sends.missing:
                    await asyncio.sleep(0.01)
        loop.stop()
    finally:
        close_all(clients)
    return {
        "blocked_lines": float(taken),
        **percentiles("e2e", sends.latencies_ms()),
        "idle_cpu_percent": idle * 100,
        "polls_per_message": (loop.polls - polls) / max(1, len(sends.sent_at)),
        "missing": float(sends.missing),
        "duplicates": float(sends.duplicates),
        "errors": float(loop.outcome.errors.total()),
    }


async def _take_all(clients: list[Client], topic: str, lines: int) -> int:
    """Receive the first message of each message group, for longer than the run; return their number."""
    queue = (await clients[0].queues())[0]
    request = requests.receive(topic, topic, queue, BATCH, 0.0, _INVISIBLE_S)
    taken = 0

    async def poll(client: Client) -> None:
        nonlocal taken
        misses = 0
        while taken < lines and misses < 1000:
            messages, error = requests.received(await client.call(requests.RECEIVE, request))
            if error:
                raise CallFailedError(error)
            taken += len(messages)
            misses = 0 if messages else misses + 1

    await asyncio.gather(*(poll(clients[number % len(clients)]) for number in range(POLLERS)))
    return taken


CASES: dict[str, Case] = {"fifo-send": send, "fifo-drain": drain, "fifo-blocked": blocked}
