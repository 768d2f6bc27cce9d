"""Geometry of drawings (pure): templates write it as SVG, without style attributes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_STEPS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000),
    *(86_400_000, 172_800_000, 604_800_000, 1_209_600_000, 2_592_000_000),
)
"""Round distances of ticks."""
_TICKS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Spark:
    """Line of values over time, in a box of 100 by 100.

    Args:
        lines: paths, with gaps at unknown values.
        areas: the same, closed at the bottom.
        last: the last known value.
        greatest: the greatest value.
        known: number of known values.
        end_x, end_y: of the last value.
    """

    lines: str
    areas: str
    last: float | None
    greatest: float | None
    known: int
    end_x: float = 0.0
    end_y: float = 0.0


def spark(values: Sequence[float | None]) -> Spark:
    """Draw values at equal distances."""
    known = [each for each in values if each is not None]
    if not known:
        return Spark("", "", None, None, 0)
    top = max(max(known), 0) or 1
    width = max(1, len(values) - 1)
    runs: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((_round(100 * place / width), _round(96 - 92 * max(0, value) / top)))
    drawn = [run if len(run) > 1 else [run[0], (run[0][0] + 0.5, run[0][1])] for run in runs if run]
    lines = " ".join("M" + " L".join(f"{x:g} {y:g}" for x, y in run) for run in drawn)
    areas = " ".join(
        f"M{run[0][0]:g} 100 L" + " L".join(f"{x:g} {y:g}" for x, y in run) + f" L{run[-1][0]:g} 100 Z" for run in drawn
    )
    end_x, end_y = drawn[-1][-1]
    return Spark(lines, areas, known[-1], max(known), len(known), end_x, end_y)


def share(part: float | None, whole: float | None) -> float:
    """Return a part of a whole in percent, between 0 and 100."""
    if not part or not whole or whole < 0:
        return 0.0
    return _round(100 * min(1.0, max(0.0, part / whole)))


@dataclass(frozen=True, slots=True)
class Scale:
    """Time axis, from 0 to 100 percent.

    Args:
        begin_ms: its left end.
        end_ms: its right end.
    """

    begin_ms: int
    end_ms: int

    def x(self, ms: int) -> float:
        """Return the position of a time, clamped to the ends."""
        whole = max(1, self.end_ms - self.begin_ms)
        return _round(100 * min(1.0, max(0.0, (ms - self.begin_ms) / whole)))

    @property
    def ticks(self) -> list[tuple[float, int]]:
        """Return positions of ticks, and their round distances from the begin, in milliseconds."""
        whole = max(1, self.end_ms - self.begin_ms)
        step = next((each for each in _STEPS_MS if whole / each <= _TICKS_MAX), whole)
        return [(self.x(self.begin_ms + each), each) for each in range(0, whole + 1, step)]


def scale(times_ms: Sequence[int]) -> Scale:
    """Return an axis for some times, with a little room on the right."""
    begin, end = min(times_ms), max(times_ms)
    room = max(1, (end - begin) // 40)
    return Scale(begin, end + room)


def _round(number: float) -> float:
    return round(number, 2)
