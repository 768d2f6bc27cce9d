"""Passes over one damaged record of the log because an operator says so (`--skip-record`).

A record of the same length, place and epoch is written over it, and says that a message was skipped there. So nothing
else moves: positions, offsets, and the logs of other replicas, which may have that record or this one. What stood there
before is kept in a file.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from popwheel_broker.core.checkpoint import Checkpoint
from popwheel_broker.log import record
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.record import HEADER, HEADER_BYTES, RECORD_BYTES_MAX, RecordKind, StoredRecord
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_common.contract import names
from popwheel_common.contract.names import Kind
from popwheel_common.contract.record_block import MAGIC, VERSION
from popwheel_common.disk import Disk
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

_FOLDER: Final = "skipped"
_OF_MESSAGES: Final = frozenset((Kind.USER, Kind.RETRY, Kind.DEAD_LETTER, Kind.LITE))
_BYTES_AT_ONCE: Final = 1 << 20

_log = structlog.get_logger()


class _Place(NamedTuple):
    """Verified fields of a damaged record's header.

    Args:
        length: of the record, in bytes.
        topic, queue_id, queue_offset: its queue, and its offset there.
        stored_ms: when it was stored.
    """

    length: int
    topic: str
    queue_id: int
    queue_offset: int
    stored_ms: int


class RecordSkip:
    """Skips one record, before the log is read for anything else.

    Args:
        log: where it stands.
        saved: the checkpoint: how far queues go.
        epochs: who wrote the log.
        disk, folder: where the damaged bytes are kept.
    """

    def __init__(self, log: CommitLog, saved: Checkpoint, epochs: EpochHistory, disk: Disk, folder: Path) -> None:
        self._log = log
        self._saved = saved
        self._epochs = epochs
        self._disk = disk
        self._folder = folder / _FOLDER

    async def skip(
        self,
        position: int,
        repair: Callable[[int], Awaitable[bool]],
        who_may_have: Callable[[int], Awaitable[list[str]]],
    ) -> None:
        """Skip the damaged record at a position. Nothing is done where that was done before, or a replica mends it.

        Args:
            position: where it begins.
            repair: has it mended by another replica; says if it was.
            who_may_have: the other replicas that may have it whole, as they did not say that they do not.

        Raises:
            StatusError: PRECONDITION_FAILED; nothing was changed.
            OSError: the device refused; it may be tried again.
        """
        log = self._log
        if position < log.start_position:
            _log.warning("nothing was skipped, as that part of the log is deleted", position=position)
            return
        if position >= log.end_position:
            raise _refusal(position, f"the log ends at {log.end_position}")
        found = self._sound(position)
        if found is not None and found.kind == RecordKind.SKIPPED:
            _log.info("this record was skipped before", position=position, bytes=found.length, topic=found.topic)
            return
        if found is not None:
            raise _refusal(position, "the record there is sound; start without --skip-record")
        if await repair(position):
            _log.warning("nothing was skipped, as another replica has mended the record", position=position)
            return
        if others := await who_may_have(position):
            raise _refusal(
                position,
                f"other replicas may have the record whole ({', '.join(others)}); start them, or have the controllers "
                "forget those that are lost (popwheel admin broker forget)",
            )
        place = self._place(position)
        offset = await self._offset(position, place)
        if offset != place.queue_offset:
            raise _refusal(
                position,
                f"its header says offset {place.queue_offset} of {names.shown(place.topic)}/{place.queue_id}, and the "
                f"log around it says {'nothing of it' if offset is None else offset}: it is not known what is missing",
            )
        kept = await self._store_bytes(position, place.length)
        await log.mend(position, self._instead(position, place))
        log.damaged.discard(position)
        _log.warning(
            "a damaged record was skipped: this message is lost",
            position=position,
            bytes=place.length,
            topic=place.topic,
            queue=place.queue_id,
            offset=place.queue_offset,
            kept=str(kept),
        )

    def _sound(self, position: int) -> StoredRecord | None:
        """Return the record that begins at a position; None if it is damaged, or none does."""
        try:
            length = record.length_at(self._log.read(position, HEADER_BYTES), 0)
            if HEADER_BYTES <= length <= RECORD_BYTES_MAX:
                return record.decode(self._log.read(position, length), 0, position)
        except CorruptDataError:
            pass
        return None

    def _place(self, position: int) -> _Place:
        """Return the header's fields, if they agree with its position and the next record. Raises StatusError."""
        log = self._log
        data = log.read(position, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            raise _refusal(position, "there is no whole header")
        fields = HEADER.unpack(data)
        length, _, magic, version, _, _, written, _, stored_ms, queue_id, queue_offset = fields[:11]
        inner = HEADER_BYTES + sum(fields[13:16])
        if magic != MAGIC or version != VERSION or written != position or not inner <= length <= RECORD_BYTES_MAX:
            raise _refusal(position, "no record begins there, or its header is damaged, so its length is not known")
        end = position + length
        ends = [segment_end for _, segment_end in log.segments()]
        if end not in ends and (end > log.end_position or self._sound(end) is None):
            raise _refusal(
                position,
                f"no sound record begins where its header says that it ends, at {end}, so its length is not known; if "
                "a damaged one does, skip that one first",
            )
        topic_bytes = log.read(position + HEADER_BYTES, fields[13])
        try:
            topic = topic_bytes.decode()
        except UnicodeDecodeError:
            raise _refusal(position, "the name of its topic is damaged") from None
        if not names.is_storable(topic) or names.kind_of(topic) not in _OF_MESSAGES:
            raise _refusal(
                position,
                f"it is no message but of {names.shown(topic)}, where the broker keeps who has what: without it others "
                "would be lost unseen. Restore the log from a backup, or give this replica an empty volume if another "
                "one has everything",
            )
        return _Place(length, topic, queue_id, queue_offset, stored_ms)

    async def _offset(self, position: int, place: _Place) -> int | None:
        """Return the offset that is missing in its queue, by the records around it and the checkpoint.

        None if these do not say it.
        """
        store = self._saved.store
        known = (store.queues or {}).get(place.topic, {}).get(place.queue_id)
        behind, reached = await self._seen(position + place.length, self._log.end_position, place, first=True)
        if behind is not None:
            return behind - 1
        if position < store.position:
            return known[1] - 1 if known is not None and reached >= store.position else None
        before, reached = await self._seen(store.position, position, place, first=False)
        if reached < position:
            return None
        if before is not None:
            return before + 1
        return None if known is None else known[1]

    async def _seen(self, begin: int, end: int, place: _Place, *, first: bool) -> tuple[int | None, int]:
        """Return the first or last offset of a queue in a part of the log, and how far that was read."""
        seen: int | None = None
        at = rested_at = begin
        try:
            for found in self._log.records(begin, end):
                at = found.position + found.length
                if found.topic == place.topic and found.queue_id == place.queue_id:
                    seen = found.queue_offset
                    if first:
                        break
                if at - rested_at >= _BYTES_AT_ONCE:
                    rested_at = at
                    await asyncio.sleep(0)
        except CorruptDataError:
            self._log.damaged.clear()  # the next reader meets it again
        return seen, at

    async def _store_bytes(self, position: int, length: int) -> Path:
        """Keep the damaged bytes in a file. A skip that was cut off has left them already."""
        path = self._folder / f"{position:020d}.record"
        if not self._disk.exists(path):
            self._disk.make_folder(self._folder)
            made = path.with_suffix(".new")
            file = self._disk.open(made)
            try:
                file.write(0, [self._log.read(position, length)])
                await file.sync()
            finally:
                file.close()
            self._disk.replace(made, path)
            await self._disk.sync_folder(self._folder)
            await self._disk.sync_folder(self._folder.parent)
        return path

    def _instead(self, position: int, place: _Place) -> bytes:
        """Return the record that takes its place."""
        room = place.length - HEADER_BYTES - len(place.topic.encode())
        skipped = record.Record(RecordKind.SKIPPED, place.topic, place.queue_id, _padding(room))
        epoch = self._epochs.epoch_at(position)
        length, parts = record.encode(skipped, position, epoch, place.stored_ms, place.queue_offset)
        assert length == place.length, "the record in place of another is not as long"
        return b"".join(parts)


def _padding(room: int) -> bytes:
    """Return a message of a given size with nothing in it but a body of zeros; its length takes five bytes always."""
    if room < 6:
        return bytes(room)
    size = room - 6
    return bytes((0x22, *(size >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)), size >> 28)) + bytes(size)


def _refusal(position: int, why: str) -> StatusError:
    return StatusError(Code.PRECONDITION_FAILED, f"the record at {position} cannot be skipped: {why}")
