"""The small files of a replica: who it is, what it last heard of its group, and marks."""

import random
import struct
from pathlib import Path

from google.protobuf.message import DecodeError
from google_crc32c import value

from services.common.disk import Disk, replace_file
from services.common.errors import CorruptDataError
from services.common.pb.popwheel.v1.controller_pb2 import BrokerGroup

_IDENTITY_NAME = "identity"
_IDENTITY_BYTES = 16
_GROUP_NAME = "group"
_PREFIX = struct.Struct(">4sHI")
_MAGIC = b"PWBG"
_VERSION = 1


async def identity(disk: Disk, folder: Path, random_source: random.Random) -> bytes:
    """The identity of a data folder: drawn when it is asked for the first time, the same ever after.

    Raises:
        CorruptDataError: its file is damaged.
        OSError: it could not be written.
    """
    path = folder / _IDENTITY_NAME
    found = _contents(disk, path)
    if found is None:
        found = random_source.randbytes(_IDENTITY_BYTES)
        await replace_file(disk, path, found)
    if len(found) != _IDENTITY_BYTES:
        raise CorruptDataError(
            f"the file {path} holds {len(found)} bytes, not {_IDENTITY_BYTES}; restore it from a backup"
        )
    return found


def load_group(disk: Disk, folder: Path) -> BrokerGroup:
    """The state of the group that was heard last; empty if none was, or the file is damaged. It can be heard again, but
    until then a start must not take this replica for the only one of its group.
    """
    data = _contents(disk, folder / _GROUP_NAME)
    if data is None or len(data) < _PREFIX.size:
        return BrokerGroup()
    magic, version, checksum = _PREFIX.unpack_from(data)
    body = data[_PREFIX.size :]
    if (magic, version) != (_MAGIC, _VERSION) or value(body) != checksum:
        return BrokerGroup()
    try:
        return BrokerGroup.FromString(body)
    except DecodeError:
        return BrokerGroup()


async def save_group(disk: Disk, folder: Path, group: BrokerGroup) -> None:
    """Write the state of the group; it is on the device when this returns."""
    body = group.SerializeToString()
    await replace_file(disk, folder / _GROUP_NAME, _PREFIX.pack(_MAGIC, _VERSION, value(body)) + body)


class Mark:
    """A file whose name is all that it says: something is so until it is taken away.

    Args:
        disk: where it is.
        path: its name.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    @property
    def is_set(self) -> bool:
        """Whether it is so."""
        return self._disk.exists(self._path)

    async def set(self) -> None:
        """Say that it is so, durably. Raises OSError: it may be said or not."""
        self._disk.open(self._path).close()
        await self._disk.sync_folder(self._path.parent)

    async def clear(self) -> None:
        """Say that it is not so any more, durably. Raises OSError: it may be said or not, and be tried again."""
        if self.is_set:
            self._disk.remove(self._path)
        await self._disk.sync_folder(self._path.parent)


def _contents(disk: Disk, path: Path) -> bytes | None:
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()
