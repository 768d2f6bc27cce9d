"""Messages in flight: client, time and attempt of each delivery, and the end of its invisible duration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.page import Action, Done, Page
from popwheel_console.view.drawings import share
from popwheel_console.view.links import link
from popwheel_console.visit import ROWS, Listed, Visit, silences

_HOLDERS: Final = 12
"""Limit of shown groups and clients, those with most messages."""
_GROUPS_MAX: Final = 8
"""Number of groups that are listed without a filter: those with most messages in flight."""
_FILTERS: Final = ("topic", "group", "client", "broker")
_RETRY: Final = "%RETRY%"


@dataclass(frozen=True, slots=True)
class InFlight:
    """Message in flight.

    Args:
        message: as the API shows it.
        topic: that it was sent to.
        is_retry: whether it was read from the group's retries.
        elapsed: elapsed part of its invisible duration, in percent.
        left_ms: time until it is due; negative: since then.
    """

    message: Mapping[str, Any]
    topic: str
    is_retry: bool
    elapsed: float
    left_ms: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Group or client with messages in flight.

    Args:
        name: of it.
        held: number of its messages in flight.
        share: of the greatest, in percent.
        oldest_ms: time of its oldest delivery; None: not known.
        clients: of a group; None of a client.
        group: of a client.
    """

    name: str
    held: int
    share: float
    oldest_ms: int | None
    clients: int | None
    group: str


@dataclass(frozen=True, slots=True)
class InFlightPage:
    """Data of the page with messages in flight.

    Args:
        topic, group, client, broker: that are asked for.
        parts: groups whose messages are shown without a filter: each can be read page by page.
        total: number of all messages in flight; None: not known.
        groups, clients: those with most messages; None: not known.
        why: why not.
        messages: of this page; None: not answered yet.
        next: where the list goes on.
        after: where this page begins.
        has_order: whether a message belongs to a FIFO group.
        unknown_since_ms: clients of earlier deliveries are not known; None: all are.
        unanswered: who could not be asked.
    """

    topic: str
    parts: Sequence[str]
    group: str
    client: str
    broker: str
    total: int | None
    groups: Sequence[Holder] | None
    clients: Sequence[Holder] | None
    why: str
    messages: Sequence[InFlight] | None
    next: str
    after: str
    has_order: bool
    unknown_since_ms: int | None
    unanswered: Sequence[str]


async def gather(visit: Visit) -> InFlightPage:
    """Fetch the summary, and the messages of the filter, or of the groups with most messages."""
    asked = {name: visit.asked_for(name) for name in (*_FILTERS, "after")}
    summary_question = Question("/inflight/summary")
    if any(asked[name] for name in _FILTERS):
        found = await visit.together(
            summary=summary_question, messages=lambda: visit.listed(Question("/inflight", asked), "messages")
        )
        return in_flight_page(asked, [], found["summary"], found["messages"], visit.now_ms)
    summary = (await visit.ask(summary=summary_question))["summary"]
    groups = [str(each["group"]) for each in summary.rows("groups")[:_GROUPS_MAX]]
    # together the groups fill the page
    limit = -(-ROWS // max(1, len(groups)))
    parts: dict[str, Listed | None] = dict.fromkeys(groups)

    async def fill() -> None:
        for group in groups:  # one after another: concurrent calls are answered in one turn of the loop
            parts[group] = await visit.listed(Question("/inflight", {"group": group}), "messages", limit)

    await visit.together(parts=fill)
    listed = None if summary.is_pending else _together(parts)
    return in_flight_page(asked, groups, summary, listed, visit.now_ms)


def _together(parts: Mapping[str, Listed | None]) -> Listed | None:
    """Merge the lists of several groups; None if one is missing and none has rows."""
    known = [each for each in parts.values() if each is not None]
    rows = sorted((row for each in known for row in each.rows), key=lambda row: int(row["due_ms"]))
    if not rows and len(known) < len(parts):
        return None
    unanswered = [sentence for each in known for sentence in each.unanswered]
    unanswered += [f"{group}: it has not answered yet" for group, each in parts.items() if each is None]
    first = known[0].first if known else Answer(200)
    return Listed(rows[:ROWS], "", unanswered, first)


def in_flight_page(
    asked: Mapping[str, str], parts: Sequence[str], summary: Answer, listed: Listed | None, now_ms: int
) -> InFlightPage:
    """Return the page of these answers."""
    unanswered = [*silences(summary), *([] if listed is None else listed.unanswered)]
    return InFlightPage(
        topic=asked["topic"],
        parts=parts,
        group=asked["group"],
        client=asked["client"],
        broker=asked["broker"],
        total=summary.number("total"),
        groups=_holders(summary, "groups", "group") if summary.is_good else None,
        clients=_holders(summary, "clients", "client_id") if summary.is_good else None,
        why=summary.why,
        messages=None if listed is None else [in_flight(each, now_ms) for each in listed.rows],
        next="" if listed is None else listed.next,
        after=asked["after"],
        has_order=listed is not None and any(each["message_group"] for each in listed.rows),
        unknown_since_ms=None if listed is None else listed.first.number("known_since_ms"),
        unanswered=list(dict.fromkeys(unanswered)),
    )


def in_flight(message: Mapping[str, Any], now_ms: int) -> InFlight:
    """Return a row of the list."""
    popped_ms, due_ms = message["popped_ms"], message["due_ms"]
    topic = str(message["topic"])
    return InFlight(
        message,
        plain_topic(topic),
        topic.startswith(_RETRY),
        share(now_ms - popped_ms, due_ms - popped_ms),
        due_ms - now_ms,
    )


def plain_topic(topic: str) -> str:
    """Return the topic that a message was sent to, also if it was read from its retries."""
    return topic.partition("+")[2] if topic.startswith(_RETRY) and "+" in topic else topic


def _holders(summary: Answer, key: str, name: str) -> list[Holder]:
    rows = summary.rows(key)[:_HOLDERS]
    greatest = max((each["held"] for each in rows), default=0)
    return [
        Holder(
            str(each[name]),
            each["held"],
            share(each["held"], greatest),
            each.get("oldest_popped_ms"),
            each.get("clients"),
            str(each.get("group", "")),
        )
        for each in rows
    ]


PAGE: Final = Page("/held", "in_flight.html", gather, title="In flight", section="/held", refresh_s=3)


async def release(visit: Visit) -> Done:
    """End one delivery: the message is redelivered at once."""
    form = visit.form
    body: dict[str, object] = {name: form.get(name, "") for name in ("broker", "group", "topic")}
    for name in ("queue_id", "queue_offset"):
        value = form.get(name, "")
        body[name] = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value
    done = await visit.need(Question("/inflight/release", method="POST", body=body))
    message = done.text("message_id") or "The message"
    return Done(link("held", group=form.get("group")), f"{message} was released: it will be redelivered.")


RELEASE: Final = Action("/held/release", release, PAGE)
