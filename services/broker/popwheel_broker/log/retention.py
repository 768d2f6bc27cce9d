"""Retention of the commit log: the oldest segments that may be deleted."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """A segment of the log.

    Args:
        end_position: where it ends.
        newest_ms: when its last record was stored, or a little later; wall clock.
    """

    end_position: int
    newest_ms: int


def delete_before(
    segments: Iterable[SegmentAge],
    now_ms: int,
    hours: float,
    disk_is_short: bool,
    needed_from: int | None,
) -> int:
    """Return the position before which segments may be deleted; 0 if none may.

    Args:
        segments: all but the one that is written, oldest first.
        now_ms: wall clock.
        hours: how long messages are stored.
        disk_is_short: then the oldest one goes before its time.
        needed_from: the least position that an open delivery or a timer needs; a segment that contains it stays.
    """
    position = 0
    for number, segment in enumerate(segments):
        expired = segment.newest_ms < now_ms - hours * 3_600_000
        if not expired and not (disk_is_short and number == 0):
            break
        if needed_from is not None and segment.end_position > needed_from:
            break
        position = segment.end_position
    return position


_READ_AT_ONCE = 64


class SegmentAges:
    """Latest times at which the last record of each segment was stored.

    A segment is no younger than any record behind it. So a clock that was set forward for a while, and back, makes
    none look young for longer than until the next segment begins.

    Args:
        store: whose log it is.
        on_fault: called with a first record that fails by itself; its segment's age is unknown then.
    """

    def __init__(self, store: MessageStore, on_fault: Callable[[int, RecordFaultError], None]) -> None:
        self._store = store
        self._on_fault = on_fault
        self._begun_ms: dict[int, int | None] = {}
        """Time when the first record of a segment was stored, by where it begins; None if that is damaged."""

    def all(self) -> list[SegmentAge]:
        """Return the ages of all segments but the one that is written, oldest first."""
        segments = [(start, end) for start, end in self._store.log.segments() if end > start]
        self._read([start for start, _ in segments[1:]])
        newest_ms = sys.maxsize if self._store.latest_ms is None else self._store.latest_ms
        ages: list[SegmentAge] = []
        for (next_start, _), (_, end) in zip(reversed(segments[1:]), reversed(segments[:-1]), strict=True):
            begun_ms = self._begun_ms.get(next_start)
            if begun_ms is not None:
                newest_ms = min(newest_ms, begun_ms)
            ages.append(SegmentAge(end, newest_ms))
        ages.reverse()
        return ages

    def _read(self, starts: list[int]) -> None:
        """Find out of some segments more; those that are not known yet count as young."""
        self._begun_ms = {start: self._begun_ms[start] for start in starts if self._begun_ms.get(start) is not None}
        for start in [each for each in starts if each not in self._begun_ms][:_READ_AT_ONCE]:
            try:
                with RECORD_STEP:
                    self._begun_ms[start] = self._store.records.first_store_time_ms(start)
            except RecordFaultError as fault:
                self._on_fault(start, fault)
