"""Records of messages that read as others than were written, where somebody will read them."""

import random
from dataclasses import dataclass
from pathlib import Path

from popwheel_broker.consume.pop_state import stored_topic
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import decode_delay
from popwheel_common.errors import CorruptDataError
from tests.sim.device import SimDisk
from tests.sim.stored import records_in_log

_MISPLACED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class _Rotten:
    """Bytes of a file that are not what was written."""

    path: Path
    at: int
    before: bytes
    after: bytes


class RottenRecords:
    """Flips bits of messages that were not delivered yet, not acknowledged, or not due, or shows others in their place.

    A broker that runs has to find out whatever it reads. One that starts takes damage at the end of its log for a torn
    write, unless a checkpoint says that it was good. So all is as it was written before a start.

    Args:
        disk: where they are.
        folder: of the broker.
        segment_bytes: size of a segment.
        chance: which, and what becomes of it.
    """

    def __init__(self, disk: SimDisk, folder: Path, segment_bytes: int, chance: random.Random) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._chance = chance
        self._rotten: _Rotten | None = None

    def rot(self, core: BrokerCore) -> str:
        """Let one rot, if there is one; which and how, for the trace."""
        if self._rotten is not None:
            return ""
        chance = self._chance
        try:
            log = records_in_log(self._disk, self._folder, self._segment_bytes)
        except CorruptDataError:
            return ""  # another bit of it has rotted
        synced = core.store.log.synced_position
        kind = chance.choice((RecordKind.MESSAGE, RecordKind.TIMER))
        records = [each for each in log if each.kind == kind and each.position + each.length <= synced]
        is_needed = _is_needed if kind == RecordKind.MESSAGE else _is_pending
        needed = [each for each in records if is_needed(core, each)]
        if not needed:
            return ""
        record = chance.choice(needed)
        path, at, before = self._stands(core, record)
        others = [each for each in records if each.length <= record.length and each is not record]
        if others and chance.random() < _MISPLACED_SHARE:
            other = chance.choice(others)
            _, _, after = self._stands(core, other)
            how = f"shows {other.position}"
        else:
            bit = chance.randrange(len(before) * 8)
            flipped = bytearray(before)
            flipped[bit // 8] ^= 1 << bit % 8
            after, how = bytes(flipped), f"bit {bit}"
        self._rotten = _Rotten(path, at, before[: len(after)], after)
        self._disk.overwrite(path, at, after)
        return f"{record.topic}/{record.queue_id}@{record.queue_offset} {how}"

    def holds(self, path: Path, place: int) -> bool:
        """Whether a byte of a file is one of the record that has rotted."""
        rotten = self._rotten
        return rotten is not None and rotten.path == path and rotten.at <= place < rotten.at + len(rotten.after)

    def restore(self) -> None:
        """Have all as it was written."""
        rotten, self._rotten = self._rotten, None
        if rotten is None:
            return
        contents = self._disk.contents(rotten.path)
        if contents is not None and contents[rotten.at : rotten.at + len(rotten.after)] == rotten.after:
            self._disk.overwrite(rotten.path, rotten.at, rotten.before)

    def _stands(self, core: BrokerCore, record: StoredRecord) -> tuple[Path, int, bytes]:
        """Where a record stands: file, place in it, bytes."""
        segment = max(start for start, _ in core.store.log.segments() if start <= record.position)
        path, at = self._folder / "commitlog" / f"{segment:020d}.log", record.position - segment
        return path, at, (self._disk.contents(path) or b"")[at : at + record.length]


def _is_needed(core: BrokerCore, record: StoredRecord) -> bool:
    """Whether a group reads on before a message, or holds it."""
    place = (record.topic, record.queue_id)
    if any(
        (each.queue.topic, each.queue.queue_id) == place and each.next_offset <= record.queue_offset
        for each in core.state.merge_buffer
    ):
        return True
    return any(
        (stored_topic(each), each.queue_id) == place and record.queue_offset in each.offsets
        for each in core.state.table
    )


def _is_pending(core: BrokerCore, record: StoredRecord) -> bool:
    """Whether a delayed message is to be delivered yet, for all that its record says."""
    return decode_delay(record.origin).due_ms > (core.store.latest_ms or 0)
