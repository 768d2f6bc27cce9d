"""Routes of the admin API about deliveries: `/api/v1/inflight`, `/api/v1/groups/{name}/progress`, `/api/v1/messages`
and `/api/v1/messages/{id}` (docs/operate/messages.md).

A page is of one broker; the next goes on there, or at the next broker.
"""

from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from fastapi import Query

from popwheel_common.contract import names
from popwheel_common.contract.names import Kind, Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.http.audit_shapes import (
    GroupProgress,
    InFlightList,
    ListedMessage,
    LiteTopics,
    MessageList,
    MessageTrace,
    TracedMessage,
    in_flight_message,
    lite_topic_of,
    placed,
    queue_progress,
    traced_message,
)
from popwheel_controller.http.guard import SeesData
from popwheel_controller.http.inquiry import Inquiry, Silence
from popwheel_controller.http.message_fates import Fate, fates
from popwheel_controller.http.path_parts import GroupName, MessageId, TopicName
from popwheel_controller.http.refusal import refusal
from popwheel_rpc.methods import IN_FLIGHT_LIST, LITE_TOPIC_LIST, MESSAGE_LIST, MESSAGE_TRACE, PROGRESS_LIST
from popwheel_rpc.service import Method

_LIMIT_MAX = 1_000  # entries in a broker's answer
TIME_MS_MAX = 2**62
_KEY_LENGTH_MAX = 1_000
_CLIENT_LENGTH_MAX = 4_096
_TRACES_MAX = 8
"""Limit of a broker's answers in one page of places."""
_ASKED_WRONGLY = (Code.BAD_REQUEST, Code.ILLEGAL_MESSAGE_ID, Code.ILLEGAL_TOPIC, Code.ILLEGAL_CONSUMER_GROUP)

Request = TypeVar(
    "Request",
    pb.InFlightListRequest,
    pb.ProgressListRequest,
    pb.MessageTraceRequest,
    pb.MessageListRequest,
    pb.LiteTopicListRequest,
)
Answer = TypeVar(
    "Answer",
    pb.InFlightListResponse,
    pb.ProgressListResponse,
    pb.MessageTraceResponse,
    pb.MessageListResponse,
    pb.LiteTopicListResponse,
)

After = Annotated[
    str,
    Query(max_length=400, description="`next` of the previous page. A page may be empty although more follow."),
]
Limit = Annotated[int, Query(ge=1, le=_LIMIT_MAX, description="Maximum number of entries.")]


REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("Invalid `after`."),
    404: refusal("No such topic or group."),
}


class _Part(NamedTuple, Generic[Answer]):
    """Part of an answer from one broker.

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


def audit_router(inquiry: Inquiry) -> Routes:
    """Return the routes.

    Args:
        inquiry: asks the brokers.
    """
    router = Routes(tags=["audit"])

    @router.get("/topics/{name}/lite-topics", responses=REFUSED)
    async def list_lite_topics(
        name: TopicName,
        group: str = Query(default="", description="Whose waiting messages are counted."),
        broker: str = Query(default="", description="Only of this broker."),
        after: After = "",
        limit: Limit = 100,
    ) -> LiteTopics:
        """List the lite topics of a topic with their offsets and readers."""
        check_names(inquiry.state, name, group)
        part = await _ask(
            inquiry,
            LITE_TOPIC_LIST,
            pb.LiteTopicListRequest(topic=name, group=group, limit=limit),
            broker=broker,
            after=after,
        )
        return LiteTopics(
            lite_topics=[lite_topic_of(part.broker, each) for each in part.answer.lite_topics],
            total=part.answer.total,
            broker=part.broker,
            epoch=part.answer.epoch,
            unanswered=part.unanswered,
            next=part.next,
        )

    @router.get("/inflight", responses=REFUSED)
    async def list_in_flight(
        topic: str = Query(default="", description="That groups receive from; all topics else."),
        group: str = Query(default="", description="Only of this group."),
        client: str = Query(
            default="",
            max_length=_CLIENT_LENGTH_MAX,
            description="Of the client with this id alone, as far as it is known.",
        ),
        broker: str = Query(default="", description="Only of this broker."),
        after: After = "",
        limit: Limit = 100,
    ) -> InFlightList:
        """List messages in flight: who has each, since when, and until when it is invisible."""
        check_names(inquiry.state, topic, group)
        part = await _ask(
            inquiry,
            IN_FLIGHT_LIST,
            pb.InFlightListRequest(topic=topic, group=group, client_id=client, limit=limit),
            broker=broker,
            after=after,
        )
        return InFlightList(
            known_since_ms=part.answer.known_since_ms or None,
            messages=[in_flight_message(part.broker, each) for each in part.answer.messages],
            broker=part.broker,
            epoch=part.answer.epoch,
            unanswered=part.unanswered,
            next=part.next,
        )

    @router.get("/groups/{name}/progress", responses=REFUSED)
    async def list_progress(
        name: GroupName,
        topic: str = Query(
            default="", description="The queues of this topic and of its retries; of all that the group has read else."
        ),
        broker: str = Query(default="", description="Only of this broker."),
        after: After = "",
        limit: Limit = 100,
    ) -> GroupProgress:
        """List the queues that a group reads with its offsets, lag and messages in flight."""
        check_names(inquiry.state, topic, name)
        part = await _ask(
            inquiry,
            PROGRESS_LIST,
            pb.ProgressListRequest(group=name, topic=topic, limit=limit),
            broker=broker,
            after=after,
        )
        return GroupProgress(
            group=name,
            kind="Spark" if names.is_of_spark(name) else "pop",
            queues=[queue_progress(part.broker, each) for each in part.answer.queues],
            dead_letters=part.answer.dead_letters,
            broker=part.broker,
            epoch=part.answer.epoch,
            unanswered=part.unanswered,
            next=part.next,
        )

    @router.get("/messages", responses=REFUSED)
    async def list_messages(
        sees_data: SeesData,
        topic: str = Query(description="That they were sent to."),
        key: str = Query(min_length=1, max_length=_KEY_LENGTH_MAX, description="One of their keys."),
        since_ms: int = Query(
            default=0, ge=0, le=TIME_MS_MAX, description="Only messages stored since then, in milliseconds since 1970."
        ),
        until_ms: int = Query(
            default=TIME_MS_MAX, ge=0, le=TIME_MS_MAX, description="Only messages stored up to then."
        ),
        broker: str = Query(default="", description="Only at this broker."),
        after: After = "",
        limit: Limit = 100,
    ) -> MessageList:
        """List the messages of a topic that have a key."""
        check_names(inquiry.state, topic, "")
        part = await _ask(
            inquiry,
            MESSAGE_LIST,
            pb.MessageListRequest(topic=topic, key=key, since_ms=since_ms, until_ms=until_ms, limit=limit),
            broker=broker,
            after=after,
        )
        return MessageList(
            messages=[
                ListedMessage.model_validate(placed(part.broker, each, sees_data)) for each in part.answer.messages
            ],
            looked_through=part.answer.looked_through,
            unreadable=part.answer.unreadable,
            broker=part.broker,
            epoch=part.answer.epoch,
            unanswered=part.unanswered,
            next=part.next,
        )

    @router.get("/messages/{message_id}", responses=REFUSED)
    async def trace_message(
        sees_data: SeesData,
        message_id: MessageId,
        topic: str = Query(description="That it was sent to."),
        group: str = Query(default="", description="What this group has of it alone."),
        since_ms: int = Query(
            default=0, ge=0, le=TIME_MS_MAX, description="Only messages stored since then, in milliseconds since 1970."
        ),
        until_ms: int = Query(
            default=TIME_MS_MAX, ge=0, le=TIME_MS_MAX, description="Only messages stored up to then."
        ),
        broker: str = Query(default="", description="Only at this broker."),
        after: After = "",
    ) -> MessageTrace:
        """List the places of a message: its topic, retries, dead letters, and where it waits before.

        One place alone does not say what became of the message: read all pages, and order them by `broker` and
        `position` (docs/operate/messages.md).
        """
        check_names(inquiry.state, topic, group)

        async def asked(at: str) -> _Part[pb.MessageTraceResponse]:
            return await _ask(
                inquiry,
                MESSAGE_TRACE,
                pb.MessageTraceRequest(
                    topic=topic, message_id=message_id, group=group, since_ms=since_ms, until_ms=until_ms
                ),
                broker=broker,
                after=at,
            )

        part = await asked(after)
        found = [*part.answer.messages]
        for _ in range(_TRACES_MAX - 1):
            # A fate is derived from all places at a broker together.
            if part.next is None or not part.answer.next:
                break
            part = await asked(part.next)
            found += part.answer.messages
        places = [traced_message(part.broker, each, sees_data) for each in found]
        return MessageTrace(
            known_since_ms=part.answer.known_since_ms or None,
            message_id=message_id,
            places=places,
            fates=_with_fates(places, topic),
            broker=part.broker,
            epoch=part.answer.epoch,
            unanswered=part.unanswered,
            next=part.next,
        )

    return router


def _with_fates(places: list[TracedMessage], topic: str) -> list[Fate]:
    """Return the fates of a message; they are added to its places, too."""
    found = fates([each.model_dump() for each in places], topic)
    by_place = {(each.broker, each.position): each for each in places}
    for fate in found:
        place = by_place[fate.broker, fate.position]
        holding = next((each for each in place.groups if each.group == fate.group), None)
        (holding or place).fate = fate.words
    return found


def check_names(state: ClusterState, topic: str, group: str) -> None:
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
    request: Request,
    broker: str,
    after: str,
) -> _Part[Answer]:
    """Ask the broker at which a page begins.

    Args:
        inquiry: asks it.
        method: what is asked.
        request: the question, without where the list goes on.
        broker: the only one that is wanted; empty for all, one after another.
        after: its name, a `/` and where its list goes on; empty for the first page.

    Raises:
        StatusError: as the broker says, if it was asked for what cannot be.
    """
    nothing = method.response.decode(b"")
    at, slash, begin = after.partition("/")
    if after and not slash:
        raise StatusError(Code.BAD_REQUEST, "after: this is no place; give what the page before has as `next`")
    waiting = [name for name in ([broker] if broker else sorted(inquiry.state.brokers)) if name >= at]
    if not waiting:
        return _Part("", nothing, [], None)
    name, *later = waiting
    following = f"{later[0]}/" if later else None
    request.begin = begin if name == at else ""
    try:
        answer = await inquiry.of(name, method, request)
    except StatusError as error:
        if error.code in _ASKED_WRONGLY:
            raise
        return _Part(name, nothing, [Silence(broker=name, reason=error.message)], following)
    return _Part(name, answer, [], f"{name}/{answer.next}" if answer.next else following)
