"""Which of the oldest segments of the commit log may go."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """One segment.

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
    """The position before which segments may be deleted; 0 if none may.

    Args:
        segments: all but the one that is written, oldest first.
        now_ms: wall clock.
        hours: how long messages are held.
        disk_is_short: then the oldest one goes before its time.
        needed_from: the least position that an open check point or a timer needs; a segment that holds it stays.
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
