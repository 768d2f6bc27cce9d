"""Store of the controller's state in a folder: one small JSON file per document, replaced as a whole.

A file holds a magic word, a format version, the document, and a CRC-32C over its canonical JSON, so that it can be read
by a person and yet no damaged bit passes. A new file is written beside the old one, synced, renamed over it, and the
folder synced: after a crash at any step the old document is there or the new one, never half of one.

Several controllers of one machine may share a folder: then the check of the version and the rename happen under a lock,
which is released right after.
"""

import asyncio
import errno
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c

from popwheel_common.disk import Disk, to_its_end
from popwheel_common.errors import CorruptDataError, UnknownFormatError
from popwheel_controller.store.state_store import (
    CHANGES,
    PAGED_FORMAT,
    ConflictError,
    Document,
    Stored,
    group_document_name,
    group_of_document,
    page_of_document,
)

MAGIC = "popwheel-controller-state"
FORMAT_VERSION = 1
_SUFFIX = ".json"
_GROUPS = "broker-groups"
_PAGES = "cluster-pages"
_LOCK_TRIES = 100
_LOCK_PAUSE_S = 0.005


class FileStateStore:
    """Store of documents in a folder.

    Args:
        folder: created if missing.
        disk: for reads and writes. The documents include the key of the receipt handles, so a real process passes a
            disk whose files only their owner can read (`PrivateDisk`).
        lock: excludes other writers of this folder, or raises BlockingIOError; None if there are none.
        writer: part of the names of this store's temporary files.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        lock: Callable[[], AbstractContextManager[object]] | None = None,
        writer: str = "",
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._lock = lock
        self._new_suffix = f".{writer}.new" if writer else ".new"
        self._versions: dict[str, str] = {}

    async def read(self, name: str) -> Stored | None:
        path = self._path(name)
        content = self._content(path)
        if content is None:
            self._versions.pop(name, None)
            return None
        version = self._versions[name] = _version(content)
        return Stored(decode(content, str(path)), version)

    async def write(self, name: str, document: Document, expected: str | None) -> str:
        return await to_its_end(self._write(name, document, expected))

    async def _write(self, name: str, document: Document, expected: str | None) -> str:
        path = self._path(name)
        self._disk.make_folder(path.parent)
        new = path.with_name(path.name + self._new_suffix)
        content = encode(document)
        file = self._disk.open(new)
        try:
            file.truncate(0)
            file.write(0, [content])
            await file.sync()
        finally:
            file.close()
        await self._alone(partial(self._replace, name, new, path, expected))
        await self._disk.sync_folder(path.parent)
        version = self._versions[name] = _version(content)
        return version

    async def delete(self, name: str, expected: str | None) -> None:
        await to_its_end(self._delete(name, expected))

    async def _delete(self, name: str, expected: str | None) -> None:
        path = self._path(name)
        await self._alone(partial(self._remove, name, path, expected))
        await self._disk.sync_folder(path.parent)

    async def versions(self) -> Mapping[str, str]:
        found = {}
        names = [name.removesuffix(_SUFFIX) for name in self._disk.list(self._folder) if name.endswith(_SUFFIX)]
        names = [name for name in names if name != CHANGES]
        groups = [name.removesuffix(_SUFFIX) for name in self._disk.list(self._folder / _GROUPS)]
        for name in [*names, *(group_document_name(group) for group in groups if not group.endswith(".new"))]:
            content = self._content(self._path(name))
            if content is not None:
                found[name] = _version(content)
        return found

    async def pages(self) -> Sequence[str]:
        names = self._disk.list(self._folder / _PAGES)
        return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]

    async def close(self) -> None:
        """Do nothing: no file stays open."""

    def where(self, name: str) -> str:
        return str(self._path(name))

    async def _alone(self, work: Callable[[], None]) -> None:
        """Run the work under the lock, outside the loop: a process that hangs with the lock delays only the change."""
        if self._lock is None:
            work()
            return
        for _ in range(_LOCK_TRIES):
            try:
                with self._lock():
                    work()
                return
            except BlockingIOError:
                await asyncio.sleep(_LOCK_PAUSE_S)
        raise OSError(errno.EBUSY, "another controller holds the lock of the folder")

    def _replace(self, name: str, new: Path, path: Path, expected: str | None) -> None:
        """Replace the old file with the new one, if the old one has the expected version."""
        if self._current(name, path) != expected:
            self._disk.remove(new)
            raise ConflictError(name)
        self._disk.replace(new, path)

    def _remove(self, name: str, path: Path, expected: str | None) -> None:
        if not self._disk.exists(path) if expected is None else self._current(name, path) != expected:
            raise ConflictError(name)
        self._disk.remove(path)
        self._versions.pop(name, None)

    def _current(self, name: str, path: Path) -> str | None:
        """Return the version of the current file."""
        if self._lock is None:
            return self._versions.get(name)
        content = self._content(path)
        return None if content is None else _version(content)

    def _content(self, path: Path) -> bytes | None:
        if not self._disk.exists(path):
            return None
        file = self._disk.open(path)
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def _path(self, name: str) -> Path:
        group, page = group_of_document(name), page_of_document(name)
        if group is not None:
            return self._folder / _GROUPS / f"{group}{_SUFFIX}"
        return self._folder / (f"{name}{_SUFFIX}" if page is None else f"{_PAGES}/{page}{_SUFFIX}")


def encode(document: Document) -> bytes:
    """Encode a document as the content of its file."""
    canonical = _canonical(document)
    version = document.get("format", FORMAT_VERSION)
    head = f'{{"magic": "{MAGIC}", "format": {version}, "crc32c": "{_checksum(canonical)}",\n"state": '
    return head.encode() + canonical + b"}\n"


def decode(content: bytes, source: str) -> Document:
    """Decode the content of a file.

    Args:
        content: made by `encode`.
        source: name of the file, for errors.

    Raises:
        CorruptDataError: the content is damaged.
        UnknownFormatError: it has another kind, or a version that this release does not know.
    """
    try:
        envelope = json.loads(content)
    except ValueError as error:
        raise CorruptDataError(f"{source} is damaged: it is not JSON ({error}); restore it from a backup") from error
    if not isinstance(envelope, dict) or envelope.get("magic") != MAGIC:
        raise UnknownFormatError(
            f"{source} is not a controller's state file (no magic word {MAGIC}); it is left as it is"
        )
    if envelope.get("format") not in (FORMAT_VERSION, PAGED_FORMAT):
        raise UnknownFormatError(
            f"{source} is of format {envelope.get('format')!r}, this release knows {FORMAT_VERSION} and "
            f"{PAGED_FORMAT}; "
            "run the release that wrote it, or a newer one"
        )
    document: Any = envelope.get("state")
    if not isinstance(document, dict) or envelope.get("crc32c") != _checksum(_canonical(document)):
        raise CorruptDataError(f"{source} is damaged: its checksum does not match; restore it from a backup")
    return document


def _canonical(document: Document) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _checksum(canonical: bytes) -> str:
    return f"{google_crc32c.value(canonical):08x}"


def _version(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
