"""Routes of the admin API about polls: `/api/v1/polls` (docs/internals/waiting-polls.md). Each proxy knows its own."""

from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import Query
from pydantic import BaseModel, Field

from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import controller_pb2 as pb
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.inspections import Inspected, Inspections
from popwheel_controller.cluster.processes import Processes
from popwheel_controller.http.client_routes import SilentProxy, proxies_of
from popwheel_controller.http.refusal import refusal

_LISTED = 100
_LISTED_MAX = 500
_PAGE_S_MAX = 3.0
_PARTS = 3


class Polls(BaseModel):
    """Polls of a group for a topic, at one proxy. Counts are since the proxy was started, as far as it counts them."""

    proxy: str = Field(description="Name of the proxy.")
    group: str = Field(description="Name of the consumer group.")
    topic: str = Field(description="Name of the topic.")
    mode: str = Field(
        description="How they wait: `notify` at all brokers, `plain` at one, `sliced` at one after another. Empty if "
        "nobody has polled of late."
    )
    polls: int = Field(description="That wait now.")
    brokers_waited_at: int = Field(description="At how many brokers these wait together.")
    is_long_polling: int = Field(description="Polls that may wait (`is_long_polling_total`).")
    is_short_polling_hit: int = Field(
        description="Polls whose first pop found messages (`is_short_polling_hit_total`)."
    )
    is_pop_with_notify: int = Field(description="Polls that waited for all brokers (`is_pop_with_notify_total`).")
    wakeups: int = Field(description="How often one was woken.")
    empty_wakeups: int = Field(description="How often one was woken and found nothing.")


class PollPage(BaseModel):
    """Page of polls, by proxy, topic and group. A page may be empty although more follow."""

    polls: list[Polls] = Field(description="The polls of this page.")
    unanswered: list[SilentProxy] = Field(description="Proxies that did not answer; their polls are missing.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")


_BAD_PLACE: dict[int | str, dict[str, Any]] = {400: refusal("Invalid `after`, or invalid name.")}


def poll_router(inspections: Inspections, processes: Processes, clock: Clock) -> Routes:
    """Return the route.

    Args:
        inspections: to ask the proxies.
        processes: list of the proxies.
        clock: limits the time for a page.
    """
    router = Routes(tags=["clients"])

    @router.get("/polls", responses=_BAD_PLACE)
    async def list_polls(
        group: str = Query(default="", max_length=255, description="Only of this group."),
        topic: str = Query(default="", max_length=255, description="Only for this topic."),
        after: str = Query(default="", max_length=4_096, description="`next` of the previous page."),
        limit: Annotated[int, Query(ge=1, le=_LISTED_MAX, description="Maximum number of entries.")] = _LISTED,
    ) -> PollPage:
        """List polls by group and topic: how they wait, and how they ended."""
        if group:
            names.group(group)
        if topic:
            names.topic(topic, Use.RECEIVE)
        at, after_topic, after_group = _place(after)
        found: list[Polls] = []
        unanswered: list[SilentProxy] = []
        until = clock.monotonic() + _PAGE_S_MAX
        waiting = [each for each in proxies_of(inspections, processes) if each[0] >= at]
        for number, (name, proxy) in enumerate(waiting):
            if len(found) >= limit or (number and clock.monotonic() > until):
                return PollPage(polls=found, unanswered=unanswered, next=_next(name, "", ""))
            request = pb.PollListRequest(
                group=group,
                topic=topic,
                after_topic=after_topic if name == at else "",
                after_group=after_group if name == at else "",
                limit=limit - len(found),
            )
            answer = await _ask(inspections, name, proxy, request, unanswered)
            if answer is not None:
                found += [_polls(name, each) for each in answer.polls]
                if answer.more and answer.polls:
                    last = answer.polls[-1]
                    return PollPage(polls=found, unanswered=unanswered, next=_next(name, last.topic, last.group))
        return PollPage(polls=found, unanswered=unanswered, next=None)

    return router


async def _ask(
    inspections: Inspections,
    name: str,
    proxy: Inspected | None,
    request: pb.PollListRequest,
    unanswered: list[SilentProxy],
) -> pb.PollListResponse | None:
    """Return a proxy's answer; None if it does not answer, with the reason added to `unanswered`."""
    if proxy is None:
        reason = "it takes no questions: it is of an older release, or has just come"
        unanswered.append(SilentProxy(proxy=name, reason=reason))
        return None
    try:
        return (await inspections.ask(proxy, pb.InspectQuestion(polls=request))).polls
    except StatusError as error:
        unanswered.append(SilentProxy(proxy=name, reason=error.message))
        return None


def _place(text: str) -> tuple[str, str, str]:
    if not text:
        return "", "", ""
    parts = text.split("/")
    if len(parts) != _PARTS:
        raise StatusError(Code.BAD_REQUEST, "after: this is no place; give what the page before has as `next`")
    proxy, topic, group = map(unquote, parts)
    return proxy, topic, group


def _next(proxy: str, topic: str, group: str) -> str:
    return "/".join(quote(each, safe="") for each in (proxy, topic, group))


def _polls(proxy: str, poll: pb.PollInfo) -> Polls:
    return Polls(
        proxy=proxy,
        group=poll.group,
        topic=poll.topic,
        mode=poll.mode,
        polls=poll.polls,
        brokers_waited_at=poll.brokers_waited_at,
        is_long_polling=poll.long_polls,
        is_short_polling_hit=poll.short_hits,
        is_pop_with_notify=poll.pops_with_notify,
        wakeups=poll.wakeups,
        empty_wakeups=poll.empty_wakeups,
    )
