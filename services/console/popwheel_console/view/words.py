"""Numbers, times and lengths as pages write them (pure). What is not known is a dash, never zero."""

from datetime import UTC, datetime, timedelta
from typing import Final

UNKNOWN: Final = "–"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond that a calendar knows."""


def count(number: int | None) -> str:
    """A whole number, exact however large, in groups of three digits."""
    return UNKNOWN if number is None else f"{number:,}"


def rate(per_second: float | None) -> str:
    """Return a rate per second, in words."""
    if per_second is None:
        return UNKNOWN
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def duration(ms: int | float | None) -> str:
    """A length of time in at most two units: `3 min 20 s`."""
    if ms is None:
        return UNKNOWN
    if not ms:
        return "0 s"
    if abs(ms) < 1_000:
        return f"{int(ms)} ms"
    sign, left = ("-" if ms < 0 else ""), abs(int(ms))
    if left < 10_000:
        return f"{sign}{left / 1_000:.1f} s"
    for (size, unit), (below, below_unit) in zip(_UNITS, (*_UNITS[1:], (1, "")), strict=True):
        if left >= size:
            whole, rest = divmod(left, size)
            part = rest // below if below_unit else 0
            return f"{sign}{whole:,} {unit}" + (f" {part} {below_unit}" if part else "")
    raise AssertionError("a second is the least unit")


def size(number: int | None) -> str:
    """A number of bytes."""
    if number is None:
        return UNKNOWN
    value, power = float(number), 0
    while value >= 1024 and power < len(_BYTES) - 1:
        value, power = value / 1024, power + 1
    return f"{number} B" if not power else f"{value:.1f} {_BYTES[power]}"


def moment(ms: int | None) -> datetime | None:
    """A time of the calendar; None if it is not known, or no calendar has it."""
    return None if ms is None or not 0 <= ms <= _TIME_MS_MAX else _EPOCH + timedelta(milliseconds=ms)


def iso(ms: int | None) -> str:
    """A time as machines read it, to the millisecond."""
    at = moment(ms)
    return "" if at is None else at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def clock_time(ms: int | None, now_ms: int) -> str:
    """A time in UTC, with its day if that is not today."""
    at, now = moment(ms), moment(now_ms)
    if at is None:
        return UNKNOWN if ms is None else f"{ms:,} ms"
    of_day = at.strftime("%H:%M:%S")
    return of_day if now is not None and at.date() == now.date() else f"{at:%Y-%m-%d} {of_day}"


def utc(ms: int | None) -> str:
    """A time in UTC, whole."""
    at = moment(ms)
    return UNKNOWN if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def plural(number: int | None, noun: str, many: str = "") -> str:
    """A number with its noun: `1 topic`, `2 topics`."""
    return f"{count(number)} {noun if number == 1 else many or noun + 's'}"
