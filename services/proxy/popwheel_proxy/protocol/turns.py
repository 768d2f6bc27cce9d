"""Work for one client that takes a good part of a turn of the loop: done piece by piece, one piece per turn, so that
neither a large request nor many of them at once keep the loop from all others.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

PIECE = 200
"""Entries of a request in one piece; each takes some microseconds."""
_LARGE_BYTES = 16 * 1024

Entry = TypeVar("Entry")


class Turns:
    """Turns of the loop, one for each piece of work, in the order of their asking."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Take a turn for the `with` block, which must not wait for anything."""
        async with self._lock:
            try:
                yield
            finally:
                await asyncio.sleep(0)  # also behind a piece that was refused: it has taken its time


def is_large(size: int) -> bool:
    """Return whether a request of a size, in bytes, needs a turn of its own."""
    return size > _LARGE_BYTES


def pieces(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Yield the entries of a request in pieces."""
    for start in range(0, len(entries), PIECE):
        yield entries[start : start + PIECE]
