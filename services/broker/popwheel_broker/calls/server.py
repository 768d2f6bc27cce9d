"""popwheel.v1.Broker: calls of proxies, answered by the core.

Names pass the gate here once more: a proxy may be of another release, or none of ours.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from popwheel_broker.calls.activity_server import ActivityServer
from popwheel_broker.calls.audit_server import AuditServer
from popwheel_broker.calls.balance_server import BalanceServer
from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.calls.dedup import Dedup
from popwheel_broker.calls.group_server import GroupServer
from popwheel_broker.calls.holder_server import HolderServer
from popwheel_broker.calls.kind_server import KindServer
from popwheel_broker.calls.name_server import NameServer
from popwheel_broker.calls.pull_handler import PullHandler, illegal_offset
from popwheel_broker.calls.put_handler import PutHandler
from popwheel_broker.calls.quarantine_server import QuarantineServer
from popwheel_broker.calls.send_admission import SendAdmission
from popwheel_broker.calls.term_reads import TermReads
from popwheel_broker.calls.use_server import UseServer
from popwheel_broker.consume.delivery import OffsetCommit
from popwheel_broker.consume.wanted import wanted_by
from popwheel_broker.core.notification import Interest, Subscriber
from popwheel_broker.lite.lite_server import LiteServer
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.refusals import naming_trouble
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.errors import StatusError
from popwheel_common.filter.parser import SHORT
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.turn_budget import TurnBudget
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Service, Stream

_HIDDEN_MS_MAX = 1 << 48
_INTERESTS_AT_ONCE = 32
"""The number of messages of a proxy that are read at once: some milliseconds, if their clients read many lite
topics.
"""
_ENDS_AT_ONCE = 500
"""The number of ends of lite topics that are sent to a proxy at once: some milliseconds here, and there."""

_FILTERS_COST_MAX = 512
"""A limit in lookups of entries, about a millisecond. No pop or interest with an SQL92 filter, or a long one of tags,
is begun in a turn of the loop that spent as much on them. One pop costs `broker.pop.scan_entries_max` at the most.
"""
_CHARACTERS_OF_ONE = 4
"""Characters of a filter that are read in about the time of a lookup of an entry."""


class BrokerServer:
    """Binds the methods.

    Args:
        context: of the replica; its core decides.
        flusher: makes durable.
        admission: whether messages may be accepted.
        kind_servers: other servers, which accept messages of other kinds.
        due_changed: called after each pop.
    """

    def __init__(
        self,
        context: BrokerContext,
        flusher: Flusher,
        admission: SendAdmission,
        kind_servers: Sequence[KindServer],
        due_changed: Callable[[], None],
    ) -> None:
        core, options, clock, statistics = context.files.core, context.options, context.clock, context.statistics
        self._core = core
        self._flusher = flusher
        self._options = options
        self._clock = clock
        self._statistics = statistics
        self._due_changed = due_changed
        self._dedup = Dedup(core.store, clock, _call_later, core.topic_registry.ids_of, kind_servers)
        self._put_handler = PutHandler(context, flusher, self._dedup, admission, kind_servers)
        self._reads = TermReads(core.store.reads, options.name)
        self._pulls = PullHandler(context, self._reads)
        self._filter_turns = TurnBudget(_FILTERS_COST_MAX)
        self.service = Service()
        core.interests.start_rotation(_call_later, core.waiting)
        core.lite.subscriptions.later = _call_later
        self.service.unary(methods.PUT, self._put_handler.put)
        self.service.unary(methods.POP, naming_trouble(self.pop))
        self.service.unary(methods.ACK, self.ack)
        self.service.unary(methods.CHANGE_INVISIBLE, naming_trouble(self.change_invisible))
        self.service.unary(methods.RENEW, naming_trouble(self.renew))
        self.service.unary(methods.RELEASE, naming_trouble(self.release))
        self.service.unary(methods.DEAD_LETTER, naming_trouble(self.dead_letter))
        self.service.unary(methods.PULL, naming_trouble(self._pulls.pull))
        self.service.unary(methods.PULL_RECORDS, naming_trouble(self._pulls.pull_records))
        self.service.unary(methods.QUERY_OFFSET, naming_trouble(self.query_offset))
        self.service.unary(methods.GET_OFFSET, self.get_offset)
        self.service.unary(methods.UPDATE_OFFSET, self.update_offset)
        activity = ActivityServer(core, statistics, self._reads, options, clock)
        self.service.unary(methods.SAMPLE_ACTIVITY, naming_trouble(activity.sample))
        self.service.unary(methods.DESCRIBE_GROUPS, naming_trouble(activity.describe_groups))
        self.service.unary(methods.DESCRIBE_TOPICS, naming_trouble(activity.describe_topics))
        self.service.unary(methods.GROUP_BALANCE, naming_trouble(BalanceServer(core, self._reads, clock).balance))
        audit = AuditServer(core, flusher, clock)
        self.service.unary(methods.IN_FLIGHT_LIST, naming_trouble(audit.in_flight))
        self.service.unary(methods.PROGRESS_LIST, audit.progress)
        holders = HolderServer(core, flusher, self._reads, clock)
        self.service.unary(methods.IN_FLIGHT_SUMMARY, holders.summary)
        self.service.unary(methods.IN_FLIGHT_RELEASE, naming_trouble(holders.release))
        self.service.unary(methods.DESCRIBE_USE, UseServer(core, clock).describe)
        self.service.unary(methods.NAME_LIST, NameServer(core, clock).list_names)
        self.service.unary(methods.MESSAGE_TRACE, naming_trouble(audit.trace))
        self.service.unary(methods.MESSAGE_EVENTS, naming_trouble(audit.events))
        self.service.unary(methods.MESSAGE_LIST, naming_trouble(audit.messages))
        self.service.unary(methods.MESSAGE_TAIL, naming_trouble(audit.tail))
        self.service.stream(methods.NOTIFY, self.notify)
        groups = GroupServer(context, flusher, self._reads)
        self.service.unary(methods.RESET_OFFSETS, naming_trouble(groups.reset_offsets))
        self.service.unary(methods.DEAD_LETTER_LIST, naming_trouble(groups.list_dead_letters))
        self.service.unary(methods.DEAD_LETTER_REDRIVE, naming_trouble(groups.redrive_dead_letters))
        self.service.unary(methods.DEAD_LETTER_SELECT, naming_trouble(groups.redrive_chosen))
        lite = LiteServer(
            lite=core.lite,
            offsets=core.lite_offsets,
            store=core.store,
            buffer=core.state.merge_buffer,
            flusher=flusher,
            apply_changes=core.cluster_changes.apply,
            clock=clock,
        )
        self.service.unary(methods.SYNC_LITE, naming_trouble(lite.sync))
        self.service.unary(methods.LITE_TOPIC_LIST, naming_trouble(lite.list))
        QuarantineServer(core, flusher, options.name, options.quarantine_max).bind(self.service)
        for each in kind_servers:
            each.bind(self.service)

    @property
    def remembered_for_tries(self) -> int:
        """Messages and ids that are remembered for retried sends, of each `dedup.MESSAGES_MAX`."""
        return self._dedup.remembered_messages + self._dedup.remembered_ids

    def arrived(self, queue: ConsumeQueue) -> None:
        """Wake the pulls that wait for a message, as one has become readable."""
        self._pulls.arrived(queue)

    def end(self) -> None:
        """End the waiting pulls, as this broker leads no more."""
        self._reads.end()
        self._dedup.end()
        self._pulls.end()

    async def pop(self, call: Call, request: pb.PopRequest) -> PopAnswer:
        """Deliver messages."""
        _check_names(request)
        await self._filter_turn(request.filter)
        rotation = self._core.pops.rotation()
        wanted_until_s = self._clock.monotonic() + (request.wanted_for_ms or _HIDDEN_MS_MAX) / 1000

        def pop_if_wanted() -> PopAnswer:
            if self._clock.monotonic() > wanted_until_s:
                # Where short polls come faster than a device reads, each would be answered too late, for ever.
                return PopAnswer(waiting=1)
            return self._pop_once(request, rotation)

        # While one of a group waits for the device, others of it would read the same messages.
        pops = self._core.pops
        try:
            while True:
                ended = pops.ended
                answer = await self._reads.run(pop_if_wanted, (request.group, request.topic))
                if answer.messages or pops.ended == ended:
                    break
                self._flusher.commit_later()  # nothing is answered that would wait for the records of their ends
                if not answer.waiting:
                    break
                await asyncio.sleep(0)  # all that it found has ended: others come first, then it goes on
        finally:
            self._due_changed()  # also for a delivery of which no message could be answered
        if answer.messages:
            self._statistics.popped(request.group, request.topic, answer)
            end = self._core.store.log.end_position
            if not self._flusher.is_replicated(end):
                await self._flusher.replicated(end)
        return answer

    def _pop_once(self, request: pb.PopRequest, rotation: int) -> PopAnswer:
        _check_hidden_ms(request.invisible_ms)
        self._core.cluster_changes.apply((request.topic,), (request.group,))
        if self._core.topic_registry.is_deleted_group(request.group, request.group_id):
            raise StatusError(
                Code.CONSUMER_GROUP_NOT_FOUND,
                f"the consumer group {request.group} was deleted; create it again if it is still needed",
            )
        self._record_reader(request)
        if request.lite:
            return self._core.lite.pops.pop(request, self._clock.steady_ms())
        pops = self._core.pops
        before = pops.sql_scan.cost
        try:
            return pops.pop(request, rotation)
        finally:
            self._filter_turns.spend(pops.sql_scan.cost - before)

    async def _filter_turn(self, message_filter: pb.Filter) -> None:
        """Wait until a filter may be read in this turn of the loop, and asked if it is an SQL92 filter."""
        length = len(message_filter.expression)
        if message_filter.kind == pb.SQL92 or length > SHORT:
            await self._filter_turns.room()
            self._filter_turns.spend(length // _CHARACTERS_OF_ONE)

    def _record_reader(self, request: "_Named") -> None:
        if self._core.cluster_changes.record_reader(request.group, request.topic):
            self._flusher.commit_later()

    async def ack(self, call: Call, request: pb.AckRequest) -> pb.AckResponse:
        """Acknowledge messages. In the page cache when answered: a crash of the process does not undo it (P3)."""
        _check_names(request)
        results = self._core.acks.ack(
            request.group, request.topic, request.receipt_handles, call=request.call, is_retry=request.is_retry
        )
        self._flusher_commits_async()
        end = self._core.store.log.end_position
        if not self._flusher.is_replicated(end):
            await self._flusher.replicated(end)
        return pb.AckResponse(results=results)

    async def change_invisible(self, call: Call, request: pb.ChangeInvisibleRequest) -> pb.ChangeInvisibleResponse:
        """Change the invisible duration of a message."""
        _check_names(request)
        _check_hidden_ms(max(0, request.invisible_ms))
        change = partial(
            self._core.acks.change_invisible,
            request.group,
            request.topic,
            request.receipt_handle,
            None if request.back_off else max(0, request.invisible_ms),
            call=request.call,
            is_retry=request.is_retry,
            suspends=request.suspend,
        )
        handle = await self._reads.run(change) if request.back_off else change()
        await self._flusher.replicated()
        return pb.ChangeInvisibleResponse(receipt_handle=handle)

    async def renew(self, call: Call, request: pb.RenewRequest) -> pb.RenewResponse:
        """Hide messages for longer."""
        _check_hidden_ms(request.invisible_ms)
        renew = partial(self._core.acks.renew, request.entries, request.invisible_ms)
        results = await self._reads.run(renew) if any(each.back_off for each in request.entries) else renew()
        await self._flusher.replicated()
        return pb.RenewResponse(results=results)

    async def release(self, call: Call, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        """Make messages visible at once."""
        _check_names(request)
        results = await self._reads.run(
            lambda: self._core.acks.release(
                request.group,
                request.topic,
                request.receipt_handles,
                request.attempted,
                receive=request.receive,
            )
        )
        self._flusher.commit_later()
        await self._flusher.replicated()
        return pb.ReleaseResponse(results=results)

    async def dead_letter(self, call: Call, request: pb.DeadLetterRequest) -> pb.DeadLetterResponse:
        """Move a message to the dead letter queue, durably."""
        _check_names(request)
        await self._reads.run(
            lambda: self._core.acks.dead_letter(
                request.group, request.topic, request.receipt_handle, call=request.call, is_retry=request.is_retry
            )
        )
        await self._flusher.durable()
        return pb.DeadLetterResponse()

    async def query_offset(self, call: Call, request: pb.QueryOffsetRequest) -> pb.QueryOffsetResponse:
        """Return the offset of a queue's beginning, end or first message since a time."""
        names.topic(request.topic, Use.QUERY)
        queue = self._core.store.queue(request.topic, request.queue_id)
        if queue is None:
            return pb.QueryOffsetResponse(offset=0)
        if request.policy == pb.BEGINNING:
            return pb.QueryOffsetResponse(offset=queue.min_offset)
        if request.policy == pb.END:
            return pb.QueryOffsetResponse(offset=queue.max_offset)
        since_ms = request.timestamp_ms
        return pb.QueryOffsetResponse(
            offset=await self._reads.run(lambda: self._core.store.records.offset_at(queue, since_ms))
        )

    async def get_offset(self, call: Call, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
        """Return a group's committed offset, -1 for none."""
        _check_names(request, Use.QUERY)
        queue = self._core.store.queue(request.topic, request.queue_id)
        progress = None if queue is None else self._core.state.merge_buffer.get(request.group, queue)
        return pb.GetOffsetResponse(offset=-1 if progress is None else progress.committed)

    async def update_offset(self, call: Call, request: pb.UpdateOffsetRequest) -> pb.UpdateOffsetResponse:
        """Set a group's committed offset, durably."""
        _check_names(request, Use.COMMIT)
        queue = self._core.store.queue(request.topic, request.queue_id)
        max_offset = 0 if queue is None else queue.max_offset
        if not 0 <= request.offset <= max_offset:
            raise illegal_offset(request.offset, max_offset)
        self._record_reader(request)
        if queue is None:
            return pb.UpdateOffsetResponse()  # there is nothing to commit; a group begins at the first message
        self._core.commit_offset(OffsetCommit(request.group, request.topic, request.queue_id, request.offset))
        await self._flusher.durable()
        return pb.UpdateOffsetResponse()

    async def notify(self, call: Call, stream: Stream[pb.NotifyInterest, pb.NotifyEvents]) -> None:
        """Notify a proxy of the messages that wait for its interests, for as long as its stream lives."""
        changed = asyncio.Event()
        subscriber = Subscriber(changed.set)
        self._core.interests.subscribers[subscriber] = None
        notifier = asyncio.create_task(self._send_events(subscriber, changed, stream), name="notify")
        try:
            received = 0
            while (interest := await stream.receive()) is not None:
                received += 1
                if received % _INTERESTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if interest.reads:
                    with suppress(StatusError):  # nobody is answered
                        _check_names(interest)
                        self._record_reader(interest)
                    continue
                if interest.cancel:
                    self._core.interests.cancel(subscriber, interest.id)
                    continue
                if interest.forward:
                    self._core.interests.forward(subscriber, interest.id)
                    continue
                try:
                    _check_names(interest)
                    await self._filter_turn(interest.filter)
                    wanted = wanted_by(interest.filter)
                    client_id = interest.lite_client_id
                    key = ClientKey(interest.group, interest.topic, client_id)
                    if client_id and self._core.lite.subscriptions.seen(key, self._clock.steady_ms()) is None:
                        subscriber.refuse(interest.id, is_unknown_client=True)
                        continue
                    registered = Interest(interest.id, subscriber, interest.topic, interest.group, wanted, client_id)
                    self._core.interests.add(registered)
                    self._record_reader(interest)
                except StatusError:
                    subscriber.refuse(interest.id)  # it alone: the proxy's other interests are not affected
                    continue
                # Of 0 messages as well: from then on the proxy relies on notifications.
                subscriber.notify(interest.id, self._core.waiting(registered))
        finally:
            self._core.interests.cancel_all(subscriber)
            notifier.cancel()
            await asyncio.gather(notifier, return_exceptions=True)

    async def _send_events(
        self, subscriber: Subscriber, changed: asyncio.Event, stream: Stream[pb.NotifyInterest, pb.NotifyEvents]
    ) -> None:
        while True:
            await changed.wait()
            changed.clear()
            waiting_of, refused = subscriber.take()
            ends = subscriber.lite_ends
            if waiting_of or refused or ends:
                response = pb.NotifyEvents()
                for interest_id, waiting in waiting_of:
                    shared = self._core.interests.is_shared(subscriber.interests[interest_id])
                    response.events.add(id=interest_id, waiting=waiting, shared=shared)
                for interest_id, is_unknown_client in refused:
                    response.events.add(id=interest_id, refused=True, unknown_client=is_unknown_client)
                for _ in range(min(len(ends), _ENDS_AT_ONCE)):
                    (group, topic, client_id), lite_topic = ends.popleft()
                    response.lite_ends.add(group=group, topic=topic, client_id=client_id, lite_topic=lite_topic)
                await stream.send([response])
                if ends:
                    changed.set()
                    await asyncio.sleep(0)

    def _flusher_commits_async(self) -> None:
        if self._options.flush == "async":
            self._flusher.commit_later()


class _Named(Protocol):
    """A request about a group and a topic."""

    @property
    def group(self) -> str:
        """Its group."""

    @property
    def topic(self) -> str:
        """Its topic."""


def _check_names(request: _Named, use: Use = Use.RECEIVE) -> None:
    """Check a request's names. Raises StatusError: ILLEGAL_CONSUMER_GROUP, ILLEGAL_TOPIC."""
    names.group(request.group)
    names.topic(request.topic, use)


def _check_hidden_ms(hidden_ms: int) -> None:
    """Refuse to hide a message until a time that fits in no record. Raises StatusError: ILLEGAL_INVISIBLE_TIME."""
    if not 0 <= hidden_ms <= _HIDDEN_MS_MAX:
        raise StatusError(
            Code.ILLEGAL_INVISIBLE_TIME, f"a message can be hidden for 0 to {_HIDDEN_MS_MAX} ms, not for {hidden_ms}"
        )


def _call_later(delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, action)
