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
"""A plain JSON object. Each kind of document is made and read beside the value that it stores."""


class ConflictError(Exception):
    """The document is not of the version that the change was made from; nothing was changed.

    Read it again and decide anew. It may even hold the very change, if an earlier write had an unknown outcome.

    Args:
        name: of the document.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was changed by somebody else")
        self.name = name


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as it was found.

    Args:
        document: what it says.
        version: names these contents, to be given with the change of them; it means nothing else.
    """

    document: Document
    version: str


class StateStore(Protocol):
    """Documents by name. All methods raise OSError if the store is away."""

    async def read(self, name: str) -> Stored | None:
        """The latest contents of a document; None if there is none.

        Raises:
            CorruptDataError: it is damaged.
            UnknownFormatError: it is of another kind or version than this release knows.
        """

    async def write(self, name: str, document: Document, expected: str | None) -> str:
        """Change a document; its new version, when it would outlast a loss of power. The same contents may keep theirs.

        Args:
            name: of the document.
            document: its new contents.
            expected: the version that these were made from; None if there must be none yet.

        Raises:
            ConflictError: it is of another version.
            OSError: it is not known whether it was changed.
        """

    async def delete(self, name: str, expected: str | None) -> None:
        """Delete a document; when this returns it would stay away through a loss of power.

        Args:
            name: of the document.
            expected: its version; None for whichever it has, as pages have but one.

        Raises:
            ConflictError: it is of another version, or gone.
            OSError: it is not known whether it was deleted.
        """

    async def versions(self) -> Mapping[str, str]:
        """The version of the cluster and of each group. It may lag behind: a sign that it is worth while to read, no
        more.
        """

    async def pages(self) -> Sequence[str]:
        """The names of all pages that are there (`page_of_document`)."""

    async def close(self) -> None:
        """Release its resources."""

    def where(self, name: str) -> str:
        """Return where an operator finds a document."""


def group_document_name(group: str) -> str:
    """The document of a broker group."""
    return _GROUP_PREFIX + group


def group_of_document(name: str) -> str | None:
    """The broker group that a document is of; None if it is of none."""
    return name.removeprefix(_GROUP_PREFIX) if name.startswith(_GROUP_PREFIX) else None


def page_document_name(page: str) -> str:
    """The document of a page of topics and groups."""
    return _PAGE_PREFIX + page


def page_of_document(name: str) -> str | None:
    """The page that a document is of; None if it is of none."""
    return name.removeprefix(_PAGE_PREFIX) if name.startswith(_PAGE_PREFIX) else None


def damaged(source: str, error: Exception) -> CorruptDataError:
    """The error for a document that cannot be read back.

    Args:
        source: where it was found.
        error: what is wrong with it.
    """
    return CorruptDataError(f"{source} is damaged: {error!r}; restore it from a backup")
