"""The bytes of index files, changed as a test needs them."""

from pathlib import Path

from popwheel_broker.log import index_file
from popwheel_broker.log.consume_queue import Entry, packed_entry
from tests.harness.memory_disk import MemoryDisk

PAGE_BYTES = 4096


def index_files(disk: MemoryDisk) -> list[Path]:
    """All that are whole."""
    return sorted(path for path in disk.files() if path.suffix == index_file.SUFFIX)


def replace_entry(disk: MemoryDisk, entry: Entry, by: Entry) -> None:
    """Have another entry in the place of one, with checksums that are right."""
    before = packed_entry(*entry)
    for path in index_files(disk):
        data = disk.files()[path]
        contents = b"".join(data[at + 4 : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES))
        if before in contents:
            disk.open(path).write(0, index_file._pages(bytearray(contents.replace(before, packed_entry(*by)))))
            return
    raise AssertionError(f"no index file has {entry}")


def rot_entry(disk: MemoryDisk, entry: Entry, bit: int) -> None:
    """Flip a bit of an entry."""
    for path in index_files(disk):
        at = disk.files()[path].find(packed_entry(*entry))
        if at >= 0:
            disk.flip_bit(path, 8 * at + bit)
            return
    raise AssertionError(f"no index file has {entry}")
