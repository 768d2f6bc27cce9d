"""Lines of the change log, and the bounded list of them (pure)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from popwheel_controller.store.state_store import Document, damaged

LINES_MAX: Final = 500
LINES_BYTES_MAX: Final = 160 * 1024
"""Limit of all lines together: with it the document is below 256 KiB in each store."""
_MERGED_MS: Final = 600_000
_DONE: Final = "done"
_BYTES_MAX: Final = {"who": 90, "address": 70, "verb": 50, "object": 260, "outcome": 60, "before": 120, "after": 190}
"""Limits of a line's texts as JSON, quotes included: a line has less than 1 KiB."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change that was made or refused.

    Args:
        id: distinguishes it from all others.
        time_ms: when it was answered, in milliseconds since 1970.
        who: a token's name, `resource NAMESPACE/NAME`, `controller`, or an address where no token is demanded.
        address: where it came from; empty for the controller's own.
        verb: the request, like `topic delete`.
        object: name of the changed object.
        before: state before the change.
        after: state after the change, or the reason of a refusal.
        outcome: `done`, `refused CODE`, or `failed CODE` if the outcome is unknown.
        times: number of equal changes in a row, the last one at `time_ms`.
    """

    id: str
    time_ms: int
    who: str
    address: str
    verb: str
    object: str
    before: str
    after: str
    outcome: str = _DONE
    times: int = 1

    def cut(self) -> "Change":
        """Return the change with each text cut to its limit."""
        texts: dict[str, Any] = {name: _cut(getattr(self, name), most) for name, most in _BYTES_MAX.items()}
        return replace(self, **texts)

    def repeats(self, earlier: "Change") -> bool:
        """Return whether it equals the change right before it: a long redrive is many calls but one line."""
        same = ("who", "address", "verb", "object", "before", "outcome")
        return (
            not self.before
            and self.time_ms - earlier.time_ms < _MERGED_MS
            and all(getattr(self, name) == getattr(earlier, name) for name in same)
        )

    def merged(self, earlier: "Change") -> "Change":
        """Return the line of both."""
        return replace(self, id=earlier.id, times=earlier.times + 1)


_NAMES: Final = tuple(field.name for field in fields(Change))


def facts_of(change: Change) -> dict[str, Any]:
    """Return a change as its document has it; `asdict` takes many times as long."""
    return {name: getattr(change, name) for name in _NAMES}


def refused(code: str, http_status: int) -> str:
    """Return the outcome of a change that was refused, or whose outcome is unknown."""
    return f"{'refused' if http_status < 500 else 'failed'} {code}"


def latest_fitting(changes: Iterable[Change]) -> list[Change]:
    """Return the latest changes that fit into a document, in their order."""
    found: list[Change] = []
    left = LINES_BYTES_MAX
    for change in reversed(list(changes)):
        left -= len(json.dumps(facts_of(change)))
        if left < 0 or len(found) == LINES_MAX:
            break
        found.append(change)
    return found[::-1]


def changes_document(changes: Iterable[Change]) -> Document:
    """Return the document that stores them."""
    return {"changes": [facts_of(change) for change in changes]}


def changes_of(document: Document, source: str) -> list[Change]:
    """Read changes from their document.

    Args:
        document: made by `changes_document`.
        source: name of its place, for errors.

    Raises:
        CorruptDataError: the document is malformed.
    """
    try:
        return [_change(each) for each in document["changes"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(source, error) from error


def _change(facts: Mapping[str, Any]) -> Change:
    known = {field.name: field.type for field in fields(Change)}
    change = Change(**{name: value for name, value in facts.items() if name in known})
    if not all(type(getattr(change, name)) is kind for name, kind in known.items()):
        raise TypeError(f"not a change: {change}")
    return change


def _cut(text: str, most: int) -> str:
    if len(json.dumps(text)) <= most:
        return text
    while len(json.dumps(text)) > most - 3:
        text = text[: max(0, min(len(text) * 7 // 8, most - 5))]
    return f"{text}..."
