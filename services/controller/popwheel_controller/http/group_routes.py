"""Routes of the admin API about broker groups: `/api/v1/brokers...`."""

from pydantic import BaseModel, ConfigDict, Field

from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaLag
from popwheel_common.web.routes import Routes
from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState, in_short, unknown_group
from popwheel_controller.broker_groups.checkpoint_sync import CheckpointSync
from popwheel_controller.broker_groups.cost import Cost
from popwheel_controller.broker_groups.decommission import Decommission
from popwheel_controller.broker_groups.failure_detector import Liveness
from popwheel_controller.broker_groups.group_history import GroupHistory
from popwheel_controller.broker_groups.group_policy import trouble
from popwheel_controller.broker_groups.leadership_transfer import LeadershipTransfers
from popwheel_controller.broker_groups.overseer import Overseer
from popwheel_controller.broker_groups.replicas import NUMBER_MAX
from popwheel_controller.cluster.processes import Registration
from popwheel_controller.http.guard import DryRun, RecordedChange
from popwheel_controller.http.path_parts import BrokerName
from popwheel_controller.http.refusal import refusal


class ReplicaView(BaseModel):
    """A replica of a broker group, as its last report and the controller have it."""

    number: int = Field(description="Number of the replica within its group.")
    role: str = Field(description="master or slave, also of a dead one; empty if it has to stay out.")
    address: str = Field(description="host:port of the replica.")
    alive: bool = Field(description="The controller receives its reports, or did until just now.")
    in_sync: bool = Field(description="Whether it has every acknowledged message.")
    wiped: bool = Field(description="Whether its volume was wiped.")
    leaving: bool = Field(description="Whether it wants to stop.")
    doubtful: bool = Field(
        description="Whether it is suspect: it truncated its log at a start, and others may have that end."
    )
    epoch: int = Field(description="The latest epoch that it has seen.")
    last_epoch: int = Field(description="Of the last record of its log.")
    end_position: int = Field(description="End of its log.")
    confirmed_position: int = Field(description="High watermark: every in-sync replica has the log up to there.")
    lag_bytes: int | None = Field(description="How far it is behind the master, as that says.")
    lag_ms: int | None = Field(description="The same in time.")
    heard_ms: int | None = Field(description="How long ago its last report came.")
    checkpoint_version: int = Field(description="Of the master's progress that it holds.")


class CheckpointView(BaseModel):
    """Age of the checkpoints that slaves have: that of the slave furthest behind."""

    version: int = Field(description="Version of the checkpoint.")
    age_ms: int = Field(description="Age of the checkpoint.")
    duration_ms: int = Field(description="How long it took to bring it to the slaves.")


class BrokerGroupView(BaseModel):
    """A broker group."""

    name: str = Field(description="Name of the broker group.")
    version: int = Field(description="Increases with each change of the group.")
    epoch: int = Field(description="Epoch of the latest master.")
    master: int | None = Field(description="Number of the master; null if there is none.")
    sync_state_set: list[int] = Field(description="Numbers of the in-sync replicas.")
    trouble: str = Field(description="Why it has no master, in a sentence; empty if it has one.")
    checkpoint: CheckpointView | None = Field(description="Age of the checkpoint at the slaves; null if none has one.")
    replicas: list[ReplicaView] = Field(description="The replicas, by number.")


class GroupChangeView(BaseModel):
    """A change of a broker group."""

    time_ms: int = Field(description="In milliseconds since 1970.")
    version: int = Field(description="Version of the group after the change.")
    epoch: int = Field(description="Epoch of the latest master then.")
    master: int | None = Field(description="Number of the master then; null if there was none.")
    sync_state_set: list[int] = Field(description="Numbers of the in-sync replicas then.")
    what: list[str] = Field(description="What became different, in a few words each.")


class BrokerGroupHistory(BaseModel):
    """The latest changes of a broker group, the oldest first."""

    name: str = Field(description="Name of the broker group.")
    since_ms: int = Field(description="Since when changes are known: this controller leads since then.")
    dropped: int = Field(description="Older changes since then that are not listed any more.")
    changes: list[GroupChangeView] = Field(description="The changes, the oldest first.")


class BrokerGroups(BaseModel):
    """Broker groups."""

    groups: list[BrokerGroupView] = Field(description="The broker groups, by name.")


class Successor(BaseModel):
    """Replica that gets the master's role."""

    model_config = ConfigDict(extra="forbid", strict=True)

    to: int | None = Field(default=None, ge=0, le=NUMBER_MAX, description="By default the most complete one.")


class UncleanElection(BaseModel):
    """Request for an unclean election: the new master may lack acknowledged messages."""

    model_config = ConfigDict(extra="forbid", strict=True)

    replica: int | None = Field(default=None, ge=0, le=NUMBER_MAX, description="By default the most complete one.")
    word: str = Field(default="", description="Confirmation of the possible loss; a refusal names the word.")


class Forgotten(BaseModel):
    """Replica or group to be removed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    replica: int | None = Field(default=None, ge=0, le=NUMBER_MAX, description="The whole group if left out.")
    word: str = Field(
        default="", description="For a whole group: confirmation of the possible loss; a refusal names the word."
    )


class Left(BaseModel):
    """State of a broker group after a removal."""

    name: str = Field(description="Name of the broker group.")
    replicas: list[int] = Field(description="The numbers of those that are not forgotten; none if the group is.")


class Loss(BaseModel):
    """Possible loss, as a dry run found it; nothing was changed."""

    name: str = Field(description="Name of the broker group.")
    replicas: list[int] = Field(description="Those that would be forgotten, or the one that would lead.")
    loss: str = Field(description="A sentence; empty if nothing may be lost.")
    word: str = Field(description="Says that you know it; empty if none is needed.")


class GroupViews:
    """Views of broker groups for operators.

    Args:
        overseer: supervises them.
        checkpoints: knows the age of the slaves' checkpoints.
        history: of their changes.
        clock: the time.
    """

    def __init__(self, overseer: Overseer, checkpoints: CheckpointSync, history: GroupHistory, clock: Clock) -> None:
        self._overseer = overseer
        self._checkpoints = checkpoints
        self._history = history
        self._clock = clock

    def all(self) -> list[BrokerGroupView]:
        """Return all groups, by name."""
        return [self.one(name) for name in self._overseer.names()]

    def one(self, name: str) -> BrokerGroupView:
        """Return a group.

        Raises:
            StatusError: NOT_FOUND.
        """
        state, views = self._overseer.groups.states.get(name), self._overseer.replica_views(name)
        if state is None and not views:
            raise unknown_group(name)
        lags = self._lags(state)
        return BrokerGroupView(
            name=name,
            version=0 if state is None else state.version,
            epoch=0 if state is None else state.epoch,
            master=None if state is None or state.master == NO_MASTER else state.master,
            sync_state_set=[] if state is None else sorted(state.sync_state_set),
            trouble=trouble(state, views),
            checkpoint=self._checkpoint(name),
            replicas=[
                self._replica(name, number, state, seen.liveness, lags.get(number))
                for number, seen in sorted(views.items())
            ],
        )

    def history(self, name: str) -> BrokerGroupHistory:
        """The changes of one group. Raises StatusError: NOT_FOUND."""
        if name not in self._overseer.groups.states:
            raise unknown_group(name)
        latest = self._history.of(name)
        changes = [
            GroupChangeView(
                time_ms=each.time_ms,
                version=each.version,
                epoch=each.epoch,
                master=None if each.master == NO_MASTER else each.master,
                sync_state_set=sorted(each.sync_state_set),
                what=list(each.what),
            )
            for each in latest.changes
        ]
        return BrokerGroupHistory(name=name, since_ms=self._history.since_ms, dropped=latest.dropped, changes=changes)

    def registrations(self) -> list[Registration]:
        """Return all replicas that are registered."""
        return [
            Registration(
                session.report.group,
                session.report.replica,
                session.report.address,
                session.since_ms,
                _role(self._overseer.groups.states.get(session.report.group), session.report.replica),
            )
            for session in self._overseer.replicas.all_sessions()
        ]

    def in_short(self, name: str) -> str:
        """Return a group as the change log shows it; empty if it is not known."""
        state = self._overseer.groups.states.get(name)
        return "" if state is None else in_short(state)

    def _replica(
        self, group: str, number: int, state: GroupState | None, liveness: Liveness, lag: ReplicaLag | None
    ) -> ReplicaView:
        last = self._overseer.replicas.last(group, number)
        record = None if state is None else state.replicas.get(number)
        report = None if last is None else last.report
        silent_s = self._overseer.replicas.silent_for_s((group, number), self._clock.monotonic())
        return ReplicaView(
            number=number,
            role=_role(state, number),
            address=report.address if report is not None else record.address if record is not None else "",
            alive=liveness in (Liveness.LIVING, Liveness.SILENT),
            in_sync=state is not None and number in state.sync_state_set,
            wiped=state is not None and report is not None and state.is_wiped(number, report.identity),
            leaving=report is not None and report.leaving,
            doubtful=report is not None and report.suspect,
            epoch=0 if report is None else report.epoch,
            last_epoch=0 if report is None else report.last_epoch,
            end_position=0 if report is None else report.end_position,
            confirmed_position=0 if report is None else report.high_watermark,
            lag_bytes=None if lag is None else lag.behind_bytes,
            lag_ms=None if lag is None else lag.behind_ms,
            heard_ms=None if silent_s is None else round(silent_s * 1000),
            checkpoint_version=0 if report is None else report.checkpoint_version,
        )

    def _checkpoint(self, name: str) -> CheckpointView | None:
        """Return the checkpoint of the slave that is furthest behind; None while no slave has one."""
        ages = self._checkpoints.ages(name, self._clock.monotonic())
        oldest = max(ages, key=lambda age: age.age_s, default=None)
        if oldest is None or all(age.took_s is None for age in ages):
            return None
        took_s = max(age.took_s or 0.0 for age in ages)
        return CheckpointView(
            version=oldest.version, age_ms=round(oldest.age_s * 1000), duration_ms=round(took_s * 1000)
        )

    def _lags(self, state: GroupState | None) -> dict[int, ReplicaLag]:
        """Return the lag of each slave, as the group's master reports it."""
        if state is None:
            return {}
        session = self._overseer.replicas.session(state.name, state.master)
        return {} if session is None else {lag.replica: lag for lag in session.report.following}


def group_router(views: GroupViews, transfers: LeadershipTransfers, decommission: Decommission) -> Routes:
    """Return the routes of the admin API below `/brokers`.

    Args:
        views: shows broker groups.
        transfers: changes their masters.
        decommission: removes what is gone for good.
    """
    router = Routes(prefix="/brokers", tags=["brokers"])

    @router.get("")
    async def list_broker_groups() -> BrokerGroups:
        """List broker groups with their master, epoch and in-sync replicas."""
        return BrokerGroups(groups=views.all())

    @router.get("/{group}", responses={404: _NOT_FOUND})
    async def describe_broker_group(group: BrokerName) -> BrokerGroupView:
        """Show a broker group with its master, epoch and in-sync replicas, and the lag of each replica."""
        return views.one(names.broker_group(group))

    @router.get("/{group}/history", responses={404: _NOT_FOUND})
    async def list_history(group: BrokerName) -> BrokerGroupHistory:
        """List the changes of a broker group: masters, epochs, in-sync replicas."""
        return views.history(names.broker_group(group))

    @router.post("/{group}/switchover", responses={404: _NOT_FOUND, 409: _NOT_NOW})
    async def switch_master(group: BrokerName, successor: Successor, change_record: RecordedChange) -> BrokerGroupView:
        """Make an in-sync replica of a broker group its master, and return the group."""
        change_record.before = views.in_short(group)
        await transfers.switch(names.broker_group(group), successor.to)
        change_record.after = views.in_short(group)
        return views.one(group)

    @router.post("/{group}/unclean-election", responses={400: _WORD, 404: _NOT_FOUND, 409: _NOT_NOW})
    async def elect_unclean(
        group: BrokerName, election: UncleanElection, change_record: RecordedChange, dry_run: DryRun
    ) -> BrokerGroupView | Loss:
        """Elect a replica that may lack acknowledged messages, when no in-sync replica will come back."""
        if dry_run:
            return _loss(group, transfers.cost_of_unclean(names.broker_group(group), election.replica))
        change_record.before = views.in_short(group)
        await transfers.elect_unclean(names.broker_group(group), election.replica, election.word)
        change_record.after = views.in_short(group)
        return views.one(group)

    @router.post("/{group}/forget", responses={400: _WORD, 404: _NO_REPLICA, 409: _NEEDED})
    async def forget(group: BrokerName, gone: Forgotten, change_record: RecordedChange, dry_run: DryRun) -> Left | Loss:
        """Forget a replica, or a whole broker group, that will not come back."""
        if dry_run and gone.replica is None:
            return _loss(group, decommission.cost_of_group(group))
        if dry_run and gone.replica is not None:
            await decommission.of_replica(group, gone.replica, dry_run=True)
            return Loss(name=group, replicas=[gone.replica], loss="", word="")
        change_record.before = views.in_short(group)
        if gone.replica is None:
            await decommission.of_group(group, gone.word)
            return Left(name=group, replicas=[])
        state = await decommission.of_replica(group, gone.replica)
        return Left(name=group, replicas=sorted(state.replicas))

    return router


_NOT_FOUND = refusal("There is no broker group of that name.")
_NO_REPLICA = refusal("There is no such broker group or replica.")
_NOT_NOW = refusal("It cannot be done now; the message says why.")
_NEEDED = refusal("It lives or is needed; the message says why.")
_WORD = refusal("Not the right word; the message says what may be lost.")


def _loss(group: str, cost: Cost) -> Loss:
    return Loss(name=group, replicas=list(cost.replicas), loss=cost.sentence, word=cost.word)


def _role(state: GroupState | None, number: int) -> str:
    if state is None or number not in state.replicas:
        return ""
    return "master" if state.master == number else "slave"
