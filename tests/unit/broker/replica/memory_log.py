"""A replica's log in memory, with what a power loss takes away, and with faults."""

import asyncio
import itertools
from collections.abc import Iterator

from popwheel_broker.log import raw_records, record
from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code


class MemoryLog:
    """A `ReplicaLog`; `folded` names the records that it has folded, in their order."""

    def __init__(self) -> None:
        self.start_position = 0
        self.synced_position = 0
        self.high_watermark = 0
        self.epochs = EpochHistory()
        self.data = bytearray()
        self.next_offset = 0
        self.folded: list[int] = []
        self.syncs_go_on = asyncio.Event()
        self.syncs_go_on.set()
        self.changes_go_on = asyncio.Event()
        self.changes_go_on.set()
        self.syncs = 0
        self.failing_syncs = 0
        self.full = False
        self.checkpoint = b"checkpoint"
        self.installed: list[bytes] = []
        self.cuts: list[int] = []
        self.mended: list[int] = []
        self.doubt_ended_at: list[int] = []

    @property
    def end_position(self) -> int:
        return self.start_position + len(self.data)

    def write(self, count: int = 1, payload: bytes = b"x" * 100) -> int:
        """Append records as a master does; where the log ends then."""
        for _ in range(count):
            parts = record.encode(
                Record(RecordKind.MESSAGE, "t", 0, payload),
                self.end_position,
                self.epochs.latest,
                1_000,
                self.next_offset,
            )[1]
            self.data += b"".join(parts)
            self.next_offset += 1
        return self.end_position

    def cut_off(self, position: int) -> None:
        """Let the log end at `position`."""
        del self.data[position - self.start_position :]
        self.epochs.cut(position)
        self.next_offset = len(self.positions())

    def power_loss(self) -> None:
        self.cut_off(self.synced_position)

    def damage(self, position: int) -> None:
        """Let a bit of the record at `position` rot."""
        self.data[position - self.start_position + record.HEADER_BYTES] ^= 4

    def positions(self) -> list[int]:
        """Where each record begins."""
        found = raw_records.checked_records(self.start_position, bytes(self.data))
        return [each.position for each in found]

    def outline(self) -> tuple[int, bytes, list[tuple[int, int]]]:
        """For comparing; epochs that wrote nothing don't count, as the records do not tell of them."""
        starts = [*(each.position for each in self.epochs), self.end_position]
        epochs = [
            (each.epoch, each.position)
            for each, behind in zip(self.epochs, starts[1:], strict=True)
            if each.position < behind
        ]
        return self.start_position, bytes(self.data), epochs

    # ReplicaLog

    async def read(self, position: int, bytes_max: int) -> bytes:
        return self.read_at_once(position, bytes_max)

    def read_at_once(self, position: int, bytes_max: int) -> bytes:
        """What `read` gives."""
        if position < self.start_position:
            raise ValueError(f"position {position} is not held any more")
        offset = position - self.start_position
        data = bytes(self.data[offset : offset + bytes_max])
        length = record.length_at(bytes(self.data[offset : offset + record.HEADER_BYTES]), 0)
        if length > len(data):
            data = bytes(self.data[offset : offset + length])
        return raw_records.whole_bytes(position, data)

    def append_raw(self, position: int, data: bytes) -> None:
        assert position == self.end_position
        if self.full:
            raise StatusError(Code.INTERNAL_ERROR, "the disk is full")
        epochs = EpochHistory(self.epochs)
        for found in raw_records.checked_records(position, data):
            epochs.record(found.epoch, found.position)
        self.epochs = epochs
        self.data += data
        self.next_offset += len(raw_records.checked_records(position, data))

    async def sync(self) -> None:
        target = self.end_position
        self.syncs += 1
        await self.syncs_go_on.wait()
        await asyncio.sleep(0)
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise OSError("the device refused")
        self.synced_position = max(self.synced_position, min(target, self.end_position))

    def commit(self, position: int) -> None:
        position = min(position, self.end_position)
        if position <= self.high_watermark:
            return
        offset = self.high_watermark - self.start_position
        data = bytes(self.data[offset : position - self.start_position])
        for found in raw_records.checked_records(self.high_watermark, data):
            self.folded.append(found.position)
            self.high_watermark = found.position + found.length

    async def clear_suspect(self) -> None:
        self.doubt_ended_at.append(self.synced_position)

    async def cut(self, position: int) -> None:
        self.cuts.append(position)
        await self.changes_go_on.wait()
        self.cut_off(position)
        self.high_watermark = min(self.high_watermark, position)
        self.folded = [each for each in self.folded if each < position]
        self.synced_position = min(self.synced_position, position)
        await asyncio.sleep(0)

    async def install(self, checkpoint: bytes, position: int, epochs: EpochHistory) -> None:
        self.installed.append(checkpoint)
        await self.changes_go_on.wait()
        self.data.clear()
        self.folded.clear()
        self.start_position = self.synced_position = self.high_watermark = position
        self.epochs = EpochHistory(epochs)

    async def delete_before(self, position: int) -> None:
        position = max([self.start_position, *(each for each in self.positions() if each <= position)])
        del self.data[: position - self.start_position]
        self.start_position = position

    def checkpoint_file(self) -> Iterator[bytes]:
        yield self.checkpoint

    async def mend(self, position: int, data: bytes) -> None:
        offset = position - self.start_position
        assert offset + len(data) <= len(self.data)
        self.data[offset : offset + len(data)] = data
        self.mended.append(position)


def damaged_at(log: MemoryLog, position: int) -> bool:
    """Whether the record there is damaged."""
    try:
        log.read_at_once(position, 1)
    except CorruptDataError:
        return True
    return False


def common_prefix(one: MemoryLog, other: MemoryLog) -> int:
    """Up to where two logs are equal, byte by byte; both begin at the same position."""
    assert one.start_position == other.start_position
    pairs = zip(one.data, other.data, strict=False)
    same = next((at for at, (left, right) in enumerate(pairs) if left != right), None)
    return one.start_position + (min(len(one.data), len(other.data)) if same is None else same)


def records_of(lengths: list[int], epoch: int, position: int) -> bytes:
    """Records of an epoch from a position on, with payloads of these lengths."""
    parts: list[bytes] = []
    for length in lengths:
        encoded, both = record.encode(Record(RecordKind.MESSAGE, "t", 0, b"y" * length), position, epoch, 1_000, 0)
        parts += both
        position += encoded
    return b"".join(itertools.chain(parts))
