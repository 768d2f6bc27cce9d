"""Routes of the admin API about what a topic holds: `/api/v1/topics/{name}/browse`. Nothing is taken away by it."""

from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import BaseModel, Field

from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.names import Kind, Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.http.audit_shapes import ListedMessage, placed
from popwheel_controller.http.bodies import BEGINNING_BYTES_MAX
from popwheel_controller.http.broker_pages import After, ask_in_order
from popwheel_controller.http.guard import SeesData
from popwheel_controller.http.inquiry import Inquiry, Silence
from popwheel_controller.http.refusal import refusal
from popwheel_rpc.methods import MESSAGE_LIST

_LISTED: Final = 50
_LISTED_MAX: Final = 100
_SCANNED_MAX: Final = 10_000
"""Messages that are looked through for a page, about."""
_NUMBER_MAX: Final = 2**62
_QUEUE_ID_MAX: Final = 65_535

Key = Annotated[str, Query(max_length=1_000, description="Only those with this key.")]
Tag = Annotated[str, Query(max_length=1_000, description="Only those with this tag.")]
LiteTopic = Annotated[str, Query(max_length=64, description="Of this lite topic of the topic.")]


class BrowsedMessages(BaseModel):
    """Page of messages, by broker, queue and offset. A page may be empty although more follow."""

    messages: list[ListedMessage] = Field(description="With the first KiB of each body.")
    looked_through: int = Field(description="Number of messages scanned for this page.")
    unreadable: int = Field(description="Those among them that cannot be read.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")


_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("Invalid `after`, or what is asked for makes no sense together."),
    404: refusal("No such topic."),
}


def browse_router(inquiry: Inquiry, clock: Clock) -> Routes:
    """Return the routes.

    Args:
        inquiry: asks the brokers.
        clock: limits the time for a page.
    """
    router = Routes(tags=["topics"])

    @router.get("/topics/{name}/browse", responses=_REFUSED)
    async def browse_topic(
        sees_data: SeesData,
        name: str = Path(description="A topic; or `%DLQ%GROUP`, or `%RETRY%GROUP+TOPIC`."),
        broker: str = Query(default="", description="Only at this broker."),
        queue_id: int | None = Query(default=None, ge=0, le=_QUEUE_ID_MAX, description="In this queue of each broker."),
        offset: int = Query(default=0, ge=0, le=_NUMBER_MAX, description="From this offset on in each queue."),
        time_ms: int = Query(default=0, ge=0, le=_NUMBER_MAX, description="From those on that were stored then."),
        last: int = Query(
            default=0, ge=0, le=_LISTED_MAX, description="Number of messages at the end of each queue; 0: all."
        ),
        key: Key = "",
        tag: Tag = "",
        lite_topic: LiteTopic = "",
        after: After = "",
        limit: Annotated[int, Query(ge=1, le=_LISTED_MAX, description="Maximum number of entries.")] = _LISTED,
    ) -> BrowsedMessages:
        """List messages of a topic by queue and offset; the progress of groups stays as it is."""
        check_topic(inquiry.state, name, lite_topic)
        if sum(map(bool, (offset, time_ms, last))) > 1:
            raise StatusError(Code.BAD_REQUEST, "choose one of `offset`, `time_ms`, `last`: each says where to begin")
        found: list[ListedMessage] = []
        looked_through = unreadable = 0

        async def step(at: str, begin: str) -> tuple[str, bool]:
            nonlocal looked_through, unreadable
            request = pb.MessageListRequest(
                topic=name,
                browse=True,
                key=key,
                tag=tag,
                lite_topic=lite_topic,
                since_ms=time_ms,
                until_ms=_NUMBER_MAX,
                queue_id=queue_id,
                offset=offset,
                last=last,
                limit=limit - len(found),
                begin=begin,
            )
            answer = await inquiry.of(at, MESSAGE_LIST, request)
            for each in answer.messages:
                found.append(ListedMessage.model_validate(placed(at, each, sees_data, BEGINNING_BYTES_MAX)))
            looked_through += answer.looked_through
            unreadable += answer.unreadable
            return answer.next, len(found) >= limit or looked_through >= _SCANNED_MAX

        unanswered, rest = await ask_in_order(inquiry, clock, broker, after, step)
        return BrowsedMessages(
            messages=found,
            looked_through=looked_through,
            unreadable=unreadable,
            unanswered=unanswered,
            next=rest,
        )

    return router


def check_topic(state: ClusterState, name: str, lite_topic: str) -> None:
    """Check that a topic can be looked into.

    Args:
        state: the cluster.
        name: a topic, or what a group has of its own: a retry topic or a dead letter topic.
        lite_topic: of the topic; empty for none.

    Raises:
        StatusError: there is none, or one of the names is illegal.
    """
    kind = names.kind_of(names.topic(name, Use.PULL))
    if kind is Kind.DEAD_LETTER:
        state.group(name.removeprefix(names.DEAD_LETTER_PREFIX))
    elif kind is Kind.RETRY:
        state.group(names.group_of_retry_topic(name))
    else:
        state.topic(name)
    if lite_topic:
        names.checked_lite_topic(lite_topic)
