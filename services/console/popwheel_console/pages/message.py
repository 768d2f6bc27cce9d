"""Message: its fate, its events as a time line, and its content."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_common.contract.message_id import made_since_ms
from popwheel_console.answer import PENDING, Answer, Question
from popwheel_console.api_client import part
from popwheel_console.page import Page
from popwheel_console.view import life
from popwheel_console.view.life import Event, TimeLine
from popwheel_console.visit import Listed, Refused, Visit, silences

_PLACES_MAX: Final = 100
_DIGITS_MAX: Final = 15


@dataclass(frozen=True, slots=True)
class GroupState:
    """State of a message for one group.

    Args:
        group: its name.
        words: the state, in a word or two.
        fate: the state in a sentence, from the API; may be empty.
        state: its colour.
        popped_ms, due_ms: of one in flight; else None.
        attempts: failed deliveries.
        set_aside: its id in the quarantine; empty if it is not there.
    """

    group: str
    words: str
    fate: str
    state: str
    popped_ms: int | None
    due_ms: int | None
    attempts: int
    set_aside: str


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Data of the page of one message.

    Args:
        message_id: of the message.
        topic: that it was sent to.
        message: its content, from one of its places.
        states: of each group, the latest.
        fate: the overall fate, in a sentence; may be empty.
        events: in order of time.
        events_are_reported: whether brokers have reported them; else they are derived from its places, and incomplete.
        known_since: start of each broker's record of events.
        time_line: the drawing; None: there is nothing to draw.
        places: where it is and was.
        unanswered: who could not be asked.
    """

    message_id: str
    topic: str
    message: Mapping[str, Any]
    states: Sequence[GroupState]
    fate: str
    events: Sequence[Event]
    events_are_reported: bool
    known_since: Sequence[Mapping[str, Any]]
    time_line: TimeLine | None
    places: Sequence[Mapping[str, Any]]
    unanswered: Sequence[str]


async def gather(visit: Visit) -> MessagePage:
    """Fetch its places and its events."""
    topic, message_id = visit.path["topic"], visit.path["message_id"]
    path = f"/messages/{part(message_id)}"
    # the topic may have millions of earlier messages
    asked = visit.asked_for("since_ms")
    is_time = asked.isascii() and asked.isdigit() and len(asked) <= _DIGITS_MAX
    since_ms = int(asked) if is_time else made_since_ms(message_id) or 0
    where = Question(path, {"topic": topic, "since_ms": since_ms})
    found = await visit.together(
        places=lambda: visit.listed(where, "places", _PLACES_MAX, share=1.0),
        events=Question(f"{path}/events", {"topic": topic, "since_ms": since_ms}),
    )
    places: Listed | None = found["places"]
    if places is None:
        raise Refused(PENDING)
    if not places.first.is_good:
        raise Refused(places.first)
    if not places.rows and places.next:
        raise Refused(
            Answer(
                404,
                {},
                "NOT_FOUND_SO_FAR",
                f"{message_id} is not among the messages of {topic} that were scanned, and there are more:"
                f" popwheel message trace {message_id} --topic {topic} scans all",
            )
        )
    if not places.rows:
        silent = f" ({'; '.join(places.unanswered)})" if places.unanswered else ""
        silent += "; older ones were not scanned, as the address has a start time" if is_time else ""
        raise Refused(
            Answer(
                404, {}, "MESSAGE_NOT_FOUND", f"no broker has the message {message_id} in {topic} (any more){silent}"
            )
        )
    return message_page(message_id, topic, places, found["events"], visit.now_ms)


def message_page(message_id: str, topic: str, places: Listed, reported: Answer, now_ms: int) -> MessagePage:
    """Return the page of these answers."""
    events = life.from_events(reported.rows("events")) if reported.is_good else life.from_places(places.rows)
    unanswered = [*places.unanswered, *silences(reported)]
    return MessagePage(
        message_id=message_id,
        topic=topic,
        message=next((each for each in places.rows if each["topic"] == topic), places.rows[0]),
        states=_group_states(places.rows, topic),
        fate=next((str(each["fate"]) for each in places.rows if each.get("fate")), ""),
        events=events,
        events_are_reported=reported.is_good,
        known_since=reported.rows("known_since"),
        time_line=life.time_line(events, now_ms),
        places=places.rows,
        unanswered=list(dict.fromkeys(unanswered)),
    )


def _group_states(places: Sequence[Mapping[str, Any]], topic: str) -> list[GroupState]:
    """Return the latest state for each group, also in its retries or dead letters."""
    found: dict[str, GroupState] = {}
    for place in sorted(places, key=lambda each: each.get("position", 0)):
        name = str(place["topic"])
        if name.startswith(life.DEAD_LETTER) and name != topic:
            group = name.removeprefix(life.DEAD_LETTER)
            found[group] = GroupState(group, "dead letter", "", "bad", None, None, place["attempts"], "")
        for each in place.get("groups", ()):
            if name.startswith(life.DEAD_LETTER) and name != topic:
                continue
            state = _group_state(place, each)
            before = found.get(state.group)
            if before is None or state.words != "done" or before.words in ("done", "delivered"):
                found[state.group] = state
    return [found[group] for group in sorted(found)]


def _group_state(place: Mapping[str, Any], holding: Mapping[str, Any]) -> GroupState:
    words, attempts = str(holding["holding"]), max(place["attempts"], holding.get("attempts", 0))
    state = ""
    if words == "delivered":
        words, state = ("put off", "warn") if holding.get("put_off") else ("in flight", "held")
    elif words == "done" and holding.get("ended"):
        words, state = "acknowledged", "good"
    elif words == "quarantined":
        state = "bad"
    elif words == "waits" and attempts:
        words, state = "waits for retry", "warn"
    return GroupState(
        str(holding["group"]),
        words,
        str(holding.get("fate", "")),
        state,
        holding.get("popped_ms"),
        holding.get("due_ms"),
        attempts,
        str(holding.get("set_aside", "")),
    )


PAGE: Final = Page(
    "/messages/{topic}/{message_id}", "message.html", gather, title="{message_id}", section="/messages", refresh_s=3
)
