"""Spans of time in human notation."""

import re
from typing import Any

import click

UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,9})([smhd])")


def span_ms(text: str) -> int | None:
    """Return the milliseconds of `90s`, `10m`, `2h` or `1d`; None if it is no span of time."""
    match = _SPAN.fullmatch(text)
    return None if match is None else int(match[1]) * UNITS_MS[match[2]]


class Span(click.ParamType[int]):
    """A span of time, in milliseconds.

    Args:
        zero: whether it may be nothing, `0` or `0s`.
    """

    name = "span"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        span = 0 if value == "0" else span_ms(str(value))
        if span is None or (span == 0 and not self._zero):
            self.fail(f"{value!r} is not a span of time; write 90s, 10m, 2h or 1d", param, ctx)
        return span
