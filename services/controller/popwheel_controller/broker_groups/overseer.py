"""Supervision of broker groups: receives reports, lets the policy decide, stores the result, notifies all."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import structlog

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, BrokerInfo, ClusterUpdate, ReplicaReport
from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState, IllegalStepError
from popwheel_controller.broker_groups.failure_detector import Liveness
from popwheel_controller.broker_groups.group_policy import (
    ObservedReplica,
    ReplicaViews,
    election_delay,
    find_earlier_epoch,
    may_receive_state,
    next_state,
    roles_of,
    route,
)
from popwheel_controller.broker_groups.group_writer import Decision, GroupWriter
from popwheel_controller.broker_groups.metrics import GroupMetrics
from popwheel_controller.broker_groups.probe import AnotherThereError, ReplicaProbe
from popwheel_controller.broker_groups.replicas import Key, Replicas, Session, check_report
from popwheel_controller.broker_groups.roles import Roles
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.context import ControllerContext
from popwheel_controller.cluster.state_writer import StateWriter

_POLL_S = 0.25

_logger = structlog.get_logger()


class Overseer:
    """Supervisor of the broker groups of a leading controller; idle between `end` and `begin`.

    Args:
        context: of the controller.
        groups: reads and changes the states of the groups.
        routes: publishes the routes to watchers of the cluster.
        roles: publishes the masters and slaves.
        probe: checks the processes at the addresses of replicas.
        metrics: of groups.
    """

    def __init__(
        self,
        context: ControllerContext,
        groups: GroupWriter,
        routes: StateWriter,
        roles: Roles,
        probe: ReplicaProbe,
        metrics: GroupMetrics,
    ) -> None:
        detection_s = self._detection_s = context.options.replication.detection_ms / 1000
        self.groups = groups
        groups.subscribe(self._changed)
        self.replicas = Replicas(detection_s, detection_s / 2)
        self._routes = routes
        self._roles = roles
        self._probe = probe
        self._clock = context.clock
        self._metrics = metrics
        self._check_leads = context.check_leads
        self._leads = False
        self._dirty: dict[str, None] = {}
        self._to_retry: dict[str, None] = {}
        self._seen: dict[str, object] = {}
        self._shown: dict[str, tuple[BrokerInfo | None, bool]] = {}
        """Route of each group as proxies got it last, and whether the group is known."""
        self._election_delays: dict[str, str] = {}
        self._reconciling: dict[str, asyncio.Task[None]] = {}
        self._unreachable_until: dict[Key, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def begin(self) -> Mapping[str, BrokerInfo | None]:
        """Read the groups and begin to supervise them: this controller leads now. Return the route of each group; None
        for a group without one.

        Raises:
            OSError, CorruptDataError, UnknownFormatError: as `StateStore.read`.
        """
        await self.groups.load()
        now = self._clock.monotonic()
        for state in self.groups.states.values():
            self.replicas.expect(state, now)
        self._leads = True
        routes = {name: route(name, state, self.replica_views(name)) for name, state in self.groups.states.items()}
        self._shown.update({name: (info, True) for name, info in routes.items()})
        for name in routes:
            self._show(name)
        self._watching = asyncio.create_task(self._watch(), name="broker-groups")
        return routes

    async def end(self, refusal: StatusError) -> None:
        """Stop supervising, and end the streams of all replicas: this controller no longer leads."""
        self._leads = False
        for session in self.replicas.all_sessions():
            session.end(refusal)
        tasks = [*self._tasks, *self._reconciling.values(), *([] if self._watching is None else [self._watching])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.groups.finish()
        self._watching = None
        for each in (
            self._dirty,
            self._to_retry,
            self._seen,
            self._shown,
            self._election_delays,
            self._unreachable_until,
        ):
            each.clear()
        self.replicas.forget_all()
        self.groups.forget()
        self._roles.clear()
        self._metrics.clear()

    # Reports of replicas.

    def register(self, report: ReplicaReport, wake: Callable[[], None]) -> Session:
        """Register a replica and return its session; end an older session of the same number.

        Raises:
            StatusError: BAD_REQUEST for an invalid report.
        """
        check_report(report)
        earlier_epoch = find_earlier_epoch(self.groups.states.get(report.group), report)
        session = Session(report, self._clock.wall_ms(), earlier_epoch, wake)
        older = self.replicas.register(session, self._clock.monotonic())
        if older is not None:
            older.end(
                StatusError(
                    Code.PRECONDITION_FAILED,
                    f"another process has registered as replica {report.replica} of {report.group}, "
                    f"at {report.address}; this one must not go on",
                )
            )
        _logger.info(
            "replica registered",
            group=report.group,
            replica=report.replica,
            address=report.address,
            epoch=report.epoch,
            end_position=report.end_position,
        )
        self.check_soon(report.group)
        return session

    def reported(self, session: Session, report: ReplicaReport) -> None:
        """Process a report of a registered replica."""
        if self.replicas.reported(session, report, self._clock.monotonic()):
            self.check_soon(report.group)

    def left(self, session: Session) -> None:
        """Process the end of a session's stream."""
        if not self._leads:
            return
        probe = self.replicas.left(session)
        group, number = session.key
        _logger.info("replica's stream ended", group=group, replica=number, leaving=session.report.leaving)
        if probe is not None:
            self.run(self._find_out(session.key, session.report.address, probe), f"probe-of-{group}-{number}")
        self.check_soon(group)

    def message_for(self, session: Session) -> BrokerGroup | None:
        """Return the group's state for a replica; None if it must not get it (`may_receive_state`)."""
        group, number = session.key
        state = self.groups.states.get(group)
        if state is None or not may_receive_state(state, number, session.report, session.earlier_epoch):
            return None
        return self.describe(state)

    def describe(self, state: GroupState) -> BrokerGroup:
        """Return the message about a group, with the replicas that live and stay."""
        views = self.replica_views(state.name)
        return self.message_of(state, [number for number in state.replicas if _remains(views[number])])

    def message_of(self, state: GroupState, living: Collection[int] = ()) -> BrokerGroup:
        """Return the message about a group (`GroupState.message`), with the cluster id."""
        message = state.message(living)
        message.cluster_id = self._routes.state.id
        return message

    # Requests of other parts.

    async def change(self, group: str, decision: Decision, *, forced: bool = False) -> GroupState:
        """Change a known group (`GroupWriter.change`) and return its state."""
        state = await self.groups.change(group, decision, forced=forced)
        assert state is not None, "the decision was about a known group"
        return state

    def replica_views(self, group: str) -> ReplicaViews:
        """Return the current views of a group's replicas."""
        state, now = self.groups.states.get(group), self._clock.monotonic()
        views = self.replicas.replica_views(group, () if state is None else state.replicas, now)
        return {
            number: replace(seen, is_unreachable=now < self._unreachable_until.get((group, number), now))
            for number, seen in views.items()
        }

    def names(self) -> list[str]:
        """Return all groups that are stored or have a registered replica."""
        return sorted({*self.groups.states, *self.replicas.groups()})

    def check_soon(self, group: str) -> None:
        """Schedule a check of a group after news of it."""
        self._dirty[group] = None
        if self._leads and group not in self._reconciling:
            task = self._reconciling[group] = asyncio.create_task(self._reconcile(group), name=f"reconcile-{group}")
            task.add_done_callback(lambda _: self._reconciled(group))

    def run(self, work: "asyncio._CoroutineLike[None]", name: str) -> None:
        """Run a task that is cancelled when this controller stops leading."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Internals.

    async def _watch(self) -> None:
        """Detect replicas that are silent for too long, and retry changes that could not be stored."""
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                await self._roles.forget_channels()
                names = self.names()
                self._forget_others(frozenset(names))
                for group in names:
                    if group in self._to_retry or self._seen.get(group) != _outline(self.replica_views(group)):
                        self.check_soon(group)
            except Exception as error:  # the loop must survive: it replaces silent masters
                _logger.error("the check of broker groups failed", exc_info=error)

    def _forget_others(self, known: frozenset[str]) -> None:
        """Drop the records about groups that are neither stored nor have a registered replica."""
        self.replicas.forget_others(known)
        for records in (self._seen, self._to_retry, self._shown, self._election_delays):
            for group in records.keys() - known:
                del records[group]

    async def _reconcile(self, group: str) -> None:
        """Change a group to its target state, until there is no news of it."""
        while group in self._dirty:
            del self._dirty[group]
            self._to_retry.pop(group, None)
            self._seen[group] = _outline(self.replica_views(group))
            try:
                self._check_leads()
                if self._behind(group):
                    await self.groups.refresh(group)
                await self._decide(group)
            except (StatusError, OSError) as error:
                self._to_retry[group] = None
                _logger.warning("a change of a broker group failed and will be retried", group=group, reason=str(error))
            except IllegalStepError as error:
                _logger.error("an illegal change of a broker group was refused", group=group, rule=str(error))
            self._show(group)

    async def _decide(self, group: str) -> None:
        """Store the next state of a group. An elected replica is probed first, if others could lead: its process may
        have ended without notice, and its successor may have a shorter log than it reported.
        """
        old = self.groups.states.get(group)
        new = next_state(group, old, self.replica_views(group))
        chosen = None
        if old is not None and new is not None and new.epoch > old.epoch:
            chosen = self.replicas.session(group, new.master)
            sessions = [chosen]
            if chosen is not None and chosen.report.suspect:  # its election depends on all their reports
                sessions = [self.replicas.session(group, number) for number in sorted(old.sync_state_set)]
            if len(old.sync_state_set) > 1 and not await self._are_there(sessions):
                return

        def decision(state: GroupState | None) -> GroupState | None:
            after = next_state(group, state, self.replica_views(group))
            if state is None or after is None or after.epoch == state.epoch:
                return after
            if self.replicas.session(group, after.master) is chosen:
                return after
            self._dirty[group] = None  # another replica is elected by now, and must be probed as well
            return None

        await self.groups.change(group, decision)

    def _pass_over(self, key: Key) -> None:
        """Do not elect this replica for the detection time: it may register over and over, and never answer."""
        now = self._clock.monotonic()
        self._unreachable_until = {each: until for each, until in self._unreachable_until.items() if until > now}
        self._unreachable_until[key] = now + self._detection_s

    async def _are_there(self, sessions: Iterable[Session | None]) -> bool:
        """Return whether the registered processes still exist; end the session of the first that does not."""
        for session in sessions:
            if session is None:
                continue
            try:
                await self._probe.check(session.report)
            except AnotherThereError as error:
                group, number = session.key
                if error.is_late:
                    self._pass_over(session.key)
                _logger.warning(
                    "replica was not elected: its probe failed", group=group, replica=number, why=str(error)
                )
                session.end(StatusError(Code.HA_NOT_AVAILABLE, "this replica's address answers something else"))
                return False
        return True

    def _reconciled(self, group: str) -> None:
        task = self._reconciling.pop(group)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._to_retry[group] = None
            _logger.error("the check of a broker group failed", group=group, exc_info=error)
        elif group in self._dirty:
            self.check_soon(group)

    def _behind(self, group: str) -> bool:
        """Return whether a replica has seen states of its group that another controller stored."""
        state = self.groups.states.get(group)
        reports = {session.report.replica: session.report for session in self.replicas.sessions(group)}
        if state is None:
            return any(report.version > 0 for report in reports.values())
        return any(report.version > state.version or report.epoch > state.epoch for report in reports.values())

    async def _find_out(self, key: Key, address: str, probe: int) -> None:
        """Probe a replica's address after its stream has ended."""
        group, number = key
        found = await self._probe.finds(group, number, address)
        if found is None:
            _logger.info("replica does not answer", group=group, replica=number, address=address)
            return
        if found:
            self.replicas.answered(key, probe, self._clock.monotonic())
        else:
            self.replicas.refused(key, probe)
            _logger.warning("replica is gone", group=group, replica=number, address=address)
        self.check_soon(group)

    def _changed(self, old: GroupState | None, new: GroupState) -> None:
        """Publish a state that was stored, by this controller or another."""
        if not self._leads:
            return
        self.replicas.expect(new, self._clock.monotonic())
        _log_change(old, new)
        if _has_new_master(old, new):
            self._metrics.elections.inc()
        self._show(new.name)

    def _show(self, group: str) -> None:
        """Notify proxies, replicas and the rest of this controller of a group's state."""
        state, views = self.groups.states.get(group), self.replica_views(group)
        info = route(group, state, views)
        if self._shown.get(group) != (info, state is not None):
            self._routes.change_brokers(lambda cluster: _routed(cluster, group, info, is_known=state is not None))
            self._shown[group] = info, state is not None
        if state is not None:
            self._log_election_delay(state, views)
            self._roles.set(roles_of(state, views))
            self._metrics.show(state, has_master=info is not None and bool(info.address))
        for session in self.replicas.sessions(group):
            session.wake()

    def _log_election_delay(self, state: GroupState, views: ReplicaViews) -> None:
        why = election_delay(state, views)
        if why != self._election_delays.get(state.name, ""):
            self._election_delays[state.name] = why
            if why:
                _logger.error("no master can be elected for now", group=state.name, why=why)


def _routed(cluster: ClusterState, group: str, info: BrokerInfo | None, *, is_known: bool) -> ClusterUpdate | None:
    if info is None:
        return cluster.dismiss_broker(group, is_known=is_known)
    return None if cluster.brokers.get(group) == info else cluster.register_broker(info)


def _remains(seen: ObservedReplica) -> bool:
    return seen.liveness is not Liveness.DEAD and not (seen.report is not None and seen.report.leaving)


def _outline(views: ReplicaViews) -> object:
    return {number: (seen.liveness, seen.is_unreachable) for number, seen in views.items()}


def _has_new_master(old: GroupState | None, new: GroupState) -> bool:
    return new.master != NO_MASTER and (old is None or new.epoch > old.epoch)


def _log_change(old: GroupState | None, new: GroupState) -> None:
    sync_state_set = sorted(new.sync_state_set)
    if _has_new_master(old, new):
        # A new replica as master is worth a warning; the first master, or the same one again, is a normal start.
        is_usual = old is None or old.master in (NO_MASTER, new.master)
        (_logger.info if is_usual else _logger.warning)(
            "broker group has a new master",
            group=new.name,
            epoch=new.epoch,
            master=new.master,
            before=None if old is None else old.master,
            address=new.replicas[new.master].address,
        )
    elif new.master == NO_MASTER and (old is None or old.master != NO_MASTER or new.epoch > old.epoch):
        before = None if old is None else old.master
        _logger.warning("broker group has no master now", group=new.name, epoch=new.epoch, before=before)
    elif old is not None and new.sync_state_set != old.sync_state_set:
        _logger.info(
            "sync-state set changed",
            group=new.name,
            epoch=new.epoch,
            now=sync_state_set,
            before=sorted(old.sync_state_set),
        )
    else:
        _logger.info("broker group changed", group=new.name, version=new.version, replicas=sorted(new.replicas))
