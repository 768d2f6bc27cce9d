"""The superblock: the little that a replica must know before it may touch its log.

The file has two slots of 32 KiB with the same in them: magic `PWSB`; CRC-32C 4 bytes of all that follows; version 2,
sequence number 8; identity 16, marks 1 (1: an installation is under way, 2: doubt), start of the log 8, count of epochs
4, length of the group 4; epoch 8 and start 8 of each; the group, as protobuf; zeros. All numbers are big-endian. Each
version keeps the size of the slots, and their first 10 bytes.

The slots are written one after the other, in place. That takes no space, so it works on a disk that is full to the last
byte (on a file system that writes in place: ext4, xfs). A crash, or bytes that rot, leave one of both. A start
writes what it finds once more, to both: nothing shows whether the process before had brought it to the device.
"""

import asyncio
import random
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from google_crc32c import value

from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.replication.epochs import EpochStart
from popwheel_common.disk import Disk, replace_file, to_its_end
from popwheel_common.errors import CorruptDataError, UnknownFormatError

NAME = "identity"
SLOT_BYTES = 32 * 1024
_IDENTITY_BYTES = 16
_HEAD = struct.Struct(">4sI")
_FIELDS = struct.Struct(">HQ16sBQII")
_EPOCH = struct.Struct(">QQ")
_MAGIC = b"PWSB"
_VERSION = 1
_INSTALLING = 1
_SUSPECT = 2
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a superblock.

    Args:
        identity: drawn with the folder, 16 bytes: another identity means that the replica's data is gone.
        group: the state of the group, as last received, an encoded `BrokerGroup`; empty if there is none.
        epochs: epochs of the log, oldest first; at most `EPOCHS_MAX`.
        log_start: a position in the log; nothing from there on was to be deleted.
        is_installing: what else is in the folder is of two logs, and worth nothing.
        is_suspect: the end of the log was cut off, or is about to be, and others may have it.
    """

    identity: bytes = b""
    group: bytes = b""
    epochs: tuple[EpochStart, ...] = ()
    log_start: int = 0
    is_installing: bool = False
    is_suspect: bool = False


class Superblock:
    """The file, and what it says.

    Args:
        disk: where it is.
        folder: its folder.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._path = folder / NAME
        self._writing = asyncio.Lock()
        self._sequence = 0
        self._is_whole = True
        """True if the device has `contents` in both slots."""
        self._suspect = 0
        """The slot that is written first: if one may be damaged, or older than the other, it is this one."""
        self.contents = Contents()
        """Contents on the device; empty until they were loaded."""

    async def load(self, log: CommitLog, random_source: random.Random) -> None:
        """Take up what the file says. A new folder gets one.

        Args:
            log: the log of the folder.
            random_source: draws the identity of a new folder.

        Raises:
            CorruptDataError: it is lost, or damaged in both slots, or the log has lost its beginning; nothing was
                changed.
            UnknownFormatError: it was written by a release that this one does not know.
            OSError: it could not be made, or mended.
        """
        data = self._read()
        if data is None:
            if log.segment_count > 0:
                raise self._damage("lost")
            await self._make(Contents(random_source.randbytes(_IDENTITY_BYTES)))
        else:
            await self._take_up([decode(data[:SLOT_BYTES]), decode(data[SLOT_BYTES:])], log.start_position)

    def _read(self) -> bytes | None:
        if not self._disk.exists(self._path):
            return None
        file = self._disk.open(self._path)
        try:
            return file.read(0, 2 * SLOT_BYTES)
        finally:
            file.close()

    async def _make(self, contents: Contents) -> None:
        await replace_file(self._disk, self._path, encode(contents, self._sequence) * 2)
        self.contents = contents

    async def _take_up(self, slots: list[tuple[int, Contents] | None], log_start: int) -> None:
        good = [slot for slot in slots if slot is not None]
        if not good:
            raise self._damage("damaged in both of its slots")
        latest = max(good, key=lambda slot: slot[0])
        self._sequence, self.contents = latest
        if log_start > self.contents.log_start and not self.contents.is_installing:
            raise CorruptDataError(
                f"the commit log begins at {log_start}, though nothing from {self.contents.log_start} on was to be "
                "deleted: its oldest segments are lost. Restore them from a backup; or give this replica an empty "
                "volume, if another one of its group has everything"
            )
        if slots[0] != slots[1]:
            _log.warning("the slots of the superblock differ, both are written anew", path=str(self._path))
        # The latest may be in memory alone. Its own slot is given the bytes that it has: a power loss leaves these, or
        # the other slot. One that is damaged goes before it, an older one after it.
        order = sorted((0, 1), key=lambda slot: (slots[slot] is not None, slots[slot] != latest))
        self._is_whole = False
        await to_its_end(self._write(order, self.contents))

    def _damage(self, how: str) -> CorruptDataError:
        return CorruptDataError(
            f"the superblock {self._path} is {how}: the replica's identity is stored nowhere else. "
            "Restore the folder from a backup; or give this replica an empty volume, if another one of its group has "
            "everything"
        )

    async def change(self, **changes: Any) -> None:
        """Change fields; they are on the device when this returns. It runs to its end, whoever waits.

        Args:
            changes: fields of `Contents`. What changes at once is on the device all or not at all.

        Raises:
            OSError: the device refused; it may say either, and it may be tried again.
        """
        await to_its_end(self._change(changes))

    async def _change(self, changes: dict[str, Any]) -> None:
        async with self._writing:
            contents = replace(self.contents, **changes)
            if contents == self.contents and self._is_whole:
                return
            self._is_whole = False
            self._sequence += 1
            await self._write((self._suspect, 1 - self._suspect), contents)

    async def _write(self, order: Iterable[int], contents: Contents) -> None:
        slot = encode(contents, self._sequence)
        file = self._disk.open(self._path)
        try:
            for each in order:
                self._suspect = each
                file.write(each * SLOT_BYTES, [slot])
                await file.sync()
        finally:
            file.close()
        self.contents = contents
        self._is_whole = True


def encode(contents: Contents, sequence: int) -> bytes:
    """Return the bytes of a slot."""
    marks = _INSTALLING * contents.is_installing + _SUSPECT * contents.is_suspect
    counts = len(contents.epochs), len(contents.group)
    fields = _FIELDS.pack(_VERSION, sequence, contents.identity, marks, contents.log_start, *counts)
    body = b"".join((fields, *(_EPOCH.pack(*each) for each in contents.epochs), contents.group))
    body = body.ljust(SLOT_BYTES - _HEAD.size, b"\0")
    # 64 replicas, each at an address of 260 bytes, and all epochs take less.
    assert len(body) == SLOT_BYTES - _HEAD.size, f"what the superblock is to say takes {len(body)} bytes"
    return _HEAD.pack(_MAGIC, value(body)) + body


def decode(slot: bytes) -> tuple[int, Contents] | None:
    """Return the sequence number of a slot, and what it says; None if it is damaged.

    Raises:
        UnknownFormatError: it was written by a release that this one does not know.
    """
    if len(slot) < SLOT_BYTES:
        return None
    magic, checksum = _HEAD.unpack_from(slot)
    if magic != _MAGIC or value(slot[_HEAD.size :]) != checksum:
        return None
    version, sequence, identity, marks, log_start, epochs, group = _FIELDS.unpack_from(slot, _HEAD.size)
    if version != _VERSION:
        raise UnknownFormatError(f"the superblock has format version {version}, this release knows {_VERSION}")
    begin = _HEAD.size + _FIELDS.size
    end = begin + epochs * _EPOCH.size
    starts = tuple(EpochStart(*each) for each in _EPOCH.iter_unpack(slot[begin:end]))
    is_installing, is_suspect = bool(marks & _INSTALLING), bool(marks & _SUSPECT)
    return sequence, Contents(identity, slot[end : end + group], starts, log_start, is_installing, is_suspect)
