"""SendMessage: checks the messages, picks broker and queue, and tries another broker while the client still waits."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from popwheel_common.contract.names import TopicName, Use
from popwheel_common.contract.priority import level_of
from popwheel_common.contract.put import PutKind
from popwheel_common.contract.send_id import encode_send_id
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.context import ProxyContext
from popwheel_proxy.brokers.parked_calls import ParkedCalls
from popwheel_proxy.brokers.retry_policy import Place, SendTries
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.payload import ClientMessage, messages_of
from popwheel_proxy.protocol.validation import check_message
from popwheel_proxy.send.batcher import Batcher, NotSentError
from popwheel_proxy.send.batchers import Batchers
from popwheel_proxy.send.metrics import SendMetrics
from popwheel_proxy.send.send_answer import SendAnswer, send_answer
from popwheel_proxy.send.send_queues import SendQueues, place_of
from popwheel_proxy.send.send_retry import Send, SendRetry, Stored
from popwheel_proxy.send.system_properties import has_server_fields, missing_properties, without_server_fields
from popwheel_proxy.session.catalog import Catalog
from popwheel_proxy.session.clients import Clients
from popwheel_proxy.session.resources import topic_name
from popwheel_rpc.service import Call
from popwheel_rpc.status import RpcError

_NOWHERE: Collection[str] = ()
_CHECKED_AT_ONCE = 500


@dataclass(slots=True)
class _Part:
    """Messages of a request that are stored together: of one topic, kind, send queue and priority.

    Args:
        topic: the topic.
        send_queue: of the messages; empty if they have none.
        indexes: their indexes in the request.
    """

    topic: Topic
    send_queue: str = ""
    indexes: list[int] = field(default_factory=list)


class SendHandler:
    """Forwards messages from producers to brokers.

    Args:
        context: of the proxy.
        catalog: topics.
        brokers: the broker groups there are.
        parked_calls: where sends wait whose group has no master, or does not answer.
        sends_half_messages: notified of a call that sends half messages to a topic.
        clients: notified who sends to which topic.
    """

    def __init__(
        self,
        context: ProxyContext,
        catalog: Catalog,
        brokers: Brokers,
        parked_calls: ParkedCalls,
        sends_half_messages: Callable[[Call, str], None],
        clients: Clients,
    ) -> None:
        options, clock, send_metrics = context.options, context.clock, SendMetrics(context.registry)
        self._catalog = catalog
        self._brokers = brokers
        self._limits = options.message
        self._clock = clock
        self._metrics = context.metrics
        self._numbers = context.numbers
        self._sends_half_messages = sends_half_messages
        self._clients = clients
        self._batchers = Batchers(brokers, options.send, clock, context.background, send_metrics, parked_calls.answered)
        self._retry = SendRetry(brokers, self._batchers, parked_calls, send_metrics)
        self._health = self._batchers.health
        self._turns: dict[str, int] = {}
        self._gathering: Batcher | None = None
        self._unchecked: list[str] = []
        self._send_queues = SendQueues(options.send.waiting_messages_max)

    @property
    def waiting_in_send_queues(self) -> int:
        """Sends that wait for an earlier one of their send queue."""
        return self._send_queues.waiting

    @property
    def waiting_messages(self) -> int:
        """Messages that wait for a Put."""
        return self._batchers.waiting_messages

    async def send(
        self, call: Call, request: bytes, check: Callable[[list[ClientMessage]], None] | None = None
    ) -> SendAnswer:
        """Store all messages of a SendMessageRequest; nothing is stored if one of them breaks a rule.

        Args:
            call: whose deadline counts.
            request: the bytes of the request.
            check: raises StatusError if the caller may not send these.

        Raises:
            StatusError: the first rule that is broken, or why the brokers could not store them.
        """
        messages = messages_of(request, self._limits.batch_messages_max)
        if check is not None:
            check(messages)
        now_ms = self._clock.wall_ms()
        if len(messages) == 1:
            message = messages[0]
            topic = self._topic_of(message)
            self._check(call, message, topic, now_ms, head_is_checked=False)
            if not topic.queues:
                topic = await self._make(topic, messages)
            if message.send_queue:
                return send_answer(messages, await self._store_in_order(call, topic, messages))
            return send_answer(messages, await self._store(call, topic, messages))
        if not messages:
            raise StatusError(Code.BAD_REQUEST, "the request holds no message")
        parts = self._parts_of(call, messages, now_ms)
        # Only now, as nothing must be made for a request that is refused (E1).
        for part in parts:
            if not part.topic.queues:
                part.topic = await self._make(part.topic, [messages[index] for index in part.indexes])
        if len(parts) == 1:
            return send_answer(messages, await self._store_or_say_why(call, parts[0], messages))
        results: list[int | str | StatusError] = [0] * len(messages)
        for part in parts:
            some = [messages[index] for index in part.indexes]
            stored = await self._store_or_say_why(call, part, some)
            for index, result in zip(part.indexes, stored, strict=True):
                results[index] = result
        return send_answer(messages, results)

    def _parts_of(self, call: Call, messages: list[ClientMessage], now_ms: int) -> list[_Part]:
        """Check all messages; return which of them can be stored together."""
        parts: dict[tuple[str, PutKind, str, int], _Part] = {}
        part = head = None
        kind, send_queue, priority = PutKind.NOW, "", -1
        for index, message in enumerate(messages):
            head_is_checked = message.head is head
            if not head_is_checked:
                part, head = None, message.head
                topic = self._topic_of(message)
            self._check(call, message, topic, now_ms, head_is_checked=head_is_checked)
            is_same = message.kind == kind and message.send_queue == send_queue and message.priority == priority
            if part is None or not is_same:
                kind, send_queue, priority = message.kind, message.send_queue, message.priority
                part = parts.setdefault((topic.name, kind, send_queue, priority), _Part(topic, send_queue))
            part.indexes.append(index)
        return list(parts.values())

    def _topic_of(self, message: ClientMessage) -> Topic:
        """Return the topic of a message, if it may be sent to; one without queues has still to be made (`_make`)."""
        return self._catalog.topic_to_be(topic_name(message.head.topic, Use.SEND))

    def _check(self, call: Call, message: ClientMessage, topic: Topic, now_ms: int, *, head_is_checked: bool) -> None:
        """Check a message for its topic, and complete its system properties: drop those that only servers set, and add
        those that the sender left out.
        """
        check_message(message, topic, self._limits, head_is_checked=head_is_checked)
        if message.plain is None and has_server_fields(message.properties):
            message.drop_fields(without_server_fields(message.system_properties))
        missing = missing_properties(message, call.peer, now_ms)
        message.system_properties += missing + encode_send_id(next(self._numbers))

    async def _make(self, topic: Topic, messages: list[ClientMessage]) -> Topic:
        """Make a topic on first use; check the messages again if it is of another type than expected."""
        made = await self._catalog.ensure_topic(TopicName(topic.name))
        if made.type != topic.type:
            for message in messages:
                check_message(message, made, self._limits)
        return made

    async def _store_or_say_why(
        self, call: Call, part: _Part, messages: list[ClientMessage]
    ) -> Sequence[int | str | StatusError]:
        """Store as `_store` does, with a refusal in the place of each message's offset or handle."""
        try:
            if part.send_queue:
                return await self._store_in_order(call, part.topic, messages)
            return await self._store(call, part.topic, messages)
        except StatusError as error:
            if isinstance(error, LimitError):
                self._metrics.limit_hit(error.limit)
            return [error] * len(messages)

    async def _store_in_order(self, call: Call, topic: Topic, messages: list[ClientMessage]) -> Stored:
        """Put messages of one send queue into their queue, behind all earlier sends of it at this proxy.

        Raises:
            StatusError: why they could not be stored.
        """
        send_queue = messages[0].send_queue
        # A lite topic has its own. After a topic got more queues, its message groups stay in the first ones.
        queues = 1 if messages[0].lite_topic else topic.message_group_queues or topic.queues
        wait_s = None if call.deadline is None else call.deadline - self._clock.monotonic()

        async def store() -> Stored:
            homes = self._brokers.homes
            only = place_of(topic.name, send_queue, homes, queues) if homes else None
            return await self._store(call, topic, messages, only)

        return await self._send_queues.run_in_order(topic.name, send_queue, wait_s, store)

    async def _store(
        self,
        call: Call,
        topic: Topic,
        messages: list[ClientMessage],
        only: Place | None = None,
    ) -> Stored:
        """Put messages into one queue; if a broker group cannot take them, try another one until the deadline.

        Args:
            call: whose deadline counts.
            topic: their topic.
            messages: the messages, all of one kind.
            only: the one broker and queue that they may go to; there they wait or fail. Given for messages with a send
                queue, whose order would be lost in any other.

        Returns:
            The queue offset of each message; of delayed and half messages their references.

        Raises:
            StatusError: why they could not be stored.
        """
        name = topic.name
        self._clients.sends(call.metadata.get("x-mq-client-id", ""), name)
        if messages[0].kind is PutKind.HALF:
            self._sends_half_messages(call, name)
        pick = self._pick if messages[0].priority < 0 else partial(self._pick_level, messages[0].priority)
        place = only or pick(topic, _NOWHERE)
        failure: StatusError | RpcError | None = None
        if place is not None and (only is None or place[0] in self._brokers.led):
            try:
                return await self._batchers.batcher(place[0]).ship(
                    name, place[1], messages, moves=only is None, topic_id=topic.id
                )
            except NotSentError:
                pass
            except (StatusError, RpcError) as error:
                failure = error.with_traceback(None)
        elif place is None and not self._brokers.names:
            raise StatusError(Code.HA_NOT_AVAILABLE, "no broker is there now; try again")
        tries = SendTries(only)
        send = Send(topic, messages, call.deadline, pick, self._lookup, tries, place, failure)
        return await self._retry.retry(send)

    def _pick(self, topic: Topic, past: Collection[str]) -> Place | None:
        """Return the next broker and queue in turn, skipping avoided brokers if it can; None without a master.

        While a batcher gathers sends for a Put, that is the next queue of its broker: one Put of all costs brokers less
        than a small one at each.
        """
        name = topic.name
        turn = self._turns.get(name, -1) + 1
        health = self._health
        names = health.sound
        if names and not (past or health.avoided):
            gathering = self._gathering
            if gathering is not None and gathering.is_gathering and gathering.name in names:
                turn += (names.index(gathering.name) - turn) % len(names)
            else:
                self._gathering = self._batchers.batcher(names[turn % len(names)])
            self._turns[name] = turn
            return names[turn % len(names)], turn // len(names) % max(1, topic.queues)
        self._turns[name] = turn
        chosen = health.choose(turn, past, self._clock.monotonic())
        return None if chosen is None else (chosen[0], chosen[1] % max(1, topic.queues))

    def _pick_level(self, priority: int, topic: Topic, past: Collection[str]) -> Place | None:
        """Pick the next broker for messages of a priority as `_pick` does, and the queue of their level there."""
        place = self._pick(topic, past)
        return None if place is None else (place[0], level_of(priority, topic.queues))

    def _lookup(self, topic: Topic, messages: list[ClientMessage]) -> Topic:
        """Return the topic that has the name of `topic` now, if it takes these messages."""
        now = self._catalog.topic_now(topic)
        if now.type != topic.type:
            for message in messages:
                check_message(message, now, self._limits)
        return now

    def tick(self) -> None:
        """Forget deleted topics, some of all at a time; called about once a second.

        A check of 100,000 at once takes a tenth of a second of the loop.
        """
        if not self._unchecked:
            self._unchecked = list(self._turns)
        checked = self._unchecked[-_CHECKED_AT_ONCE:]
        del self._unchecked[-_CHECKED_AT_ONCE:]
        for name in checked:
            if self._catalog.find_topic(name) is None:
                self._turns.pop(name, None)
