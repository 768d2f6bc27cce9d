"""Loads: closed loops of senders and of pollers, steady sends, long polls. Each counts events and measures no rates.

A loop is a chain of callbacks: the answer of one call begins the next.
"""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from bench import requests
from bench.client import CallFailedError, Client
from bench.connection import ConnectionFailedError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service

POLL_S = 20.0
"""Time that a poll waits, as the official clients ask by default."""

_ERRORS_MAX = 1000
_now = time.perf_counter


@dataclass
class Outcome:
    """Results of a load so far.

    Args:
        messages: sent, or received and acked.
        calls: made for that.
        latencies_ms: of each call.
        errors: how often which.
    """

    messages: int = 0
    calls: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def fail(self, error: str) -> None:
        """Count an error.

        Raises:
            CallFailedError: there are too many.
        """
        self.errors[error] += 1
        if self.errors.total() > _ERRORS_MAX:
            raise CallFailedError(f"too many errors: {self.errors.most_common(3)}")


class SendLoop:
    """Senders that each send again as soon as they are answered.

    Args:
        clients: over which they are spread.
        template: what they send.
        batch: messages of one request of it.
        concurrency: how many senders.
        count: messages after which it stops; 0: only `stop` ends it.
    """

    def __init__(
        self, clients: Sequence[Client], template: requests.Template, batch: int, concurrency: int, count: int = 0
    ) -> None:
        self.outcome = Outcome()
        self._clients = clients
        self._template = template
        self._batch = batch
        self._concurrency = concurrency
        self._left = count or -1
        self._running = 0
        self._stopping = False
        self._ended = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Let all senders send."""
        for index in range(self._concurrency):
            self._running += 1
            self._sender(self._clients[index % len(self._clients)])()

    def _sender(self, client: Client) -> Callable[[], None]:
        connection = client.connection
        began = 0.0

        def send() -> None:
            nonlocal began
            if self._stopping or self._left == 0:
                self._one_ended()
                return
            if self._left > 0:
                self._left = max(0, self._left - self._batch)
            began = _now()
            try:
                connection.call(requests.SEND, self._template.make(), done)
            except ConnectionFailedError:
                self._one_ended()

        def done(parts: list[bytes], error: str) -> None:
            error = error or requests.refusal(service.SendMessageResponse, parts)
            outcome = self.outcome
            if error:
                outcome.fail(error)
            else:
                outcome.calls += 1
                outcome.messages += self._batch
                outcome.latencies_ms.append((_now() - began) * 1000)
            send()

        return send

    def _one_ended(self) -> None:
        self._running -= 1
        if not self._running and not self._ended.done():
            self._ended.set_result(None)

    async def stop(self) -> Outcome:
        """Let what is under way end, and no more begin."""
        self._stopping = True
        return await self.finished()

    async def finished(self) -> Outcome:
        """Wait until all senders have ended."""
        await self._ended
        return self.outcome


class ReceiveLoop:
    """Pollers that each receive, ack all of it in one call, and poll again.

    Args:
        clients: over which they are spread.
        topic: what they receive.
        group: for whom.
        queues: as the route says; taken in turn by all pollers together, as one official simple consumer does.
        concurrency: how many pollers.
        batch: messages asked for by one poll.
        on_message: called with each message as soon as it is decoded.
        condition: an SQL92 filter; empty for none.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        topic: str,
        group: str,
        queues: Sequence[definition.MessageQueue],
        concurrency: int,
        batch: int,
        on_message: Callable[[definition.Message], None] | None = None,
        condition: str = "",
    ) -> None:
        self.outcome = Outcome()
        self.polls = 0
        self.duplicates = 0
        self._clients = clients
        self._topic = topic
        self._group = group
        self._polls = itertools.cycle(
            [requests.receive(topic, group, queue, batch, POLL_S, condition=condition) for queue in queues]
        )
        self._concurrency = concurrency
        self._on_message = on_message
        self._seen: set[str] = set()
        self._stopping = False
        self._wanted = -1
        self._reached: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Let all pollers poll."""
        for index in range(self._concurrency):
            self._poller(self._clients[index % len(self._clients)])()

    def stop(self) -> None:
        """Begin no more calls; closing the clients ends those under way."""
        self._stopping = True

    async def reach(self, count: int) -> None:
        """Wait until a number of messages were acked in all."""
        self._wanted = count
        self._reached = asyncio.get_running_loop().create_future()
        self._check()
        await self._reached

    def _check(self) -> None:
        if self._reached is not None and self.outcome.messages >= self._wanted and not self._reached.done():
            self._reached.set_result(None)

    def _poller(self, client: Client) -> Callable[[], None]:
        connection = client.connection
        outcome = self.outcome
        seen = self._seen
        messages: list[definition.Message] = []

        def poll() -> None:
            if self._stopping:
                return
            self.polls += 1
            connection.call(requests.RECEIVE, next(self._polls), polled)

        def polled(parts: list[bytes], error: str) -> None:
            nonlocal messages
            if self._stopping:
                return
            if not error:
                messages, error = requests.received(parts)
            if error:
                outcome.fail(error)
                asyncio.get_running_loop().call_later(0.02, poll)
                return
            if not messages:
                poll()
                return
            before = len(seen)
            seen.update([message.system_properties.message_id for message in messages])
            self.duplicates += before + len(messages) - len(seen)
            if self._on_message is not None:
                for message in messages:
                    self._on_message(message)
            connection.call(requests.ACK, requests.ack(self._topic, self._group, messages), acked)

        def acked(parts: list[bytes], error: str) -> None:
            error = error or requests.refusal(service.AckMessageResponse, parts)
            if error:
                if self._stopping:
                    return
                outcome.fail(f"ack: {error}")
            else:
                outcome.messages += len(messages)
                outcome.calls += 2
                self._check()
            poll()

        return poll


@dataclass
class SteadySends:
    """Times at which numbered messages were sent and received.

    Args:
        first: number of the first message; what comes with another number was left from before.
        sent_at: of each message in turn, in seconds of `time.perf_counter`; 0 if the send failed.
        answered_at: like `sent_at`; 0 if it was not answered with OK.
        arrived_at: like `sent_at`; 0 if it has not come.
        duplicates: messages that came more than once.
    """

    first: int
    sent_at: list[float]
    answered_at: list[float]
    arrived_at: list[float]
    duplicates: int = 0

    @classmethod
    def plan(cls, count: int) -> Self:
        """Return a number of messages, with numbers that never come again."""
        return cls(time.time_ns() // 1000, [0.0] * count, [0.0] * count, [0.0] * count)

    def arrived(self, message: definition.Message) -> None:
        """A message has come."""
        self.came(message.body)

    def came(self, body: bytes) -> None:
        """A message with that body has come."""
        index = int(body[: requests.SEQUENCE_DIGITS]) - self.first
        if not 0 <= index < len(self.arrived_at):
            return
        if self.arrived_at[index]:
            self.duplicates += 1
        else:
            self.arrived_at[index] = _now()

    @property
    def missing(self) -> int:
        """Messages that were sent and have not come."""
        return sum(1 for sent, came in zip(self.sent_at, self.arrived_at, strict=True) if sent and not came)

    def latencies_ms(self, begin_s: float = -math.inf, end_s: float = math.inf) -> list[float]:
        """Return the times from the start of the send to the arrival, of those that have come and were sent in that
        time.
        """
        return self._times_ms(self.arrived_at, begin_s, end_s)

    def send_ms(self, begin_s: float = -math.inf, end_s: float = math.inf) -> list[float]:
        """Return the latency of each send that began in that time."""
        return self._times_ms(self.answered_at, begin_s, end_s)

    def _times_ms(self, ends: Sequence[float], begin_s: float, end_s: float) -> list[float]:
        return [
            (end - sent) * 1000
            for sent, end in zip(self.sent_at, ends, strict=True)
            if sent and end and begin_s <= sent < end_s
        ]


class Sender(Protocol):
    """Caller that sends one prebuilt request, and raises `CallFailedError` if it is refused."""

    async def send(self, message: bytes) -> None:
        """Send it."""


async def send_steadily(
    client: Sender,
    topic: str,
    size: int,
    rate: float,
    sends: SteadySends,
    make: Callable[[str, int, int], bytes] = requests.numbered_send,
) -> None:
    """Send as many messages as `sends` has room for, at a steady pace, whether the answers come or not."""
    began = _now()

    async def send(number: int, request: bytes) -> None:
        sends.sent_at[number] = _now()
        try:
            await client.send(request)
        except CallFailedError:
            sends.sent_at[number] = 0.0
            raise
        sends.answered_at[number] = _now()

    async with asyncio.TaskGroup() as group:
        for number in range(len(sends.sent_at)):
            request = make(topic, size, sends.first + number)
            await asyncio.sleep(began + number / rate - _now())
            group.create_task(send(number, request))
