"""Batches the sends to one broker: those that wait while a Put is in flight make up the next one."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from popwheel_common.contract.put import MessageRun, PutKind, PutResult
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.shares import Shares
from popwheel_proxy.brokers.background import Background
from popwheel_proxy.options import SendOptions
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.payload import ClientMessage
from popwheel_rpc.http2.grpc_messages import status_error
from popwheel_rpc.methods import PUT
from popwheel_rpc.service import Channel
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError

_MESSAGE_OVERHEAD_BYTES = 64
_LONE_ROW: Final = 4
"""Consecutive Puts of one send each after which the next send does not wait for others."""
_JOIN_EVERY: Final = 16
"""Number of lone sends of which one waits all the same, to find out whether others join."""
_OK_CODE = int(Code.OK)
_FAULTS_FROM = int(Code.INTERNAL_ERROR)  # codes from here on mean that a broker failed, not that it refused


def size_of(messages: Sequence[ClientMessage]) -> int:
    """Return the approximate size of waiting messages, in bytes."""
    size = 0
    for message in messages:
        size += len(message.payload) + len(message.system_properties) + _MESSAGE_OVERHEAD_BYTES
    return size


class NotSentError(Exception):
    """Error of a shipment that left its batcher before any of it was sent: it can go to another broker."""


Outcome = Literal["stored", "refused", "unreachable", "unanswered"]
"""Outcome of a Put. Stored: the broker processed it, though it may have refused single runs.

Refused: it could not store something, or accepted nothing. Unreachable: it was not reached. Unanswered: the outcome is
unknown. Plain strings, since every Put is counted by them, and members of an Enum have a slow hash.
"""


class PutObserver(Protocol):
    """Observer of Puts."""

    def put_began(self, batcher: "Batcher") -> None:
        """Record that a Put begins."""

    def put_ended(self, batcher: "Batcher", outcome: Outcome, sends: int) -> None:
        """Record the end of a Put, with the number of its sends."""


@dataclass(slots=True, eq=False)
class Shipment:
    """Messages of one send, for one queue.

    Args:
        topic: full name of the topic.
        queue_id: the queue they are for.
        messages: the messages, all of one kind.
        size: about how many bytes they have.
        stored: resolves to the queue offset of each message, for delayed and half messages to their references; or
            fails with a `StatusError` or `RpcError`.
        moves: whether it may go to another broker instead.
        is_retry: whether the broker may have stored them already. Then each message is a run of its own, as some may be
            stored and others not, and what is stored need not stand together.
        topic_id: id of the topic of that name; 0 if unknown.
    """

    topic: str
    queue_id: int
    messages: list[ClientMessage]
    size: int
    stored: asyncio.Future[Sequence[int] | Sequence[str]]
    moves: bool = True
    is_retry: bool = False
    topic_id: int = 0

    @property
    def kind(self) -> PutKind:
        """Kind of storage of its messages in the log."""
        return self.messages[0].kind

    @property
    def lite_topic(self) -> str:
        """Lite topic of its messages; empty if there is none."""
        return self.messages[0].lite_topic

    @property
    def is_alone(self) -> bool:
        """True if it shares a run with no other shipment.

        A broker refuses a run as a whole, and no shipment is refused for another's delivery time.
        """
        return bool(self.kind) or self.is_retry


class Batcher:
    """Coalesces the sends to one broker; with no Put in flight, the sends of two loop turns join.

    The second turn has the sends that were received while the first ones were read: one sync serves them all. A send
    that seems to be alone is sent at once: the end of a turn costs it as much as the Put does.

    Args:
        name: the broker's name.
        channel: returns the channel to the broker, or raises `StatusError` if it is away.
        options: limits of batches and of waiting sends.
        background: where Puts run.
        observer: notified of Puts.

    Attributes:
        name: the broker's name.
        is_putting: whether a Put is in flight.
        put_began_at: when it began, or the one before it.
        checks: how often the observer saw it in flight.
    """

    def __init__(
        self,
        name: str,
        channel: Callable[[str], Channel],
        options: SendOptions,
        background: Background,
        observer: PutObserver,
    ) -> None:
        self.name = name
        self.is_putting = False
        self.put_began_at = 0.0
        self.checks = 0
        self._observer = observer
        self._channel = channel
        # As numbers: each look-up in the options costs compiled code 400 instructions.
        self._put_messages_max = options.put_messages_max
        self._put_bytes_max = options.put_bytes_max
        self._waiting_messages_max = options.waiting_messages_max
        self._waiting_bytes_max = options.waiting_bytes_max
        self._put_timeout_s = options.put_timeout_ms / 1000
        self._background = background
        self._waiting: deque[Shipment] = deque()
        self._running = False
        self._lone_puts = 0
        """Number of Puts of one send each, in a row, up to now."""
        self._messages = Shares()
        self._bytes = Shares()
        """Bytes that wait, by topic."""

    @property
    def is_gathering(self) -> bool:
        """True while sends join a Put that is about to begin, and it has room for more."""
        if not self._running or self.is_putting:
            return False
        return self._messages.total < self._put_messages_max and self._bytes.total < self._put_bytes_max

    @property
    def waiting_messages(self) -> int:
        """Number of messages that wait."""
        return self._messages.total

    def ship(
        self,
        topic: str,
        queue_id: int,
        messages: list[ClientMessage],
        *,
        moves: bool = True,
        is_retry: bool = False,
        topic_id: int = 0,
    ) -> asyncio.Future[Sequence[int] | Sequence[str]]:
        """Send messages with the next Put.

        Args:
            topic: full name of the topic.
            queue_id: the queue they are for.
            messages: the messages, all of one kind.
            moves: whether they may go to another broker instead, should this one hang.
            is_retry: whether the broker may have stored them already.
            topic_id: id of the topic of that name; 0 if unknown.

        Returns:
            A future of the queue offset of each message, of its reference if they are delayed or half messages; it
            fails with a `StatusError`, an `RpcError`, or with `NotSentError` if they are to go to another broker.

        Raises:
            LimitError: TOO_MANY_REQUESTS, if too much waits already.
        """
        assert messages, "nothing is sent"
        size = size_of(messages)
        if self._messages.total:
            if len(messages) > self._messages.room(topic, self._waiting_messages_max):
                raise _full("send.waiting_messages_max")
            if size > self._bytes.room(topic, self._waiting_bytes_max):
                raise _full("send.waiting_bytes_max")
        stored: asyncio.Future[Sequence[int] | Sequence[str]] = asyncio.get_running_loop().create_future()
        shipment = Shipment(topic, queue_id, messages, size, stored, moves, is_retry, topic_id)
        self._waiting.append(shipment)
        self._messages.take(topic, len(messages))
        self._bytes.take(topic, size)
        if not self._running:
            self._running = True
            if self._lone_puts >= _LONE_ROW and self._lone_puts % _JOIN_EVERY:
                self._background.start_at_once(self._run(0))
            else:
                self._background.start(self._run(1))
        return stored

    def return_waiting(self, *, left: bool = False) -> int:
        """Return waiting shipments to their senders, who send them elsewhere; a Put in flight continues.

        Args:
            left: whether the broker has left or has no master, so that not even bound shipments can wait here.

        Returns:
            The number of shipments.
        """
        stay: deque[Shipment] = deque()
        moved = 0
        for shipment in self._waiting:
            if not (shipment.moves or left):
                stay.append(shipment)
                continue
            self._leaves(shipment)
            if not shipment.stored.done():
                shipment.stored.set_exception(NotSentError)
                moved += 1
        self._waiting = stay
        return moved

    def _leaves(self, shipment: Shipment) -> None:
        self._messages.give(shipment.topic, len(shipment.messages))
        self._bytes.give(shipment.topic, shipment.size)

    async def _run(self, turns: int) -> None:
        """Put waiting shipments until none waits any more, after a number of turns of the loop."""
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
            while self._waiting:
                batch = self._next_batch()
                if batch:
                    await self._put(batch)
        except BaseException as error:
            for shipment in self._waiting:
                self._leaves(shipment)
                _fail(shipment, error)
            self._waiting.clear()
            raise
        finally:
            self._running = False

    def _next_batch(self) -> list[Shipment]:
        """Take the shipments of the next Put: at least one, in order, without those whose callers have gone."""
        batch: list[Shipment] = []
        count = 0
        size = 0
        while self._waiting:
            shipment = self._waiting[0]
            if batch and (
                count + len(shipment.messages) > self._put_messages_max or size + shipment.size > self._put_bytes_max
            ):
                break
            self._waiting.popleft()
            self._leaves(shipment)
            if shipment.stored.done():
                continue
            batch.append(shipment)
            count += len(shipment.messages)
            size += shipment.size
        assert batch or not self._waiting, "what waits is not put"
        self._lone_puts = self._lone_puts + 1 if len(batch) == 1 else 0
        return batch

    async def _put(self, batch: list[Shipment]) -> None:
        by_queue: dict[tuple[str, int, int, str] | Shipment, list[Shipment]] = {}
        for shipment in batch:
            if shipment.is_alone:
                by_queue[shipment] = [shipment]
            else:
                queue = (shipment.topic, shipment.topic_id, shipment.queue_id, shipment.messages[0].lite_topic)
                by_queue.setdefault(queue, []).append(shipment)
        together = by_queue.values()
        runs: list[MessageRun] = []
        for shipments in together:
            if shipments[0].is_retry:
                runs += _retry_runs(shipments[0])
            else:
                runs.append(_run_of(shipments))
        try:
            channel = self._channel(self.name)
        except StatusError:
            for shipment in batch:
                if not shipment.stored.done():
                    shipment.stored.set_exception(NotSentError)
            return
        self.checks = 0
        self.is_putting = True
        self._observer.put_began(self)
        try:
            results = await channel.call(PUT, runs, timeout_s=self._put_timeout_s)
            if len(results) != len(runs) or not all(map(_is_complete, runs, results)):
                raise RpcError(GrpcStatus.INTERNAL, "the broker did not answer for each run of messages")
        except (StatusError, RpcError) as error:
            self.is_putting = False
            self._observer.put_ended(self, _outcome_of(error), len(batch))
            for shipment in batch:
                if not shipment.stored.done():
                    shipment.stored.set_exception(error)
            return
        except BaseException as failure:
            self.is_putting = False
            for shipment in batch:
                _fail(shipment, failure)
            raise
        self.is_putting = False
        faulty = False
        for result in results:
            if result.code >= _FAULTS_FROM:
                faulty = True
        self._observer.put_ended(self, "refused" if faulty else "stored", len(batch))
        answers = iter(results)
        for shipments in together:
            if shipments[0].is_retry:
                _resolve_retry(shipments[0], [next(answers) for _ in shipments[0].messages])
                continue
            result = next(answers)
            offset = result.queue_offset
            for shipment in shipments:
                behind = offset + len(shipment.messages)
                if shipment.stored.done():
                    pass  # its sender has gone
                elif result.code == _OK_CODE:
                    shipment.stored.set_result(result.references if shipment.kind else range(offset, behind))
                else:
                    shipment.stored.set_exception(status_error(result.code, result.error))
                offset = behind


def _outcome_of(error: StatusError | RpcError) -> Outcome:
    """Return the outcome of a Put that was not answered with results."""
    if isinstance(error, StatusError):
        return "refused"
    if isinstance(error, NotProcessedError) or error.status is GrpcStatus.UNAVAILABLE:
        return "unreachable"
    return "unanswered"


def _run_of(shipments: Sequence[Shipment]) -> MessageRun:
    """Return the run for shipments to the same queue."""
    messages = [message for shipment in shipments for message in shipment.messages]
    return MessageRun(
        shipments[0].topic,
        shipments[0].queue_id,
        [message.payload for message in messages],
        [message.system_properties for message in messages],
        [message.tag or "" for message in messages],
        shipments[0].kind,
        _times_ms(messages),
        topic_id=shipments[0].topic_id,
        lite_topic=shipments[0].lite_topic,
    )


def _retry_runs(shipment: Shipment) -> list[MessageRun]:
    """Return the runs for a shipment that the broker may have stored already."""
    return [
        MessageRun(
            shipment.topic,
            shipment.queue_id,
            [message.payload],
            [message.system_properties],
            [message.tag or ""],
            shipment.kind,
            _times_ms([message]),
            is_retry=True,
            topic_id=shipment.topic_id,
            lite_topic=shipment.lite_topic,
        )
        for message in shipment.messages
    ]


def _resolve_retry(shipment: Shipment, results: Sequence[PutResult]) -> None:
    """Resolve a shipment that the broker may have stored before: set the places of its messages."""
    if shipment.stored.done():
        return  # its sender has gone
    refused = next((result for result in results if result.code != _OK_CODE), None)
    if refused is not None:
        shipment.stored.set_exception(status_error(refused.code, refused.error))
    elif shipment.kind:
        shipment.stored.set_result([each for result in results for each in result.references])
    else:
        shipment.stored.set_result([result.queue_offset for result in results])


def _is_complete(run: MessageRun, result: PutResult) -> bool:
    """Return whether each message that was stored, but not into its queue, has its reference."""
    return not run.kind or result.code != _OK_CODE or len(result.references) == len(run.payloads)


def _times_ms(messages: Sequence[ClientMessage]) -> Sequence[int]:
    return [message.time_ms for message in messages] if messages[0].kind else ()


def _full(limit: str) -> LimitError:
    return LimitError(
        Code.TOO_MANY_REQUESTS, "too many messages of this topic wait for the broker; send again later", limit
    )


def _fail(shipment: Shipment, error: BaseException) -> None:
    """Fail a shipment whose Put ended in an unexpected way, or was cancelled as the proxy stops."""
    if isinstance(error, Exception) and not shipment.stored.done():
        shipment.stored.set_exception(error)
    else:
        shipment.stored.cancel()
