"""Reads of records of which a damaged one is mended from another replica (S7)."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from popwheel_broker.log.refusals import disk_refusal
from popwheel_common.cold_reads import ColdReads
from popwheel_common.errors import CorruptDataError

Result = TypeVar("Result")


class RepairedReads:
    """Runs what reads records and decides by them.

    Args:
        reads: reads what is not in memory.
        repair: mends a damaged record at a position of the log; returns whether it is mended.
    """

    def __init__(self, reads: ColdReads, repair: Callable[[int], Awaitable[bool]]) -> None:
        self._reads = reads
        self._repair = repair

    async def run(self, decide: Callable[[], Result], position: int) -> Result:
        """Return what `decide` returns; it is called again when the record at `position` was mended.

        Raises:
            CorruptDataError: the record is damaged, and no other replica has it.
            StatusError: the device refused.
        """
        try:
            return await self._reads.run(decide)
        except CorruptDataError as error:
            damage = error
        if not await self.mend((position,)):
            raise damage
        return await self._reads.run(decide)

    async def mend(self, damaged: Iterable[int]) -> bool:
        """Mend damaged records; return whether any was mended. Raises StatusError: the device refused."""
        try:
            return bool([position for position in sorted(damaged) if await self._repair(position)])
        except OSError as error:
            raise disk_refusal(error) from error
