"""Bounds of a read: one rule for all queues, or one for each (pure)."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from popwheel_spark.errors import OptionError
from popwheel_spark.given_options import GivenOptions
from popwheel_spark.wire.offsets import EARLIEST, LATEST, Instant, Mark, Offsets, Queue, flat, parse


class Strategy(Enum):
    """Strategy for a queue without a message at or after the requested time."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True)
class Bound:
    """Bound where queues begin or end.

    Args:
        option: its option, for errors.
        mark: for all queues; None: `marks` has one for each.
        marks: by queue.
    """

    option: str
    mark: Mark | None
    marks: Mapping[Queue, Mark] = field(default_factory=dict)

    def of(self, queues: Collection[Queue]) -> dict[Queue, Mark]:
        """Return the place in each of these queues.

        Raises:
            OptionError: it names a queue that is not there, or leaves one out.
        """
        if self.mark is not None:
            return dict.fromkeys(queues, self.mark)
        for queue in self.marks:
            if queue not in queues:
                raise OptionError(self.option, f"there is no {queue} among those that are read")
        for queue in queues:
            if queue not in self.marks:
                raise OptionError(self.option, f"it leaves out {queue}; name every queue, -2 is earliest, -1 is latest")
        return dict(self.marks)


def starting(given: GivenOptions) -> Bound | None:
    """Return the bound of the starting options; None without one.

    Raises:
        OptionError: one is impossible, or there are two.
    """
    return _bound(given, "starting", (EARLIEST, LATEST))


def ending(given: GivenOptions) -> Bound | None:
    """Return the bound of the ending options; as `starting`."""
    return _bound(given, "ending", (LATEST,))


def _bound(given: GivenOptions, side: str, words: tuple[int, ...]) -> Bound | None:
    names = (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    texts = {name: given.text(name) for name in names}
    chosen = [name for name in names if texts[name]]
    if len(chosen) > 1:
        raise OptionError(chosen[0], f"it says the same as {chosen[1]}; give one of them")
    if not chosen:
        return None
    name, text = chosen[0], texts[chosen[0]]
    try:
        if name == names[0]:
            return _offsets(name, text, words)
        if name == names[1]:
            return Bound(name, Instant(_time_ms(text)))
        return Bound(name, None, _times(text))
    except ValueError as error:
        raise OptionError(name, str(error)) from None


def _offsets(name: str, text: str, words: tuple[int, ...]) -> Bound:
    meaning = {"earliest": EARLIEST, "latest": LATEST}
    known = [word for word, mark in meaning.items() if mark in words]
    if not text.startswith("{"):
        if text.lower() not in known:
            raise ValueError(f"{text!r} is neither {' nor '.join(known)} nor JSON of offsets by queue")
        return Bound(name, meaning[text.lower()])
    offsets: Offsets = parse(text)
    if EARLIEST in offsets.values() and EARLIEST not in words:
        raise ValueError("a read can't end at the earliest message (-2)")
    return Bound(name, None, offsets)


def _times(text: str) -> dict[Queue, Mark]:
    def in_ms(tree: Any) -> Any:
        return {key: in_ms(value) for key, value in tree.items()} if isinstance(tree, dict) else _time_ms(str(tree))

    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error}") from None
    return {queue: Instant(ms) for queue, ms in flat(in_ms(tree)).items()}


def _time_ms(text: str) -> int:
    """Return a time in milliseconds since 1970, from that number, or from a date and time with its zone."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(f"{text!r} is neither milliseconds since 1970 nor a time with its zone, 2026-01-31T12:00:00Z")
    return round(time.timestamp() * 1000)
