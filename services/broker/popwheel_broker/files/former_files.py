"""The small files of releases before the superblock: read once, then removed.

`group` and `epochs` begin with a magic of 4 bytes, version 2, CRC-32C 4 of the rest; the epochs follow behind their
count 4, epoch 8 and start 8 of each. `installing` and `doubtful` say by being there that it is so. Where the log begins
(`logstart`) is taken from the log itself.
"""

import struct
from pathlib import Path

from google_crc32c import value

from popwheel_broker.replica.epochs import EPOCHS_MAX, EpochStart
from popwheel_common.disk import Disk

_NAMES = ("group", "epochs", "logstart", "installing", "doubtful")
_PREFIX = struct.Struct(">4sHI")
_COUNT_BYTES = 4
_EPOCH = struct.Struct(">QQ")
_VERSION = 1


def load(disk: Disk, folder: Path) -> tuple[bytes, tuple[EpochStart, ...], tuple[bool, bool]]:
    """The group, the epochs, and whether an installation is under way and whether there is doubt. A damaged file says
    nothing: the group is heard again, the log tells the epochs.
    """
    epochs = [EpochStart(*each) for each in _EPOCH.iter_unpack(_body(disk, folder / "epochs", b"PWEH")[_COUNT_BYTES:])]
    return (
        _body(disk, folder / "group", b"PWBG"),
        tuple(epochs[-EPOCHS_MAX:]),
        (disk.exists(folder / "installing"), disk.exists(folder / "doubtful")),
    )


def remove(disk: Disk, folder: Path) -> None:
    """Remove those that are there; one that a power loss brings back goes at the next start."""
    for name in set(_NAMES) & set(disk.list(folder)):
        disk.remove(folder / name)


def _body(disk: Disk, path: Path, magic: bytes) -> bytes:
    if not disk.exists(path):
        return b""
    file = disk.open(path)
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    if len(data) < _PREFIX.size:
        return b""
    body = data[_PREFIX.size :]
    return body if _PREFIX.unpack_from(data) == (magic, _VERSION, value(body)) else b""
