"""Style sheet, script module and icon, read once; a version in their addresses lets browsers cache them."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).resolve().parent / "static"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CACHE_CONTROL: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """Static file.

    Args:
        data: its bytes.
        content_type: their media type.
    """

    data: bytes
    content_type: str


class StaticFiles:
    """Static files, read by the constructor."""

    def __init__(self) -> None:
        self._files = {
            path.name: StaticFile(path.read_bytes(), _TYPES[path.suffix])
            for path in sorted(_FOLDER.iterdir())
            if path.suffix in _TYPES
        }
        whole = sha256()
        for name, file in self._files.items():
            whole.update(name.encode() + b"\0" + file.data)
        self.version = whole.hexdigest()[:12]
        """Version that changes with any file."""

    def get(self, name: str) -> StaticFile | None:
        """Return a file; None if there is none of that name."""
        return self._files.get(name)
