"""A file whose content is taken over anew when it changes; what cannot be used leaves the content before in force."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

Content = TypeVar("Content")

_logger = structlog.get_logger()

_Stamp = tuple[int, int, int] | None


class WatchedFile(Generic[Content]):
    """The content of a file, and whether it is what the file holds now.

    Args:
        path: the file.
        parse: makes the content of its bytes; raises ValueError with a sentence that holds no secret.
        what: it in words, for the log.
        bytes_max: a larger file is refused.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds what cannot be used.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], Content], what: str, bytes_max: int) -> None:
        self._path = path
        self._parse = parse
        self._what = what
        self._bytes_max = bytes_max
        self._stamp = self._read_stamp()
        self.content = self._read()
        self.trouble = ""
        """Reason why the file's current content is not in use; empty if it is."""

    @property
    def changed(self) -> bool:
        """True if the file changed since it was last read."""
        return self._read_stamp() != self._stamp

    def refresh(self) -> bool:
        """Apply a changed file; return whether it was. It reads and parses, so a large file is read in a thread."""
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return False
        try:
            content = self._read()
        except (OSError, ValueError) as error:
            self.trouble = str(error)
            _logger.warning(
                f"{self._what} has changed and cannot be used, its earlier content stays in force",
                file=str(self._path),
                reason=self.trouble,
            )
            self._stamp = stamp
            return False
        self.content = content
        self.trouble = ""
        self._stamp = stamp
        _logger.info(f"took over {self._what}", file=str(self._path))
        return True

    def _read_stamp(self) -> _Stamp:
        """Return a stamp that distinguishes one content of the file from another; None if there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> Content:
        if self._path.stat().st_size > self._bytes_max:
            raise ValueError(f"it has more than {self._bytes_max} bytes")
        return self._parse(self._path.read_bytes())
