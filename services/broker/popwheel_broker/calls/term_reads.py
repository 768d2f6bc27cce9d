"""Reads of a term's calls, for as long as this replica leads."""

from collections.abc import Callable, Hashable
from typing import TypeVar

from popwheel_common.cold_reads import ColdReads
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

Result = TypeVar("Result")


class TermReads:
    """Runs reads for calls of one term.

    Args:
        reads: run reads that may have to wait for the device.
        name: of the broker group.
    """

    def __init__(self, reads: ColdReads, name: str) -> None:
        self._reads = reads
        self._name = name
        self.has_ended = False
        """Another replica leads."""

    def end(self) -> None:
        """End reads: another replica leads."""
        self.has_ended = True

    def refusal(self) -> StatusError:
        """Return the error of calls from then on."""
        return StatusError(Code.HA_NOT_AVAILABLE, f"the broker {self._name} has another master now, call that one")

    async def run(self, work: Callable[[], Result], line: Hashable = None) -> Result:
        """Run a read, without waiting for the device on the loop (see `ColdReads.run`).

        Raises:
            StatusError: HA_NOT_AVAILABLE: another replica leads meanwhile, and nothing was read.
        """

        def unless_ended() -> Result:
            if self.has_ended:
                raise self.refusal()
            return work()

        return await self._reads.run(unless_ended, line)
