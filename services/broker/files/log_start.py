"""Where the log begins, said durably before its oldest segments are deleted: if it begins later, they are lost.

The file has two slots of 4 KiB with the same in them: magic `PWLS`, version 2 bytes, CRC-32C 4 bytes of all that
follows; then the position, 8 bytes, big-endian, and zeros. They are written one after the other, in place: that takes
no space, so old segments can be deleted on a disk that is full to the last byte; and a crash, or bytes that rot, leave
one of both.
"""

import asyncio
import struct
from pathlib import Path

import structlog
from google_crc32c import value

from services.common.disk import Disk, File, to_its_end

NAME = "logstart"
_SLOT_BYTES = 4096
_FILE_BYTES = 2 * _SLOT_BYTES
_PREFIX = struct.Struct(">4sHI")
_POSITION = struct.Struct(">Q")
_MAGIC = b"PWLS"
_VERSION = 1
_log = structlog.get_logger()


class LogStart:
    """The file that says it.

    Args:
        disk: where it is.
        path: its name.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._writing = asyncio.Lock()
        slots = _slots(disk, path)
        self.position = max((slot for slot in slots if slot is not None), default=None)
        """Nothing from here on was to be deleted. None: that is not known (a lost or damaged file, an old folder)."""
        self._is_whole = None not in slots and len(set(slots)) == 1

    async def prepare(self, position: int) -> None:
        """Have the file whole, so that it takes no space later; as long as there is some for it.

        Args:
            position: where the log begins.
        """
        if not self._is_whole:
            try:
                await self.set(position)
            except OSError as error:
                _log.error("where the log begins could not be written down", error=str(error))

    async def move_to(self, position: int) -> None:
        """What is before `position` is to be deleted; less than before changes nothing.

        Raises:
            OSError: the device refused, so nothing may be deleted; it may be tried again.
        """
        if not self._is_whole or self.position is None or self.position < position:
            await self.set(position)

    async def set(self, position: int) -> None:
        """The log begins at `position`, which may be before what was said until now. Raises as `move_to` does."""
        await to_its_end(self._set(position))

    async def _set(self, position: int) -> None:
        async with self._writing:
            self._is_whole = False
            file = self._disk.open(self._path)
            try:
                if file.size() == _FILE_BYTES:
                    for at in range(0, _FILE_BYTES, _SLOT_BYTES):
                        file.write(at, [_encode(position)])
                        await file.sync()
                elif not await self._make(file, position):
                    self.position = None
                    return
            finally:
                file.close()
            self.position = position
            self._is_whole = True

    async def _make(self, file: File, position: int) -> bool:
        """Write a new file, if there is room; without it nothing is said, so it is in nobody's way that it is not."""
        if file.size() > 0:
            file.truncate(0)
            await file.sync()
        try:
            file.write(0, [_encode(position)] * 2)
            await file.sync()
            await self._disk.sync_folder(self._path.parent)
        except OSError as error:
            _log.error("there is no file that says where the log begins, trying again", error=str(error))
            return False
        return True


def _encode(position: int) -> bytes:
    body = _POSITION.pack(position).ljust(_SLOT_BYTES - _PREFIX.size, b"\0")
    return _PREFIX.pack(_MAGIC, _VERSION, value(body)) + body


def _slots(disk: Disk, path: Path) -> list[int | None]:
    """What both slots hold; None for one that is damaged."""
    if not disk.exists(path):
        return [None, None]
    file = disk.open(path)
    try:
        return [_decode(file.read(at, _SLOT_BYTES)) for at in range(0, _FILE_BYTES, _SLOT_BYTES)]
    finally:
        file.close()


def _decode(slot: bytes) -> int | None:
    if len(slot) < _SLOT_BYTES:
        return None
    magic, version, checksum = _PREFIX.unpack_from(slot)
    body = slot[_PREFIX.size :]
    if (magic, version) != (_MAGIC, _VERSION) or value(body) != checksum:
        return None
    (position,) = _POSITION.unpack_from(body)
    return int(position)
