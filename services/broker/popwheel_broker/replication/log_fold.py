"""Fold of the log into the core's state: records that will stay, a few at a time.

What was appended a moment ago is in memory still, up to `_RETAINED_BYTES`; the rest is read again. Other threads read,
and the loop is left after 10 ms of folding.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.record import StoredRecord
from popwheel_common.clock import Clock
from popwheel_common.cold_reads import ColdReads
from popwheel_common.errors import CorruptDataError
from popwheel_common.supervision import supervised

_FOLD_S = 0.01
_RETAINED_BYTES = 16 * 1024 * 1024
_READ_AHEAD_BYTES = 256 * 1024


class LogFold:
    """Folds one log into the core of the moment.

    Args:
        core: what it is now.
        log: the log.
        reads: where files are read.
        clock: for how long the loop may be kept busy.
        on_folded: called when records were folded by `commit`.
        on_failure: called with an unexpected error.
    """

    def __init__(
        self,
        core: Callable[[], BrokerCore],
        log: CommitLog,
        reads: ColdReads,
        clock: Clock,
        on_folded: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._core = core
        self._log = log
        self._reads = reads
        self._clock = clock
        self._on_folded = on_folded
        self._on_failure = on_failure
        self._appended: deque[StoredRecord] = deque()
        self._appended_bytes = 0
        self._committed = 0
        self._folding: asyncio.Task[None] | None = None
        self._damage: CorruptDataError | None = None
        """Damage that ended `_folding`, for the next caller who can have it repaired."""

    def appended(self, records: Sequence[StoredRecord], length: int) -> None:
        """Records were appended to the log; they are kept for the fold if there is room, and nothing is left out
        before them.

        Args:
            records: in the order of the log, at least one.
            length: bytes of them all.
        """
        last = self._appended[-1] if self._appended else None
        goes_on = last is None or last.position + last.length == records[0].position
        if goes_on and self._appended_bytes + length <= _RETAINED_BYTES:
            self._appended.extend(records)
            self._appended_bytes += length

    def commit(self, position: int) -> None:
        """Fold what is before `position`, as far as it is here: some at once, the rest soon.

        Raises:
            CorruptDataError: a record is damaged; it may be tried again when it was mended.
        """
        if position > self._committed:
            self._committed = position
        if self._damage is not None:
            damage, self._damage = self._damage, None
            raise damage
        if self._folding is None and self._fold_some():
            self._folding = supervised(self._fold_rest(), "broker-fold", self._on_failure)

    async def fold_all(self) -> None:
        """Fold all that is in the log, unless the core is one that is written to.

        Raises:
            CorruptDataError: a record is damaged.
        """
        while not self._core().is_finished and self._core().folded_position < self._log.end_position:
            await self._read_ahead(self._log.end_position)
            self._fold(self._log.end_position)
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Fold no more until `commit`."""
        self._damage = None
        if self._folding is not None:
            self._folding.cancel()
            self._folding = None

    def cut(self, position: int) -> None:
        """Apply a cut of the log at `position`."""
        self._appended.clear()
        self._appended_bytes = 0
        self._committed = min(self._committed, position)

    def _fold_some(self) -> bool:
        """Fold records in memory, for a moment; return whether there are more."""
        position = self._core().folded_position
        is_more = self._fold(self._committed_end)
        if self._core().folded_position > position:
            self._on_folded()
        return is_more

    async def _fold_rest(self) -> None:
        try:
            is_more = True
            while is_more:
                await asyncio.sleep(0)
                await self._read_ahead(self._committed_end)
                is_more = self._fold_some()
        except CorruptDataError as error:
            self._damage = error
        self._folding = None

    @property
    def _committed_end(self) -> int:
        return min(self._committed, self._log.end_position)

    async def _read_ahead(self, end: int) -> None:
        """Read the next records to fold into memory, if they are not there any more.

        Raises:
            CorruptDataError: the next record is damaged.
        """
        position, appended = self._core().folded_position, self._appended
        while appended and appended[0].position < position:
            self._appended_bytes -= appended.popleft().length
        upto = min(end, appended[0].position) if appended else end
        if position >= upto:
            return
        found = await self._reads.run(lambda: self._records(position, min(upto, position + _READ_AHEAD_BYTES)))
        appended.extendleft(reversed(found))
        self._appended_bytes += sum(each.length for each in found)

    def _records(self, position: int, end: int) -> list[StoredRecord]:
        found: list[StoredRecord] = []
        try:
            for each in self._log.records(position, end, _READ_AHEAD_BYTES):
                found.append(each)
        except CorruptDataError:
            if not found:
                raise
        if not found:
            raise CorruptDataError(f"there is no whole record at {position}")
        return found

    def _fold(self, end: int) -> bool:
        """Fold records in memory, for a moment; return whether there are more before `end`."""
        core, appended = self._core(), self._appended
        until_s = self._clock.monotonic() + _FOLD_S
        while appended and appended[0].position < end:
            if appended[0].position > core.folded_position:
                break
            found = appended.popleft()
            self._appended_bytes -= found.length
            if found.position == core.folded_position:
                core.fold(found)
                if self._clock.monotonic() >= until_s:
                    break
        return core.folded_position < end
