"""A replica's log as replication needs it, for the master's end of the stream and for the slave's.

The broker's store has the real one; tests have one in memory. All positions are of the log, in bytes.
"""

from collections.abc import Iterator
from typing import Protocol

from popwheel_broker.replication.epochs import EpochHistory


class ReplicaLog(Protocol):
    """The log of one replica. `start <= committed <= end` and `synced <= end` hold at every moment."""

    @property
    def start_position(self) -> int:
        """Position of the oldest record."""

    @property
    def end_position(self) -> int:
        """Position behind the newest record; records before it survive the end of the process."""

    @property
    def synced_position(self) -> int:
        """Position before which all is on the device."""

    @property
    def high_watermark(self) -> int:
        """High watermark: the sync-state set has the records before it; a slave has folded them into its state."""

    @property
    def epochs(self) -> EpochHistory:
        """Epochs of the log;

        `append_raw`, `cut` and `install` keep them right, and have their file on the device before the records it is
        about.
        """

    async def read(self, position: int, bytes_max: int) -> bytes:
        """Whole records from `position` on, which begins one; at least one, however long, if `position` is before the
        end. Each is checked (`raw_records.whole_bytes`): a damaged one further on only ends what is given. The loop
        does not wait for the device.

        Raises:
            CorruptDataError: the record at `position` is damaged.
            ValueError: the log does not contain the position (any more).
        """

    def append_raw(self, position: int, data: bytes) -> None:
        """Write whole records at the end, which is at `position`; `end_position` has moved when this returns.

        All are checked before the first is written (`raw_records.checked_records`, whose result is kept until it is
        folded), and noted in `epochs`.

        Raises:
            CorruptDataError: one is damaged, or of an epoch before the latest; nothing was appended.
            StatusError: the disk is full or refuses; nothing was appended.
        """

    async def sync(self) -> None:
        """Return when all that was appended before the call is on the device; then `synced_position` has moved.

        Raises:
            OSError: the device refused; nothing may be appended any more (S1).
        """

    def commit(self, position: int) -> None:
        """Fold what is before `position` into the state, as far as it is here. Less than before changes nothing.

        Raises:
            CorruptDataError: a record can't be read back, or does not fit.
        """

    async def clear_suspect(self) -> None:
        """Clear the mark of a suspect replica: all acknowledged records are on its device.

        Raises:
            OSError: the device refused.
        """

    async def cut(self, position: int) -> None:
        """Drop all from `position` on, where a record begins, durably. It may lie before `high_watermark` (an
        unclean election, or `ack_mode: master`): then what was folded is made anew from the files.
        """

    async def install(self, checkpoint: bytes, position: int, epochs: EpochHistory) -> None:
        """Drop all, and begin with a master's checkpoint file and an empty log that goes on at `position`.

        A crash at any moment leaves the old state, or the new one, or a log that says it is empty.

        Args:
            checkpoint: as the master's `checkpoint_file` gave it.
            position: where the log begins; the checkpoint may be of a later one.
            epochs: who wrote what was before `position`.

        Raises:
            CorruptDataError: the checkpoint is damaged; nothing was changed.
        """

    async def delete_before(self, position: int) -> None:
        """Delete old segments that end at or before `position`, as the master has done; some now, the rest later.

        Raises:
            OSError: the device refused; it may be tried again.
            CorruptDataError: a queue is damaged.
        """

    def checkpoint_file(self) -> Iterator[bytes]:
        """A checkpoint file for a follower that has nothing, some at a time: with it and the log from `start_position`
        on, it gets to the same state.
        """

    async def mend(self, position: int, data: bytes) -> None:
        """Write records in place of damaged bytes at `position`, within the log, and sync them.

        Raises:
            OSError: the device refused.
        """
