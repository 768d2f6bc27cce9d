"""Role label of a pod (pure): `kubectl get pods -L popwheel.io/role`, and Services select by it."""

from collections.abc import Mapping
from typing import Any

from popwheel_controller.broker_groups.broker_group import GroupState

ROLE = "popwheel.io/role"
EPOCH = "popwheel.io/epoch"
GROUP = "popwheel.io/group"
MASTER, SLAVE, LEADER, STANDBY = "master", "slave", "leader", "standby"
_COMPONENT = "app.kubernetes.io/component"
_RELEASE = "app.kubernetes.io/instance"
PODS_WITH_ROLES = f"app.kubernetes.io/name=popwheel,{_COMPONENT} in (broker,controller)"
"""Selects them."""


def of_release(pods: Mapping[str, Mapping[str, Any]], leader: str) -> dict[str, Mapping[str, Any]]:
    """Return the pods of the controller's release; all, if that is not known.

    Args:
        pods: of the namespace, by name.
        leader: name of the controller's pod.
    """
    release = _release(pods[leader]) if leader in pods else None
    return {name: pod for name, pod in pods.items() if release in (None, _release(pod))}


def pod_change(pod: Mapping[str, Any], states: Mapping[str, GroupState], leader: str) -> Mapping[str, Any] | None:
    """Return the change of a pod's metadata; None if it is up to date.

    Args:
        pod: the pod.
        states: the broker groups, by name.
        leader: name of the pod of the controller that leads.
    """
    metadata = pod["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    role, epoch = _role(str(metadata["name"]), labels, states, leader)
    if (labels.get(ROLE), annotations.get(EPOCH)) == (role, epoch):
        return None
    return {"metadata": {"labels": {ROLE: role}, "annotations": {EPOCH: epoch}}}


def pod_name(group: str, replica: int) -> str:
    """The pod of a replica, in the StatefulSet that is named as its group."""
    return f"{group}-{replica}"


def replica_of(group: str, text: str) -> int | None:
    """The replica that an operator names by its pod or its number; None if that is neither."""
    number = text.strip().removeprefix(f"{group}-")
    return int(number) if number.isascii() and number.isdecimal() else None


def _release(pod: Mapping[str, Any]) -> str | None:
    return (pod["metadata"].get("labels") or {}).get(_RELEASE)


def _role(
    name: str, labels: Mapping[str, str], states: Mapping[str, GroupState], leader: str
) -> tuple[str | None, str | None]:
    """Role and epoch; None for what it must not have."""
    if labels.get(_COMPONENT) == "controller":
        return (LEADER if name == leader else STANDBY), None
    state = states.get(labels.get(GROUP, ""))
    if state is None:
        return None, None
    for number in state.replicas:
        if name == pod_name(state.name, number):
            return (MASTER if state.master == number else SLAVE), str(state.epoch)
    return None, None
