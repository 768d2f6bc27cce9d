"""ReceiveMessage: checks the request, runs a poll, and writes the answer in one go."""

from collections.abc import Sequence
from typing import Final

from popwheel_common.contract.names import DEAD_LETTER_PREFIX, GroupName, Kind, Use, kind_of
from popwheel_common.contract.priority import levels_of
from popwheel_common.contract.wire_format import field, varint
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse
from popwheel_common.pb.popwheel.v1.broker_pb2 import ALL, Filter, PopRequest
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.brokers.context import ProxyContext
from popwheel_proxy.protocol.filters import Filters
from popwheel_proxy.protocol.statuses import OK
from popwheel_proxy.protocol.validation import check_invisible, check_reader
from popwheel_proxy.receive.absent_names import AbsentName, AbsentNames, Waiter
from popwheel_proxy.receive.interest import Interest
from popwheel_proxy.receive.long_poll import LongPoll, Mode
from popwheel_proxy.receive.poll import Found, Poll, PollTools, release
from popwheel_proxy.receive.poll_limits import ANSWER_RESERVE_MS, PollLimits
from popwheel_proxy.receive.renewal import RenewalBook
from popwheel_proxy.session.catalog import Catalog
from popwheel_proxy.session.clients import Clients
from popwheel_proxy.session.resources import group_name, topic_name
from popwheel_rpc.service import Call, Stream

_ANY_QUEUE: Final = -1
_LITE: Final = TopicType.LITE
_GRACE_S: Final = 0.2
_GOLDEN_RATIO: Final = 0.6180339887498949
"""Golden ratio: its multiples are spread evenly, and so is every second, third ... of them."""
_MESSAGE_TAG: Final = b"\x12"
_OK_ANSWER: Final = ReceiveMessageResponse(status=OK).SerializeToString()


class _Receive:
    """A call of ReceiveMessage, which ends when its client terminates, whatever it waits for."""

    __slots__ = ("ended", "poll", "waiter")

    def __init__(self) -> None:
        self.ended = False
        self.poll: Poll | None = None
        self.waiter: Waiter | None = None
        """Set while it waits for its topic or group to be created."""

    def end(self) -> None:
        """Record that its client terminates."""
        self.ended = True
        if self.poll is not None:
            self.poll.end()
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(False)

    def check(self) -> None:
        """Check that its client has not terminated.

        Raises:
            StatusError: MESSAGE_NOT_FOUND, as for polls that wait.
        """
        if self.ended:
            raise StatusError(Code.MESSAGE_NOT_FOUND, "the client has said that it stops")


class ReceiveHandler:
    """Delivers messages from brokers to consumers.

    Args:
        context: of the proxy.
        catalog: topics and groups.
        clients: a poll is a sign of life.
        tools: what polls share.
        limits: limits of polls.
        renewals: handles that are kept renewed.
        filters: parses clients' filters.

    Attributes:
        absent: polls that wait for a missing topic or group.
    """

    def __init__(
        self,
        context: ProxyContext,
        catalog: Catalog,
        clients: Clients,
        tools: PollTools,
        limits: PollLimits,
        renewals: RenewalBook,
        filters: Filters,
    ) -> None:
        self._filters = filters
        self._numbers = context.numbers
        self._catalog = catalog
        self._clients = clients
        self._tools = tools
        self.absent = AbsentNames(context.view, context.clock)
        self._mode_choice = tools.mode_choice
        self._admission = limits.admission
        self._renewals = renewals
        self._options = context.options
        self._limits = limits
        self._metrics = context.metrics
        self._clock = context.clock
        self._polls: dict[Poll, None] = {}  # the oldest first
        self._receives: dict[str, dict[_Receive, None]] = {}
        """Receives by client."""
        self._draining = False

    async def receive(
        self, call: Call, client_id: str, stream: Stream[ReceiveMessageRequest, bytes], user: str = ""
    ) -> None:
        """Answer one ReceiveMessage of a user's client.

        Raises:
            StatusError: the client's error instead of messages.
        """
        request = await stream.receive()
        if request is None:
            raise StatusError(Code.BAD_REQUEST, "ReceiveMessage needs one request")
        until_s = self._until_s(call, self._asked_wait_ms(request))
        receive = _Receive()
        self._receives.setdefault(client_id, {})[receive] = None
        try:
            while True:
                seen_version = self.absent.seen_version
                try:
                    return await self._receive(call, client_id, user, request, until_s, stream, receive)
                except StatusError as error:
                    refused = error
                # Not within `except`: compiled code loses the exception across an await.
                if not await self._is_made(call, client_id, request, refused.code, until_s, receive, seen_version):
                    raise refused
                receive.check()
        finally:
            del self._receives[client_id][receive]
            if not self._receives[client_id]:
                del self._receives[client_id]

    async def _is_made(
        self,
        call: Call,
        client_id: str,
        request: ReceiveMessageRequest,
        code: Code.ValueType,
        until_s: float,
        receive: _Receive,
        seen_version: int,
    ) -> bool:
        """Let a poll wait until its missing topic or group is made.

        Returns:
            False if that was not in time, or the poll was refused for another reason.
        """
        if self._draining or receive.ended or code not in (Code.TOPIC_NOT_FOUND, Code.CONSUMER_GROUP_NOT_FOUND):
            return False
        group = group_name(request.group)
        absent = AbsentName(True, group)
        if code == Code.TOPIC_NOT_FOUND:
            absent = _absent_topic(topic_name(request.message_queue.topic, Use.RECEIVE))
        self._admission.enter(client_id, call.peer, group)
        receive.waiter = self.absent.waiter()
        try:
            return await self.absent.made(absent, seen_version, until_s, receive.waiter)
        finally:
            receive.waiter = None
            self._admission.leave(client_id, call.peer, group)

    async def _receive(
        self,
        call: Call,
        client_id: str,
        user: str,
        request: ReceiveMessageRequest,
        until_s: float,
        stream: Stream[ReceiveMessageRequest, bytes],
        receive: _Receive,
    ) -> None:
        wanted = await self._filters.read(client_id, request.filter_expression)
        receive.check()  # it may have waited, and is no sign of life then
        pop = self._pop_request(client_id, request, wanted)
        now = self._clock.monotonic()
        self._clients.seen(client_id, now, user)
        self._clients.polls(client_id, call.peer, pop.group, pop.topic, wanted.expression, now)
        self._admission.enter(client_id, call.peer, pop.group)
        self._clients.call_opened(client_id, user)
        broken = True
        try:
            # Last, as a group must not be made for a request that is refused (E1). The poll's time goes on meanwhile.
            left_s = until_s + _GRACE_S - self._clock.monotonic()
            group = await self._catalog.ensure_group(GroupName(pop.group), left_s)
            receive.check()
            # Whichever queue a client of an ordered group names: each message group is in one queue only.
            pop.ordered = group.fifo
            pop.group_id = group.id
            if pop.attempt_id and (pop.ordered or pop.lite):
                pop.receive = next(self._numbers)
            await self._poll(call, client_id, user, request, pop, until_s, stream, receive)
            broken = False
        except StatusError:
            broken = False
            raise
        finally:
            self._clients.call_closed(client_id, self._clock.monotonic(), user, broken=broken)
            self._admission.leave(client_id, call.peer, pop.group)

    def drain(self) -> None:
        """Answer all polls, and from now on every poll after one pop."""
        self._draining = True
        self.absent.drain()
        for poll in list(self._polls):
            poll.drain()

    def client_ends(self, client_id: str) -> None:
        """End the polls of a client that terminates, and release their messages."""
        for receive in list(self._receives.get(client_id, ())):
            receive.end()

    def _pop_request(self, client_id: str, request: ReceiveMessageRequest, wanted: Filter) -> PopRequest:
        """Check a request, and return its pop, from any queue.

        Raises:
            StatusError: the first rule that is broken.
        """
        group = group_name(request.group)
        self._catalog.check_group(group)
        topic = self._catalog.topic(topic_name(request.message_queue.topic, Use.RECEIVE))
        is_lite = topic.type == _LITE
        if is_lite or self._clients.any_lite:
            check_reader(topic, self._clients.reads_lite(client_id))
        if not _ANY_QUEUE <= request.message_queue.id < topic.queues:
            raise StatusError(
                Code.BAD_REQUEST,
                f"the topic {topic.name} has no queue {request.message_queue.id} of {topic.queues}; any of them is -1",
            )
        if is_lite and wanted.kind != ALL:
            raise StatusError(
                Code.ILLEGAL_FILTER_EXPRESSION,
                f"lite topics of {topic.name} take no filter; leave it out, and subscribe to lite topics instead",
            )
        count = self._limits.batch(request.batch_size)
        if request.auto_renew:
            self._renewals.check_room(client_id, count)
            invisible_ms = self._options.renewal.invisible_ms
        else:
            invisible_ms = check_invisible(request.invisible_duration.ToMilliseconds(), self._options.receive)
        return PopRequest(
            group=group,
            topic=topic.name,
            queue_id=_ANY_QUEUE,
            max_messages=count,
            invisible_ms=invisible_ms,
            filter=wanted,
            client_id=client_id,
            attempt_id=request.attempt_id,
            levels=levels_of(topic),
            lite=is_lite,
        )

    async def _poll(
        self,
        call: Call,
        client_id: str,
        user: str,
        request: ReceiveMessageRequest,
        pop: PopRequest,
        until_s: float,
        stream: Stream[ReceiveMessageRequest, bytes],
        receive: _Receive,
    ) -> None:
        """Run the poll and send what it found."""
        tools = self._tools
        if not tools.brokers.names:
            raise StatusError(Code.HA_NOT_AVAILABLE, "no broker is there now; try again")
        if not tools.notifications.reads(pop.topic, pop.group):
            self._metrics.limit_hit("readers_max")
        # From here on nothing may be raised before the `try`: who has entered must leave.
        interest = tools.book.enter(pop.topic, pop.group, pop.filter, client_id if pop.lite else "")
        poll = Poll(tools, self._machine(request, pop, interest, until_s), interest, pop)
        self._polls[poll] = None
        receive.poll = poll
        try:
            found = await poll.run()
        except BaseException:
            release(tools, pop, poll.found, attempted=False)  # found as the client went away
            raise
        finally:
            del self._polls[poll]
            receive.poll = None
            poll.close()
        if not found.messages:
            raise StatusError(Code.MESSAGE_NOT_FOUND, "no message came in time")
        await self._answer(client_id, user, request, pop, found, stream)

    async def _answer(
        self,
        client_id: str,
        user: str,
        request: ReceiveMessageRequest,
        pop: PopRequest,
        found: Found,
        stream: Stream[ReceiveMessageRequest, bytes],
    ) -> None:
        """Send the messages; if the client has gone they are released, and each counts as one attempt."""
        parts = answer_parts(found.messages, self._clock.wall_ms())
        size = sum(map(len, parts))
        self._admission.unsent.take(client_id, size)
        sent = False
        try:
            if request.auto_renew:
                now = self._clock.monotonic()
                self._clients.seen(client_id, now, user)  # it has waited until now, and what is renewed is a client's
                self._renewals.add(client_id, found.broker, pop.group, pop.topic, found.handles, now, pop.receive)
            await stream.send(parts)
            sent = True
        finally:
            self._admission.unsent.give(client_id, size)
            if not sent:
                self._renewals.drop_of(pop.receive, found.handles)
                release(self._tools, pop, found, attempted=True)

    def _machine(self, request: ReceiveMessageRequest, pop: PopRequest, interest: Interest, until_s: float) -> LongPoll:
        """Return the poll's state machine: where it pops, how it waits, and until when."""
        tools, topic, group = self._tools, interest.topic, interest.group
        # The lite topics of a client are spread over all brokers, and each poll is for that client only.
        mode = Mode.NOTIFY if pop.lite else self._mode_choice.count(topic, group)
        if mode is None:
            self._metrics.limit_hit("counted_polls_max")
            mode = self._mode_choice.uncounted
        now = self._clock.monotonic()
        first = self._named(request, interest)
        if self._draining or until_s <= now:
            known = (first, *interest.left_over) if first in interest.left_over else (*interest.left_over, first)
            # The others from there on, so that no broker is always among the last if its time does not reach all.
            names = tools.brokers.names
            at = names.index(first)
            brokers = dict.fromkeys((*known, *names[at:], *names[:at]))
            return LongPoll(tuple(brokers), False, min(now, until_s), _GRACE_S)
        tools.metrics.long_polls.inc(topic, group)
        if mode is Mode.NOTIFY:
            if pop.ordered or pop.lite:  # a retry must get the messages of its earlier try from there
                return LongPoll((first,), True, until_s, _GRACE_S)
            if interest.is_quiet:
                tools.metrics.first_pops_spared.inc()
                return LongPoll((first,), True, until_s, _GRACE_S, pops_first=False)
            return LongPoll((tools.book.best_broker(interest, first),), True, until_s, _GRACE_S)
        brokers = dict.fromkeys((first, *tools.brokers.names))
        return LongPoll(tuple(brokers), True, until_s, _GRACE_S, mode, self._mode_choice.patience_s)

    def _asked_wait_ms(self, request: ReceiveMessageRequest) -> int:
        """Return the time that the client wants to wait, within the limits; the longest if it does not say.

        Raises:
            StatusError: ILLEGAL_POLLING_TIME.
        """
        if request.HasField("long_polling_timeout"):
            return self._limits.poll_wait_ms(request.long_polling_timeout.ToMilliseconds())
        return self._options.grpc_client_consumer_max_long_polling_timeout_ms

    def _until_s(self, call: Call, asked_ms: int) -> float:
        """Return the time until which an empty poll waits, in seconds of the monotonic clock.

        Its answer is to reach the client before the deadline.
        """
        now = self._clock.monotonic()
        until_s = now + asked_ms / 1000
        return until_s if call.deadline is None else max(now, min(until_s, call.deadline - ANSWER_RESERVE_MS / 1000))

    def _named(self, request: ReceiveMessageRequest, interest: Interest) -> str:
        """Return the broker that the client names; if there is none of that name any other, in turn.

        Each interest has a counter of its own: with a shared one, polls that alternate with others would see only
        some of the brokers. It begins somewhere else each time, as an interest may last for a single poll.
        """
        names = self._tools.brokers.names
        named = request.message_queue.broker.name
        if named in names:
            return named
        interest.rotation += 1
        return names[(int(interest.id * _GOLDEN_RATIO % 1.0 * len(names)) + interest.rotation) % len(names)]


def _absent_topic(topic: str) -> AbsentName:
    """Return the name that an absent topic waits for; one of dead letters is there as soon as its group is."""
    if kind_of(topic) is Kind.DEAD_LETTER:
        return AbsentName(True, topic.removeprefix(DEAD_LETTER_PREFIX))
    return AbsentName(False, topic)


def answer_parts(messages: Sequence[bytes], now_ms: int) -> list[bytes]:
    """Return the encoded ReceiveMessageResponses: the status, the messages, the time of delivery.

    Args:
        messages: as the broker returned them.
        now_ms: milliseconds since 1970.
    """
    parts = [_OK_ANSWER]
    for message in messages:
        parts.append(b"".join((_MESSAGE_TAG, varint(len(message)), message)))
    seconds, milliseconds = divmod(now_ms, 1000)
    parts.append(field(3, b"\x08" + varint(seconds) + b"\x10" + varint(milliseconds * 1_000_000)))
    return parts
