"""Holds a run of a broker group against the promises of docs/INVARIANTS.md."""

from collections import defaultdict
from collections.abc import Callable, Collection

from popwheel_common.contract import names
from tests.sim.checker import Checker, Key
from tests.sim.consumers import Subscription
from tests.sim.history import Delivery, History, Sent
from tests.sim.replicas.swarm import RETENTION_MS, GroupSwarm
from tests.sim.stored import StoredMessage


class GroupChecker(Checker):
    """Judges one run.

    Args:
        swarm: what was drawn.
        history: what clients saw.
        stored: all messages that are in the log in the end, or were and were deleted, in its order.
        deleted: what stands before this position was deleted, as it was old.
        epochs: in which somebody led.
        fails: whether a message is one that fails by itself: it may come late, or be quarantined.
    """

    def __init__(
        self,
        swarm: GroupSwarm,
        history: History,
        stored: list[StoredMessage],
        deleted: int,
        epochs: Collection[int],
        fails: Callable[[str], bool],
    ) -> None:
        super().__init__(swarm, history, stored, {}, fails)
        self._is_one_proxy = False
        self._epochs = epochs
        self._deleted = deleted
        self._draw = swarm
        self._sent_twice = True
        self._latest: dict[Key, list[StoredMessage]] = defaultdict(list)
        """By group and message: where it stands as it is to come again the last time."""
        for each in stored:
            if each.topic.startswith(names.RETRY_PREFIX):
                self._latest[each.group_of_retry, each.message_id] = [each]

    def _check_acknowledged(self, message_id: str, sent: Sent, copies: list[StoredMessage]) -> None:
        verdict = self._verdict
        if sent.due_ms:
            return
        if any(copy.offset == sent.offset for copy in copies):
            ages_ms = [copy.record.store_time_ms - copies[0].record.store_time_ms for copy in copies]
            # A send is tried again within seconds: only here may what its first try stored be deleted by then.
            was_deleted = self._draw.has_retention and min(ages_ms[1:], default=0) > RETENTION_MS
            if len(copies) > 1 and not was_deleted:
                verdict.broke("S1", f"{message_id} is stored twice: {[copy.place for copy in copies]}")
            return
        if self._draw.is_lossy and self._history.lost_by(sent.began_s, sent.position) is not None:
            verdict.excused.append(message_id)
            return
        verdict.lost.append(message_id)
        verdict.broke(
            "S1",
            f"{message_id} was acknowledged at offset {sent.offset} at {sent.ended_s:.6f}, "
            f"it is stored at {[copy.place for copy in copies] or 'no place'}",
        )

    def _check_conserved(self, subscription: Subscription, message_id: str, copies: int) -> None:
        """What was deleted before it was given to anybody is nobody's any more; what was delivered stays."""
        latest = self._latest[subscription.group, message_id] or self._originals[message_id]
        given = {
            (each.handle.from_retry, each.handle.queue_id, each.handle.offset)
            for each in self._deliveries[subscription.group, message_id]
        }
        if all(
            each.record.position >= self._deleted
            or (each.topic.startswith(names.RETRY_PREFIX), each.queue_id, each.offset) in given
            for each in latest
        ):
            super()._check_conserved(subscription, message_id, copies)

    def _may_have_ended(self, earlier: Delivery, later: Delivery) -> bool:
        """In the mode that waits for no slave, one who was deposed delivers what his successor does, until he hears
        of it.
        """
        return (earlier.handle.life != later.handle.life and not self._draw.is_safe) or super()._may_have_ended(
            earlier, later
        )

    def _check_order(self) -> None:
        """P6, where every message stays that was acknowledged, and no two masters deliver."""
        if self._draw.is_safe and not self._draw.has_retention:
            super()._check_order()

    def _check_numbers(self) -> None:
        """P7: also that each handle is of an epoch, lest what was delivered from a log that was given up is good for
        what stands in its place.
        """
        super()._check_numbers()
        for delivery in self._history.deliveries:
            if delivery.handle.epoch not in self._epochs:
                self._verdict.broke(
                    "P7",
                    f"pop {delivery.handle.delivery} says no epoch in which anybody led: {delivery.got_s:.6f}",
                )

    def _check_polls(self) -> None:
        """L1 is asked by the simulator of one server and by that of a cluster."""
