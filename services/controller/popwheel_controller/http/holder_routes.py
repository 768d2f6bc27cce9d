"""Routes of the admin API about holders of messages in flight: `/api/v1/inflight/summary`, `/api/v1/inflight/release`,
`/api/v1/messages/{id}/events` (docs/operate/messages.md).
"""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from popwheel_common.contract.message_id import made_since_ms
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.web.routes import Routes
from popwheel_controller.http.audit_routes import REFUSED, TIME_MS_MAX, check_names
from popwheel_controller.http.inquiry import Inquiry, Silence
from popwheel_controller.http.path_parts import MessageId
from popwheel_controller.http.refusal import refusal
from popwheel_rpc.methods import IN_FLIGHT_RELEASE, IN_FLIGHT_SUMMARY, MESSAGE_EVENTS

_LISTED = 100
"""Groups and clients in a summary."""
_ASKED = 1_000
"""Number of the largest entries that each broker names."""
_PAGES_MAX = 32
"""A broker is asked so often for what happened to a message; each time it looks through 2,048 messages at most."""

_KIND_PREFIX = "MESSAGE_"
_MADE_OF_IT = frozenset((pb.MESSAGE_REVIVED, pb.MESSAGE_DEAD))
"""Events that follow the end of the delivery that was written with them."""
_TOO_MANY = "it has more messages to look through than one request may take; say since_ms and until_ms"


class HolderGroup(BaseModel):
    """Messages in flight of a group at all brokers."""

    group: str = Field(description="Name of the consumer group.")
    held: int = Field(description="Messages that it was given and has not acknowledged.")
    clients: int = Field(description="Its clients that hold something at the broker where these are the most.")
    oldest_popped_ms: int | None = Field(
        description="When the oldest of them was delivered, or its invisible duration last changed, in milliseconds "
        "since 1970."
    )


class HolderClient(BaseModel):
    """Messages in flight of one client of a group at all brokers."""

    client_id: str | None = Field(description="Null: all of the group whose client is not known.")
    group: str = Field(description="Name of the consumer group.")
    held: int = Field(description="Messages in flight.")
    oldest_popped_ms: int | None = Field(
        description="Since when the oldest of these is in flight, in milliseconds since 1970; null if there is none."
    )


class InFlightSummary(BaseModel):
    """Numbers of messages in flight by group and client."""

    total: int = Field(description="Messages in flight at all brokers that answered.")
    groups: list[HolderGroup] = Field(description="The 100 groups with most messages in flight.")
    clients: list[HolderClient] = Field(description="The 100 clients with most messages in flight.")
    other_groups: int = Field(description="Least number of further groups with messages in flight.")
    other_clients: int = Field(description="Least number of further clients with messages in flight.")
    known_since_ms: int | None = Field(
        description="Since when all brokers that answered know who has what; null if none did."
    )
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


class ReleaseWanted(BaseModel):
    """Request to end one delivery."""

    model_config = ConfigDict(extra="forbid")

    broker: str = Field(max_length=255, description="Name of the broker group.")
    group: str = Field(max_length=255, description="Name of the consumer group.")
    topic: str = Field(max_length=1_000, description="In which it has its offset, as `/inflight` says it.")
    queue_id: int = Field(ge=0, le=2**31 - 1, description="Queue at this broker.")
    queue_offset: int = Field(ge=0, le=TIME_MS_MAX, description="Offset in the queue.")
    dry_run: bool = Field(default=False, description="Change nothing, say what would be.")


class Released(BaseModel):
    """A delivery that has ended, or would."""

    released: bool = Field(description="False for a dry run.")
    message_id: str = Field(description="Empty if it cannot be read.")
    attempt: int = Field(description="Which delivery ends by it, from 1; 0 if it cannot be read.")
    dead_letter: bool = Field(description="That was the last attempt: the message is a dead letter after it.")
    client_id: str | None = Field(description="Who had it; null if that is not known.")


class MessageEvent(BaseModel):
    """Event of a message."""

    time_ms: int = Field(description="In milliseconds since 1970, by the broker's clock.")
    broker: str = Field(description="Name of the broker group.")
    kind: str = Field(
        description=", ".join(f"`{each.removeprefix(_KIND_PREFIX).lower()}`" for each in pb.MessageEventKind.keys()[1:])
        + ". `nacked`: its consumer changed its invisible duration; `expired`: that has passed."
    )
    group: str = Field(description="Empty where it concerns no group.")
    client_id: str | None = Field(description="Client that got the message; null if it is not known.")
    attempt: int | None = Field(
        description="Which delivery, from 1; of `revived` and `redriven` the one that comes next. Null: not known."
    )
    until_ms: int | None = Field(description="Until when it is hidden then, or waits for its time; or null.")
    topic: str = Field(description="In which it has its offset.")
    queue_id: int = Field(description="Queue at this broker.")
    queue_offset: int = Field(description="Offset in the queue.")


class EventsKnown(BaseModel):
    """Period for which a broker remembers deliveries."""

    broker: str = Field(description="Name of the broker group.")
    since_ms: int = Field(description="Deliveries and their ends since then are known; of earlier ones some may be.")
    dropped: int = Field(description="Entries that made room for later ones.")


class MessageEvents(BaseModel):
    """Events of a message, the oldest first."""

    events: list[MessageEvent] = Field(description="The events, the oldest first.")
    known_since: list[EventsKnown] = Field(description="Period that each broker remembers.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


_Key = TypeVar("_Key")


class _Sums(NamedTuple):
    """Counts of a group or a client at some brokers."""

    held: int
    oldest_popped_ms: int
    clients: int = 0

    def and_(self, other: "_Sums") -> "_Sums":
        """Return the sum of both."""
        times = [each for each in (self.oldest_popped_ms, other.oldest_popped_ms) if each]
        return _Sums(self.held + other.held, min(times, default=0), max(self.clients, other.clients))


_NOTHING = _Sums(0, 0)


def holder_router(inquiry: Inquiry) -> Routes:
    """Return the routes.

    Args:
        inquiry: asks the brokers.
    """
    router = Routes(tags=["audit"])

    @router.get("/inflight/summary")
    async def sum_up_in_flight() -> InFlightSummary:
        """Count messages in flight by group and by client, at all brokers.

        Each broker names the 1,000 groups and the 1,000 clients with most of them. Those of all others are in `total`
        alone.
        """
        answers = await inquiry.of_all(IN_FLIGHT_SUMMARY, pb.InFlightSummaryRequest(limit=_ASKED))
        return _summary(list(answers.given.values()), answers.unanswered)

    @router.post("/inflight/release", responses={**REFUSED, 404: refusal("The group does not hold such a message.")})
    async def release(wanted: ReleaseWanted) -> Released:
        """End one delivery now, as if its invisible duration were over: the message is revived, or dead."""
        check_names(inquiry.state, "", wanted.group)
        request = pb.InFlightReleaseRequest(
            group=wanted.group,
            topic=wanted.topic,
            queue_id=wanted.queue_id,
            queue_offset=wanted.queue_offset,
            dry_run=wanted.dry_run,
        )
        answer = await inquiry.of(wanted.broker, IN_FLIGHT_RELEASE, request)
        return Released(
            released=answer.released,
            message_id=answer.message_id,
            attempt=answer.attempt,
            dead_letter=answer.dead_letter,
            client_id=answer.client_id or None,
        )

    @router.get("/messages/{message_id}/events", responses=REFUSED)
    async def list_events(
        message_id: MessageId,
        topic: str = Query(description="That it was sent to."),
        group: str = Query(default="", description="What happened for this group alone."),
        since_ms: int | None = Query(
            default=None,
            ge=0,
            le=TIME_MS_MAX,
            description="What was stored before is passed over; else by its id, or the oldest.",
        ),
        until_ms: int = Query(
            default=TIME_MS_MAX, ge=0, le=TIME_MS_MAX, description="Only messages stored up to then."
        ),
    ) -> MessageEvents:
        """List the events of a message: its records in the log, and the latest deliveries in brokers' memory. Before
        `known_since` deliveries and their ends are missing.
        """
        check_names(inquiry.state, topic, group)
        begin_ms = (made_since_ms(message_id) or 0) if since_ms is None else since_ms
        request = pb.MessageEventsRequest(
            topic=topic, message_id=message_id, group=group, since_ms=begin_ms, until_ms=until_ms
        )
        return await _events(inquiry, request)

    return router


def _summary(answers: Sequence[pb.InFlightSummaryResponse], unanswered: list[Silence]) -> InFlightSummary:
    groups: dict[str, _Sums] = {}
    clients: dict[tuple[str, str], _Sums] = {}
    for answer in answers:
        for group in answer.groups:
            more = _Sums(group.in_flight, group.oldest_popped_ms, group.clients)
            groups[group.group] = groups.get(group.group, _NOTHING).and_(more)
        for client in answer.clients:
            key = (client.group, client.client_id)
            clients[key] = clients.get(key, _NOTHING).and_(_Sums(client.in_flight, client.oldest_popped_ms))
    return InFlightSummary(
        total=sum(each.total for each in answers),
        groups=[
            HolderGroup(
                group=name, held=sums.held, clients=sums.clients, oldest_popped_ms=sums.oldest_popped_ms or None
            )
            for name, sums in _most(groups)
        ],
        clients=[
            HolderClient(
                client_id=client_id or None, group=name, held=sums.held, oldest_popped_ms=sums.oldest_popped_ms or None
            )
            for (name, client_id), sums in _most(clients)
        ],
        other_groups=_others(len(groups), [len(each.groups) + each.other_groups for each in answers]),
        other_clients=_others(len(clients), [len(each.clients) + each.other_clients for each in answers]),
        known_since_ms=max((each.known_since_ms for each in answers), default=None),
        unanswered=unanswered,
    )


def _others(named: int, of_brokers: Sequence[int]) -> int:
    """Return the least number of unlisted entries: those that one broker does not name may be named by another."""
    return max(0, max([named, *of_brokers]) - _LISTED)


def _most(sums: Mapping[_Key, _Sums]) -> list[tuple[_Key, _Sums]]:
    return nlargest(_LISTED, sums.items(), key=lambda each: each[1].held)


async def _events(inquiry: Inquiry, first: pb.MessageEventsRequest) -> MessageEvents:
    """Ask all brokers, page by page."""
    requests = dict.fromkeys(sorted(inquiry.state.brokers), first)
    found: list[tuple[str, pb.MessageEvent]] = []
    known: dict[str, EventsKnown] = {}
    unanswered: list[Silence] = []
    for _ in range(_PAGES_MAX):
        if not requests:
            break
        answers = await inquiry.ask_by_broker(MESSAGE_EVENTS, requests)
        unanswered += answers.unanswered
        requests = {}
        for broker, answer in answers.given.items():
            found += [(broker, each) for each in answer.events]
            known[broker] = EventsKnown(broker=broker, since_ms=answer.known_since_ms, dropped=answer.dropped)
            if answer.next:
                requests[broker] = pb.MessageEventsRequest()
                requests[broker].CopyFrom(first)
                requests[broker].begin = answer.next
    unanswered += [Silence(broker=broker, reason=_TOO_MANY) for broker in requests]
    found.sort(key=lambda each: (each[1].time_ms, each[0], each[1].position, each[1].kind in _MADE_OF_IT))
    return MessageEvents(
        events=[_event(broker, each) for broker, each in found], known_since=list(known.values()), unanswered=unanswered
    )


def _event(broker: str, event: pb.MessageEvent) -> MessageEvent:
    return MessageEvent(
        time_ms=event.time_ms,
        broker=broker,
        kind=pb.MessageEventKind.Name(event.kind).removeprefix(_KIND_PREFIX).lower(),
        group=event.group,
        client_id=event.client_id or None,
        attempt=event.attempt or None,
        until_ms=event.until_ms or None,
        topic=event.topic,
        queue_id=event.queue_id,
        queue_offset=event.queue_offset,
    )
