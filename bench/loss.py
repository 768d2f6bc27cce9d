"""The case of a kill: how many messages that were acknowledged are lost by kill -9 of the server under load."""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Sequence

from bench import requests
from bench.client import CallFailedError, close_all, connect_all
from bench.connection import ConnectionFailedError
from bench.load import Sender
from bench.server import Server
from bench.steps import BATCH, BODY_BYTES, CONNECTIONS, Case, Figures, Scale, make_topic, own_server, prime
from bench.stream_load import close_all as close_streams
from bench.stream_load import connect_all as connect_streams
from bench.stream_load import fresh, numbered_add
from bench.valkey import ValkeyServer

_CALLERS = 64
_LAST_POLL_S = 1.0
_READ_AT_ONCE = 1000
_TOPIC = "bench-kill"


async def kill(server: Server, scale: Scale) -> Figures:
    """Send, kill -9, start again, and receive all there is by a group that was there before."""
    own = own_server(server)
    group = f"{_TOPIC}-{uuid.uuid4().hex[:8]}"
    producers = await connect_all(own.address, CONNECTIONS, _TOPIC)
    (consumer,) = await connect_all(own.address, 1, _TOPIC, group)
    try:
        await make_topic(producers[0], _TOPIC)
        await prime(consumer, _TOPIC, group, await consumer.queues())
        acknowledged = await _sends_until(producers, requests.numbered_send, own.kill, scale)
        took = await own.start()
    finally:
        close_all([*producers, consumer])
    found: set[int] = set()
    (consumer,) = await connect_all(own.address, 1, _TOPIC, group)
    try:
        request = requests.receive(_TOPIC, group, (await consumer.queues())[0], BATCH, _LAST_POLL_S)
        while True:
            messages, error = requests.received(await consumer.call(requests.RECEIVE, request))
            if error:
                raise CallFailedError(error)
            if not messages:
                break
            found.update(_number(message.body) for message in messages)
            await consumer.call(requests.ACK, requests.ack(_TOPIC, group, messages))
    finally:
        close_all([consumer])
    return _figures(acknowledged, found, took)


async def kill_streams(server: ValkeyServer, scale: Scale) -> Figures:
    """The same with Valkey: what its stream still has after it was started again."""
    producers = await connect_streams(server, CONNECTIONS)
    try:
        await fresh(producers[0], _TOPIC)
        acknowledged = await _sends_until(producers, numbered_add, server.kill, scale)
        took = await server.start()
    finally:
        close_streams(producers)
    found: set[int] = set()
    (reader,) = await connect_streams(server, 1)
    try:
        after = "-"
        while True:
            reply = await reader.ask("XRANGE", _TOPIC, after, "+", "COUNT", _READ_AT_ONCE)
            if not isinstance(reply, list) or not reply:
                break
            for each in reply:
                match each:
                    case [bytes(entry_id), [_, bytes(body)]]:
                        after = f"({entry_id.decode()}"
                        found.add(_number(body))
        await fresh(reader, _TOPIC)
    finally:
        close_streams([reader])
    return _figures(acknowledged, found, took)


async def _sends_until(
    senders: Sequence[Sender], make: Callable[[str, int, int], bytes], strike: Callable[[], None], scale: Scale
) -> set[int]:
    """Send by 64 callers until the server is killed; the numbers of the messages that were acknowledged."""
    acknowledged: set[int] = set()
    numbers = itertools.count(1)

    async def caller(sender: Sender) -> None:
        while True:
            number = next(numbers)
            try:
                await sender.send(make(_TOPIC, BODY_BYTES, number))
            except (CallFailedError, ConnectionFailedError):
                return
            acknowledged.add(number)

    async with asyncio.TaskGroup() as callers:
        for index in range(_CALLERS):
            callers.create_task(caller(senders[index % len(senders)]))
        await asyncio.sleep(scale.crash_s)
        strike()
    return acknowledged


def _number(body: bytes) -> int:
    return int(body[: requests.SEQUENCE_DIGITS])


def _figures(acknowledged: set[int], found: set[int], took_s: float) -> Figures:
    return {
        "acknowledged": float(len(acknowledged)),
        "lost": float(len(acknowledged - found)),
        "first_send_s": took_s,
    }


CASES: dict[str, Case] = {"kill": kill}
