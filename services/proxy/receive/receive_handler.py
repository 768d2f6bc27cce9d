"""ReceiveMessage: checks what is asked for, lets a poll run, and writes the answer in one go."""

from collections.abc import Sequence
from typing import Final

from services.common.contract.names import GroupName, Use
from services.common.contract.priority import levels_of
from services.common.contract.wire_format import field, varint
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.apache.rocketmq.v2.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse
from services.common.pb.popwheel.v1.broker_pb2 import ALL, PopRequest
from services.common.pb.popwheel.v1.controller_pb2 import TopicType
from services.proxy.ack.renewal import RenewalBook
from services.proxy.metrics import ProxyMetrics
from services.proxy.options import ProxyOptions
from services.proxy.receive.interest import Interest
from services.proxy.receive.long_poll import LongPoll, Mode
from services.proxy.receive.mode_choice import ModeChoice
from services.proxy.receive.poll import Found, Poll, PollTools, release
from services.proxy.receive.poll_limits import ANSWER_RESERVE_MS, Admission, PollLimits
from services.proxy.session.catalog import Catalog
from services.proxy.session.clients import Clients
from services.proxy.session.resources import group_name, topic_name
from services.proxy.statuses import OK
from services.proxy.validation import check_invisible, check_reader, filter_of
from services.rpc.service import Call, Stream, StreamClosedError

_ANY_QUEUE: Final = -1
_LITE: Final = TopicType.LITE
_GRACE_S: Final = 0.2
_GOLDEN_RATIO: Final = 0.6180339887498949
"""Its multiples are spread evenly, and so is every second, third ... of them."""
_MESSAGE_TAG: Final = b"\x12"
_OK_ANSWER: Final = ReceiveMessageResponse(status=OK).SerializeToString()


class ReceiveHandler:
    """Takes messages from brokers to consumers.

    Args:
        catalog: topics and groups.
        clients: a poll is a sign of life.
        tools: what polls share.
        mode_choice: how polls wait.
        admission: how many polls may run.
        renewals: handles that are kept renewed.
        options: limits and times.
        limits: what polls may ask for.
        metrics: limits that were hit.
    """

    def __init__(
        self,
        catalog: Catalog,
        clients: Clients,
        tools: PollTools,
        mode_choice: ModeChoice,
        admission: Admission,
        renewals: RenewalBook,
        options: ProxyOptions,
        limits: PollLimits,
        metrics: ProxyMetrics,
    ) -> None:
        self._catalog = catalog
        self._clients = clients
        self._tools = tools
        self._mode_choice = mode_choice
        self._admission = admission
        self._renewals = renewals
        self._options = options
        self._limits = limits
        self._metrics = metrics
        self._clock = tools.clock
        self._polls: dict[Poll, None] = {}  # the oldest first
        self._draining = False

    async def receive(self, call: Call, client_id: str, stream: Stream[ReceiveMessageRequest, bytes]) -> None:
        """Answer one ReceiveMessage.

        Raises:
            StatusError: what the client is to be told instead of messages.
        """
        request = await stream.receive()
        if request is None:
            raise StatusError(Code.BAD_REQUEST, "ReceiveMessage needs one request")
        pop = self._pop_request(client_id, request)
        wait_ms = self._asked_wait_ms(request)
        self._clients.seen(client_id, self._clock.monotonic())
        self._admission.enter(client_id, call.peer, pop.group)
        try:
            # Last, as a group must not be made for a request that is refused (E1).
            group = await self._catalog.ensure_group(GroupName(pop.group))
            # Whichever queue a client of an ordered group names: each message group is in one queue only.
            pop.ordered = group.fifo
            await self._poll(call, client_id, request, pop, wait_ms, stream)
        finally:
            self._admission.leave(client_id, call.peer, pop.group)

    def drain(self) -> None:
        """Answer all polls, and from now on every poll after one pop."""
        self._draining = True
        for poll in list(self._polls):
            poll.drain()

    def _pop_request(self, client_id: str, request: ReceiveMessageRequest) -> PopRequest:
        """Check a request and say what is to be popped, from any queue.

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
        wanted = filter_of(request.filter_expression)
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
        request: ReceiveMessageRequest,
        pop: PopRequest,
        wait_ms: int,
        stream: Stream[ReceiveMessageRequest, bytes],
    ) -> None:
        """Run the poll and send what it found."""
        tools = self._tools
        if not tools.brokers.names:
            raise StatusError(Code.HA_NOT_AVAILABLE, "no broker is there now; try again")
        # From here on nothing may be raised before the `try`: who has entered must leave.
        interest = tools.book.enter(pop.topic, pop.group, pop.filter, client_id if pop.lite else "")
        poll = Poll(tools, self._machine(call, request, pop, interest, wait_ms), interest, pop)
        self._polls[poll] = None
        try:
            found = await poll.run()
        except BaseException:
            release(tools, pop, poll.found, attempted=False)  # found as the client went away
            raise
        finally:
            self._polls.pop(poll, None)
            poll.close()
        if not found.messages:
            raise StatusError(Code.MESSAGE_NOT_FOUND, "no message came in time")
        await self._answer(client_id, request, pop, found, stream)

    async def _answer(
        self,
        client_id: str,
        request: ReceiveMessageRequest,
        pop: PopRequest,
        found: Found,
        stream: Stream[ReceiveMessageRequest, bytes],
    ) -> None:
        """Send the messages; if the client has gone they are given back, and each counts as one attempt."""
        if request.auto_renew:
            now = self._clock.monotonic()
            self._renewals.add(client_id, found.broker, pop.group, pop.topic, found.handles, now)
        parts = answer_parts(found.messages, self._clock.wall_ms())
        size = sum(map(len, parts))
        self._admission.unsent.take(client_id, size)
        sent = False
        try:
            await stream.send(parts)
            sent = True
        except StreamClosedError:
            pass  # nobody is left to be told
        finally:
            self._admission.unsent.give(client_id, size)
            if not sent:
                self._renewals.drop(found.handles)
                release(self._tools, pop, found, attempted=True)

    def _machine(
        self, call: Call, request: ReceiveMessageRequest, pop: PopRequest, interest: Interest, asked_ms: int
    ) -> LongPoll:
        """The poll's machine: where it pops, how it waits, and for how long."""
        tools, topic, group = self._tools, interest.topic, interest.group
        # The lite topics of a client are spread over all brokers, and each poll is for that client only.
        mode = Mode.NOTIFY if pop.lite else self._mode_choice.count(topic, group)
        if mode is None:
            self._metrics.limit_hit("counted_polls_max")
            mode = self._mode_choice.uncounted
        now = self._clock.monotonic()
        wait_s = self._wait_s(call, asked_ms, now)
        first = self._named(request, interest)
        if wait_s <= 0:
            known = (first, *interest.left_over) if first in interest.left_over else (*interest.left_over, first)
            brokers = dict.fromkeys((*known, *tools.brokers.names))
            return LongPoll(tuple(brokers), False, now, _GRACE_S)
        tools.metrics.long_polls.labels(topic, group).inc()
        if mode is Mode.NOTIFY:
            if pop.ordered or pop.lite:  # the same try once more is to be given what it was given there
                return LongPoll((first,), True, now + wait_s, _GRACE_S)
            if interest.is_quiet:
                tools.metrics.first_pops_spared.inc()
                return LongPoll((first,), True, now + wait_s, _GRACE_S, pops_first=False)
            return LongPoll((tools.book.best_broker(interest, first),), True, now + wait_s, _GRACE_S)
        brokers = dict.fromkeys((first, *tools.brokers.names))
        return LongPoll(tuple(brokers), True, now + wait_s, _GRACE_S, mode, self._mode_choice.patience_s)

    def _asked_wait_ms(self, request: ReceiveMessageRequest) -> int:
        """How long the client wants to wait, within the limits; as long as possible if it does not say.

        Raises:
            StatusError: ILLEGAL_POLLING_TIME.
        """
        if request.HasField("long_polling_timeout"):
            return self._limits.poll_wait_ms(request.long_polling_timeout.ToMilliseconds())
        return self._options.grpc_client_consumer_max_long_polling_timeout_ms

    def _wait_s(self, call: Call, asked_ms: int, now: float) -> float:
        """How long an empty poll waits, in seconds: so that the answer reaches its client before the deadline."""
        if self._draining:
            return 0.0
        if call.deadline is None:
            return asked_ms / 1000
        left_s = call.deadline - now - ANSWER_RESERVE_MS / 1000
        return max(0.0, min(asked_ms / 1000, left_s))

    def _named(self, request: ReceiveMessageRequest, interest: Interest) -> str:
        """The broker that the client names; if there is none of that name any other, in turn.

        Each interest has a turn of its own: in one that others share, polls that come in step with them would see only
        some of the brokers. It begins somewhere else each time, as an interest may last for a single poll.
        """
        names = self._tools.brokers.names
        named = request.message_queue.broker.name
        if named in names:
            return named
        interest.turn += 1
        return names[(int(interest.id * _GOLDEN_RATIO % 1.0 * len(names)) + interest.turn) % len(names)]


def answer_parts(messages: Sequence[bytes], now_ms: int) -> list[bytes]:
    """The bytes of one ReceiveMessageResponse each: the status, the messages, the time of delivery.

    Args:
        messages: as the broker gave them.
        now_ms: milliseconds since 1970.
    """
    parts = [_OK_ANSWER]
    for message in messages:
        parts.append(b"".join((_MESSAGE_TAG, varint(len(message)), message)))
    seconds, milliseconds = divmod(now_ms, 1000)
    parts.append(field(3, b"\x08" + varint(seconds) + b"\x10" + varint(milliseconds * 1_000_000)))
    return parts
