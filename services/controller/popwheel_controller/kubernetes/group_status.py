"""Status of a `BrokerGroup`, and when a change is worth a write (pure): etcd syncs each of them."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

READY = "Ready"
SWITCHED_OVER = "SwitchedOver"
_WRITTEN_EVERY = timedelta(minutes=1)
_NOISE = timedelta(seconds=2)  # of two clocks, and of whole seconds

Status = Mapping[str, Any]


def condition(kind: str, *, holds: bool, reason: str, message: str) -> Mapping[str, str]:
    """A condition of a status, as Kubernetes has them, without its time.

    Args:
        kind: `READY`, `SWITCHED_OVER`.
        holds: whether it is so.
        reason: why, in one word.
        message: the same in a sentence.
    """
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


def status_change(
    old: Status, conditions: Iterable[Mapping[str, str]], checkpoint_age_s: float | None, now_ms: int
) -> Status | None:
    """The parts of a status that are to be written now; None if there are none.

    Args:
        old: the status as it is.
        conditions: those that are to be so.
        checkpoint_age_s: how old what the slowest slave holds is, in seconds; None if there is no slave.
        now_ms: milliseconds since 1970.
    """
    change: dict[str, Any] = {}
    known = list(old.get("conditions", ()))
    merged = with_conditions(known, conditions, now_ms)
    if merged != known:
        change["conditions"] = merged
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    shown = _time(old.get("checkpointTime"))
    if checkpoint_age_s is None:
        if shown is not None:
            change["checkpointTime"] = None
    else:
        taken = now - timedelta(seconds=checkpoint_age_s)
        if change or shown is None or not -_NOISE <= taken - shown < _WRITTEN_EVERY:
            change["checkpointTime"] = _text(taken)
    return change or None


def with_conditions(
    known: Iterable[Mapping[str, str]], conditions: Iterable[Mapping[str, str]], now_ms: int
) -> list[Mapping[str, str]]:
    """The conditions of a status when some of them are so now: each since when it is.

    Args:
        known: those that it has.
        conditions: those that are to be so.
        now_ms: milliseconds since 1970.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    merged = {each["type"]: each for each in known}
    for each in conditions:
        merged[each["type"]] = _dated(merged.get(each["type"]), each, now)
    return list(merged.values())


def _dated(old: Mapping[str, str] | None, new: Mapping[str, str], now: datetime) -> Mapping[str, str]:
    """A condition since when it is so."""
    same = old is not None and old["status"] == new["status"]
    return {**new, "lastTransitionTime": old["lastTransitionTime"] if old is not None and same else _text(now)}


def time_text(now_ms: int) -> str:
    """A time as Kubernetes writes it.

    Args:
        now_ms: milliseconds since 1970.
    """
    return _text(datetime.fromtimestamp(now_ms / 1000, UTC))


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
