"""The admin API's part on deliveries: `/api/v1/inflight`, `/api/v1/groups/{name}/progress`, `/api/v1/messages/{id}`
(docs/audit.md).

A page is of one broker; the next goes on there, or at the next broker.
"""

from collections.abc import Callable
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from services.common.contract import names
from services.common.contract.names import Kind, Use
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.controller.cluster.cluster_state import ClusterState
from services.controller.http.inquiry import Inquiry, Silence
from services.controller.http.quarantine_routes import message_fields, message_of
from services.controller.http.refusal import refusal
from services.rpc.methods import IN_FLIGHT_LIST, LITE_TOPIC_LIST, MESSAGE_TRACE, PROGRESS_LIST
from services.rpc.service import Method

_LIMIT_MAX = 1_000  # of what a broker lists
_TIME_MS_MAX = 2**62
_HOLDINGS = {pb.WAITS: "waits", pb.GIVEN_OUT: "given out", pb.DONE: "done"}
_ASKED_WRONGLY = (Code.BAD_REQUEST, Code.ILLEGAL_MESSAGE_ID, Code.ILLEGAL_TOPIC, Code.ILLEGAL_CONSUMER_GROUP)

Request = TypeVar("Request")
Answer = TypeVar(
    "Answer", pb.InFlightListResponse, pb.ProgressListResponse, pb.MessageTraceResponse, pb.LiteTopicListResponse
)

After = Annotated[
    str,
    Query(max_length=400, description="`next` of the page before. A page may be empty and not the last."),
]
Limit = Annotated[int, Query(ge=1, le=_LIMIT_MAX, description="At most so many.")]


class InFlightMessage(BaseModel):
    """A message that a group was given and has not acknowledged."""

    group: str
    topic: str = Field(description="In which it has its offset: the topic, or the group's retry topic of it.")
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str = Field(description="Its own, which retries keep; empty if it cannot be read.")
    attempt: int = Field(description="Which delivery this is, from 1; 0 if it cannot be read.")
    popped_ms: int = Field(
        description="When it was given out, or its invisible duration last changed, in milliseconds since 1970."
    )
    due_ms: int = Field(description="Until when it is hidden from others of the group, likewise.")


class _Page(BaseModel):
    broker: str = Field(description="Of which this page is; empty if there is none.")
    epoch: int = Field(description="Of its master; 0 if it did not answer.")
    unanswered: list[Silence]
    next: str | None = Field(description="To be given as `after` for what follows; null if nothing does.")


class InFlightList(_Page):
    """Some messages that are given out."""

    messages: list[InFlightMessage]


class QueueProgress(BaseModel):
    """How far a group has come in one queue."""

    topic: str = Field(description="The topic, or the group's retry topic of it.")
    broker: str
    queue_id: int
    min_offset: int = Field(description="Of the oldest message that is held, as far as the broker has looked.")
    next_offset: int = Field(description="Where the group reads on.")
    committed_offset: int | None = Field(description="As GetOffset says it; null if there is none.")
    max_offset: int = Field(description="Of the next message that comes.")
    in_flight: int = Field(description="Messages given out and not acknowledged.")
    lag: int = Field(description="Messages not acknowledged: those that wait, and those in flight.")


class GroupProgress(_Page):
    """How far a group has come in some queues."""

    group: str
    kind: str = Field(description="pop; or Spark, of a query that shows with it how far it is (its name says so).")
    queues: list[QueueProgress]
    dead_letters: int = Field(description="Held at this broker in the group's dead letter queue.")


class LiteTopic(BaseModel):
    """A lite topic at one broker."""

    lite_topic: str
    broker: str
    min_offset: int = Field(description="Of the oldest message that is held, as far as the broker has looked.")
    max_offset: int = Field(description="Of the next message that comes.")
    last_ms: int | None = Field(description="When its last message was stored, in milliseconds since 1970; or null.")
    waiting: int = Field(description="Messages that the group has yet to take; 0 if none was named.")
    readers: int = Field(description="Clients that read it, of all groups.")


class LiteTopics(_Page):
    """Some lite topics of a topic."""

    lite_topics: list[LiteTopic]
    total: int = Field(description="How many the topic has at this broker.")


class GroupHolding(BaseModel):
    """What a group has of a message at one place."""

    group: str
    holding: str = Field(
        description="`waits`: it has yet to read it. `given out`. `done`: acknowledged, or passed by (a filter, an "
        "offset that was set), or it has gone on to a retry or the dead letters, which are places of their own."
    )
    popped_ms: int | None = Field(description="Of one that is given out: since when; else null.")
    due_ms: int | None = Field(description="Until when it is hidden; else null.")


class TracedMessage(BaseModel):
    """A message at one place."""

    broker: str
    topic: str = Field(description="The topic, a retry topic of it, or a dead letter topic.")
    queue_id: int
    queue_offset: int
    stored_ms: int = Field(description="When it came there, in milliseconds since 1970.")
    attempts: int = Field(description="Failed deliveries before.")
    tag: str
    keys: list[str]
    properties: dict[str, str]
    body: str = Field(description="In base64; its first 64 KiB.")
    body_bytes: int = Field(description="How long it is.")
    groups: list[GroupHolding] = Field(description="Those that have read of its queue.")


class MessageTrace(_Page):
    """Some places of a message. A page may be empty and not the last."""

    message_id: str
    places: list[TracedMessage]


_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("That is no place to go on from."),
    404: refusal("There is no topic or group of that name."),
}


class _Part(NamedTuple, Generic[Answer]):
    """What one broker says.

    Args:
        broker: its name; empty if there is none.
        answer: an empty one if it did not answer.
        unanswered: why not.
        next: where to go on.
    """

    broker: str
    answer: Answer
    unanswered: list[Silence]
    next: str | None


def audit_router(inquiry: Inquiry) -> APIRouter:
    """The routes.

    Args:
        inquiry: asks the brokers.
    """
    router = APIRouter(tags=["audit"])

    @router.get("/topics/{name}/lite-topics", responses=_REFUSED)
    async def list_lite_topics(
        name: str = Path(),
        group: str = Query(default="", description="Whose waiting messages are counted."),
        broker: str = Query(default="", description="Of this broker alone."),
        after: After = "",
        limit: Limit = 100,
    ) -> LiteTopics:
        _check(inquiry.state, name, group)
        part = await _ask(
            *(inquiry, LITE_TOPIC_LIST, broker, after, pb.LiteTopicListResponse()),
            lambda begin: pb.LiteTopicListRequest(topic=name, group=group, limit=limit, begin=begin),
        )
        return LiteTopics(
            lite_topics=[_lite_topic(part.broker, each) for each in part.answer.lite_topics],
            total=part.answer.total,
            broker=part.broker,
            epoch=part.answer.epoch,
            unanswered=part.unanswered,
            next=part.next,
        )

    @router.get("/inflight", responses=_REFUSED)
    async def list_in_flight(
        topic: str = Query(description="That groups receive from."),
        group: str = Query(default="", description="Of this group alone."),
        broker: str = Query(default="", description="Of this broker alone."),
        after: After = "",
        limit: Limit = 100,
    ) -> InFlightList:
        _check(inquiry.state, topic, group)
        part = await _ask(
            *(inquiry, IN_FLIGHT_LIST, broker, after, pb.InFlightListResponse()),
            lambda begin: pb.InFlightListRequest(topic=topic, group=group, limit=limit, begin=begin),
        )
        return InFlightList(
            messages=[_message(part.broker, each) for each in part.answer.messages],
            broker=part.broker,
            epoch=part.answer.epoch,
            unanswered=part.unanswered,
            next=part.next,
        )

    @router.get("/groups/{name}/progress", responses=_REFUSED)
    async def list_progress(
        name: str = Path(),
        topic: str = Query(
            default="", description="The queues of this topic and of its retries; of all that the group has read else."
        ),
        broker: str = Query(default="", description="Of this broker alone."),
        after: After = "",
        limit: Limit = 100,
    ) -> GroupProgress:
        _check(inquiry.state, topic, name)
        part = await _ask(
            *(inquiry, PROGRESS_LIST, broker, after, pb.ProgressListResponse()),
            lambda begin: pb.ProgressListRequest(group=name, topic=topic, limit=limit, begin=begin),
        )
        return GroupProgress(
            group=name,
            kind="Spark" if names.is_of_spark(name) else "pop",
            queues=[_queue(part.broker, each) for each in part.answer.queues],
            dead_letters=part.answer.dead_letters,
            broker=part.broker,
            epoch=part.answer.epoch,
            unanswered=part.unanswered,
            next=part.next,
        )

    @router.get("/messages/{message_id}", responses=_REFUSED)
    async def trace_message(
        message_id: str = Path(max_length=255),
        topic: str = Query(description="That it was sent to."),
        group: str = Query(default="", description="What this group has of it alone."),
        since_ms: int = Query(default=0, ge=0, le=_TIME_MS_MAX, description="What was stored before is passed over."),
        until_ms: int = Query(
            default=_TIME_MS_MAX, ge=0, le=_TIME_MS_MAX, description="So is what the topic got after that."
        ),
        broker: str = Query(default="", description="At this broker alone."),
        after: After = "",
    ) -> MessageTrace:
        _check(inquiry.state, topic, group)
        part = await _ask(
            *(inquiry, MESSAGE_TRACE, broker, after, pb.MessageTraceResponse()),
            lambda begin: pb.MessageTraceRequest(
                topic=topic, message_id=message_id, group=group, since_ms=since_ms, until_ms=until_ms, begin=begin
            ),
        )
        return MessageTrace(
            message_id=message_id,
            places=[_traced(part.broker, each) for each in part.answer.messages],
            broker=part.broker,
            epoch=part.answer.epoch,
            unanswered=part.unanswered,
            next=part.next,
        )

    return router


def _check(state: ClusterState, topic: str, group: str) -> None:
    """Raise StatusError if there is no such topic or group; either may be empty."""
    if group:
        state.group(group)
    if topic and names.kind_of(names.topic(topic, Use.RECEIVE)) is Kind.DEAD_LETTER:
        state.group(topic.removeprefix(names.DEAD_LETTER_PREFIX))
    elif topic:
        state.topic(topic)


async def _ask(
    inquiry: Inquiry,
    method: Method[Request, Answer],
    broker: str,
    after: str,
    nothing: Answer,
    request_at: Callable[[str], Request],
) -> _Part[Answer]:
    """Ask the broker at which a page begins.

    Args:
        inquiry: asks it.
        method: what is asked.
        broker: the only one that is wanted; empty for all, one after another.
        after: its name, a `/` and where its list goes on; empty for the first page.
        nothing: an empty answer.
        request_at: makes the question of where the list goes on.

    Raises:
        StatusError: as the broker says, if it was asked for what cannot be.
    """
    at, slash, begin = after.partition("/")
    if after and not slash:
        raise StatusError(Code.BAD_REQUEST, "after: this is no place; give what the page before has as `next`")
    waiting = [name for name in ([broker] if broker else sorted(inquiry.state.brokers)) if name >= at]
    if not waiting:
        return _Part("", nothing, [], None)
    name, *later = waiting
    following = f"{later[0]}/" if later else None
    try:
        answer = await inquiry.of(name, method, request_at(begin if name == at else ""))
    except StatusError as error:
        if error.code in _ASKED_WRONGLY:
            raise
        return _Part(name, nothing, [Silence(broker=name, reason=error.message)], following)
    return _Part(name, answer, [], f"{name}/{answer.next}" if answer.next else following)


def _message(broker: str, message: pb.InFlightMessage) -> InFlightMessage:
    return InFlightMessage(
        group=message.group,
        topic=message.topic,
        broker=broker,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        message_id=message.message_id,
        attempt=message.attempt,
        popped_ms=message.popped_ms,
        due_ms=message.due_ms,
    )


def _lite_topic(broker: str, entry: pb.LiteTopicEntry) -> LiteTopic:
    return LiteTopic(
        lite_topic=entry.lite_topic,
        broker=broker,
        min_offset=entry.min_offset,
        max_offset=entry.max_offset,
        last_ms=entry.last_ms or None,
        waiting=entry.waiting,
        readers=entry.readers,
    )


def _queue(broker: str, queue: pb.QueueProgress) -> QueueProgress:
    return QueueProgress(
        topic=queue.topic,
        broker=broker,
        queue_id=queue.queue_id,
        min_offset=queue.min_offset,
        next_offset=queue.next_offset,
        committed_offset=None if queue.committed_offset < 0 else queue.committed_offset,
        max_offset=queue.max_offset,
        in_flight=queue.in_flight,
        lag=max(0, queue.max_offset - queue.next_offset) + queue.in_flight,
    )


def _traced(broker: str, traced: pb.TracedMessage) -> TracedMessage:
    fields = message_fields(message_of(traced.message))
    groups = [
        GroupHolding(
            group=each.group,
            holding=_HOLDINGS[each.holding],
            popped_ms=each.popped_ms or None,
            due_ms=each.due_ms or None,
        )
        for each in traced.groups
    ]
    place = {
        "broker": broker,
        "topic": traced.topic,
        "queue_id": traced.queue_id,
        "queue_offset": traced.queue_offset,
        "stored_ms": traced.stored_ms,
        "attempts": traced.attempts,
        "groups": groups,
    }
    return TracedMessage.model_validate(fields | place)
