"""Deleted names of topics, or of groups, which no first use may create for a while (pure).

Otherwise the next poll of a running consumer would create its group again, which would get every message once more; and
the next send would create the topic again, perhaps with another type. A name stays listed for a day at least, so that
brokers that were away learn of the deletion.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

DELETED_BYTES_MAX: Final = 48 * 1024
"""Size limit of the stored names; the oldest are dropped.

They are part of the head of the cluster's state, which each change writes.
"""
_RETENTION_MS: Final = 24 * 3600 * 1000
_ENTRY_BYTES: Final = 60
"""Maximum size of an entry without its name, in bytes."""


class Deletion(NamedTuple):
    """Deletion of a name.

    Args:
        at_ms: in milliseconds since 1970.
        until_ms: when a first use may create it again.
        version: of the state without it; 0 if an older release deleted it.
    """

    at_ms: int
    until_ms: int
    version: int = 0

    def sentence(self, what: str) -> str:
        """Return the error sentence for a first use.

        Args:
            what: the deleted object, `topic orders`.
        """
        return (
            f"the {what} was deleted by an operator at {_moment(self.at_ms)}; create it by hand, or wait: no use makes "
            f"it again before {_moment(self.until_ms)}"
        )


class DeletedNames:
    """Immutable map of deletions by name, the earliest first.

    Args:
        deletions: its entries.
    """

    __slots__ = ("_deletions",)

    def __init__(self, deletions: Mapping[str, Deletion] | None = None) -> None:
        self._deletions = dict(deletions or {})

    def __len__(self) -> int:
        return len(self._deletions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeletedNames) and self._deletions == other._deletions

    __hash__ = None  # type: ignore[assignment]

    def resting(self, name: str, now_ms: int) -> Deletion | None:
        """Return the deletion of a name that no first use may create now; None if one may. It also ends when the clock
        is set back by much, lest it last for years.
        """
        deletion = self._deletions.get(name)
        if deletion is None or abs(now_ms - deletion.at_ms) >= deletion.until_ms - deletion.at_ms:
            return None
        return deletion

    def after(self, made: Iterable[str], deleted: Iterable[str], deletion: Deletion) -> "DeletedNames":
        """Apply a change.

        Args:
            made: created names.
            deleted: names that were deleted.
            deletion: its times; entries that have expired by then are dropped.
        """
        made, deleted = {*made}, [*deleted]
        if not deleted and not (made & self._deletions.keys()):
            return self
        left = {
            name: each
            for name, each in self._deletions.items()
            if name not in made and max(each.until_ms, each.at_ms + _RETENTION_MS) > deletion.at_ms
        }
        for name in deleted:
            left.pop(name, None)
            left[name] = deletion
        size = sum(map(len, left)) + len(left) * _ENTRY_BYTES
        while size > DELETED_BYTES_MAX:
            earliest = next(iter(left))
            del left[earliest]
            size -= len(earliest) + _ENTRY_BYTES
        return DeletedNames(left)

    def versions(self) -> dict[str, int]:
        """Return the versions of the state at which the names were deleted, as far as known."""
        return {name: each.version for name, each in self._deletions.items() if each.version}

    def count_resting(self, now_ms: int) -> int:
        """Return the number of names that no first use may create now."""
        return sum(self.resting(name, now_ms) is not None for name in self._deletions)

    def document(self) -> dict[str, list[int]]:
        """Return its form in the store."""
        return {name: [*deletion] for name, deletion in self._deletions.items()}

    @staticmethod
    def of_document(document: Mapping[str, Any]) -> "DeletedNames":
        """Read the map from its form in the store; raise as reading another document does."""
        found = (
            (str(name), Deletion(int(at_ms), int(until_ms), *map(int, version)))
            for name, (at_ms, until_ms, *version) in document.items()
        )
        return DeletedNames(dict(sorted(found, key=lambda each: each[1])))


def _moment(time_ms: int) -> str:
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time_ms // 1000):%Y-%m-%dT%H:%M:%SZ}"
