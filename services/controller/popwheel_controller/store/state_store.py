"""Store of the controller's state: named documents that change by compare-and-swap only (C1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from popwheel_common.errors import CorruptDataError

CLUSTER = "cluster"
CHANGES = "changes"
LEASE = "lease"
PAGED_FORMAT = 2
_GROUP_PREFIX = "group-"
_PAGE_PREFIX = "page-"

Document = Mapping[str, Any]
"""Plain JSON object; each kind is encoded and decoded beside its value type."""


class ConflictError(Exception):
    """Conflict: the document does not have the version that the change was based on; nothing was changed.

    Read it and decide again. It may already contain the change, if an earlier write had an unknown outcome.

    Args:
        name: of the document.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was changed by another writer")
        self.name = name


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored document with its version.

    Args:
        document: its content.
        version: opaque version of the content, to be passed with a change.
    """

    document: Document
    version: str


class StateStore(Protocol):
    """Store of documents by name. All methods raise OSError if it is unavailable."""

    async def read(self, name: str) -> Stored | None:
        """Read a document; return None if it does not exist.

        Raises:
            CorruptDataError: it is damaged.
            UnknownFormatError: it has a kind or version that this release does not know.
        """

    async def write(self, name: str, document: Document, expected: str | None) -> str:
        """Write a document durably; return its new version. An unchanged content may keep its version.

        Args:
            name: of the document.
            document: its new content.
            expected: version that the change is based on; None if the document must not exist yet.

        Raises:
            ConflictError: it has another version.
            OSError: the outcome is unknown.
        """

    async def delete(self, name: str, expected: str | None) -> None:
        """Delete a document durably.

        Args:
            name: of the document.
            expected: its version; None for any, as pages never change.

        Raises:
            ConflictError: it has another version, or does not exist.
            OSError: the outcome is unknown.
        """

    async def versions(self) -> Mapping[str, str]:
        """Return the versions of the cluster and of each group. They may lag: they are only a hint of when to read."""

    async def pages(self) -> Sequence[str]:
        """Return the names of all existing pages (`page_of_document`)."""

    async def close(self) -> None:
        """Release its resources."""

    def where(self, name: str) -> str:
        """Return the place of a document, for operators."""


def group_document_name(group: str) -> str:
    """Return the name of a broker group's document."""
    return _GROUP_PREFIX + group


def group_of_document(name: str) -> str | None:
    """Return the broker group of a document; None if it has none."""
    return name.removeprefix(_GROUP_PREFIX) if name.startswith(_GROUP_PREFIX) else None


def page_document_name(page: str) -> str:
    """Return the name of the document of a page of topics and groups."""
    return _PAGE_PREFIX + page


def page_of_document(name: str) -> str | None:
    """Return the page of a document; None if it has none."""
    return name.removeprefix(_PAGE_PREFIX) if name.startswith(_PAGE_PREFIX) else None


def damaged(source: str, error: Exception) -> CorruptDataError:
    """Return the error for a document that cannot be decoded.

    Args:
        source: name of its place.
        error: of the decoder.
    """
    return CorruptDataError(f"{source} is damaged: {error!r}; restore it from a backup")
