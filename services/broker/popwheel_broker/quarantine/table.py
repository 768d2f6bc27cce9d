"""What is set aside now: a fold over the log, as all state of a broker is (S6)."""

from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any

from popwheel_broker.quarantine.entry import QuarantineEntry, Step, decode_end, decode_kept
from popwheel_broker.records.record import RecordKind, StoredRecord
from popwheel_broker.wheel.delay import NONE, decode_delay, fired_origin
from popwheel_common.contract import names
from popwheel_common.shares import Shares


class QuarantineTable:
    """All entries, by their keys, the oldest first."""

    def __init__(self) -> None:
        self._entries: dict[bytes, QuarantineEntry] = {}
        self._ended: list[tuple[int, QuarantineEntry]] = []
        """Since the last checkpoint, and by which record."""
        self.shares = Shares()
        """The number of entries of each topic, as clients know it."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[QuarantineEntry]:
        return iter(self._entries.values())

    def get(self, key: bytes) -> QuarantineEntry | None:
        """An entry."""
        return self._entries.get(key)

    def has_timer(self, position: int) -> bool:
        """Whether the timer whose record stands at a position was taken from its way."""
        entry = self._entries.get(fired_origin(position)) if self._entries else None
        return entry is not None and entry.is_timer

    def holds_message(self, root: int) -> bool:
        """Whether a delayed message is set aside, by the position of its first record."""
        return any(entry.root == root and entry.is_timer for entry in self)

    def open(self, entry: QuarantineEntry) -> None:
        """A record was set aside."""
        if entry.key not in self._entries:
            self.shares.take(holder_of(entry))
        self._entries[entry.key] = entry

    def end(self, key: bytes, position: int) -> None:
        """An entry is done with, given back or dropped, by the record at a position of the log. Of one that is not
        there, nothing is changed.
        """
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.shares.give(holder_of(entry))
            self._ended.append((position, entry))

    def replay(self, found: StoredRecord) -> None:
        """Fold in a record of the log that may be about an entry.

        Raises:
            UnknownFormatError: it was written by a newer release.
        """
        if found.kind == RecordKind.QUARANTINE:
            self.open(decode_kept(found).entry)
        elif found.kind == RecordKind.QUARANTINE_END:
            self.end(decode_end(found.payload), found.position)
        elif not self._entries:
            return
        elif found.kind == RecordKind.MESSAGE:
            self._gone_its_way(found.origin, found.position)
        elif found.kind == RecordKind.TIMER:
            predecessor = decode_delay(found.origin).predecessor
            if predecessor != NONE:
                self._gone_its_way(fired_origin(predecessor), found.position)
        elif found.kind == RecordKind.FORGET_TOPIC:
            self.forget((found.payload.decode(),))
        elif found.kind == RecordKind.FORGET_GROUP:
            self.forget(group=found.payload.decode())

    def _gone_its_way(self, origin: bytes, position: int) -> None:
        """The record at a position is what comes of an origin: it was set aside, and has been given back. That a recall
        of it fails is only noted under the same key, and stays so.
        """
        entry = self._entries.get(origin)
        if entry is not None and entry.origin:
            self.end(origin, position)

    def forget(self, topics: Collection[str] = (), group: str = "") -> None:
        """Topics or a group were deleted: what was set aside of them is gone, too; of a topic also of its lite topics.
        Where nothing was of these topics, nothing is gone through.
        """
        if group or any(self.shares.held(names.client_topic(each)) for each in topics):
            gone = frozenset(topics)
            self._keep(
                lambda entry: (
                    not (entry.topic in gone or names.client_topic(entry.topic) in gone)
                    and not (group and entry.group == group)
                )
            )

    def retain(self, start_position: int) -> None:
        """The log begins at a position now: what stood before it is gone."""
        self._keep(lambda entry: entry.held_position >= start_position)

    def _keep(self, is_kept: Callable[[QuarantineEntry], bool]) -> None:
        if self._entries:
            self._take_up({key: entry for key, entry in self._entries.items() if is_kept(entry)})

    def _take_up(self, entries: dict[bytes, QuarantineEntry]) -> None:
        self._entries, self.shares = entries, Shares()
        for entry in entries.values():
            self.shares.take(holder_of(entry))

    def counts(self) -> dict[Step, int]:
        """How many entries there are of each step."""
        counts = dict.fromkeys(Step, 0)
        for entry in self._entries.values():
            counts[entry.step] += 1
        return counts

    def needed_from(self) -> int | None:
        """The least position of the log that an entry needs; None if none needs any."""
        return min((entry.position for entry in self if entry.is_pinned), default=None)

    def saved(self, position: int) -> list[list[Any]]:
        """What a checkpoint holds of it: what the log says up to the checkpoint's position, which may be less than is
        appended. Else who folds the log from there on met a record, and the table had heard of it before.
        """
        self._ended = [(end, entry) for end, entry in self._ended if end >= position]
        there = chain(self, (entry for _, entry in self._ended))
        return [entry.saved() for entry in there if entry.record_position < position]

    def restore(self, saved: list[list[Any]]) -> None:
        """Take up what `saved` made."""
        self._take_up({entry.key: entry for entry in map(QuarantineEntry.restored, saved)})


def holder_of(entry: QuarantineEntry) -> str:
    """Return the topic whose share of the limit an entry takes: its own, by the name that clients know."""
    return names.client_topic(entry.topic)
