"""Fates of a message, derived from the places where it is and was (pure).

A place alone says little: `done` there may mean that the message was acknowledged, or that it has failed and gone on.
So all places of one broker are read together, in the order of its log. What cannot be derived from them is not
reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from pydantic import BaseModel, Field

_RETRY_PREFIX = "%RETRY%"
_DEAD_LETTER_PREFIX = "%DLQ%"

Place = Mapping[str, Any]
"""Shape of a place, as in `TracedMessage` (audit_shapes.py)."""


class Fate(BaseModel):
    """Fate of a message for one group, or before any group could read it."""

    broker: str = Field(description="Name of the broker group.")
    group: str = Field(description="For whom; empty if it has not come into its topic.")
    topic: str = Field(description="Topic of the place that the fate is derived from.")
    position: int = Field(description="Of that place, in the log of the broker.")
    state: str = Field(
        description="`unread`, `in flight`, `put off`, `waits for retry`, `acknowledged`, `done`, `dead letter`, `was "
        "dead letter`, `quarantined`, `delayed`, `due`, `recalled`, `open`, `rolled back` or `ended`."
    )
    attempts: int = Field(description="Deliveries that are known to have failed.")
    since_ms: int | None = Field(description="Since when it is so; null if that is not known.")
    until_ms: int | None = Field(description="Until when; null if no time ends it.")
    words: str = Field(description="The same in a sentence.")


def fates(places: Iterable[Place], topic: str) -> list[Fate]:
    """Return the fates of a message, broker by broker.

    Args:
        places: all of them, as the admin API shows them.
        topic: that it was sent to.
    """
    found: list[Fate] = []
    ordered = sorted(places, key=lambda each: (each["broker"], each["position"]))
    for _, group in groupby(ordered, key=lambda each: str(each["broker"])):
        of_broker = list(group)
        found += _before_its_topic(of_broker)
        stored = [each for each in of_broker if each["kind"] == "stored"]
        for name in sorted({one["group"] for each in stored for one in each["groups"]} | _owners(stored, topic)):
            found += _of_group(name, _chain(stored, name, topic), topic)
    return found


def _before_its_topic(places: Sequence[Place]) -> list[Fate]:
    """Return where the message waits, or that it was recalled; empty once it is in its topic."""
    waiting = [each for each in places if each["kind"] != "stored"]
    if not waiting or any(each["kind"] == "stored" and each["position"] > waiting[0]["position"] for each in places):
        return []
    last = waiting[-1]
    since_ms, due_ms = last["stored_ms"], last["due_ms"]
    if last["kind"] == "recalled":
        return [_fate(last, "", "recalled", 0, since_ms, None, f"recalled at {_moment(since_ms)}")]
    if last["kind"] in ("rolled back", "given up"):
        why = "" if last["kind"] == "rolled back" else ": its senders did not say how the transaction ended"
        return [_fate(last, "", "rolled back", 0, since_ms, None, f"rolled back at {_moment(since_ms)}{why}")]
    if last["kind"] == "half":
        if last["pending"]:
            words = (
                f"its transaction is open since {_moment(since_ms)}; its senders were asked {_times(last['checks'])}"
            )
            return [_fate(last, "", "open", 0, since_ms, None, words)]
        words = "its transaction has ended; it is not known any more how, and the message is not in its topic"
        return [_fate(last, "", "ended", 0, None, None, words)]
    if last["set_aside"]:
        words = f"quarantined as {last['set_aside']}"
        return [_fate(last, "", "quarantined", 0, None, None, words)]
    if last["pending"]:
        return [_fate(last, "", "delayed", 0, since_ms, due_ms, f"delayed until {_moment(due_ms)}")]
    words = f"was due at {_moment(due_ms)} and is not in its topic: on its way, or gone with time"
    return [_fate(last, "", "due", 0, None, due_ms, words)]


def _of_group(group: str, chain: Sequence[Place], topic: str) -> list[Fate]:
    """Return the fates for one group, given its places in the order of the log."""
    found: list[Fate] = []
    for number, place in enumerate(chain):
        holding = next((each for each in place["groups"] if each["group"] == group), None)
        was_replaced = any(each["topic"] != topic for each in chain[number + 1 :])
        if place["topic"] == _DEAD_LETTER_PREFIX + group != topic:
            fate = _of_dead_letter(group, place, holding, chain[:number], was_replaced)
        elif holding is None:
            continue
        else:
            fate = _of_holding(group, place, holding, topic, was_replaced)
        if fate is not None:
            found.append(fate)
    return found


def _of_dead_letter(
    group: str, place: Place, holding: Place | None, before: Sequence[Place], was_replaced: bool
) -> Fate | None:
    failed = [each for each in before if each["topic"] != place["topic"]]
    attempts = failed[-1]["attempts"] + 1 if failed else 0
    after = f" after {_count(attempts)}" if attempts else ""
    since_ms = place["stored_ms"]
    if holding is None or holding["holding"] != "done":
        words = f"dead letter{after} since {_moment(since_ms)}, offset {place['queue_offset']} of {place['topic']}"
        return _fate(place, group, "dead letter", attempts, since_ms, None, words)
    if was_replaced:
        return None
    words = f"was a dead letter{after} at {_moment(since_ms)}, and was purged or read since"
    return _fate(place, group, "was dead letter", attempts, None, None, words)


def _of_holding(group: str, place: Place, holding: Place, topic: str, was_replaced: bool) -> Fate | None:
    attempts = max(place["attempts"], holding["attempts"])
    failed = f", {_count(attempts)} failed before" if attempts else ""
    is_retry = place["topic"] != topic
    since_ms, due_ms = holding["popped_ms"], holding["due_ms"]
    if holding["holding"] == "quarantined":
        words = f"quarantined as {holding['set_aside']}{failed}"
        return _fate(place, group, "quarantined", attempts, None, None, words)
    if holding["holding"] == "delivered":
        if holding["put_off"]:
            words = (
                f"put off by its consumer at {_moment(since_ms)} (failed, or needs longer): attempt {attempts + 2} at "
                f"{_moment(due_ms)} unless acknowledged before"
            )
            return _fate(place, group, "put off", attempts, since_ms, due_ms, words)
        whom = f" to {holding['client_id']}" if holding["client_id"] else ""
        words = (
            f"delivered at {_moment(since_ms)}{whom} for attempt {attempts + 1}, hidden until {_moment(due_ms)}{failed}"
        )
        return _fate(place, group, "in flight", attempts, since_ms, due_ms, words)
    if holding["holding"] == "waits":
        if is_retry or attempts:
            how = "redriven by an operator" if place["redriven"] else f"failed {_times(attempts)}"
            words = f"{how}, waits for attempt {attempts + 1}" + (f" since {_moment(place['stored_ms'])}" * is_retry)
            return _fate(
                place, group, "waits for retry", attempts, place["stored_ms"] if is_retry else None, None, words
            )
        kept_back = f"; its filter {holding['kept_back_by']} will pass it by" if holding["kept_back_by"] else ""
        return _fate(place, group, "unread", 0, place["stored_ms"], None, f"not read yet{kept_back}")
    if was_replaced:
        return None
    if holding["ended"]:
        return _fate(
            place,
            group,
            "acknowledged",
            attempts,
            None,
            None,
            f"acknowledged{failed}",
        )
    if holding["kept_back_by"]:
        words = f"passed by, or acknowledged: its filter of now, {holding['kept_back_by']}, does not let it through"
    else:
        words = f"acknowledged, or passed by (a filter, an offset that was set); which is not known any more{failed}"
    return _fate(place, group, "done", attempts, None, None, words)


def _fate(
    place: Place, group: str, state: str, attempts: int, since_ms: int | None, until_ms: int | None, words: str
) -> Fate:
    return Fate(
        broker=place["broker"],
        group=group,
        topic=place["topic"],
        position=place["position"],
        state=state,
        attempts=attempts,
        since_ms=since_ms,
        until_ms=until_ms,
        words=words,
    )


def _chain(stored: Sequence[Place], group: str, topic: str) -> list[Place]:
    """The places that a message goes through for one group."""
    own = {topic, f"{_RETRY_PREFIX}{group}+{topic}", _DEAD_LETTER_PREFIX + group}
    return [each for each in stored if each["topic"] in own]


def _owners(stored: Iterable[Place], topic: str) -> set[str]:
    """Groups in whose retries or dead letters it stands."""
    found: set[str] = set()
    for place in stored:
        if place["topic"] == topic:
            continue
        name = str(place["topic"])
        if name.startswith(_DEAD_LETTER_PREFIX):
            found.add(name.removeprefix(_DEAD_LETTER_PREFIX))
        elif name.startswith(_RETRY_PREFIX):
            found.add(name.removeprefix(_RETRY_PREFIX).partition("+")[0])
    return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _count(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _moment(time_ms: int) -> str:
    """A time in UTC, to the millisecond."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
