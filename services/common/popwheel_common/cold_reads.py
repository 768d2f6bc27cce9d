"""Reads of bytes that may not be in memory, without blocking the event loop while the device is read.

A function reads by plain calls, also bytes that are not in the page cache. `ColdReads.run` calls it so that a read that
would wait raises `NotInMemory` instead. Then a thread reads the bytes, while the loop runs, and the function is called
again. So it must read before it changes anything. It gets the bytes that were read for it, so that it makes progress
even if memory is short.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

AT_ONCE_MAX = 8
"""Limit of concurrent calls that read from the device, each in a thread; further ones wait in order.

Each retains what was read for it until it ends: for a pop or pull at most `broker.pop.response_bytes_max` (16 MiB by
default).
"""

Result = TypeVar("Result")


class Range(NamedTuple):
    """Range of bytes of a file."""

    path: Path
    offset: int
    length: int


class NotInMemory(BaseException):
    """Signal that data to be read is not in memory. It is no error, and no handler of errors may take it for one.

    Args:
        ranges: what to read first.
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class CacheableFile(Protocol):
    """An open file that knows what of it is in memory."""

    @property
    def path(self) -> Path:
        """Name that it was opened by."""

    def size(self) -> int:
        """Bytes in it."""

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """Read as `File.read` does; return None if that would wait for the device."""


class _Piece(NamedTuple):
    """Piece read of a range; shorter than requested only at the file's end."""

    range: Range
    data: bytes

    def read(self, file: CacheableFile, offset: int, length: int) -> bytes | None:
        """Return the result of `File.read`; None if it is not in this piece."""
        path, begin, expected = self.range
        start = offset - begin
        if not 0 <= start <= expected or file.path != path:  # paths take long to be compared
            return None
        end = start + length
        if end <= len(self.data):
            return self.data[start:end]
        ends_here = len(self.data) < expected and begin + len(self.data) == file.size()
        return self.data[start:] if ends_here else None


@dataclass(slots=True)
class _Line:
    """Calls of one kind, one after another."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: int = 0


class ColdReads:
    """Runs what reads a disk.

    Args:
        fetch: reads ranges in a thread; fewer bytes only at a file's end. Raises OSError as the system does.
    """

    def __init__(self, fetch: Callable[[Sequence[Range]], Awaitable[Sequence[bytes]]]) -> None:
        self._fetch = fetch
        self._pieces: Sequence[_Piece] | None = None
        self._dropped: list[list[Path]] = []
        """Ranges dropped since each running read of the device began."""
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._lines: dict[Hashable, _Line] = {}
        self.waiting = 0
        """Calls that have the device read for them, or wait until it is their turn."""
        self.fetched_bytes = 0
        """Bytes that were read in threads."""

    @property
    def is_running(self) -> bool:
        """True while a plain read must not wait."""
        return self._pieces is not None

    def read(self, file: CacheableFile, offset: int, length: int) -> bytes:
        """Read for what is being run.

        Raises:
            NotInMemory: the device would have to be waited for.
        """
        for piece in self._pieces or ():
            data = piece.read(file, offset, length)
            if data is not None:
                return data
        data = file.read_cached(offset, length)
        if data is None:
            raise NotInMemory([Range(file.path, offset, length)])
        return data

    def at_once(self, work: Callable[[], Result]) -> Result:
        """Call what can do without what it reads.

        Raises:
            NotInMemory: something of that is not in memory; besides all that `work` raises.
        """
        before = self._pieces
        self._pieces = before or ()
        try:
            return work()
        finally:
            self._pieces = before

    def changed(self, *paths: Path) -> None:
        """Bytes of files, or of all in a folder, were dropped: what was read of them may not be there any more."""
        for dropped in self._dropped:
            dropped += paths

    async def run(self, work: Callable[[], Result], line: Hashable = None) -> Result:
        """Call `work` until all that it reads is in memory.

        Args:
            work: a plain call, which reads before it changes anything.
            line: while a call of this line waits for the device, later ones of the line wait for it.

        Returns:
            What `work` does; nothing else has run since.

        Raises:
            OSError: the device refused; besides all that `work` raises.
        """
        missing: Sequence[Range] = ()
        if line not in self._lines:
            try:
                return self._call(work, ())
            except NotInMemory as cold:
                missing = cold.ranges
        if line is None:
            return await self._run_cold(work, missing)
        of_line = self._lines.setdefault(line, _Line())
        of_line.calls += 1
        try:
            async with of_line.lock:
                return await self._run_cold(work, missing)
        finally:
            of_line.calls -= 1
            if not of_line.calls:
                del self._lines[line]

    async def _run_cold(self, work: Callable[[], Result], missing: Sequence[Range]) -> Result:
        self.waiting += 1
        try:
            if self._at_once.locked():
                missing = ()  # until it is its turn, that may be gone
            async with self._at_once:
                pieces: list[_Piece] = []
                while True:
                    pieces = await self._with_fetched(pieces, missing)
                    try:
                        return self._call(work, pieces)
                    except NotInMemory as cold:
                        missing = cold.ranges
        finally:
            self.waiting -= 1

    def _call(self, work: Callable[[], Result], pieces: Sequence[_Piece]) -> Result:
        self._pieces = pieces
        try:
            return work()
        finally:
            self._pieces = None

    async def _with_fetched(self, pieces: list[_Piece], missing: Sequence[Range]) -> list[_Piece]:
        """Read the missing ranges; return them with those of the pieces read so far that are still valid."""
        if not missing:
            return pieces
        dropped: list[Path] = []
        self._dropped.append(dropped)
        try:
            fetched = await self._fetch(missing)
        except FileNotFoundError:
            if not any(_is_among(dropped, each) for each in missing):
                raise
            fetched = ()  # it was removed meanwhile: the next call does not ask for it any more
        finally:
            self._dropped = [each for each in self._dropped if each is not dropped]
        self.fetched_bytes += sum(map(len, fetched))
        # What is of other files stays: where files change all the time, a call of many reads would never end.
        read = [*pieces, *map(_Piece, missing, fetched)]
        return [piece for piece in read if not _is_among(dropped, piece.range)]


def _is_among(paths: Sequence[Path], read: Range) -> bool:
    return any(path == read.path or path in read.path.parents for path in paths)
