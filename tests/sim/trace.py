"""What happened, one line per event in columns, and a hash of all of it."""

from collections import deque
from hashlib import blake2b
from typing import Any

from tests.sim.loop import SimLoop

_LINES_KEPT = 200_000


class Trace:
    """Collects events.

    Args:
        loop: whose time and step stand in each line.
    """

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._lines: deque[tuple[float, int, str, str, tuple[Any, ...]]] = deque(maxlen=_LINES_KEPT)
        self._hash = blake2b(digest_size=8)

    def add(self, who: str, event: str, *arguments: Any) -> None:
        """Note an event; arguments are shown by `str`."""
        line = (self._loop.time(), self._loop.steps, who, event, arguments)
        self._lines.append(line)
        self._hash.update(repr(line).encode("utf-8", "replace"))

    @property
    def digest(self) -> str:
        """The hash so far: two runs with the same one did the same."""
        return self._hash.hexdigest()

    def lines(self, last: int | None = None) -> list[str]:
        """The events, or the last few, in columns: seconds, step, who, what, arguments."""
        events = list(self._lines)
        if last is not None:
            events = events[-last:]
        return [
            f"{time_s:12.6f} {step:8d} {who:<10} {event:<14} {' '.join(map(str, arguments))}"
            for time_s, step, who, event, arguments in events
        ]
