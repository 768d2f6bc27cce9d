"""Which role a pod must show."""

from typing import Any

import pytest

from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState, ReplicaRecord
from popwheel_controller.kubernetes.pod_role import pod_change, replica_of

STATES = {
    name: GroupState(name, 7, 3, master, frozenset((1,)), {n: ReplicaRecord(n, "a:1", b"i") for n in (0, 1, 12)})
    for name, master in (("broker-a", 1), ("broker-b", NO_MASTER))
}


def pod(name: str, *, component: str = "broker", role: str | None = None, epoch: str | None = None) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": component}
    if component == "broker":
        labels["popwheel.io/group"] = name.rpartition("-")[0]
    if role is not None:
        labels["popwheel.io/role"] = role
    annotations = None if epoch is None else {"popwheel.io/epoch": epoch}
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations}}


@pytest.mark.parametrize(
    ("name", "role", "epoch"),
    [
        ("broker-a-0", "slave", "3"),
        ("broker-a-1", "master", "3"),
        ("broker-a-12", "slave", "3"),
        ("broker-a-2", None, None),  # not registered yet
        ("broker-a-01", None, None),
        ("broker-b-1", "slave", "3"),
        ("broker-c-0", None, None),
        ("broker-a-x", None, None),
    ],
)
def test_the_pod_of_a_replica_bears_its_role_and_the_epoch(name: str, role: str | None, epoch: str | None) -> None:
    wanted = {"metadata": {"labels": {"popwheel.io/role": role}, "annotations": {"popwheel.io/epoch": epoch}}}
    bare = pod_change(pod(name), STATES, "c-0")
    assert bare == (wanted if role is not None else None)
    assert pod_change(pod(name, role="master", epoch="2"), STATES, "c-0") == wanted
    assert pod_change(pod(name, role=role, epoch=epoch), STATES, "c-0") is None


def test_one_controller_leads_and_the_others_stand_by() -> None:
    for name, role in (("c-0", "standby"), ("c-1", "leader")):
        change = pod_change(pod(name, component="controller", role="other"), STATES, "c-1")
        assert change is not None
        assert change["metadata"]["labels"] == {"popwheel.io/role": role}
        assert pod_change(pod(name, component="controller", role=role), STATES, "c-1") is None


@pytest.mark.parametrize(
    ("text", "replica"),
    [
        ("broker-a-1", 1),
        ("1", 1),
        (" 0 ", 0),
        ("broker-b-1", None),
        ("", None),
        ("-1", None),
        ("one", None),
        ("²", None),
    ],
)
def test_an_operator_names_a_pod_or_its_number(text: str, replica: int | None) -> None:
    assert replica_of("broker-a", text) == replica
