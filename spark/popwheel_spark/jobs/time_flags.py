"""Times and spans of time on the command line (pure)."""

import re
from datetime import UTC, datetime
from typing import Any

import click

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,9})([smhd])")


class Moment(click.ParamType[int]):
    """A time, in milliseconds since 1970: of that number, or of a date and time with its zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            self.fail(f"{value!r} is no time; write 2026-01-31T12:00:00Z, or milliseconds since 1970", param, ctx)
        return round(time.timestamp() * 1000)


class Span(click.ParamType[int]):
    """A span of time, in milliseconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SPAN.fullmatch(value)
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is no span of time; write 90s, 10m, 2h or 1d", param, ctx)
        return int(match[1]) * _UNITS_MS[match[2]]


def moment_words(ms: int) -> str:
    """Return a time as text, to the second, in UTC.

    Args:
        ms: since 1970.
    """
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
