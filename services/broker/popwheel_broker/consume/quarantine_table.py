"""Table of the quarantine: a fold over the log, as all state of a broker is (S6)."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

from popwheel_broker.consume.quarantine_entry import QuarantineEntry, Step, decode_end, decode_stored_entry
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import NONE, decode_delay, fired_origin
from popwheel_common.contract import names
from popwheel_common.shares import Shares

_WRITTEN: Final = frozenset((RecordKind.QUARANTINE, RecordKind.QUARANTINE_END))
_OF_ENTRIES: Final = frozenset((RecordKind.MESSAGE, RecordKind.TIMER, RecordKind.FORGET_TOPIC, RecordKind.FORGET_GROUP))
"""They change only entries that are in the table."""


class QuarantineTable:
    """Entries, by their keys, the oldest first."""

    def __init__(self) -> None:
        self._entries: dict[bytes, QuarantineEntry] = {}
        self._of_topic: dict[str, dict[bytes, None]] = {}
        """Their keys, by the topics that they name."""
        self._ended: list[tuple[int, QuarantineEntry]] = []
        """Entries ended since the last checkpoint, with the record that ended each."""
        self.shares = Shares()
        """The number of entries of each topic, as clients know it."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[QuarantineEntry]:
        return iter(self._entries.values())

    def get(self, key: bytes) -> QuarantineEntry | None:
        """Return an entry."""
        return self._entries.get(key)

    def has_timer(self, position: int) -> bool:
        """Return whether the timer whose record stands at a position is in quarantine."""
        entry = self._entries.get(fired_origin(position)) if self._entries else None
        return entry is not None and entry.is_timer

    def holds_message(self, root: int) -> bool:
        """Return whether a delayed message is in quarantine, by the position of its first record."""
        return any(entry.root == root and entry.is_timer for entry in self)

    def record_fault(self, entry: QuarantineEntry) -> None:
        """Add an entry for a record of the log that could not be applied. It has no record: every replica fails
        alike.
        """
        self._add(entry)

    def _add(self, entry: QuarantineEntry) -> None:
        self._remove(entry.key)
        self._entries[entry.key] = entry
        self._of_topic.setdefault(entry.topic, {})[entry.key] = None
        self.shares.take(holder_of(entry))

    def _remove(self, key: bytes) -> QuarantineEntry | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.shares.give(holder_of(entry))
            keys = self._of_topic[entry.topic]
            del keys[key]
            if not keys:
                del self._of_topic[entry.topic]
        return entry

    def _end(self, key: bytes, position: int) -> None:
        """End an entry, released or dropped by the record at a position of the log. A missing entry changes nothing."""
        entry = self._remove(key)
        if entry is not None:
            self._ended.append((position, entry))

    @property
    def kinds(self) -> frozenset[RecordKind]:
        """See `Fold`."""
        return _WRITTEN | _OF_ENTRIES

    def concerns(self, kind: int, origin: bytes) -> bool:
        """See `Fold`: most often the quarantine is empty, and then most records change nothing."""
        return bool(self._entries) or kind in _WRITTEN

    def apply(self, found: StoredRecord) -> None:
        """See `Fold`."""
        if found.kind == RecordKind.QUARANTINE:
            self._add(decode_stored_entry(found).entry)
        elif found.kind == RecordKind.QUARANTINE_END:
            self._end(decode_end(found.payload), found.position)
        elif found.kind == RecordKind.MESSAGE:
            self._end_origin(found.origin, found.position)
        elif found.kind == RecordKind.TIMER:
            predecessor = decode_delay(found.origin).predecessor
            if predecessor != NONE:
                self._end_origin(fired_origin(predecessor), found.position)
        elif found.kind == RecordKind.FORGET_TOPIC:
            self._forget_topic(found.payload.decode())
        elif found.kind == RecordKind.FORGET_GROUP:
            group = found.payload.decode()
            self._retain(lambda entry: entry.group != group)

    def _end_origin(self, origin: bytes, position: int) -> None:
        """End the entry of an origin: the record at a position is what it was released to. A failed recall is under the
        same key, and stays.
        """
        entry = self._entries.get(origin)
        if entry is not None and entry.origin:
            self._end(origin, position)

    def _forget_topic(self, topic: str) -> None:
        """Remove the entries of a deleted topic, and of its lite topics."""
        gone = [topic] if topic in self._of_topic else []
        if self.shares.share(topic):
            gone = [each for each in self._of_topic if topic in (each, names.client_topic(each))]
        for each in gone:
            for key in list(self._of_topic[each]):
                self._remove(key)

    def retain(self, start_position: int) -> None:
        """Remove entries before the position where the log begins now."""
        self._retain(lambda entry: entry.stored_position >= start_position)

    def _retain(self, is_retained: Callable[[QuarantineEntry], bool]) -> None:
        if self._entries:
            self._take_up({key: entry for key, entry in self._entries.items() if is_retained(entry)})

    def _take_up(self, entries: dict[bytes, QuarantineEntry]) -> None:
        self._entries, self._of_topic, self.shares = {}, {}, Shares()
        for entry in entries.values():
            self._add(entry)

    def counts(self) -> dict[Step, int]:
        """Return the number of entries by step."""
        counts = dict.fromkeys(Step, 0)
        for entry in self._entries.values():
            counts[entry.step] += 1
        return counts

    def needed_from(self) -> int | None:
        """Return the least position of the log that an entry needs; None if none needs any."""
        return min((entry.position for entry in self if entry.is_pinned), default=None)

    def saved(self, position: int) -> list[list[Any]]:
        """Return its form in a checkpoint.

        It has the entries up to the checkpoint's position, which may be less than is appended. Else a fold of the log
        from there would find a record that the table has already.
        """
        self._ended = [(end, entry) for end, entry in self._ended if end >= position]
        there = chain(self, (entry for _, entry in self._ended))
        return [entry.saved() for entry in there if entry.record_position < position]

    def restore(self, saved: list[list[Any]]) -> None:
        """Restore what `saved` made."""
        self._take_up({entry.key: entry for entry in map(QuarantineEntry.restored, saved)})


def holder_of(entry: QuarantineEntry) -> str:
    """Return the topic whose share of the limit an entry counts in: its own, by the name that clients know."""
    return names.client_topic(entry.topic)
