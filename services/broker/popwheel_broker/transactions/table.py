"""Table of open transactions, and of the last resolutions: a fold over the log, as all state of a broker is (S6)."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.transactions.half import (
    HalfTarget,
    Resolution,
    committed_half,
    decode_check,
    decode_end,
    decode_half,
    is_committed,
)
from popwheel_common.shares import Shares

_KINDS: Final = frozenset(
    (RecordKind.MESSAGE, RecordKind.HALF, RecordKind.HALF_CHECK, RecordKind.HALF_END, RecordKind.FORGET_TOPIC)
)
ENDED_MAX = 10_000
"""Limit of ended transactions that are remembered: a second end of one of them gets the same answer."""


class OpenHalf(NamedTuple):
    """A half message that is neither committed nor rolled back.

    Args:
        position: of its record in the commit log.
        epoch: of the master that wrote it: after a power loss another record may stand at its position.
        target: of the message.
        stored_ms: when it was stored, wall clock.
        checks: number of checks.
        asked_ms: time of the last check, or when it was stored, wall clock.
    """

    position: int
    epoch: int
    target: HalfTarget
    stored_ms: int
    checks: int
    asked_ms: int


class EndedHalf(NamedTuple):
    """A transaction that has ended.

    Args:
        epoch: of its half message.
        resolution: of the transaction.
    """

    epoch: int
    resolution: Resolution


class TransactionTable:
    """Open half messages, by their positions, the oldest first; and the outcomes of the latest transactions."""

    def __init__(self) -> None:
        self._open: dict[int, OpenHalf] = {}
        self._ended: dict[int, EndedHalf] = {}
        self._changed: dict[int, None] = {}
        self.shares = Shares()
        """Open half messages by topic."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenHalf]:
        return iter(self._open.values())

    def get(self, position: int) -> OpenHalf | None:
        """Return the open half message whose record stands at a position."""
        return self._open.get(position)

    def ended(self, position: int) -> EndedHalf | None:
        """Return the resolution of the half message at a position, if that is remembered."""
        return self._ended.get(position)

    @property
    def oldest(self) -> OpenHalf | None:
        """Return the open half message that was stored first."""
        return next(iter(self._open.values()), None)

    def checkpoint_rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a checkpoint."""
        return (("halves", *row) for row in self.rows())

    def changed_rows(self) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a checkpoint that have changed since the last call."""
        return (("halves", *row) for row in self.take_changes())

    def needed_from(self) -> int | None:
        """Return the least position of the log that an open transaction needs; None if none is open."""
        oldest = self.oldest
        return None if oldest is None else oldest.position

    def _take_up(self, half: OpenHalf) -> None:
        """Add a stored half message."""
        if half.position not in self._open:
            self.shares.take(half.target.topic)
        self._open[half.position] = half
        self._changed[half.position] = None

    def _checked(self, position: int, checks: int, asked_ms: int) -> None:
        """Record the number of checks of a half message."""
        half = self._open.get(position)
        if half is not None:
            self._open[position] = half._replace(checks=checks, asked_ms=asked_ms)
            self._changed[position] = None

    def _end(self, position: int, resolution: Resolution) -> None:
        """Record the end of a transaction. One that is not open does not change."""
        half = self._open.pop(position, None)
        if half is None:
            return
        self.shares.give(half.target.topic)
        self._remember(position, EndedHalf(half.epoch, resolution))

    def _remember(self, position: int, ended: EndedHalf) -> None:
        self._ended[position] = ended
        self._record_change(position)
        while len(self._ended) > ENDED_MAX:
            forgotten = next(iter(self._ended))
            del self._ended[forgotten]
            self._record_change(forgotten)

    def _record_change(self, position: int) -> None:
        """Record that a position has changed, behind all changes before."""
        self._changed.pop(position, None)
        self._changed[position] = None

    @property
    def kinds(self) -> frozenset[RecordKind]:
        """See `Fold`."""
        return _KINDS

    def concerns(self, kind: int, origin: bytes) -> bool:
        """See `Fold`: of messages, those that were half messages before."""
        return kind != RecordKind.MESSAGE or is_committed(origin)

    def apply(self, found: StoredRecord) -> None:
        """See `Fold`."""
        kind = found.kind
        if kind == RecordKind.MESSAGE:
            self._end(committed_half(found), Resolution.COMMITTED)
        elif kind == RecordKind.HALF:
            target = decode_half(found.origin)
            self._take_up(OpenHalf(found.position, found.epoch, target, found.store_time_ms, 0, found.store_time_ms))
        elif kind == RecordKind.HALF_CHECK:
            self._checked(*decode_check(found.payload), found.store_time_ms)
        elif kind == RecordKind.HALF_END:
            self._end(*decode_end(found.payload))
        elif kind == RecordKind.FORGET_TOPIC:
            self._forget(found.payload.decode())

    def _forget(self, topic: str) -> None:
        """Drop the half messages of a deleted topic."""
        if not self.shares.share(topic):
            return
        for half in [each for each in self if each.target.topic == topic]:
            del self._open[half.position]
            self.shares.give(topic)
            self._record_change(half.position)

    # Rows of a checkpoint

    def rows(self) -> Iterator[tuple[int, list[Any] | None]]:
        """Yield all rows, each as it is when it is reached."""
        for position in [*self._open, *self._ended]:
            yield position, self._saved(position)

    def take_changes(self) -> list[tuple[int, list[Any] | None]]:
        """Return the changes since the last call; None for what is gone."""
        changed, self._changed = self._changed, {}
        return [(position, self._saved(position)) for position in changed]

    def _saved(self, position: int) -> list[Any] | None:
        half = self._open.get(position)
        if half is not None:
            return [half.epoch, *half.target, half.stored_ms, half.checks, half.asked_ms]
        ended = self._ended.get(position)
        return None if ended is None else [ended.epoch, int(ended.resolution)]

    def restore(self, rows: dict[int, list[Any]]) -> None:
        """Restore rows, in the order in which they were yielded."""
        self._open, self._ended, self._changed, self.shares = {}, {}, {}, Shares()
        ended: list[tuple[int, EndedHalf]] = []
        for position in sorted(rows):
            row = rows[position]
            if len(row) > len(EndedHalf._fields):
                epoch, *target, stored_ms, checks, asked_ms = row
                self._take_up(OpenHalf(position, epoch, HalfTarget(*target), stored_ms, checks, asked_ms))
        for position, row in rows.items():
            if len(row) == len(EndedHalf._fields):
                ended.append((position, EndedHalf(row[0], Resolution(row[1]))))
        self._ended = dict(ended)
        self._changed = {}
