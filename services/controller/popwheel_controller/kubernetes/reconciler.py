"""Reconciler of topics or consumer groups with Kubernetes resources: applies declarations, and shows the others.

`declaration` decides the steps; they are executed here, while this controller leads. No caller waits for it: without
the API server everything else works, and the next round starts from the then current state.
"""

import asyncio
import json
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Generic

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_controller.cluster.cluster_state import ClusterState, Named
from popwheel_controller.cluster.context import ControllerContext
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.kubernetes.api import ApiConflictError, ApiRefusalError, KubernetesApi
from popwheel_controller.kubernetes.declaration import (
    Change,
    Declaration,
    Drop,
    Make,
    Remove,
    Step,
    change_of,
    declaration_of,
    is_refused,
    next_step,
    owners,
    refused_by,
    showing,
)
from popwheel_controller.kubernetes.declared_kind import DeclaredKind
from popwheel_controller.kubernetes.resource_watch import ResourceWatch
from popwheel_controller.kubernetes.rounds import Rounds
from popwheel_controller.kubernetes.state_store import OF_CLUSTER, cluster_label

_REST_S = 1.0
_A_ROUND = 100
"""Limit of resources updated in a round, and of those made: it bounds the writes a second."""
_AT_ONCE = 4  # the lease needs threads and calls as well
_STEPS_MAX = 4

_logger = structlog.get_logger()


class DeclarationMetrics:
    """Metrics of topics and consumer groups as resources of Kubernetes.

    Args:
        registry: where it is shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter(
            "popwheel_controller_resource_writes",
            "Resources of topics and consumer groups that were created, changed or deleted",
            ["kind"],
            registry=registry,
        )
        self._resources = Gauge(
            "popwheel_controller_resources",
            "Resources of topics and consumer groups: those that declare one, and those that show one",
            ["kind", "made_by"],
            registry=registry,
        )
        self._refused = Gauge(
            "popwheel_controller_resources_refused",
            "Resources whose declaration is not applied",
            ["kind"],
            registry=registry,
        )
        self._left_out = Gauge(
            "popwheel_controller_resources_left_out",
            "1 if there are more resources than the limits of controller.resources",
            ["kind"],
            registry=registry,
        )

    def show(self, kind: str, *, declared: int, shown: int, refused: int, left_out: bool) -> None:
        """Set the gauges of a kind."""
        self._resources.labels(kind, "user").set(declared)
        self._resources.labels(kind, "controller").set(shown)
        self._refused.labels(kind).set(refused)
        self._left_out.labels(kind).set(left_out)

    def clear(self) -> None:
        """Remove the gauges: this controller does not lead."""
        self._resources.clear()
        self._refused.clear()
        self._left_out.clear()


class Reconciler(Generic[Named]):
    """Reconciler that runs between `start` and `stop`, while this controller leads.

    Args:
        context: of the controller; its changes take a line of what is made or deleted as a resource says. A resource
            that has the label of another cluster is left alone.
        kind: topics or consumer groups.
        api: the API server.
        state_writer: holds and changes topics and groups.
        metrics: of this.
        refusal: asks the brokers why a change of a cluster can't be made now; None if it can.
    """

    def __init__(
        self,
        context: ControllerContext,
        kind: DeclaredKind[Named],
        api: KubernetesApi,
        state_writer: StateWriter,
        metrics: DeclarationMetrics,
        refusal: Callable[[ClusterState, ClusterUpdate], Awaitable[StatusError | None]],
    ) -> None:
        self._refusal = refusal
        self._changes = context.changes
        self._kind: DeclaredKind[Named] = kind
        self._api = api
        self._options = options = context.options
        self._label = cluster_label(options.cluster_name)
        self._state_writer = state_writer
        self._clock = context.clock
        self._metrics = metrics
        self._check_leads = context.check_leads
        plural = kind.resource.plural
        self._rounds = Rounds(f"declared-{plural}", {f"{plural} as resources": self._round}, _REST_S, self._check_leads)
        limits = options.resources
        self._watch = ResourceWatch(
            api, kind.resource, "", self._rounds.soon, most=limits.declared_max + limits.shown_max
        )
        self._last = ""
        """The resource that the last round came to: the next one begins behind it, so that none is left waiting."""

    def start(self) -> None:
        """Start: this controller leads now."""
        self._rounds.start()

    async def stop(self) -> None:
        """Stop: this controller no longer leads."""
        await self._rounds.stop()
        await self._watch.stop()
        self._metrics.clear()

    async def _round(self) -> None:
        """Deal with some of the resources about which something is to be done, and show what nobody declares.

        Raises:
            ApiRefusalError: one of them cannot be dealt with; the others were.
        """
        if not self._watch.runs:
            await self._watch.start()
        declarations = self._declarations()
        owned = self._owners(declarations)
        waiting = [name for name in self._in_order(declarations) if self._step(declarations[name], owned) is not None]
        if len(waiting) > _A_ROUND:
            self._rounds.soon()
        chosen = waiting[:_A_ROUND]
        refused = await self._some_at_once(partial(self._reconcile, name, owned) for name in chosen)
        if chosen:
            self._last = chosen[-1]
        refused += await self._some_at_once(
            partial(self._show, each) for each in self._not_shown(declarations.values())
        )
        self._count(declarations.values())
        if refused:
            raise refused[0]

    def _declarations(self) -> dict[str, Declaration]:
        """Return the declarations of our resources by name."""
        return {
            name: declaration_of(self._kind, resource)
            for name, resource in self._watch.resources.items()
            if (resource["metadata"].get("labels") or {}).get(OF_CLUSTER, self._label) == self._label
        }

    def _owners(self, declarations: Mapping[str, Declaration]) -> Mapping[str, Declaration]:
        """Return the resource that counts for each topic or group; those beyond `shown_max` are left out."""
        found = owners(declarations.values())
        surplus = sorted(name for name, each in found.items() if each.shown)[self._options.resources.shown_max :]
        return {name: found[name] for name in found.keys() - set(surplus)}

    def _in_order(self, declarations: Mapping[str, Declaration]) -> list[str]:
        names: list[str] = sorted(declarations)
        place: int = bisect_right(names, self._last)
        return [*names[place:], *names[:place]]

    def _step(self, declaration: Declaration, owned: Mapping[str, Declaration]) -> Step | None:
        owner = owned.get(declaration.name)
        return next_step(self._kind, self._state_writer.state, self._options, declaration, owner, self._clock.wall_ms())

    async def _reconcile(self, resource: str, owned: Mapping[str, Declaration]) -> None:
        """Reconcile a resource step by step, until nothing is to be done."""
        for _ in range(_STEPS_MAX):
            whole = self._watch.resources.get(resource)
            declaration = None if whole is None else declaration_of(self._kind, whole)
            step = None if declaration is None else self._step(declaration, owned)
            if declaration is None or step is None:
                return
            self._check_leads()
            if isinstance(step, Change):
                self._wrote()
                await self._watch.patch(resource, step.change, status=step.status)
            elif isinstance(step, Drop):
                self._wrote()
                await self._watch.delete(resource, declaration.version)
            elif not await self._make_or_remove(resource, step, owned):
                return

    async def _make_or_remove(self, resource: str, step: Make | Remove, owned: Mapping[str, Declaration]) -> bool:
        """Make, change or delete what a resource declares, if that is still to be done as things are now: a watch may
        lag.

        Returns:
            Whether to go on; else the brokers are against it, and the resource shows why.
        """
        latest = await self._watch.reread(resource)
        declaration = None if latest is None else declaration_of(self._kind, latest)
        if isinstance(step, Remove):
            if self._watch.left_out:
                return True  # one of those may declare it as well
            owned = self._owners(self._declarations())
        if declaration is None or self._step(declaration, owned) != step:
            return True
        self._check_leads()
        now_ms = self._clock.wall_ms()
        state = self._state_writer.state
        was_there = declaration.name in self._kind.all_of(state)
        update = change_of(self._kind, state, self._options, declaration, step, now_ms)
        error = None if update is None else await self._refusal(state, update)
        if error is not None:
            refused = refused_by(self._kind, state, declaration, error, now_ms)
            if isinstance(refused, Change):
                self._wrote()
                await self._watch.patch(resource, refused.change, status=refused.status)
            return False
        update = await self._state_writer.change(
            lambda state: change_of(self._kind, state, self._options, declaration, step, now_ms)
        )
        if update is not None:
            log = _logger.info if isinstance(step, Make) else _logger.warning
            log("applied a declaration", step=type(step).__name__, what=self._kind.word, name=declaration.name)
            verb = "delete" if isinstance(step, Remove) else "update" if was_there else "create"
            await self._log_change(declaration, verb)
        return True

    async def _log_change(self, declaration: Declaration, verb: str) -> None:
        """Write a line of the change log about an applied declaration."""
        metadata, spec = declaration.whole["metadata"], json.dumps(declaration.whole.get("spec"))
        place = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
        await self._changes.record(
            who=f"resource {place}",
            address="",
            verb=f"{self._kind.word} {verb}",
            object_=declaration.name,
            before=spec if verb == "delete" else "",
            after="" if verb == "delete" else spec,
            outcome="done",
        )

    def _not_shown(self, declarations: Collection[Declaration]) -> list[Named]:
        """Return names that no resource has, as many as may still be shown: none that would itself be left out, since
        nothing is removed while one is."""
        limits = self._options.resources
        room = min(
            limits.shown_max - sum(each.shown for each in declarations),
            limits.declared_max + limits.shown_max - len(self._watch.resources),
        )
        if room <= 0 or self._watch.left_out:
            return []
        known = {each.name for each in declarations}
        found = self._kind.all_of(self._state_writer.state)
        missing = (name for name in found if name not in known and self._kind.is_name(name))
        return [found[name] for name in islice(missing, min(room, _A_ROUND))]

    async def _show(self, found: Named) -> None:
        resource = showing(self._kind, found, {OF_CLUSTER: self._label})
        self._check_leads()
        self._wrote()
        try:
            self._watch.take(await self._api.create(self._kind.resource, resource))
        except ApiConflictError:  # it was made before, and no answer came
            await self._watch.reread(resource["metadata"]["name"])

    async def _some_at_once(self, works: Iterable[Callable[[], Awaitable[None]]]) -> list[ApiRefusalError]:
        """Run the work, a few at a time; return what the API server refused.

        Raises:
            Exception: what went wrong otherwise; what comes later is not begun.
        """
        refused: list[ApiRefusalError] = []
        left = iter(works)
        while some := [work() for work in islice(left, _AT_ONCE)]:
            for outcome in await asyncio.gather(*some, return_exceptions=True):
                if isinstance(outcome, ApiRefusalError):
                    refused.append(outcome)
                elif outcome is not None:
                    raise outcome
        return refused

    def _wrote(self) -> None:
        self._metrics.writes.labels(self._kind.resource.plural).inc()

    def _count(self, declarations: Collection[Declaration]) -> None:
        self._metrics.show(
            self._kind.resource.plural,
            declared=sum(not each.shown for each in declarations),
            shown=sum(each.shown for each in declarations),
            refused=sum(is_refused(each.whole) for each in declarations),
            left_out=self._watch.left_out,
        )
