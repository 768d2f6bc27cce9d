"""Resources that declare a topic or a consumer group, and the next step for each (pure).

A user's resource *leads*: its topic or group is created, changed where that is allowed (`cluster/alteration.py`), and
created again if it was deleted. It is deleted only with its resource, under the policy `Delete`. A resource that a
controller made, to show another topic or group, has the label `popwheel.io/shown` and *follows*: it is deleted with
what it shows, or when a user declares the same.

Each step is decided on the current state, so the outcome of the previous step does not matter.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_common.errors import StatusError, code_name
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_controller.cluster.cluster_state import ClusterState, Named
from popwheel_controller.kubernetes.api import Resource
from popwheel_controller.kubernetes.declared_kind import DeclaredKind, Facts
from popwheel_controller.kubernetes.group_status import READY, condition, with_conditions
from popwheel_controller.options import ControllerOptions

SHOWN: Final = "popwheel.io/shown"
FINALIZER: Final = "popwheel.io/held"
"""Finalizer that keeps a resource until its topic or group is deleted."""
_DELETE: Final = "Delete"
_HASH_DIGITS: Final = 10
_READABLE: Final = 127


@dataclass(frozen=True, slots=True)
class Declaration:
    """Declaration of a resource.

    Args:
        resource: its name.
        version: its resource version.
        name: of the declared topic or group.
        facts: its declared settings.
        id: of the topic or group that it stands for; None if there is none.
        shown: whether a controller created it.
        leaving: whether it is being deleted.
        has_finalizer: whether its deletion waits for the controller.
        deletes: whether its topic or group is deleted with it.
        rank: of several with the same name the first one counts.
        whole: the whole resource.
    """

    resource: str
    version: str
    name: str
    facts: Facts
    id: int | None
    shown: bool
    leaving: bool
    has_finalizer: bool
    deletes: bool
    rank: tuple[Any, ...]
    whole: Resource


@dataclass(frozen=True, slots=True)
class Make:
    """Step that creates or changes what the resource declares."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Step that deletes the topic or group, if it still has the id in the status.

    Args:
        id: of that.
    """

    id: int


@dataclass(frozen=True, slots=True)
class Change:
    """Change the resource.

    Args:
        change: names the version that it is made from.
        status: whether it is one of the status.
    """

    change: Resource
    status: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """Step that deletes the resource, as its topic or group does not exist."""


Step = Make | Remove | Change | Drop


def declaration_of(kind: DeclaredKind[Named], resource: Resource) -> Declaration:
    """Return the declaration of a resource."""
    metadata, spec = resource["metadata"], resource.get("spec") or {}
    own = str(metadata["name"])
    shown = SHOWN in (metadata.get("labels") or {})
    stood_for = (resource.get("status") or {}).get("id")
    return Declaration(
        own,
        str(metadata["resourceVersion"]),
        str(spec.get(kind.name_key) or own),
        {**kind.defaults, **{key: spec[key] for key in spec if key not in (kind.name_key, "deletionPolicy")}},
        None if stood_for is None else int(stood_for),
        shown,
        metadata.get("deletionTimestamp") is not None,
        FINALIZER in (metadata.get("finalizers") or ()),
        spec.get("deletionPolicy") == _DELETE,
        (shown, str(metadata.get("creationTimestamp")), own),
        resource,
    )


def owners(declarations: Iterable[Declaration]) -> Mapping[str, Declaration]:
    """Return the resource that counts for each name: the oldest of a user, or else the oldest that shows it."""
    found: dict[str, Declaration] = {}
    for each in declarations:
        if not each.leaving and (each.name not in found or each.rank < found[each.name].rank):
            found[each.name] = each
    return found


def next_step(
    kind: DeclaredKind[Named],
    state: ClusterState,
    options: ControllerOptions,
    declaration: Declaration,
    owner: Declaration | None,
    now_ms: int,
) -> Step | None:
    """Return the next step for a resource; None if there is none.

    Args:
        kind: of the declaration.
        state: current state of the cluster.
        options: limits and defaults.
        declaration: of the resource.
        owner: the resource that counts for its name (`owners`); None if there is no living one.
        now_ms: milliseconds since 1970.
    """
    found = kind.all_of(state).get(declaration.name)
    if declaration.leaving:
        return _farewell(declaration, owner, found)
    if declaration.shown:
        ours = owner is not None and owner.resource == declaration.resource
        if not ours or found is None or _differences(kind, kind.facts(found), declaration.facts):
            return _finalizer(declaration, wanted=False) or Drop()  # drop only after the finalizer is gone
    elif owner is not None and owner.resource != declaration.resource:
        why = f"{kind.resource.plural}/{owner.resource} declares {kind.word} {declaration.name} already"
        return _refused(kind, declaration, "Taken", f"{why}; delete one of the two", now_ms)
    facts = {} if found is None else kind.facts(found)
    differences = _differences(kind, facts, declaration.facts)
    if found is None or differences:
        try:
            if kind.define(state, options, declaration.name, declaration.facts) is not None:
                return Make()
            why = f"no {kind.word} of its type has {', '.join(declaration.facts.keys() - facts.keys())}"
        except StatusError as error:
            return refused_by(kind, state, declaration, error, now_ms)
        return _differs(kind, declaration, differences, why, now_ms)
    assert found is not None
    ready = condition(READY, holds=True, reason="Exists", message=f"{kind.word} {declaration.name} is there")
    return _finalizer(declaration, declaration.deletes) or _status(kind, declaration, found.id, facts, ready, now_ms)


def change_of(
    kind: DeclaredKind[Named],
    state: ClusterState,
    options: ControllerOptions,
    declaration: Declaration,
    step: Make | Remove,
    now_ms: int,
) -> ClusterUpdate | None:
    """Return the change of the cluster that a step makes; None if nothing changes.

    Both count as an operator's: a removed name may not be created on first use for a while, a declared one may.

    Raises:
        StatusError: it cannot be made.
    """
    found = kind.all_of(state).get(declaration.name)
    if isinstance(step, Make):
        return kind.define(state, options, declaration.name, declaration.facts)
    if found is None or found.id != step.id:
        return None
    return kind.delete(state, declaration.name, now_ms, options.deleted_name_rest_ms)


def refused_by(
    kind: DeclaredKind[Named], state: ClusterState, declaration: Declaration, error: StatusError, now_ms: int
) -> Step | None:
    """Return the status of a resource whose declaration cannot be applied.

    Args:
        kind: of the declaration.
        state: current state of the cluster.
        declaration: of the resource.
        error: why.
        now_ms: milliseconds since 1970.
    """
    found = kind.all_of(state).get(declaration.name)
    if found is None:
        return _refused(kind, declaration, code_name(error.code), error.message, now_ms)
    differences = _differences(kind, kind.facts(found), declaration.facts)
    return _differs(kind, declaration, differences, error.message, now_ms)


def showing(kind: DeclaredKind[Named], found: Named, labels: Mapping[str, str]) -> Resource:
    """Return the resource that shows an undeclared topic or group.

    Args:
        kind: of what is shown.
        found: what is shown.
        labels: further labels.
    """
    return {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": {"name": shown_name(found.name), "labels": {**labels, SHOWN: "true"}},
        "spec": {kind.name_key: found.name, **kind.facts(found)},
    }


def shown_name(name: str) -> str:
    """Return the name of the resource that shows a topic or group: the legal part of its name, a dot and a hash, so
    that it is unique and collides with no user's resource.
    """
    readable = re.sub("[^a-z0-9-]", "-", name.lower()[:_READABLE]).strip("-") or "x"
    return f"{readable}.{hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]}"


def is_refused(resource: Resource) -> bool:
    """Return whether the status says that the declaration could not be applied."""
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return any(each["type"] == READY and each["status"] == "False" for each in conditions)


def _farewell(declaration: Declaration, owner: Declaration | None, found: Named | None) -> Step | None:
    """Return the step for a resource that is being deleted. Its topic or group is deleted with it only if the ids
    match, the policy is `Delete`, and no other resource declares it.
    """
    if not declaration.has_finalizer:
        return None
    declared = owner is not None and not owner.shown
    if declaration.deletes and found is not None and found.id == declaration.id and not declared:
        return Remove(found.id)
    return _finalizer(declaration, wanted=False)


def _finalizer(declaration: Declaration, wanted: bool) -> Step | None:
    """Return the step that adds or removes our finalizer; None if that is done."""
    if declaration.has_finalizer == wanted:
        return None
    others = [each for each in declaration.whole["metadata"].get("finalizers") or () if each != FINALIZER]
    finalizers = [*others, FINALIZER] if wanted else others
    return Change({"metadata": {"resourceVersion": declaration.version, "finalizers": finalizers}}, status=False)


def _differs(
    kind: DeclaredKind[Named], declaration: Declaration, differences: Sequence[str], why: str, now_ms: int
) -> Step | None:
    message = (
        f"{kind.word} {declaration.name} is there with {', '.join(differences)}; it is left as it is: {why}. Say the "
        "same here, or delete it with all that it holds by `popwheel admin`, and it is made as this says"
    )
    return _refused(kind, declaration, "Differs", message, now_ms)


def _refused(
    kind: DeclaredKind[Named], declaration: Declaration, reason: str, message: str, now_ms: int
) -> Step | None:
    """Return the status of a refused resource, with the reason."""
    ready = condition(READY, holds=False, reason=reason, message=message)
    return _finalizer(declaration, wanted=False) or _status(kind, declaration, None, {}, ready, now_ms)


def _status(
    kind: DeclaredKind[Named],
    declaration: Declaration,
    id_: int | None,
    facts: Facts,
    ready: Mapping[str, str],
    now_ms: int,
) -> Step | None:
    """Write the status, if it is another one."""
    old = declaration.whole.get("status") or {}
    wanted: dict[str, Any] = {key: None for key in old if key != "conditions"}
    wanted |= {
        kind.name_key: declaration.name,
        "id": id_,
        "observedGeneration": declaration.whole["metadata"].get("generation"),
        **facts,
        "conditions": with_conditions(old.get("conditions") or (), [ready], now_ms),
    }
    change = {key: value for key, value in wanted.items() if old.get(key) != value}
    if not change:
        return None
    return Change({"metadata": {"resourceVersion": declaration.version}, "status": change}, status=True)


def _differences(kind: DeclaredKind[Named], facts: Facts, wanted: Facts) -> list[str]:
    """Return the differences between the facts and a resource, in words."""
    others = [
        f"{key} {_said(value)}, not {_said(wanted[key])}"
        for key, value in facts.items()
        if wanted.get(key, value) != value
    ]
    return others + [f"no {key}" for key in wanted if key not in facts and kind.unsaid.get(key) != wanted[key]]


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
