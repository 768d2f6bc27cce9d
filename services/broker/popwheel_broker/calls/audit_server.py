"""Answers auditors and operators: messages in flight, progress of groups, traces (docs/operate/messages.md)."""

from functools import partial

from popwheel_broker.calls import trace_answer
from popwheel_broker.calls.event_answer import EventAnswer
from popwheel_broker.consume import group_progress
from popwheel_broker.consume.group_progress import ProgressPlace
from popwheel_broker.consume.in_flight import InFlight, InFlightMessage, InFlightPlace
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.core.message_search import MessageSearch, SearchPlace, Wanted
from popwheel_broker.core.message_tail import MessageTail, TailWanted
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.record import StoredRecord
from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.errors import StatusError
from popwheel_common.pace import Pace
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.service import Call

_LIST_MAX = 1_000
_STEPS_MAX = 16
"""Limit of steps of a list, each of a few milliseconds; other calls run in between."""
_LIST_BYTES_MAX = 4 << 20
"""A list of messages ends behind this size."""
_QUEUES_AT_ONCE = 10_000


class AuditServer:
    """Serves the audit's part of popwheel.v1.Broker. It changes nothing.

    Args:
        core: the broker's state.
        flusher: makes readable.
        clock: the time.
    """

    def __init__(self, core: BrokerCore, flusher: Flusher, clock: Clock) -> None:
        self._core = core
        self._flusher = flusher
        self._clock = clock
        self._pace = Pace(clock)
        self._in_flight = InFlight(core.state.table, core.acks.messages, core.store)
        self._search = MessageSearch(core.store, core.state, core.topic_registry.readers)
        self._tail = MessageTail(core.store)

    async def in_flight(self, call: Call, request: pb.InFlightListRequest) -> pb.InFlightListResponse:
        """Return some messages in flight, and where the list continues.

        After the last page, messages that are neither in flight nor done can be read in their retry topic, or among the
        dead letters.
        """
        if request.topic:
            names.topic(request.topic, Use.RECEIVE)
        if request.group:
            names.group(request.group)
        limit = min(max(1, request.limit), _LIST_MAX)
        found: list[pb.InFlightMessage] = []
        rest: InFlightPlace | None = InFlightPlace.of(request.begin)
        for _ in range(_STEPS_MAX):
            if rest is None or len(found) >= limit:
                break
            began_s = self._clock.monotonic()
            step = partial(
                self._in_flight.step, request.topic, request.group, rest, limit - len(found), request.client_id
            )
            messages, rest = await self._core.store.reads.run(step)
            # Deliveries have times of the log, and change: the answer has their present values.
            behind_ms, lines = (
                self._clock.wall_ms() - self._core.pop_clock.now_ms(),
                self._core.pops.ordered.message_group_queues,
            )
            found += [_said(each, behind_ms, lines.behind(each.delivery, each.number)) for each in messages]
            if rest is not None:
                await self._pace.let_others(self._clock.monotonic() - began_s)
        if rest is None:
            await self._flusher.durable()
        return pb.InFlightListResponse(
            messages=found,
            next="" if rest is None else str(rest),
            epoch=self._core.store.epoch,
            known_since_ms=self._core.state.table.holders.known_since_ms,
        )

    async def progress(self, call: Call, request: pb.ProgressListRequest) -> pb.ProgressListResponse:
        """Return a group's progress in some queues, and where the list continues."""
        names.group(request.group)
        begin = ProgressPlace.of(request.begin)
        limit = min(max(1, request.limit), _LIST_MAX)
        topics = await self._topics(request.group, request.topic, begin.topic, limit + 1)
        core = self._core
        found, rest = group_progress.rows(core.state, core.store, request.group, topics, begin, limit)
        answer = pb.ProgressListResponse(next="" if rest is None else str(rest), epoch=core.store.epoch)
        for row in found:
            answer.queues.add(
                topic=row.queue.topic,
                queue_id=row.queue.queue_id,
                min_offset=row.queue.known_min_offset,
                next_offset=row.next_offset,
                committed_offset=row.committed_offset,
                max_offset=row.queue.max_offset,
                in_flight=row.in_flight,
            )
        dead = core.store.queue(names.dead_letter_topic(request.group), 0)
        answer.dead_letters = 0 if dead is None else dead.max_offset - dead.known_min_offset
        return answer

    async def trace(self, call: Call, request: pb.MessageTraceRequest) -> pb.MessageTraceResponse:
        """Return some places of a message, the groups that have it, and where the list continues."""
        names.topic(request.topic, Use.RECEIVE)
        if request.group:
            names.group(request.group)
        if not request.message_id:
            raise StatusError(Code.ILLEGAL_MESSAGE_ID, "a message id is needed")
        self._core.cluster_changes.apply((request.topic,))
        wanted = Wanted(request.topic, request.message_id, request.group, request.since_ms, request.until_ms)
        holders = self._core.state.table.holders
        answer = pb.MessageTraceResponse(epoch=self._core.store.epoch, known_since_ms=holders.known_since_ms)
        rest: SearchPlace | None = SearchPlace.of(request.begin)
        for _ in range(_STEPS_MAX):
            if rest is None:
                break
            began_s = self._clock.monotonic()
            looked = await self._core.store.reads.run(partial(self._search.step, wanted, rest))
            rest = looked.next
            if looked.found:
                await self._say_traces(answer, looked.found, request.topic, request.group)
                began_s = self._clock.monotonic()
            await self._pace.let_others(self._clock.monotonic() - began_s)
        answer.next = "" if rest is None else str(rest)
        return answer

    async def events(self, call: Call, request: pb.MessageEventsRequest) -> pb.MessageEventsResponse:
        """Return the events of a message at some of its places, and where the list continues."""
        names.topic(request.topic, Use.RECEIVE)
        if request.group:
            names.group(request.group)
        if not request.message_id:
            raise StatusError(Code.ILLEGAL_MESSAGE_ID, "a message id is needed")
        self._core.cluster_changes.apply((request.topic,))
        wanted = Wanted(request.topic, request.message_id, request.group, request.since_ms, request.until_ms)
        events = self._core.state.events
        answer = pb.MessageEventsResponse(epoch=self._core.store.epoch)
        said = EventAnswer(events, answer, request.group)
        rest: SearchPlace | None = SearchPlace.of(request.begin)
        for _ in range(_STEPS_MAX):
            if rest is None:
                break
            began_s = self._clock.monotonic()
            looked = await self._core.store.reads.run(partial(self._search.step, wanted, rest))
            rest = looked.next
            said.add_stored(looked.found)
            await self._pace.let_others(self._clock.monotonic() - began_s)
        begin: int | None = 0
        while begin is not None:
            began_s = self._clock.monotonic()
            begin = said.add_deliveries(begin)
            if begin is not None:
                await self._pace.let_others(self._clock.monotonic() - began_s)
        answer.next = "" if rest is None else str(rest)
        answer.known_since_ms, answer.dropped = events.known_since_ms, events.dropped
        return answer

    async def messages(self, call: Call, request: pb.MessageListRequest) -> pb.MessageListResponse:
        """Return some messages of a topic from a range of time, those with a key or all, and where the list
        continues.
        """
        topic = _stored_topic(request.topic, request.lite_topic)
        if not request.key and not request.browse:
            raise StatusError(Code.BAD_REQUEST, "a message key is needed")
        self._core.cluster_changes.apply((request.topic,))
        wanted = Wanted(
            topic=topic,
            message_id="",
            group="",
            since_ms=request.since_ms,
            until_ms=request.until_ms,
            key=request.key,
            tag=request.tag,
            queue_id=request.queue_id if request.HasField("queue_id") else None,
            offset=request.offset,
            last=request.last,
        )
        limit = min(max(1, request.limit), _LIST_MAX)
        answer = pb.MessageListResponse(epoch=self._core.store.epoch)
        rest: SearchPlace | None = SearchPlace.of(request.begin)
        size = 0
        for _ in range(_STEPS_MAX):
            if rest is None or len(answer.messages) >= limit or size > _LIST_BYTES_MAX:
                break
            began_s = self._clock.monotonic()
            step = partial(self._search.step, wanted, rest, limit - len(answer.messages))
            looked = await self._core.store.reads.run(step)
            rest = looked.next
            for stored in looked.found:
                traced = trace_answer.place(answer.messages.add(), stored, stored)
                size += len(traced.message)
            answer.looked_through += looked.messages
            answer.unreadable += looked.unreadable
            await self._pace.let_others(self._clock.monotonic() - began_s)
        answer.next = "" if rest is None else str(rest)
        return answer

    async def tail(self, call: Call, request: pb.MessageTailRequest) -> pb.MessageTailResponse:
        """Return the newest messages of a topic since the last request, with little work however many arrived."""
        topic = _stored_topic(request.topic, request.lite_topic)
        self._core.cluster_changes.apply((request.topic,))
        places = {each.queue_id: each.offset for each in request.places}
        limit = min(max(0, request.limit), _LIST_MAX)
        step = partial(self._tail.step, TailWanted(topic, request.key, request.tag), places, limit)
        seen = await self._core.store.reads.run(step)
        answer = pb.MessageTailResponse(passed_over=seen.passed_over, begun=not places)
        for queue_id, offset in seen.places.items():
            answer.places.add(queue_id=queue_id, offset=offset)
        for stored in seen.found:
            trace_answer.place(answer.messages.add(), stored, stored)
        return answer

    async def _say_traces(
        self, answer: pb.MessageTraceResponse, found: list[StoredRecord], topic: str, group: str
    ) -> None:
        """Add messages and their deliveries to an answer. All deliveries are scanned for it, some at a time."""
        said = trace_answer.Traces(self._core, self._search, answer, topic, group, self._clock.wall_ms())
        await self._core.store.reads.run(partial(said.add, found))
        begin: int | None = 0 if said.is_open else None
        while begin is not None:
            began_s = self._clock.monotonic()
            behind_ms = self._clock.wall_ms() - self._core.pop_clock.now_ms()
            begin = said.deliveries(begin, behind_ms)
            if begin is not None:
                await self._pace.let_others(self._clock.monotonic() - began_s)
        said.ended()

    async def _topics(self, group: str, topic: str, begin: str, lite_max: int) -> set[str]:
        """Return the topics whose queues are wanted: one topic and its retries, or all that a group reads.

        Of a topic's lite topics, `lite_max` are returned, from `begin` on.
        """
        if topic:
            names.topic(topic, Use.RECEIVE)
            lite_topics = self._core.store.queues.lite_names(topic, begin, lite_max)
            if names.lite_of(begin) and names.lite_parent(begin) == topic:
                lite_topics.append(begin)
            return {topic, names.retry_topic(group, topic), *lite_topics}
        queues = self._core.state.merge_buffer.of_group(group)
        topics = {
            *self._core.store.queues.retry_topics_of_group(group),
            *self._core.topic_registry.readers.topics_of(group),
        }
        for first in range(0, len(queues), _QUEUES_AT_ONCE):
            began_s = self._clock.monotonic()
            topics.update(queue.topic for queue in queues[first : first + _QUEUES_AT_ONCE])
            if first + _QUEUES_AT_ONCE < len(queues):
                await self._pace.let_others(self._clock.monotonic() - began_s)
        return topics


def _stored_topic(topic: str, lite_topic: str) -> str:
    """Return the topic to search, whose name comes from outside. Raises StatusError: ILLEGAL_TOPIC."""
    if lite_topic:
        return names.lite_topic(names.topic(topic, Use.RECEIVE), names.checked_lite_topic(lite_topic))
    return names.topic(topic, Use.PULL)


def _said(message: InFlightMessage, behind_ms: int, holds_back: int) -> pb.InFlightMessage:
    """Return a message as the answer has it.

    Args:
        message: the message.
        behind_ms: by how much the time of the log is behind the wall clock.
        holds_back: number of messages behind it in its message-group queue.
    """
    delivery = message.delivery
    return pb.InFlightMessage(
        group=delivery.group,
        topic=message.topic,
        queue_id=delivery.queue_id,
        queue_offset=message.queue_offset,
        message_id=message.message_id,
        attempt=message.attempt,
        popped_ms=delivery.pop_time_ms + behind_ms,
        due_ms=message.due_ms + behind_ms,
        client_id=message.client_id,
        message_group=message.message_group if delivery.lines else "",
        holds_back=holds_back,
        born_ms=message.born_ms,
    )
