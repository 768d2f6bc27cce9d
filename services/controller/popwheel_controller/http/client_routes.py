"""Routes about clients, `/api/v1/clients` and `/api/v1/clients/{id}`: subscriptions and
messages in flight. Each proxy knows its own clients, so all are asked, one after another.
"""

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import Path, Query
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
from popwheel_controller.http.refusal import refusal

_LISTED = 100
_LISTED_MAX = 500
_PAGE_S_MAX = 5.0
"""Time after which no further proxy is asked for a page; below the time-out of `popwheel admin`."""
_ID_LENGTH_MAX = 1_024


class SilentProxy(BaseModel):
    """A proxy that did not answer: its clients are missing."""

    proxy: str = Field(description="Name of the proxy.")
    reason: str = Field(description="Why it did not answer, in a sentence.")


class Subscription(BaseModel):
    """Subscription of a client."""

    group: str = Field(description="Name of the consumer group.")
    topic: str = Field(description="Name of the topic.")
    filter: str = Field(description="As the client wrote it; its first 256 characters. `*` is all.")
    polled_ms: int | None = Field(
        description="When it last polled for it through this proxy, in milliseconds since 1970; null if it has only "
        "said so in its settings."
    )


class MessageInFlight(BaseModel):
    """Message in flight at a client; its proxy renews its invisible duration."""

    group: str = Field(description="Name of the consumer group.")
    topic: str = Field(description="Name of the topic.")
    broker: str = Field(description="Name of the broker group.")
    queue_id: int = Field(description="Queue at this broker.")
    queue_offset: int = Field(description="In the topic, or in the group's retries of it.")
    is_retry: bool = Field(description="The message is in the group's retries of the topic.")
    since_ms: int = Field(description="Time of its delivery, in milliseconds since 1970.")


class Client(BaseModel):
    """A client, as one proxy knows it. A client that is connected to several proxies is at each of them."""

    id: str = Field(description="Id that the client gave itself.")
    proxy: str = Field(description="That knows it: a process of `/cluster/status`.")
    kind: str = Field(
        description="`producer`, `push`, `simple`, `pull`, `lite push`, `lite simple`; empty if it has not said it."
    )
    language: str = Field(description="Of its library: JAVA, GOLANG, PYTHON ...; empty if it has not said it.")
    version: str = Field(description="Of its library.")
    platform: str = Field(description="Of its machine, as it says.")
    hostname: str = Field(description="Of its machine, as it says.")
    address: str = Field(description="host:port of its latest connection; empty if that is not known.")
    user: str = Field(description="Whose it is; empty where users are not checked (docs/operate/access.md).")
    group: str = Field(description="Of a consumer; empty else.")
    since_ms: int = Field(description="Since when the proxy knows it, in milliseconds since 1970.")
    seen_ms: int = Field(description="Its last sign of life: settings, a heartbeat, a poll.")
    subscriptions: list[Subscription] = Field(description="What it reads: the first 100.")
    subscriptions_total: int = Field(description="Number of all subscriptions.")
    publishes: list[str] = Field(description="Topics that it sends to: the first 100.")
    publishes_total: int = Field(description="Number of all topics that it sends to.")
    polls: int = Field(description="Polls that wait for messages now.")
    held: int | None = Field(
        description="Messages that the proxy keeps hidden for it. Null: it says itself for how long (as simple "
        "consumers do), so only the brokers know what its group holds (`/inflight`)."
    )
    held_since_ms: int | None = Field(description="Since when the oldest of these; null if there are none.")
    lite_topics: int = Field(description="Lite topics that it reads.")


class Clients(BaseModel):
    """Page of clients, by proxy and id. A page may be empty although more follow."""

    clients: list[Client] = Field(description="The clients of this page.")
    unanswered: list[SilentProxy] = Field(description="Proxies that did not answer; their clients are missing.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")


class DescribedClient(BaseModel):
    """A client at every proxy that knows it."""

    id: str = Field(description="Id that the client gave itself.")
    at: list[Client] = Field(description="The client as each proxy knows it.")
    messages: list[MessageInFlight] = Field(description="Its messages in flight: the first 100 at each proxy.")
    unanswered: list[SilentProxy] = Field(description="Proxies that did not answer; what they know is missing.")


_BAD_PLACE: dict[int | str, dict[str, Any]] = {400: refusal("Invalid `after`, or invalid name.")}
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: refusal("No proxy that answers knows such a client.")}


def client_router(inspections: Inspections, processes: Processes, clock: Clock) -> Routes:
    """Return the routes.

    Args:
        inspections: to ask the proxies.
        processes: list of the proxies.
        clock: limits the time for a page.
    """
    router = Routes(tags=["clients"])

    @router.get("/clients", responses=_BAD_PLACE)
    async def list_clients(
        group: str = Query(default="", max_length=255, description="Only those that read for this group."),
        topic: str = Query(default="", max_length=255, description="Only those that read this topic or send to it."),
        prefix: str = Query(default="", max_length=_ID_LENGTH_MAX, description="Only those whose ids begin so."),
        after: str = Query(default="", max_length=8_192, description="`next` of the previous page."),
        limit: Annotated[int, Query(ge=1, le=_LISTED_MAX, description="Maximum number of entries.")] = _LISTED,
    ) -> Clients:
        """List the clients of all proxies: what each polls for and sends to, and how many messages it has in flight."""
        if group:
            names.group(group)
        if topic:
            names.topic(topic, Use.RECEIVE)
        at, slash, begin = after.partition("/")
        if after and not slash:
            raise StatusError(Code.BAD_REQUEST, "after: this is no place; give what the page before has as `next`")
        at = unquote(at)
        found: list[Client] = []
        unanswered: list[SilentProxy] = []
        until = clock.monotonic() + _PAGE_S_MAX
        waiting = [each for each in proxies_of(inspections, processes) if each[0] >= at]
        for number, (name, proxy) in enumerate(waiting):
            if len(found) >= limit or (number and clock.monotonic() > until):
                return Clients(clients=found, unanswered=unanswered, next=_place(name, ""))
            asked = pb.ClientListRequest(
                after=begin if name == at else "",
                prefix=prefix,
                group=group,
                topic=topic,
                limit=limit - len(found),
            )
            answer = await _ask(inspections, name, proxy, asked, unanswered)
            if answer is not None:
                found += [_client(name, each) for each in answer.clients]
                if answer.next:
                    return Clients(clients=found, unanswered=unanswered, next=_place(name, answer.next))
        return Clients(clients=found, unanswered=unanswered, next=None)

    @router.get("/clients/{client_id:path}", responses=_NOT_FOUND)
    async def describe_client(
        client_id: str = Path(max_length=_ID_LENGTH_MAX, description="Id of the client."),
    ) -> DescribedClient:
        """Show a client at every proxy that knows it, with its messages in flight."""
        at: list[Client] = []
        messages: list[MessageInFlight] = []
        unanswered: list[SilentProxy] = []
        until = clock.monotonic() + _PAGE_S_MAX
        for name, proxy in proxies_of(inspections, processes):
            if clock.monotonic() > until:
                unanswered.append(SilentProxy(proxy=name, reason="it was not asked: others took too long"))
                continue
            answer = await _ask(inspections, name, proxy, pb.ClientListRequest(id=client_id), unanswered)
            for each in () if answer is None else answer.clients:
                at.append(_client(name, each))
                messages += [_message(one) for one in each.messages]
        if not at:
            without = f"; {len(unanswered)} did not answer" if unanswered else ""
            raise StatusError(Code.NOT_FOUND, f"no proxy knows a client {client_id[:255]}{without}")
        return DescribedClient(id=client_id, at=at, messages=messages, unanswered=unanswered)

    return router


def proxies_of(inspections: Inspections, processes: Processes) -> Sequence[tuple[str, Inspected | None]]:
    """Return all proxies by name, with None for those that take no questions."""
    asked = {each.key.removeprefix("proxy/"): each for each in inspections.all if each.is_proxy}
    found: dict[str, Inspected | None] = {
        member.name: None for member in processes.members(()) if member.kind == "proxy"
    }
    return sorted((found | asked).items(), key=lambda each: each[0])


async def _ask(
    inspections: Inspections,
    name: str,
    proxy: Inspected | None,
    asked: pb.ClientListRequest,
    unanswered: list[SilentProxy],
) -> pb.ClientListResponse | None:
    """Return a proxy's answer; None if it does not answer, with the reason added to `unanswered`."""
    if proxy is None:
        reason = "it takes no questions: it is of an older release, or has just come"
        unanswered.append(SilentProxy(proxy=name, reason=reason))
        return None
    try:
        return (await inspections.ask(proxy, pb.InspectQuestion(clients=asked))).clients
    except StatusError as error:
        unanswered.append(SilentProxy(proxy=name, reason=error.message))
        return None


def _place(proxy: str, client_id: str) -> str:
    return f"{quote(proxy, safe='')}/{client_id}"


def _client(proxy: str, info: pb.ClientInfo) -> Client:
    return Client(
        id=info.id,
        proxy=proxy,
        kind=info.kind,
        language=info.language,
        version=info.version,
        platform=info.platform,
        hostname=info.hostname,
        address=info.address,
        user=info.user,
        group=info.group,
        since_ms=info.since_ms,
        seen_ms=info.seen_ms,
        subscriptions=[
            Subscription(group=each.group, topic=each.topic, filter=each.filter, polled_ms=each.polled_ms or None)
            for each in info.subscriptions
        ],
        subscriptions_total=info.subscriptions_total,
        publishes=list(info.publishes),
        publishes_total=info.publishes_total,
        polls=info.polls,
        held=None if info.in_flight < 0 else info.in_flight,
        held_since_ms=info.in_flight_since_ms or None,
        lite_topics=info.lite_topics,
    )


def _message(message: pb.ClientMessage) -> MessageInFlight:
    return MessageInFlight(
        group=message.group,
        topic=message.topic,
        broker=message.broker,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        is_retry=message.is_retry,
        since_ms=message.since_ms,
    )
