"""Reads of queues by offset, without a group: stored messages in order of time, and new ones."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from popwheel_cli.errors import WrongUseError
from popwheel_cli.messages.client import MessageClient
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, MessageQueue, QueryOffsetPolicy
from popwheel_rpc.status import GrpcStatus, RpcError

Outcome = TypeVar("Outcome")

QUEUES_MAX = 1_024
"""Limit of queues: as many as one client may poll at one time (proxy.receive.polls_per_client_max)."""
_CALLS_AT_ONCE = 32
_WAIT_S = 5.0
_ROUTE_S = 10.0
_PAUSE_S = 1.0
_TROUBLE_S_MAX = 60.0
_PASSING = (
    Code.HA_NOT_AVAILABLE,
    Code.TOO_MANY_REQUESTS,
    Code.PROXY_TIMEOUT,
    Code.REQUEST_TIMEOUT,
    Code.INTERNAL_SERVER_ERROR,
)
_PASSING_STATUSES = (GrpcStatus.UNAVAILABLE, GrpcStatus.DEADLINE_EXCEEDED, GrpcStatus.CANCELLED)


class Place(NamedTuple):
    """Place where reading begins in each queue.

    Args:
        kind: `earliest`, `latest`, `offset` or `time`.
        number: the offset, or the milliseconds since 1970.
    """

    kind: str
    number: int = 0


@dataclass(frozen=True)
class Wanted:
    """Conditions for wanted messages.

    Args:
        topic: is read.
        tags: `a || b` or `*`.
        key: that they have; empty: any.
        queue: `3` or `broker-0/3`, which alone is read; empty: all.
    """

    topic: str
    tags: str = "*"
    key: str = ""
    queue: str = ""

    def passes(self, message: Message) -> bool:
        """Check the conditions that brokers do not filter by."""
        return not self.key or self.key in message.system_properties.keys

    def of(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Return the queues to read.

        Raises:
            WrongUseError: there is none, or there are too many.
        """
        chosen = [one for one in queues if self.queue in ("", str(one.id), f"{one.broker.name}/{one.id}")]
        if not chosen:
            raise WrongUseError(f"the topic {self.topic} has no queue {self.queue}; write 3, or broker-0/3")
        if len(chosen) > QUEUES_MAX:
            raise WrongUseError(f"the topic {self.topic} has more than {QUEUES_MAX} queues; choose one with --queue")
        return chosen


async def browse(client: MessageClient, wanted: Wanted, place: Place, limit: int) -> AsyncGenerator[Message, None]:
    """Yield the current messages in the order of their store times.

    Args:
        client: reads them.
        wanted: which of them.
        place: where each queue is begun. `latest`: so that the newest are read, at most `limit` of each queue are
            looked at.
        limit: at most this many.
    """
    queues = wanted.of(await client.queues(wanted.topic))
    at_once = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def ends(queue: MessageQueue) -> tuple[int, int]:
        async with at_once:
            end = await client.offset(queue, QueryOffsetPolicy.END)
            return await _begin(client, queue, place, end, limit), end

    bounds = await asyncio.gather(*(ends(queue) for queue in queues))
    async with AsyncExitStack() as stack:
        readers = [
            await stack.enter_async_context(aclosing(_read(client, queue, begin, end, wanted)))
            for queue, (begin, end) in zip(queues, bounds, strict=True)
            if begin < end
        ]
        in_order = await stack.enter_async_context(aclosing(_merged(readers)))
        if place.kind == "latest":
            newest: deque[Message] = deque(maxlen=limit)
            async for message in in_order:
                newest.append(message)
            for message in newest:
                yield message
            return
        left = limit
        async for message in in_order:
            yield message
            left -= 1
            if not left:
                return


async def _begin(client: MessageClient, queue: MessageQueue, place: Place, end: int, limit: int) -> int:
    """Return where a queue is begun."""
    if place.kind == "time":
        return await client.offset(queue, QueryOffsetPolicy.TIMESTAMP, place.number)
    first = await client.offset(queue, QueryOffsetPolicy.BEGINNING)
    return max(first, {"offset": place.number, "latest": end - limit}.get(place.kind, first))


async def _read(
    client: MessageClient, queue: MessageQueue, begin: int, end: int, wanted: Wanted
) -> AsyncGenerator[Message, None]:
    """Yield the messages of a queue from one offset up to another one."""
    at = begin
    while at < end:
        pulled = await client.pull(queue, at, wanted.tags, 0.0)
        for message in pulled.messages:
            if message.system_properties.queue_offset >= end:
                return
            if wanted.passes(message):
                yield message
        if pulled.next_offset <= at:
            return
        at = pulled.next_offset


async def _merged(readers: Sequence[AsyncGenerator[Message, None]]) -> AsyncGenerator[Message, None]:
    """Merge the messages of several readers by store time."""
    numbers = itertools.count()
    heads: list[tuple[int, int, Message, AsyncGenerator[Message, None]]] = []

    async def advance(reader: AsyncGenerator[Message, None]) -> None:
        with suppress(StopAsyncIteration):
            message = await anext(reader)
            stored_ns = message.system_properties.store_timestamp.ToNanoseconds()
            heapq.heappush(heads, (stored_ns, next(numbers), message, reader))

    for reader in readers:
        await advance(reader)
    while heads:
        _, _, message, reader = heapq.heappop(heads)
        yield message
        await advance(reader)


class Tail:
    """Reader of new messages of a topic, in its queues and in those that are added.

    Args:
        client: reads.
        wanted: which messages.
        show: takes each message as it comes; returns whether more are wanted.
        begun: called once what comes is sure to be seen.
    """

    def __init__(
        self,
        client: MessageClient,
        wanted: Wanted,
        show: Callable[[Message], bool],
        begun: Callable[[], None],
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._show = show
        self._begun = begun
        self._enough = asyncio.Event()
        self._known: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Read until no more messages are wanted.

        Raises:
            StatusError, RpcError: the topic is gone, or the proxy did not answer for a minute.
        """
        try:
            async with asyncio.TaskGroup() as group:
                following = group.create_task(self._follow_queues())
                await self._enough.wait()
                following.cancel()
        except ExceptionGroup as errors:
            raise _first(errors) from None

    async def _follow_queues(self) -> None:
        """Read each queue; look for new ones from time to time."""
        async with asyncio.TaskGroup() as group:
            policy = QueryOffsetPolicy.END
            while True:
                found = await _persistently(partial(self._client.queues, self._wanted.topic))
                fresh = [one for one in self._wanted.of(found) if (one.broker.name, one.id) not in self._known]
                for queue in fresh:
                    at = await _persistently(partial(self._client.offset, queue, policy))
                    self._known.add((queue.broker.name, queue.id))
                    group.create_task(self._read(queue, at))
                if policy == QueryOffsetPolicy.END:
                    self._begun()
                policy = QueryOffsetPolicy.BEGINNING  # of queues that are added: all that is in them came meanwhile
                await asyncio.sleep(_ROUTE_S)

    async def _read(self, queue: MessageQueue, at: int) -> None:
        while True:
            pulled = await _persistently(partial(self._client.pull, queue, at, self._wanted.tags, _WAIT_S))
            for message in pulled.messages:
                if self._enough.is_set():
                    return
                if self._wanted.passes(message) and not self._show(message):
                    self._enough.set()
            at = pulled.next_offset


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


async def _persistently(call: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Retry a call while its failures may be temporary."""
    left = _TROUBLE_S_MAX
    while True:
        try:
            return await call()
        except (StatusError, RpcError) as error:
            passes = error.code in _PASSING if isinstance(error, StatusError) else error.status in _PASSING_STATUSES
            if not passes or left <= 0:
                raise
        await asyncio.sleep(_PAUSE_S)
        left -= _PAUSE_S
