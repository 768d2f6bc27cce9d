"""Driver of one `LongPoll` machine: pops at brokers, waits in the book of interests, returns the outcome."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from popwheel_common.clock import Clock
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest, ReleaseRequest
from popwheel_proxy.brokers.background import Background
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.master_calls import MasterCalls
from popwheel_proxy.lite.lite_sync import LiteSync
from popwheel_proxy.receive.interest import Interest, Ticket
from popwheel_proxy.receive.interest_book import InterestBook
from popwheel_proxy.receive.long_poll import Do, Effect, LongPoll, Pop, WaitAt
from popwheel_proxy.receive.metrics import PollMetrics
from popwheel_proxy.receive.mode_choice import ModeChoice
from popwheel_proxy.receive.notifications import Notifications, reader_of
from popwheel_rpc.methods import POP, RELEASE
from popwheel_rpc.server.light_task import LightTask
from popwheel_rpc.status import RpcError

_RELEASE_WITHIN_S = 10.0
_PASSING = (
    Code.TOPIC_NOT_FOUND,  # the broker has not seen a new topic or group yet
    Code.CONSUMER_GROUP_NOT_FOUND,
    Code.TOO_MANY_REQUESTS,
    Code.HA_NOT_AVAILABLE,
    Code.SLAVE_PERSISTENCE_TIMEOUT,  # the master was deposed meanwhile
    Code.INTERNAL_ERROR,
    Code.INTERNAL_SERVER_ERROR,
)
"""Refusals of a pop that are temporary: the poll continues. Any other one ends it, and the client gets it."""
_EMPTY = (Code.TOPIC_NOT_FOUND, Code.CONSUMER_GROUP_NOT_FOUND)
"""Codes among these that mean an empty result: the broker has not seen the topic or group yet."""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a poll: messages of one broker, or none."""

    broker: str
    messages: Sequence[bytes]
    handles: Sequence[str]


NOTHING = Found("", (), ())


@dataclass(frozen=True, slots=True)
class PollTools:
    """Shared parts of all polls of a proxy."""

    brokers: Brokers
    masters: MasterCalls
    book: InterestBook
    notifications: Notifications
    background: Background
    clock: Clock
    metrics: PollMetrics
    pop_timeout_s: float
    lite: LiteSync
    mode_choice: ModeChoice


class Poll:
    """A running poll.

    Args:
        tools: what polls share.
        machine: decides.
        interest: what is polled for; entered by the caller, left by `close`.
        request: the pop, the same for every broker.
    """

    __slots__ = (
        "_failures",
        "_first",
        "_interest",
        "_machine",
        "_notified",
        "_outcome",
        "_request",
        "_task",
        "_ticket",
        "_timer",
        "_tools",
        "_woken_at",
        "found",
    )

    def __init__(self, tools: PollTools, machine: LongPoll, interest: Interest, request: PopRequest) -> None:
        self._tools = tools
        self._machine = machine
        self._interest = interest
        self._request = request
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticket: Ticket | None = None
        self._first = True
        self._notified = False
        self._woken_at: float | None = None
        self._failures: dict[str, StatusError] = {}
        self.found = NOTHING

    async def run(self) -> Found:
        """Poll until messages are found or the time is over.

        Raises:
            StatusError: nothing was found, and a broker did not search, or does not deliver waiting messages: its last
                refusal.
        """
        self._task = asyncio.current_task()
        self._perform(self._machine.start())
        if not self._outcome.done():
            self._arm()
        await self._outcome
        if not self.found.messages:
            # Others may have been refused for this poll, too, so that it was not woken.
            failure = next(iter(self._failures.values()), self._interest.failure)
            if failure is not None:
                raise failure
        return self.found

    def close(self) -> None:
        """Close the poll after its call has ended; messages of a pop in flight are released."""
        tools = self._tools
        self._machine.abandon()
        if self._timer is not None:
            self._timer.cancel()
        tools.book.leave(self._interest, self.woken, tools.clock.monotonic())

    def drain(self) -> None:
        """Answer as soon as possible: the proxy is about to stop."""
        self._perform(self._machine.drain())

    def end(self) -> None:
        """End the poll of a client that terminates: answer that there is no message, and release all found messages."""
        self._machine.abandon()
        self._tools.book.stop_waiting(self._interest, self.woken)
        if not self._outcome.done():
            self._outcome.set_result(None)
        found, self.found = self.found, NOTHING
        release(self._tools, self._request, found, attempted=False)

    def woken(self, ticket: Ticket) -> None:
        """Wake this poll after a notification."""
        tools = self._tools
        effect = self._machine.notified(ticket.broker)
        if effect is None:
            tools.book.hand_back(ticket, tools.clock.monotonic())
            return
        tools.metrics.woken(self._interest.topic, self._interest.group)
        self._woken_at = tools.clock.monotonic()
        self._ticket = ticket
        self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        tools = self._tools
        if isinstance(effect, Pop):
            ticket, self._ticket = self._ticket, None
            if ticket is None:
                ticket = tools.book.begin(self._interest, effect.broker)
            tools.background.start_at_once(self._pop(ticket))
        elif effect is Do.WAIT:
            self._first = False  # messages found from now on were waited for
            if not self._notified:
                self._notified = True
                tools.metrics.pops_with_notify.inc(self._interest.topic, self._interest.group)
            tools.notifications.register(self._interest)
            self._wait(None)
        elif isinstance(effect, WaitAt):
            self._wait(effect.broker)
            tools.notifications.register_at(self._interest, effect.broker)
            self._arm()
        elif effect is Do.PAUSE:
            self._arm()
        elif effect in (Do.ANSWER, Do.ANSWER_EMPTY):
            tools.book.stop_waiting(self._interest, self.woken)
            if len(self.found.messages) == 1 and isinstance(self._task, LightTask):
                self._task.complete(self._outcome)  # saves a turn; several may be long work, which turns share
            elif not self._outcome.done():
                self._outcome.set_result(None)

    def _wait(self, broker: str | None) -> None:
        """Wait at one broker or at all; messages left over there wake it at once."""
        tools = self._tools
        ticket = tools.book.wait(self._interest, self.woken, tools.clock.monotonic(), broker)
        if ticket is not None:
            self.woken(ticket)

    async def _pop(self, ticket: Ticket) -> None:
        """Pop once; continues after the call has ended, so that its messages can be released."""
        tools = self._tools
        tools.metrics.pops.inc()
        left_s = self._machine.wake_at - tools.clock.monotonic()  # then its messages are released
        self._request.wanted_for_ms = max(1, int(left_s * 1000))
        try:
            answer = await tools.brokers.channel(ticket.broker).call(POP, self._request, timeout_s=tools.pop_timeout_s)
        except (StatusError, RpcError) as error:
            self._pop_failed(ticket, error)
            return
        except BaseException:
            tools.book.fail(ticket, tools.clock.monotonic())
            raise
        self._popped(ticket, answer)

    def _popped(self, ticket: Ticket, answer: PopAnswer) -> None:
        tools = self._tools
        now = tools.clock.monotonic()
        count = len(answer.messages)
        self._failures.pop(ticket.broker, None)
        if answer.is_unknown_client:
            tools.lite.is_unknown(reader_of(self._interest), ticket.broker)
        if self._first:
            self._first = False
            if count:
                tools.metrics.short_polling_hits.inc(self._interest.topic, self._interest.group)
        if self._woken_at is not None:
            tools.metrics.notification_round_trip.observe((now - self._woken_at) * 1000)
            if not count:
                tools.metrics.woken_for_nothing(self._interest.topic, self._interest.group)
            self._woken_at = None
        tools.book.finish(ticket, count, answer.waiting, now)
        effect = self._machine.popped(count, now)
        if effect is Do.ANSWER:
            self.found = Found(ticket.broker, answer.messages, answer.handles)
        elif effect is Do.RELEASE:
            found = Found(ticket.broker, answer.messages, answer.handles)
            release(tools, self._request, found, attempted=False)
        self._perform(effect)

    def _pop_failed(self, ticket: Ticket, error: StatusError | RpcError) -> None:
        tools = self._tools
        now = tools.clock.monotonic()
        tools.metrics.pop_failures.inc()
        self._first = False
        self._woken_at = None
        failure = error if isinstance(error, StatusError) and error.code not in _EMPTY else None
        tools.book.fail(ticket, now, failure)
        if failure is not None:
            self._failures[ticket.broker] = failure.with_traceback(None)
        if isinstance(error, StatusError) and error.code not in _PASSING:
            self._perform(self._machine.refused())
        else:
            self._perform(self._machine.pop_failed(now))

    def _arm(self) -> None:
        """Pass the machine the time when it asked for it, and at its deadline, though a pop is under way then:
        after that the poll may wait on.
        """
        machine, now = self._machine, self._tools.clock.monotonic()
        until = machine.wake_at if now >= machine.deadline else min(machine.wake_at, machine.deadline)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, until - now), self._time_passed)

    def _time_passed(self) -> None:
        self._perform(self._machine.time_passed(self._tools.clock.monotonic()))
        if not self._outcome.done():
            self._arm()


def release(tools: PollTools, request: PopRequest, found: Found, *, attempted: bool) -> None:
    """Make messages of a client that has gone visible again at once.

    Args:
        tools: what polls share.
        request: the pop that brought them.
        found: the messages.
        attempted: whether some of them may have reached the client.
    """
    if found.handles:
        asked = ReleaseRequest(
            group=request.group,
            topic=request.topic,
            receipt_handles=found.handles,
            attempted=attempted,
            receive=request.receive,
        )
        tools.background.start(_release(tools, found.broker, asked))


async def _release(tools: PollTools, broker: str, request: ReleaseRequest) -> None:
    """Release messages within a few seconds; else they are delivered again after their invisible duration."""
    try:
        await tools.masters.call(broker, RELEASE, request, tools.clock.monotonic() + _RELEASE_WITHIN_S)
    except StatusError:
        return
    tools.metrics.released.inc(len(request.receipt_handles))
