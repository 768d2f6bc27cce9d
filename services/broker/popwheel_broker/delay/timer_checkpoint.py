"""The timer checkpoint: 4 KiB with the timers' progress on disk (DESIGN 5).

Magic `PWTC`, version 2 bytes, CRC-32C 4 bytes of all that follows; then eleven numbers of 8 bytes, signed,
big-endian, and zeros; the last two are zero where an earlier release wrote it.
"""

import struct
from dataclasses import astuple, dataclass
from pathlib import Path

import structlog
from google_crc32c import value

from popwheel_common.disk import Disk
from popwheel_common.errors import CorruptDataError, UnknownFormatError

NAME = "timercheck"
CHECKPOINT_BYTES = 4096
_PREFIX = struct.Struct(">4sHI")
_FIELDS = struct.Struct(">11q")
_MAGIC = b"PWTC"
_VERSION = 1
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """Checkpoint of the timer, as in the articles, and the position from which the commit log is to be read.

    Args:
        last_read_time_ms: all slots before this time are done.
        last_timer_log_flush_position: up to here the timer log is on the device.
        last_timer_queue_offset: offset in the timer queue up to which records have their units before that position.
        master_timer_queue_offset: the master's, on a slave.
        state_version: counts the broker's changes of role.
        timestamp_ms: when this was written, wall clock.
        counter: how many checkpoints were written before.
        scan_position: position of the commit log from which on records have the firings of slots that are not done.
        first_unit_position: position of the oldest unit of slots not done in the timer log, -1 if there is none.
        log_position: end of the commit log that all this was taken from; 0 if unknown.
        fired_until_ms: no message due at this time or before can be recalled any more.
    """

    last_read_time_ms: int = 0
    last_timer_log_flush_position: int = 0
    last_timer_queue_offset: int = 0
    master_timer_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0
    scan_position: int = 0
    first_unit_position: int = -1
    log_position: int = 0
    fired_until_ms: int = 0


def encode(checkpoint: TimerCheckpoint) -> bytes:
    """Return the contents of the file."""
    body = _FIELDS.pack(*astuple(checkpoint)).ljust(CHECKPOINT_BYTES - _PREFIX.size, b"\0")
    return _PREFIX.pack(_MAGIC, _VERSION, value(body)) + body


def decode(data: bytes) -> TimerCheckpoint:
    """Read the contents of the file.

    Raises:
        CorruptDataError: it is damaged.
        UnknownFormatError: it was written by a release that this one does not know.
    """
    if len(data) < _PREFIX.size:
        raise CorruptDataError("the timer checkpoint is cut off")
    magic, version, checksum = _PREFIX.unpack_from(data)
    body = data[_PREFIX.size :]
    if magic != _MAGIC or (version == _VERSION and (len(data) != CHECKPOINT_BYTES or value(body) != checksum)):
        raise CorruptDataError("the timer checkpoint is damaged")
    if version != _VERSION:
        raise UnknownFormatError(f"the timer checkpoint has format version {version}, this release knows {_VERSION}")
    return TimerCheckpoint(*_FIELDS.unpack_from(body))


def load(disk: Disk, path: Path) -> TimerCheckpoint | None:
    """Load a file; None if it does not exist, or is damaged.

    Raises:
        UnknownFormatError: it was written by a release that this one does not know.
    """
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return decode(file.read(0, file.size()))
    except CorruptDataError as error:
        _log.error("the timer's checkpoint is damaged, it is rebuilt from the commit log", why=str(error))
        return None
    finally:
        file.close()
