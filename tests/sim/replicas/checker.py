"""Holds a run of a broker group against the invariants of RELIABILITY 2.2."""

from collections.abc import Sequence

from tests.sim.checker import Checker
from tests.sim.history import History, Sent, Settling
from tests.sim.replicas.swarm import GroupSwarm
from tests.sim.stored import StoredMessage


class GroupChecker(Checker):
    """Judges one run.

    Args:
        swarm: what was drawn.
        history: what clients saw.
        stored: all messages that are in the log in the end, in its order.
        doubts: when a proxy took a void handle for one that its own first try had voided.
    """

    def __init__(
        self,
        swarm: GroupSwarm,
        history: History,
        stored: list[StoredMessage],
        doubts: Sequence[float],
    ) -> None:
        super().__init__(swarm, history, stored, {})
        self._draw = swarm
        self._doubts = doubts
        self._sent_twice = True

    def _check_acknowledged(self, message_id: str, sent: Sent, copies: list[StoredMessage]) -> None:
        if sent.due_ms or any(copy.offset == sent.offset for copy in copies):
            return
        verdict = self._verdict
        if self._draw.is_lossy and self._history.lost_by(sent.began_s, sent.position) is not None:
            verdict.excused.append(message_id)
            return
        verdict.lost.append(message_id)
        verdict.broke(
            "S1",
            f"{message_id} was acknowledged at offset {sent.offset} at {sent.ended_s:.6f}, "
            f"it is stored at {[copy.place for copy in copies] or 'no place'}",
        )

    def _check_polls(self) -> None:
        """L1 is asked by the simulator of one server and by that of a cluster."""

    def _was_in_doubt(self, settling: Settling) -> bool:
        return any(settling.began_s <= doubt_s <= settling.ended_s for doubt_s in self._doubts)
