"""Contents of a server for measurements: names made by its HTTP API, and messages that a group has in flight."""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence

import httpx

from bench import requests
from bench.client import CallFailedError, Client, close_all, connect_all
from bench.load import SendLoop
from bench.steps import BATCH, BATCH_CONCURRENCY, CONNECTIONS
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition

_AT_ONCE = 50
"""Definitions of one request."""
_BODY_BYTES = 64
_INVISIBLE_S = 12 * 3600.0


async def define(http: httpx.AsyncClient, kind: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Make topics or groups.

    Args:
        http: to the server.
        kind: `topics` or `groups`.
        rows: as a file of definitions has them.
    """
    for first in range(0, len(rows), _AT_ONCE):
        answer = await http.post("/api/v1/definitions", json={kind: rows[first : first + _AT_ONCE]})
        answer.raise_for_status()


async def hold(address: str, topic: str, groups: Sequence[str], count: int) -> None:
    """Send a number of messages in all, have each group receive its share of them, and never acknowledge.

    Args:
        address: of the server.
        topic: it exists.
        groups: they exist; each receives all that is sent to the topic.
        count: messages that are in flight at the end, by all groups together.
    """
    producers = await connect_all(address, CONNECTIONS, topic)
    try:
        template = requests.SendTemplate(topic, _BODY_BYTES, BATCH, born_ms=int(time.time() * 1000))
        loop = SendLoop(producers, template, BATCH, BATCH_CONCURRENCY, count // len(groups))
        loop.start()
        await loop.finished()
        queues = await producers[0].queues()
    finally:
        close_all(producers)
    for group in groups:
        takers = await connect_all(address, CONNECTIONS, topic, group)
        try:
            await asyncio.gather(*(_take(taker, topic, group, queues[0]) for taker in takers))
        finally:
            close_all(takers)


async def _take(client: Client, topic: str, group: str, queue: definition.MessageQueue) -> None:
    """Take until there is no more."""
    request = requests.receive(topic, group, queue, BATCH, 0.0, _INVISIBLE_S)
    while True:
        messages, error = requests.received(await client.call(requests.RECEIVE, request))
        if error:
            raise CallFailedError(error)
        if not messages:
            return


class _EachTopic:
    """Makes a request to each topic in turn."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = itertools.cycle(topics)

    def make(self) -> bytes:
        """The next request."""
        return requests.numbered_send(next(self._topics), _BODY_BYTES, 0)


async def send_to_each(address: str, topics: Sequence[str]) -> None:
    """Send one message to each of these, so that there are queues of all."""
    producers = await connect_all(address, CONNECTIONS, topics[0])
    try:
        loop = SendLoop(producers, _EachTopic(topics), 1, 4 * BATCH_CONCURRENCY, len(topics))
        loop.start()
        errors = (await loop.finished()).errors
    finally:
        close_all(producers)
    if errors:
        raise CallFailedError(f"not all topics took a message: {errors.most_common(3)}")
