"""Measurements that show problems of the cluster: brokers and their groups, proxies, the change log."""

from collections.abc import Iterator

from popwheel_common.clock import Clock
from popwheel_controller.activity.activity_book import ActivityBook
from popwheel_controller.activity.troubles import Finding
from popwheel_controller.broker_groups.checkpoint_sync import CheckpointSync
from popwheel_controller.broker_groups.group_policy import trouble
from popwheel_controller.broker_groups.overseer import Overseer
from popwheel_controller.cluster.change_log import ChangeLog
from popwheel_controller.cluster.processes import Processes


class Findings:
    """Source of the findings that the rules judge.

    Args:
        book: the latest samples.
        overseer: knows the broker groups.
        checkpoints: knows the age of the checkpoints that slaves have.
        processes: knows the proxies.
        changes: the change log.
        clock: the time.
    """

    def __init__(
        self,
        book: ActivityBook,
        overseer: Overseer,
        checkpoints: CheckpointSync,
        processes: Processes,
        changes: ChangeLog,
        clock: Clock,
    ) -> None:
        self._book = book
        self._overseer = overseer
        self._checkpoints = checkpoints
        self._processes = processes
        self._changes = changes
        self._clock = clock

    def now(self) -> Iterator[Finding]:
        """Yield the current findings; unknown values yield nothing."""
        yield from self._broker_groups()
        yield from self._brokers()
        yield from self._groups()
        proxies = sum(member.kind == "proxy" for member in self._processes.members(()))
        yield Finding("PopwheelNoProxy", "", not proxies)
        yield Finding("ChangeLogFails", "", self._changes.unstored)
        if self._book.new_dead_letters is not None:
            yield Finding("DeadLettersGrow", "", self._book.new_dead_letters)

    def _broker_groups(self) -> Iterator[Finding]:
        now_s = self._clock.monotonic()
        for name in self._overseer.names():
            state = self._overseer.groups.states.get(name)
            yield Finding("PopwheelNoMaster", name, bool(trouble(state, self._overseer.replica_views(name))))
            if state is not None:
                lacking = len(state.replicas) - len(state.sync_state_set)
                yield Finding("PopwheelReplicaOutOfSync", name, lacking)
            ages = [age.age_s for age in self._checkpoints.ages(name, now_s)]
            yield Finding("PopwheelCheckpointOld", name, max(ages, default=0.0))

    def _brokers(self) -> Iterator[Finding]:
        for name, sample in self._book.samples.items():
            totals = sample.totals
            yield Finding("PopwheelMessageGroupStuck", name, totals.paused)
            yield Finding("PopwheelReviveBehind", name, totals.revive_behind_ms)
            yield Finding("PopwheelTimersBehind", name, totals.timers_behind_ms)
            yield Finding("PopwheelTimersFull", name, totals.delayed / max(1, totals.timers_max))
            yield Finding("PopwheelTransactionsNotEnded", name, totals.transaction_age_ms / 1000)
            yield Finding("PopwheelDiskFull", name, totals.disk_used_share - totals.disk_full_share)
            yield Finding("PopwheelQueueStandsStill", name, totals.damaged)
            yield Finding("PopwheelPoisonMessage", name, totals.poisoned)
            yield Finding("PopwheelQuarantineFull", name, totals.poisoned / max(1, totals.poisoned_max))

    def _groups(self) -> Iterator[Finding]:
        oldest_ms: dict[str, int] = {}
        for sample in self._book.samples.values():
            for group in sample.groups:
                if group.HasField("lag_ms"):
                    oldest_ms[group.name] = max(group.lag_ms, oldest_ms.get(group.name, 0))
        for name, lag_ms in oldest_ms.items():
            yield Finding("PopwheelMessageNotAcknowledged", name, lag_ms)
            now = self._book.groups.get(name)
            if now is not None and now.waiting_ms is not None:
                yield Finding("PopwheelConsumersBehind", name, now.waiting_ms)
