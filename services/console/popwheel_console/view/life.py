"""Events of one message in order, and the rows of its time line (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from popwheel_console.view.drawings import Scale, scale
from popwheel_console.view.words import duration

RETRY: Final = "%RETRY%"
DEAD_LETTER: Final = "%DLQ%"
_STATES: Final = {
    "delivered": "held",
    "acked": "good",
    "committed": "good",
    "nacked": "warn",
    "expired": "warn",
    "dead": "bad",
    "rolled_back": "bad",
    "recalled": "warn",
}
_TITLES: Final = {
    "stored": "Stored",
    "delayed": "Put on the timer",
    "fired": "Due, moved to its topic",
    "delivered": "Delivered",
    "acked": "Acknowledged",
    "nacked": "Put off by its consumer",
    "expired": "Not acknowledged in time",
    "revived": "Came back",
    "released": "Released by an operator",
    "dead": "Became a dead letter",
    "redriven": "Redriven by an operator",
    "recalled": "Recalled",
    "half": "Stored as half message",
    "committed": "Committed",
    "rolled_back": "Rolled back",
}
_ENDS: Final = frozenset(("acked", "nacked", "expired", "released", "dead", "redriven", "revived"))


@dataclass(frozen=True, slots=True)
class Event:
    """Event of a message.

    Args:
        time_ms: when.
        kind: of the API.
        group: of the event; empty: before any group.
        detail: where, to whom, until when.
        client: of the delivery; empty if there is none, or it is not known.
        attempt: number of the delivery; 0: not known.
        until_ms: until when it is invisible, or delayed; None: no time is set.
        after_ms: time since the previous event.
    """

    time_ms: int
    kind: str
    group: str
    detail: str
    client: str = ""
    attempt: int = 0
    until_ms: int | None = None
    after_ms: int | None = None

    @property
    def title(self) -> str:
        """Title, in a few words."""
        title = _TITLES.get(self.kind, self.kind.replace("_", " ").capitalize())
        return f"{title}, attempt {self.attempt}" if self.kind == "delivered" and self.attempt else title

    @property
    def state(self) -> str:
        """Colour; empty for none."""
        return _STATES.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class Span:
    """A period in a row: a client has the message, or the message waits until it is due.

    Args:
        x, width: in percent.
        state: colour, by its end, or `held` or `delayed`.
        words: tooltip.
        is_open: whether it has not ended.
    """

    x: float
    width: float
    state: str
    words: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in a row.

    Args:
        x: in percent.
        state: colour.
        words: tooltip.
    """

    x: float
    state: str
    words: str


@dataclass(frozen=True, slots=True)
class TimeRow:
    """A row of the time line: the topic, or one group.

    Args:
        name: of the group; empty: of the topic.
        spans, marks: what is drawn.
    """

    name: str
    spans: Sequence[Span]
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Drawing of a message's events.

    Args:
        axis: the time axis.
        rows: the topic first.
        now_x: position of the current time, in percent; None if all events are past.
    """

    axis: Scale
    rows: Sequence[TimeRow]
    now_x: float | None


def from_events(rows: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Return the events that brokers report."""
    events = [
        Event(
            row["time_ms"],
            str(row["kind"]),
            str(row.get("group") or ""),
            f"queue {row['queue_id']} at {row['broker']}, offset {row['queue_offset']:,}",
            str(row.get("client_id") or ""),
            row.get("attempt") or 0,
            row.get("until_ms"),
        )
        for row in rows
    ]
    return in_order(events)


def from_places(places: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Derive events from the places of a message, where brokers report none."""
    found: list[Event] = []
    for place in places:
        where = f"queue {place['queue_id']} at {place['broker']}, offset {place['queue_offset']:,}"
        topic, kind = str(place["topic"]), str(place.get("kind", "stored"))
        if kind == "delayed":
            found.append(Event(place["stored_ms"], "delayed", "", where, until_ms=place.get("due_ms")))
        elif kind != "stored":
            found.append(Event(place["stored_ms"], kind.replace(" ", "_"), "", where))
        elif topic.startswith(DEAD_LETTER):
            found.append(Event(place["stored_ms"], "dead", topic.removeprefix(DEAD_LETTER), where))
        elif topic.startswith(RETRY):
            group = topic.removeprefix(RETRY).partition("+")[0]
            found.append(Event(place["stored_ms"], "redriven" if place.get("redriven") else "revived", group, where))
        else:
            found.append(Event(place["stored_ms"], "stored", "", where))
        found += [
            Event(
                each["popped_ms"],
                "nacked" if each.get("put_off") else "delivered",
                str(each["group"]),
                where,
                attempt=max(place["attempts"], each.get("attempts", 0)) + 1,
                until_ms=each.get("due_ms"),
            )
            for each in place.get("groups", ())
            if each.get("popped_ms")
        ]
    return in_order(found)


def in_order(events: Iterable[Event]) -> list[Event]:
    """Sort events by time; set the time since the previous one, and drop a detail that repeats."""
    found: list[Event] = []
    place = ""
    for event in sorted(events, key=lambda each: each.time_ms):
        after = event.time_ms - found[-1].time_ms if found else None
        found.append(replace(event, after_ms=after, detail="" if event.detail == place else event.detail))
        place = event.detail
    return found


def time_line(events: Sequence[Event], now_ms: int) -> TimeLine | None:
    """Draw events; return None if there are none.

    Args:
        events: in order.
        now_ms: the time.
    """
    if not events:
        return None
    is_open = any((each.until_ms or 0) > now_ms for each in events)
    times = [each.time_ms for each in events] + ([now_ms] if is_open else [])
    axis = scale([*times, *(each.until_ms for each in events if each.until_ms is not None and each.until_ms > now_ms)])
    names = dict.fromkeys(["", *sorted({each.group for each in events})])
    rows = [_time_row(name, [each for each in events if each.group == name], axis, now_ms) for name in names]
    return TimeLine(axis, rows, axis.x(now_ms) if is_open else None)


def _time_row(name: str, events: Sequence[Event], axis: Scale, now_ms: int) -> TimeRow:
    spans: list[Span] = []
    marks: list[Mark] = []
    for number, event in enumerate(events):
        marks.append(Mark(axis.x(event.time_ms), event.state, event.title))
        if event.until_ms is None or event.kind not in ("delivered", "delayed", "nacked"):
            continue
        later = events[number + 1 :]
        ends = {"fired", "stored", "recalled"} if event.kind == "delayed" else _ENDS | {"delivered"}
        end = next((each for each in later if each.kind in ends), None)
        end_ms = event.until_ms if end is None else end.time_ms
        is_open = end is None and event.until_ms > now_ms
        state = "delayed" if event.kind == "delayed" else "held" if end is None else end.state or "held"
        if event.kind == "nacked":
            state = "warn"
        begin, stop = axis.x(event.time_ms), axis.x(max(event.time_ms, end_ms))
        who = f" by {event.client}" if event.client else ""
        words = f"{event.title}{who}, for {duration(end_ms - event.time_ms)}"
        spans.append(Span(begin, max(0.4, stop - begin), state, words, is_open))
    return TimeRow(name, spans, marks)
