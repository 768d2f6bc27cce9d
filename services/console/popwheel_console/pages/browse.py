"""Messages of a topic from its end, an offset or a time, and a tail of new ones."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.api_client import part
from popwheel_console.page import Page, Stream
from popwheel_console.view.links import link
from popwheel_console.visit import ROWS, Listed, Refused, Visit

FROM: Final = ("end", "offset", "time")
"""Starts of a page."""
_ASKED_MAX: Final = 100
"""Rows of one answer of the API."""
_DIGITS_MAX: Final = 15
_TIME: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?(?:\.\d+)?Z?")


@dataclass(frozen=True, slots=True)
class BrowsePage:
    """Data of the page that browses a topic's messages.

    Args:
        topic: as the API has it.
        wanted: the fields of the form.
        messages: the newest first if it begins at the end; None: not answered yet.
        per_queue: how many are read from the end of each queue; 0: it begins elsewhere.
        has_more: there are more queues than one page reads.
        next: address of the next page; empty on the last one.
        looked_through: number of scanned messages; None: not known.
        unanswered: who could not be asked.
    """

    topic: Mapping[str, Any]
    wanted: Mapping[str, str]
    messages: Sequence[Mapping[str, Any]] | None
    per_queue: int
    has_more: bool
    next: str
    looked_through: int | None
    unanswered: Sequence[str]


async def gather(visit: Visit) -> BrowsePage:
    """Fetch the topic and its messages."""
    name = visit.path["name"]
    wanted = wanted_of(visit)
    answers = await visit.ask(topic=Question(f"/topics/{part(name)}"), brokers=Question("/brokers"))
    if not answers["topic"].is_good:
        raise Refused(answers["topic"])
    brokers = 1 if wanted["broker"] else max(1, len(answers["brokers"].rows("groups")))
    queues = 1 if wanted["queue_id"] else answers["topic"].number("queues") or 1
    per_queue = max(1, _ASKED_MAX // (brokers * queues)) if wanted["from"] == "end" else 0
    question = Question(f"/topics/{part(name)}/browse", query_of(wanted, per_queue))
    found = await visit.together(messages=lambda: visit.listed(question, "messages", _ASKED_MAX if per_queue else ROWS))
    return browse_page(answers["topic"].body, wanted, per_queue, found["messages"])


def wanted_of(visit: Visit) -> dict[str, str]:
    """Return the fields of the form, from the address."""
    fields = ("at", "broker", "queue_id", "key", "tag", "lite_topic", "after")
    return {"from": visit.asked_for("from", FROM)} | {each: visit.asked_for(each).strip() for each in fields}


def query_of(wanted: Mapping[str, str], per_queue: int) -> dict[str, str | int | None]:
    """Return the query for the API.

    Raises:
        Refused: a field is no number, or no time.
    """
    query: dict[str, str | int | None] = {
        name: wanted[name] for name in ("broker", "key", "tag", "lite_topic", "after") if wanted[name]
    }
    if wanted["queue_id"]:
        query["queue_id"] = _number(wanted["queue_id"], "queue")
    if wanted["from"] == "end":
        query["last"] = per_queue
    elif wanted["at"]:
        query["offset" if wanted["from"] == "offset" else "time_ms"] = (
            _number(wanted["at"], "offset") if wanted["from"] == "offset" else time_ms(wanted["at"])
        )
    return query


def time_ms(text: str) -> int:
    """Parse a time in UTC, or milliseconds since 1970; raise Refused for other texts."""
    if text.isascii() and text.isdigit():
        return _number(text, "time")
    found = _TIME.fullmatch(text)
    try:
        if found is not None:
            return int(datetime(*(int(each or 0) for each in found.groups()), tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]
    except ValueError:
        pass
    raise Refused(Answer(400, {}, "BAD_REQUEST", f"a time is YYYY-MM-DD HH:MM:SS in UTC, not {text[:40]!r}"))


def _number(text: str, what: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise Refused(Answer(400, {}, "BAD_REQUEST", f"{what}: give a whole number, not {text[:40]!r}"))


def browse_page(
    topic: Mapping[str, Any], wanted: Mapping[str, str], per_queue: int, found: Listed | None
) -> BrowsePage:
    """Return the page of these answers; raise Refused if the API refuses the request."""
    if found is not None and not found.first.is_good:
        raise Refused(found.first)
    rows = [] if found is None else list(found.rows)
    if per_queue:
        rows.sort(key=lambda each: each["stored_ms"], reverse=True)
    following = "" if found is None or per_queue else found.next
    asked = {name: value for name, value in wanted.items() if value and name != "after"}
    return BrowsePage(
        topic=topic,
        wanted=wanted,
        messages=None if found is None else rows[:ROWS],
        per_queue=per_queue,
        has_more=bool(per_queue and found is not None and found.next),
        next=link("topics", topic["name"], "messages", **asked, after=following) if following else "",
        looked_through=None if found is None else found.first.number("looked_through"),
        unanswered=[] if found is None else found.unanswered,
    )


@dataclass(frozen=True, slots=True)
class TailPage:
    """Data of the page with the tail of a topic.

    Args:
        topic: as the API has it.
        wanted: the fields of the form.
        events: address of the events.
    """

    topic: Mapping[str, Any]
    wanted: Mapping[str, str]
    events: str


async def gather_tail(visit: Visit) -> TailPage:
    """Fetch the topic; the browser opens the stream of events itself."""
    name = visit.path["name"]
    topic = await visit.need(Question(f"/topics/{part(name)}"))
    wanted = {each: visit.asked_for(each).strip() for each in ("key", "tag", "lite_topic")}
    asked = {each: value for each, value in wanted.items() if value}
    return TailPage(topic.body, wanted, link("topics", name, "tail", "events", **asked))


PAGE: Final = Page(
    "/topics/{name}/messages", "browse.html", gather, title="Messages of {name}", section="/topics", refresh_s=0
)
TAIL: Final = Page(
    "/topics/{name}/tail", "tail.html", gather_tail, title="Follow {name}", section="/topics", refresh_s=0
)
EVENTS: Final = Stream(
    "/topics/{name}/tail/events", "/topics/{name}", "/tail", ("key", "tag", "lite_topic"), "text/event-stream"
)
