"""A group's back-off as an operator writes it."""

import re
from collections.abc import Mapping
from typing import Any, Final

import click

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"([0-9]{1,9})(ms|[smhd])")
_GROWS: Final = "exponential:"
_HOW: Final = "write waits like 1s,5s,1m, or exponential:FIRST,LONGEST,MULTIPLIER like exponential:1s,5m,2"


class BackoffParam(click.ParamType[Mapping[str, object]]):
    """Back-off `1s,5s,1m` or `exponential:1s,5m,2`, as a part of a request to the admin API."""

    name = "backoff"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mapping[str, object]:
        if not isinstance(value, str):
            return dict(value)
        try:
            return _backoff(value)
        except ValueError:
            self.fail(f"{value!r} is no back-off; {_HOW}", param, ctx)


def _backoff(text: str) -> Mapping[str, object]:
    if not text.startswith(_GROWS):
        return {"backoff_ms": [_span_ms(part) for part in text.split(",")]}
    first, longest, multiplier = text.removeprefix(_GROWS).split(",")
    grows = {"initial_ms": _span_ms(first), "max_ms": _span_ms(longest), "multiplier": float(multiplier)}
    return {"exponential_backoff": grows}


def _span_ms(text: str) -> int:
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _UNITS_MS[match[2]]
