"""Manifest of an archive: its valid files (pure)."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

INCOMING = "incoming"
"""Folder of the files that the archive's stream has written."""


@dataclass(frozen=True)
class Manifest:
    """Manifest of an archive's compactions. All files are relative to the archive.

    Args:
        number: of the compaction, from 1; 0 before the first.
        made: files that it, or one before, has made and that count.
        replaced: files of the stream that do not count any more.
        leaving: files that this very compaction has replaced. They are deleted by the next one, so that a reader who
            began before has as long as that.
    """

    number: int = 0
    made: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> "Manifest":
        """Parse a manifest."""
        fields = json.loads(text)
        return cls(fields["number"], *(tuple(fields[name]) for name in ("made", "replaced", "leaving")))

    def text(self) -> str:
        """Return the text that is stored."""
        return json.dumps(asdict(self), indent=1)

    def current(self, committed: Iterable[str]) -> list[str]:
        """Return the valid files.

        Args:
            committed: those that the stream has written.
        """
        return sorted({*committed} - {*self.replaced}) + list(self.made)

    def next(self, made: Iterable[str], gone: Iterable[str]) -> "Manifest":
        """Return the manifest after one more compaction.

        Args:
            made: files that it has made.
            gone: those that they replace, of the stream or of compactions before.
        """
        gone = set(gone)
        return Manifest(
            self.number + 1,
            tuple(sorted({*self.made, *made} - gone)),
            tuple(sorted({*self.replaced, *(file for file in gone if file.startswith(f"{INCOMING}/"))})),
            tuple(sorted(gone)),
        )
