"""Mirror of roles and broker groups in Kubernetes, and switchovers that an operator requests there.

Pods have their roles, each `BrokerGroup` has a status and events, and one that is annotated with
`popwheel.io/switchover-to` gets another master. No decision depends on what is written here, and no caller waits for
it: after a failure the then current state is written later.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from popwheel_common.errors import StatusError, code_name
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.broker_groups.broker_group import GroupState, in_short
from popwheel_controller.broker_groups.checkpoint_sync import CheckpointSync
from popwheel_controller.broker_groups.group_policy import has_no_master, trouble
from popwheel_controller.broker_groups.leadership_transfer import LeadershipTransfers
from popwheel_controller.broker_groups.overseer import Overseer
from popwheel_controller.broker_groups.roles import Roles
from popwheel_controller.cluster.changes import refused
from popwheel_controller.cluster.context import ControllerContext
from popwheel_controller.kubernetes.api import BROKER_GROUPS, PODS, ApiRefusalError, KubernetesApi
from popwheel_controller.kubernetes.group_events import NORMAL, WARNING, GroupEvent, GroupEvents
from popwheel_controller.kubernetes.group_status import READY, SWITCHED_OVER, condition, status_change
from popwheel_controller.kubernetes.pod_role import PODS_WITH_ROLES, of_release, pod_change, pod_name, replica_of
from popwheel_controller.kubernetes.resource_watch import ResourceWatch
from popwheel_controller.kubernetes.rounds import Rounds
from popwheel_controller.kubernetes.state_store import OF_CLUSTER, cluster_label, group_resource_name

SWITCHOVER = "popwheel.io/switchover-to"
_REST_S = 0.1
_EPOCH = re.compile(r"leads in epoch (\d+)")

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Outcome of a switchover.

    Args:
        asked: value of the annotation.
        condition: that reports it.
    """

    asked: str
    condition: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Leader:
    """The leader of a group, as far as an event shows it.

    Args:
        epoch: of the latest master; 0 if it is not known.
        deposed: whether that one leads no more.
    """

    epoch: int
    deposed: bool


class KubernetesMirror:
    """Mirror that runs between `start` and `stop`, while this controller leads.

    Args:
        context: of the controller; its changes take a line of each switchover that an annotation asks for.
        api: the API server.
        address: host:port of this controller; the first part of the host is the name of its pod.
        overseer: knows the groups.
        checkpoints: knows the age of the slaves' checkpoints.
        transfers: changes masters.
        roles: notifies when they change.
    """

    def __init__(
        self,
        context: ControllerContext,
        api: KubernetesApi,
        address: str,
        overseer: Overseer,
        checkpoints: CheckpointSync,
        transfers: LeadershipTransfers,
        roles: Roles,
    ) -> None:
        self._changes = context.changes
        self._pod = address.rpartition(":")[0].partition(".")[0]
        self._overseer = overseer
        self._checkpoints = checkpoints
        self._transfers = transfers
        self._clock = context.clock
        self._check_leads = context.check_leads
        self._events = GroupEvents(api, context.clock, context.registry)
        self._rounds = Rounds(
            "kubernetes-mirror",
            {
                "roles of pods": self._mark_pods,
                "status of broker groups": self._mirror_groups,
                "events of broker groups": self._events.write,
            },
            _REST_S,
            context.check_leads,
        )
        soon = self._rounds.soon
        self._pods = ResourceWatch(api, PODS, PODS_WITH_ROLES, soon)
        self._groups = ResourceWatch(
            api, BROKER_GROUPS, f"{OF_CLUSTER}={cluster_label(context.options.cluster_name)}", soon
        )
        self._switching: dict[str, asyncio.Task[None]] = {}
        self._outcomes: dict[str, _Outcome] = {}
        """Outcomes by group, until they are shown."""
        self._announced: dict[str, _Leader] = {}
        """Leader by group that events and the status have named."""
        roles.subscribe(lambda _: soon())
        transfers.subscribe(self._refused)

    def start(self) -> None:
        """Start: this controller leads now."""
        self._rounds.start()

    async def stop(self) -> None:
        """Stop: this controller no longer leads. The next leader processes requests without an outcome."""
        await self._rounds.stop()
        for task in self._switching.values():
            task.cancel()
        await asyncio.gather(*self._switching.values(), return_exceptions=True)
        for watch in (self._pods, self._groups):
            await watch.stop()
        self._switching.clear()
        self._outcomes.clear()
        self._announced.clear()
        self._events.clear()

    async def _mark_pods(self) -> None:
        """Set the role labels of this release's pods.

        Raises:
            ApiRefusalError: one of them may not be changed; the others were.
        """
        if not self._pods.runs:
            await self._pods.start()
        refusal: ApiRefusalError | None = None
        for name, pod in of_release(self._pods.resources, self._pod).items():
            change = pod_change(pod, self._overseer.groups.states, self._pod)
            if change is None:
                continue
            self._check_leads()
            try:
                await self._pods.patch(name, change)
            except ApiRefusalError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    async def _mirror_groups(self) -> None:
        if not self._groups.runs:
            await self._groups.start()
        for group, state in list(self._overseer.groups.states.items()):
            name = group_resource_name(group)
            if name in self._groups.resources:
                self._check_leads()
                outcome = self._outcomes.get(group)
                await self._show(name, state, outcome)
                await self._process(name, group, outcome)

    async def _show(self, name: str, state: GroupState, outcome: _Outcome | None) -> None:
        """Write the status of a group, if the change matters."""
        views = self._overseer.replica_views(state.name)
        conditions = [_ready(state, trouble(state, views), deposed=has_no_master(state, views))]
        if outcome is not None:
            conditions.append(outcome.condition)
        ages = [age.age_s for age in self._checkpoints.ages(state.name, self._clock.monotonic())]
        resource = self._groups.resources[name]
        status = resource.get("status") or {}
        leader = _Leader(state.epoch, deposed=has_no_master(state, views))
        if event := _news(state, self._announced.get(state.name, _shown(status)), leader, conditions[0]["message"]):
            self._events.record(event, resource)
        self._announced[state.name] = leader
        change = status_change(status, conditions, max(ages, default=None), self._clock.wall_ms())
        if change is not None:
            await self._groups.patch(name, {"status": change}, status=True)

    async def _process(self, name: str, group: str, outcome: _Outcome | None) -> None:
        """Begin a requested switchover, or remove the request once its outcome is shown."""
        resource = self._groups.resources.get(name)
        if resource is None or group in self._switching:
            return
        asked = (resource["metadata"].get("annotations") or {}).get(SWITCHOVER)
        if outcome is not None:
            if asked == outcome.asked:
                version = resource["metadata"]["resourceVersion"]
                change = {"metadata": {"resourceVersion": version, "annotations": {SWITCHOVER: None}}}
                if not await self._groups.patch(name, change):
                    return
            del self._outcomes[group]
        elif asked is not None and group not in self._outcomes:
            self._switching[group] = asyncio.create_task(self._switch(group, asked), name=f"switchover-of-{group}")

    async def _switch(self, group: str, asked: str) -> None:
        """Switch a group to the master that an operator asked for."""
        known = self._overseer.groups.states.get(group)
        before, after, result = "" if known is None else in_short(known), "", "done"
        try:
            state = await self._led_by(group, asked)
            after = f"{pod_name(group, state.master)} leads {group} in epoch {state.epoch}"
            outcome = condition(SWITCHED_OVER, holds=True, reason="Done", message=after)
            self._queue_event(group, GroupEvent(NORMAL, "SwitchedOver", f"{after}, as requested by an annotation"))
        except StatusError as error:
            outcome = condition(SWITCHED_OVER, holds=False, reason=code_name(error.code), message=error.message)
            after, result = error.message, refused(code_name(error.code), error.code // 100)
        except Exception as error:  # the operator sees the failure, and may retry
            _logger.error("a switchover failed", group=group, to=asked, exc_info=error)
            outcome = condition(SWITCHED_OVER, holds=False, reason="Failed", message=repr(error))
            after, result = repr(error), "failed"
        await self._changes.record(
            who=f"resource {self._where(group)}",
            address="",
            verb="broker switchover",
            object_=group,
            before=before,
            after=after,
            outcome=result,
        )
        self._outcomes[group] = _Outcome(asked, outcome)
        del self._switching[group]
        self._rounds.soon()

    def _where(self, group: str) -> str:
        """Return the place of a group's resource."""
        name = group_resource_name(group)
        resource = self._groups.resources.get(name) or {"metadata": {}}
        return "/".join(filter(None, (resource["metadata"].get("namespace"), name)))

    async def _led_by(self, group: str, asked: str) -> GroupState:
        to = replica_of(group, asked)
        if to is None:
            wrong = StatusError(
                Code.BAD_REQUEST,
                f"{SWITCHOVER} must be a pod of this group, such as {pod_name(group, 1)}, or its number, not {asked!r}",
            )
            self._refused(group, wrong)
            raise wrong
        state = self._overseer.groups.states.get(group)
        if state is not None and state.master == to and not has_no_master(state, self._overseer.replica_views(group)):
            return state  # perhaps an earlier controller ended before it reported that
        return await self._transfers.switch(group, to)

    def _refused(self, group: str, why: StatusError) -> None:
        """Record a refused request for another master, whoever made it."""
        self._queue_event(group, GroupEvent(WARNING, "SwitchoverRefused", f"{code_name(why.code)}: {why.message}"))

    def _queue_event(self, group: str, event: GroupEvent) -> None:
        resource = self._groups.resources.get(group_resource_name(group))
        if resource is not None:
            self._events.record(event, resource)
            self._rounds.soon()


def _shown(status: Mapping[str, Any]) -> _Leader | None:
    """Return the leader at the time when an earlier controller wrote a status; None if it says nothing of that."""
    for each in status.get("conditions") or ():
        if each["type"] == READY:
            epoch = _EPOCH.search(each["message"])
            return _Leader(int(epoch[1]) if epoch else 0, deposed=each["status"] != "True")
    return None


def _news(state: GroupState, before: _Leader | None, now: _Leader, message: str) -> GroupEvent | None:
    """Return an event if the leader differs from the reported one."""
    if before == now or (before is not None and before.deposed == now.deposed and not before.epoch):
        return None
    if now.deposed:
        return None if before is None or before.deposed else GroupEvent(WARNING, "NoMaster", message)
    leads = f"{pod_name(state.name, state.master)} leads in epoch {state.epoch}"
    if before is not None and before.deposed and before.epoch == now.epoch:
        return GroupEvent(NORMAL, "MasterReturned", leads)
    return GroupEvent(NORMAL, "Elected", leads)


def _ready(state: GroupState, why: str, *, deposed: bool) -> Mapping[str, str]:
    if deposed:
        return condition(READY, holds=False, reason="NoMaster", message=why or "a master is about to be chosen")
    leads = f"{pod_name(state.name, state.master)} leads in epoch {state.epoch}"
    return condition(READY, holds=True, reason="HasMaster", message=why or leads)
