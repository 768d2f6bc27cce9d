"""The admin API's `/api/v1/topics/{name}/tail`: new messages of a topic, as server-sent events."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query
from fastapi.responses import StreamingResponse

from popwheel_common.clock import Clock
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.http.browse_routes import Key, LiteTopic, Tag, check_topic
from popwheel_controller.http.guard import SeesData
from popwheel_controller.http.inquiry import Inquiry
from popwheel_controller.http.refusal import refusal
from popwheel_controller.http.tail import TailAsked, TailResponse
from popwheel_controller.http.tail_pace import RATE_MAX
from popwheel_controller.http.tails import Tails

_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "The events."},
    404: refusal("No such topic."),
    429: refusal("The limit of open tails is reached."),
}


def tail_router(inquiry: Inquiry, clock: Clock, check_leads: Callable[[], None], tails: Tails) -> Routes:
    """Return the routes.

    Args:
        inquiry: asks the brokers.
        clock: limits the duration of a tail.
        check_leads: raises StatusError while another controller is to be asked.
        tails: registry of open tails.
    """
    router = Routes(tags=["topics"])

    @router.get("/topics/{name}/tail", responses=_ANSWERS, response_class=StreamingResponse)
    async def tail_topic(
        sees_data: SeesData,
        name: str = Path(description="A topic; or `%DLQ%GROUP`, or `%RETRY%GROUP+TOPIC`."),
        key: Key = "",
        tag: Tag = "",
        lite_topic: LiteTopic = "",
        rate: Annotated[int, Query(ge=1, le=RATE_MAX, description="Limit of the messages in a second.")] = RATE_MAX,
    ) -> TailResponse:
        """Stream the messages that come to a topic from now on; the progress of groups stays as it is.

        Events: `begun`, when no new message will be missed; `message`, like one of `browse`; `skipped`, the `count` of
        messages that were too many; `unanswered`, brokers that do not answer, when these change; `end`, with a `code`
        and a `reason`, after ten minutes or when the topic is gone.
        """
        check_topic(inquiry.state, name, lite_topic)
        check = partial(_check, check_leads, name, lite_topic)
        asked = TailAsked(name, lite_topic, key, tag, rate, sees_data, check)
        return TailResponse(inquiry, clock, asked, tails)

    return router


def _check(check_leads: Callable[[], None], name: str, lite_topic: str, state: ClusterState) -> None:
    """Raise StatusError if a tail of a topic cannot go on."""
    check_leads()
    check_topic(state, name, lite_topic)
