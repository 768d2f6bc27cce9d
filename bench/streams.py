"""The cases on Redis Streams: what a user of Valkey would do for the same work, measured in the same way.

A topic is a stream, a group its consumer group, each poller a consumer with a connection of its own, as a poll blocks
its connection. Delayed messages, which Redis does not have, are members of a sorted set by their due time. A poller
moves what is due into the stream, by a script, so that nothing is lost or doubled in between.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

from bench import loss
from bench.load import SteadySends, send_steadily
from bench.process import Usage
from bench.resp import RespConnection
from bench.steps import (
    ARRIVAL_TIMEOUT_S,
    BATCH,
    BATCH_CONCURRENCY,
    BODY_BYTES,
    CONNECTIONS,
    E2E_RATE,
    POLLERS,
    QUIET_S,
    Figures,
    Scale,
    cpu,
    percentiles,
)
from bench.stream_load import Pollers, Senders, add, body_of, close_all, connect_all, fresh, numbered_add
from bench.timers import FILL_RATE, Arrivals
from bench.valkey import ValkeyServer

MOVER_S = 0.05
"""Interval of the search for due messages; half of it is how late a delayed message is on average."""

_MOVED_AT_ONCE = 500
_MOVE = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, body in ipairs(due) do redis.call('XADD', KEYS[2], '*', 'body', body) end
if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
return #due
"""


async def send(concurrency: int, batch: int, server: ValkeyServer, scale: Scale) -> Figures:
    """Sends as fast as `concurrency` callers go, each waiting for its answer; a batch is one pipeline."""
    stream = "bench-send"
    connections = await connect_all(server, min(CONNECTIONS, concurrency))
    try:
        await fresh(connections[0], stream)
        loop = Senders(connections, add(stream, body_of(0, BODY_BYTES)) * batch, batch, concurrency)
        loop.start()
        await asyncio.sleep(scale.warm_up_s)
        outcome = loop.outcome
        before, usage, began = outcome.messages, Usage.now(server.pids), perf_counter()
        outcome.latencies_ms.clear()
        await asyncio.sleep(scale.seconds)
        took, used, sent = perf_counter() - began, Usage.now(server.pids).since(usage), outcome.messages - before
        latencies = list(outcome.latencies_ms)
        await loop.stop()
        await fresh(connections[0], stream)
    finally:
        close_all(connections)
    return {
        "messages_per_s": sent / took,
        **percentiles("call", latencies),
        **cpu(server, used, sent, took),
        "errors": float(outcome.errors.total()),
    }


async def drain(server: ValkeyServer, scale: Scale) -> Figures:
    """Read and ack messages that were stored before, in batches, each ack one XACK for one batch."""
    stream = group = "bench-drain"
    connections = await connect_all(server, POLLERS)
    try:
        await fresh(connections[0], stream, group)
        filling = Senders(
            connections[:CONNECTIONS],
            add(stream, body_of(0, BODY_BYTES)) * BATCH,
            BATCH,
            BATCH_CONCURRENCY,
            scale.drain_messages,
        )
        filling.start()
        await filling.finished()
        loop = Pollers(connections, stream, group, lambda _body: None)
        usage, began = Usage.now(server.pids), perf_counter()
        loop.start()
        await loop.reach(scale.drain_messages)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        loop.stop()
    finally:
        close_all(connections)
    await _forget(server, stream)
    got = loop.outcome.messages
    return {
        "messages_per_s": got / took,
        "messages_per_poll": got / loop.polls,
        "duplicates": float(loop.duplicates),
        **cpu(server, used, got, took),
        "errors": float(loop.outcome.errors.total()),
    }


async def end_to_end(polls: int, server: ValkeyServer, scale: Scale) -> Figures:
    """Measure the time from the start of a send to the arrival at a consumer that waits, at a steady pace far below
    what is possible.
    """
    stream = group = "bench-e2e"
    producer, *consumers = await connect_all(server, 1 + polls)
    try:
        await fresh(producer, stream, group)
        sends = SteadySends.plan(max(1, int(scale.e2e_s * E2E_RATE)))
        loop = Pollers(consumers, stream, group, sends.came)
        loop.start()
        await asyncio.sleep(min(QUIET_S, scale.warm_up_s))
        usage, began = Usage.now(server.pids), perf_counter()
        await send_steadily(producer, stream, BODY_BYTES, E2E_RATE, sends, numbered_add)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                while sends.missing:
                    await asyncio.sleep(0.01)
        loop.stop()
    finally:
        close_all([producer, *consumers])
    return {
        **percentiles("e2e", sends.latencies_ms()),
        **percentiles("send", sends.send_ms()),
        "missing": float(sends.missing),
        "duplicates": float(sends.duplicates),
        **cpu(server, used, len(sends.sent_at), took),
        "errors": float(loop.outcome.errors.total()),
    }


async def lateness(count: int, server: ValkeyServer, scale: Scale) -> Figures:
    """Delayed messages whose due times are spread evenly, moved by a poller, with consumers that wait for them."""
    stream, waiting = "bench-later", "bench-later-due"
    count = min(count, scale.timers_max)
    producer, mover, *consumers = await connect_all(server, 2 + POLLERS)
    try:
        await fresh(producer, stream, stream)
        await fresh(producer, waiting)
        begin_ms = int((time.time() + count / FILL_RATE + QUIET_S) * 1000)
        spread_ms = scale.timers_s * 1000
        dues = [begin_ms + int(number * spread_ms / count) for number in range(count)]
        arrivals = Arrivals(time.time_ns() // 1000, dues)
        loop = Pollers(consumers, stream, stream, arrivals.came)
        loop.start()
        moving = asyncio.create_task(_move(mover, waiting, stream))
        for first in range(0, count, BATCH):
            batch = enumerate(dues[first : first + BATCH], arrivals.first + first)
            words = [word for number, due_ms in batch for word in (due_ms, body_of(number, BODY_BYTES))]
            await producer.ask("ZADD", waiting, *words)
        behind_ms = max(0.0, time.time() * 1000 - begin_ms)
        await asyncio.sleep(begin_ms / 1000 - time.time())
        usage, began = Usage.now(server.pids), perf_counter()
        await asyncio.sleep(scale.timers_s)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        await arrivals.all_came(ARRIVAL_TIMEOUT_S)
        moving.cancel()
        loop.stop()
    finally:
        close_all([producer, mover, *consumers])
    await _forget(server, stream, waiting)
    return {
        **arrivals.figures(),
        "sent_too_late_ms": behind_ms,
        **cpu(server, used, count, took),
        "errors": float(loop.outcome.errors.total()),
    }


async def _forget(server: ValkeyServer, *keys: str) -> None:
    """Free the memory of what was measured; connections of the case may be blocked by a poll."""
    connection = await RespConnection.connect(server.address)
    try:
        await connection.ask("UNLINK", *keys)
    finally:
        connection.close()


async def _move(connection: RespConnection, waiting: str, stream: str) -> None:
    """Move what is due, and look again soon; at once if there may be more."""
    script = await connection.ask("SCRIPT", "LOAD", _MOVE)
    assert isinstance(script, bytes)
    while True:
        moved = await connection.ask("EVALSHA", script, 2, waiting, stream, int(time.time() * 1000), _MOVED_AT_ONCE)
        if moved != _MOVED_AT_ONCE:
            await asyncio.sleep(MOVER_S)


StreamCase = Callable[[ValkeyServer, Scale], Awaitable[Figures]]

CASES: dict[str, StreamCase] = {
    "send-1": partial(send, 1, 1),
    "send-16": partial(send, 16, 1),
    "send-64": partial(send, 64, 1),
    "send-256": partial(send, 256, 1),
    "send-batch": partial(send, BATCH_CONCURRENCY, BATCH),
    "drain": drain,
    "e2e-1": partial(end_to_end, 1),
    "e2e-16": partial(end_to_end, 16),
    "timers-2000": partial(lateness, 2000),
    "timers-100000": partial(lateness, 100_000),
    "kill": loss.kill_streams,
}
"""Cases by the name of the case that does the same on our server."""
