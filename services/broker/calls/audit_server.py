"""What auditors and operators ask of deliveries: who has which message, how far groups are (docs/audit.md)."""

from functools import partial

from services.broker.pace import Pace
from services.broker.pop import delivery, group_progress
from services.broker.pop.group_progress import ProgressPlace
from services.broker.pop.in_flight import InFlight, InFlightMessage, InFlightPlace
from services.broker.records.record import StoredRecord
from services.broker.state.core import BrokerCore
from services.broker.state.message_search import MessageSearch, SearchPlace, Wanted
from services.broker.store.flusher import Flusher
from services.common.clock import Clock
from services.common.contract import names
from services.common.contract.names import Use
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.rpc.service import Call

_LIST_MAX = 1_000
_STEPS_MAX = 16
"""Of a list, each of a few milliseconds; others have their turn in between."""
_QUEUES_AT_ONCE = 10_000


class AuditServer:
    """Serves the audit's part of popwheel.v1.Broker. Nothing is changed by it.

    Args:
        core: knows.
        flusher: makes readable.
        clock: the time.
    """

    def __init__(self, core: BrokerCore, flusher: Flusher, clock: Clock) -> None:
        self._core = core
        self._flusher = flusher
        self._clock = clock
        self._pace = Pace(clock)
        self._in_flight = InFlight(core.state.table, core.acks.messages, core.store)
        self._search = MessageSearch(core.store, core.state)

    async def in_flight(self, call: Call, request: pb.InFlightListRequest) -> pb.InFlightListResponse:
        """Some messages that are given out, and where to go on.

        When the last of them are told, what is not given out any more and not done with can be read in its retry topic,
        or among the dead letters.
        """
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
            step = partial(self._in_flight.step, request.topic, request.group, rest, limit - len(found))
            messages, rest = await self._core.store.reads.run(step)
            # Check points go by the time of the log, and change: it is said now what they say now.
            behind_ms = self._clock.wall_ms() - self._core.pop_clock.now_ms()
            found += [_said(message, behind_ms) for message in messages]
            if rest is not None:
                await self._pace.let_others(self._clock.monotonic() - began_s)
        if rest is None:
            await self._flusher.durable(self._core.store.log.end_position)
        return pb.InFlightListResponse(
            messages=found, next="" if rest is None else str(rest), epoch=self._core.store.epoch
        )

    async def progress(self, call: Call, request: pb.ProgressListRequest) -> pb.ProgressListResponse:
        """How far a group has come in some queues, and where to go on."""
        names.group(request.group)
        begin = ProgressPlace.of(request.begin)
        topics = await self._topics(request.group, request.topic)
        limit = min(max(1, request.limit), _LIST_MAX)
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
        """Where a message is, and who has it: some places, and where to go on."""
        names.topic(request.topic, Use.RECEIVE)
        if request.group:
            names.group(request.group)
        if not request.message_id:
            raise StatusError(Code.ILLEGAL_MESSAGE_ID, "the id of a message is needed to look for it")
        self._core.settlement.settle((request.topic,))
        wanted = Wanted(request.topic, request.message_id, request.group, request.since_ms, request.until_ms)
        answer = pb.MessageTraceResponse(epoch=self._core.store.epoch)
        rest: SearchPlace | None = SearchPlace.of(request.begin)
        for _ in range(_STEPS_MAX):
            if rest is None:
                break
            began_s = self._clock.monotonic()
            found, rest = await self._core.store.reads.run(partial(self._search.step, wanted, rest))
            if found:
                await self._say_traces(answer, found, request.group)
                began_s = self._clock.monotonic()
            await self._pace.let_others(self._clock.monotonic() - began_s)
        answer.next = "" if rest is None else str(rest)
        return answer

    async def _say_traces(self, answer: pb.MessageTraceResponse, found: list[StoredRecord], group: str) -> None:
        """Tell of messages and who has them. All check points are gone through for it, some at a time."""
        said: dict[tuple[str, int, int, str], pb.GroupHolding] = {}
        for stored in found:
            traced = answer.messages.add(
                topic=stored.topic,
                queue_id=stored.queue_id,
                queue_offset=stored.queue_offset,
                stored_ms=stored.store_time_ms,
                attempts=stored.attempts,
            )
            traced.message = delivery.pulled_message(stored, b"")
            for name, waits in self._search.readers(stored, group).items():
                of_group = traced.groups.add(group=name, holding=pb.WAITS if waits else pb.DONE)
                said[stored.topic, stored.queue_id, stored.queue_offset, name] = of_group
        begin: int | None = 0 if any(each.holding == pb.DONE for each in said.values()) else None
        while begin is not None:
            began_s = self._clock.monotonic()
            behind_ms = self._clock.wall_ms() - self._core.pop_clock.now_ms()
            holdings, begin = self._search.holdings(found, group, begin)
            for place, name, check_point, number in holdings:
                of_group = said.get((*place, name), pb.GroupHolding())  # else it came to read of the queue just now
                if check_point.is_held:
                    of_group.holding = pb.WAITS  # it was read, and stands in line
                else:
                    of_group.holding = pb.GIVEN_OUT
                    of_group.popped_ms = check_point.pop_time_ms + behind_ms
                    of_group.due_ms = check_point.due_of(number) + behind_ms
            if begin is not None:
                await self._pace.let_others(self._clock.monotonic() - began_s)

    async def _topics(self, group: str, topic: str) -> set[str]:
        """Whose queues are wanted: a topic's and those of its retries, or those of all that a group has read."""
        if topic:
            names.topic(topic, Use.RECEIVE)
            return {topic, names.retry_topic(group, topic), *self._core.store.queues.lite_names(topic)}
        queues = self._core.state.merge_buffer.of_group(group)
        topics: set[str] = set(self._core.store.queues.retry_topics_of_group(group))
        for first in range(0, len(queues), _QUEUES_AT_ONCE):
            began_s = self._clock.monotonic()
            topics.update(queue.topic for queue in queues[first : first + _QUEUES_AT_ONCE])
            if first + _QUEUES_AT_ONCE < len(queues):
                await self._pace.let_others(self._clock.monotonic() - began_s)
        return topics


def _said(message: InFlightMessage, behind_ms: int) -> pb.InFlightMessage:
    """A message as it is told.

    Args:
        message: the message.
        behind_ms: by how much the time of the log is behind the wall clock.
    """
    check_point = message.check_point
    return pb.InFlightMessage(
        group=check_point.group,
        topic=message.topic,
        queue_id=check_point.queue_id,
        queue_offset=message.queue_offset,
        message_id=message.message_id,
        attempt=message.attempt,
        popped_ms=check_point.pop_time_ms + behind_ms,
        due_ms=message.due_ms + behind_ms,
    )
