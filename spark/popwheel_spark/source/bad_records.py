"""Messages that cannot be decoded: found among others, and then reported, left out, or shown (pure)."""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from popwheel_common.contract.record_block import RecordBlock
from popwheel_spark.errors import BadRecordError
from popwheel_spark.source.read_options import BadRecords
from popwheel_spark.wire.offsets import Queue
from popwheel_spark.wire.record_rows import UnreadableError, record_batch, stored_batch

_log = logging.getLogger("popwheel_spark")


class BadRecord(NamedTuple):
    """Message that cannot be decoded.

    Args:
        place: in its block.
        offset: in its queue.
        message_id: null if not even that can be read.
        reason: what is wrong with it.
    """

    place: int
    offset: int
    message_id: str | None
    reason: str

    def __str__(self) -> str:
        return f"offset {self.offset} (id {self.message_id or 'unknown'}) can not be read: {self.reason}"


def decode(
    queue: Queue, block: RecordBlock, columns: Sequence[str], policy: BadRecords
) -> tuple[pa.RecordBatch, Sequence[BadRecord]]:
    """Decode records of one queue to rows.

    Args:
        queue: where they are from.
        block: in the order of the rows.
        columns: wanted ones; other parts of a record may be bad.
        policy: treatment of bad ones.

    Returns:
        The rows, and the bad ones.

    Raises:
        BadRecordError: one is bad, and that is an error.
        FormatError: the broker is of a newer release.
    """
    try:
        return record_batch(queue, block, columns), ()
    except UnreadableError:
        bad = list(_bad_ones(queue, block, columns, 0))
    if policy is BadRecords.FAIL:
        raise BadRecordError(
            f"{queue}: the message at {bad[0]}. Set badRecords=skip to leave such messages out, or badRecords=column "
            "to see them as rows"
        )
    is_good = np.ones(len(block.begins), bool)
    is_good[[each.place for each in bad]] = False
    good = record_batch(queue, _picked(block, is_good), columns)
    return (good if policy is BadRecords.SKIP else _woven(queue, block, columns, good, bad)), bad


def log_bad(queue: Queue, bad: Sequence[BadRecord], policy: BadRecords) -> None:
    """Log the number of bad records."""
    if bad:
        what = "are left out" if policy is BadRecords.SKIP else "are rows with the column badRecord"
        many = f"{len(bad):,} messages can not be read and {what} (badRecords={policy.value})"
        _log.warning("%s: %s; the first: %s", queue, many, bad[0])


def _bad_ones(queue: Queue, block: RecordBlock, columns: Sequence[str], base: int) -> Iterator[BadRecord]:
    """Find the bad records of a block that has some, by halves: most are good."""
    count = len(block.begins)
    try:
        record_batch(queue, block, columns)
    except UnreadableError as error:
        if count > 1:
            yield from _bad_ones(queue, block.part(0, count // 2), columns, base)
            yield from _bad_ones(queue, block.part(count // 2, count), columns, base + count // 2)
            return
        said = stored_batch(queue, block, ("queueOffset", "messageId")).to_pylist()[0]
        yield BadRecord(base, said["queueOffset"], said["messageId"], str(error))


def _picked(block: RecordBlock, which: npt.NDArray[np.bool_]) -> RecordBlock:
    return block._replace(begins=block.begins[which], lengths=block.lengths[which])


def _woven(
    queue: Queue, block: RecordBlock, columns: Sequence[str], good: pa.RecordBatch, bad: Sequence[BadRecord]
) -> pa.RecordBatch:
    """Return good rows and bad ones, in the order of the block."""
    shown = [stored_batch(queue, block.part(each.place, each.place + 1), columns, each.reason) for each in bad]
    places = np.full(len(block.begins), -1)
    places[[each.place for each in bad]] = np.arange(len(bad)) + good.num_rows
    places[places < 0] = np.arange(good.num_rows)
    table = pa.Table.from_batches([good, *shown]).take(pa.array(places)).combine_chunks()
    (rows,) = table.to_batches()
    return rows
