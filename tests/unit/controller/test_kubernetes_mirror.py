"""Kubernetes shows how things are, and an operator's wish comes from there: against an API server in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.controller.kubernetes.api import BROKER_GROUPS, PODS
from services.controller.kubernetes.mirror import SWITCHOVER, KubernetesMirror
from services.controller.kubernetes.state_store import KubernetesStateStore
from tests.unit.controller.fake_replicas import GROUP, FakeReplica, Machines, Scene, make_controller, scene, until
from tests.unit.controller.memory_api import MemoryApi

PODS_OF_GROUP = [f"{GROUP}-0", f"{GROUP}-1"]
CONTROLLERS = ["c-0", "c-1"]


async def make_pod(api: MemoryApi, name: str) -> None:
    component = "broker" if name in PODS_OF_GROUP else "controller"
    labels = {"app.kubernetes.io/name": "popwheel", "app.kubernetes.io/component": component}
    if component == "broker":
        labels["popwheel.io/group"] = GROUP
    await api.create(PODS, {"kind": "Pod", "metadata": {"name": name, "labels": labels}})


@pytest.fixture
async def api() -> MemoryApi:
    made = MemoryApi()
    for name in (*PODS_OF_GROUP, *CONTROLLERS):
        await make_pod(made, name)
    return made


@asynccontextmanager
async def led(
    folder: Path, api: MemoryApi, lease_ms: int = 60_000
) -> AsyncIterator[tuple[Scene, FakeReplica, FakeReplica]]:
    """A controller in the pod `c-0`, and a group of two."""
    store, times = KubernetesStateStore(api, "popwheel"), {"lease_ms": lease_ms}
    async with scene(folder, shared=store, address="c-0.c.ns.svc:8083", replication=times) as here:
        master, slave = FakeReplica(0), FakeReplica(1)
        await here.led_with(master, slave)
        yield here, master, slave


def mirror_of(here: Scene) -> KubernetesMirror:
    (mirror,) = (each for each in here.app._shows if isinstance(each, KubernetesMirror))
    return mirror


def roles(api: MemoryApi) -> list[str]:
    """Of the brokers' pods, then the controllers'."""
    shown = []
    for name in (*PODS_OF_GROUP, *CONTROLLERS):
        metadata = api.objects["pods", name]["metadata"]
        epoch = (metadata.get("annotations") or {}).get("popwheel.io/epoch", "")
        shown.append(metadata["labels"].get("popwheel.io/role", "-") + epoch)
    return shown


def conditions(api: MemoryApi) -> dict[str, tuple[str, str, str]]:
    status = api.objects["brokergroups", GROUP].get("status") or {}
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in status.get("conditions") or ()}


def annotations(api: MemoryApi) -> dict[str, str]:
    return api.objects["brokergroups", GROUP]["metadata"].get("annotations") or {}


async def test_pods_bear_their_roles_through_a_failover_and_when_they_are_made_anew(
    tmp_path: Path, api: MemoryApi
) -> None:
    async with led(tmp_path, api) as (_, master, slave):
        await until(lambda: roles(api) == ["master1", "slave1", "leader", "standby"])
        master.kill()
        await until(lambda: slave.leads == 2)
        await until(lambda: roles(api) == ["slave2", "master2", "leader", "standby"])
        for name in (PODS_OF_GROUP[1], CONTROLLERS[0]):
            api.remove(PODS, name)
            await make_pod(api, name)
        api.end_watches(forget=True)
        await until(lambda: roles(api) == ["slave2", "master2", "leader", "standby"])
        await until(lambda: conditions(api)["Ready"] == ("True", "HasMaster", f"{GROUP}-1 leads in epoch 2"))


async def test_lost_answers_and_an_api_server_that_was_away_are_made_good(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api, lease_ms=400) as (here, master, slave):
        await until(lambda: roles(api)[0] == "master1")
        api.away = True
        master.kill()
        await until(lambda: not here.app.leads)
        assert slave.leads is None
        api.away, api.lost_answers = False, 3
        await until(lambda: here.app.leads)
        slave.cut()
        await slave.join(here.channel)
        await until(lambda: slave.leads == 2)
        await until(lambda: roles(api) == ["slave2", "master2", "leader", "standby"], 20)


async def test_without_the_right_to_pods_a_failover_goes_on(tmp_path: Path, api: MemoryApi) -> None:
    api.forbidden = PODS
    async with led(tmp_path, api) as (_, master, slave):
        master.kill()
        await until(lambda: slave.leads == 2)
        await until(lambda: conditions(api).get("Ready", ("", "", ""))[2] == f"{GROUP}-1 leads in epoch 2")
        assert roles(api) == ["-"] * 4


async def test_a_group_without_a_master_is_not_ready_and_says_why(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, master, slave):
        slave.kill()
        await master.ask_for_set(here.channel, 0)
        master.kill()
        await until(lambda: conditions(api).get("Ready", ("",))[0] == "False", 20)
        sentence = "waits for replica 0: nobody else has every acknowledged message"
        assert conditions(api)["Ready"] == ("False", "NoMaster", sentence)


async def test_another_controller_that_leads_says_so(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, _, _):
        await until(lambda: roles(api)[2:] == ["leader", "standby"])
        store = KubernetesStateStore(api, "popwheel")
        other = make_controller(tmp_path / "other", Machines(), store, "c-1.c.ns.svc:8083")
        await other.start()
        await here.app.stop()
        await until(lambda: roles(api)[2:] == ["standby", "leader"])
        await other.stop()


async def test_an_annotation_asks_for_a_switchover(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, master, slave):
        await until(lambda: roles(api)[0] == "master1")
        for asked, epoch, leads in ((f"{GROUP}-1", 2, slave), ("0", 3, master), ("0", 3, master)):
            await api.patch(BROKER_GROUPS, GROUP, {"metadata": {"annotations": {SWITCHOVER: asked, "mine": "stays"}}})
            await until(lambda: annotations(api) == {"mine": "stays"})
            told = f"{GROUP}-{leads.report.replica} leads {GROUP} in epoch {epoch}"
            assert conditions(api)["SwitchedOver"] == ("True", "Done", told)
            await until(lambda leads=leads, epoch=epoch: leads.leads == epoch)  # type: ignore[misc]
            other = slave if leads is master else master
            await leads.ask_for_set(here.channel, *sorted((leads.report.replica, other.report.replica)))


@pytest.mark.parametrize(
    ("asked", "reason", "part"),
    [
        ("broker-7-1", "BAD_REQUEST", f"must be a pod of this group, such as {GROUP}-1, or its number"),
        ("", "BAD_REQUEST", "must be a pod"),
        ("9", "NOT_FOUND", "has no replica 9; it has 0, 1"),
    ],
)
async def test_an_impossible_switchover_is_told_and_changes_nothing(
    tmp_path: Path, api: MemoryApi, asked: str, reason: str, part: str
) -> None:
    async with led(tmp_path, api) as (_, master, _):
        api.lost_answers = 1
        await api_says(api, asked)
        await until(lambda: not annotations(api), 20)
        status, said, sentence = conditions(api)["SwitchedOver"]
        assert (status, said, part in sentence) == ("False", reason, True)
        assert master.leads == 1


async def api_says(api: MemoryApi, asked: str) -> None:
    api.lost_answers, lost = 0, api.lost_answers
    await api.patch(BROKER_GROUPS, GROUP, {"metadata": {"annotations": {SWITCHOVER: asked}}})
    api.lost_answers = lost


async def test_a_wish_that_is_changed_meanwhile_is_carried_out_as_well(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, _, slave):
        mirror = mirror_of(here)
        switch = mirror._transfers.switch

        async def slow_switch(group: str, to: int | None) -> Any:
            await api_says(api, "nonsense")
            return await switch(group, to)

        mirror._transfers.switch = slow_switch  # type: ignore[method-assign]
        await api_says(api, "1")
        await until(lambda: slave.leads == 2)
        await until(lambda: not annotations(api))
        assert conditions(api)["SwitchedOver"][:2] == ("False", "BAD_REQUEST")


async def test_looks_that_find_nothing_new_write_nothing(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, _, _):
        mirror = mirror_of(here)
        await until(lambda: roles(api) == ["master1", "slave1", "leader", "standby"])
        await until(lambda: "checkpointTime" in (api.objects["brokergroups", GROUP].get("status") or {}))
        before = len(api.events)
        for _ in range(20):
            await mirror._mark_pods()
            await mirror._look_at_groups()
        assert {plural for _, plural, *_ in api.events[before:]} <= {"leases"}


async def test_definitions_of_an_earlier_release_hold_up_the_status_alone(tmp_path: Path, api: MemoryApi) -> None:
    """Helm does not renew them; a status that cannot be written must not be tried ten times a second."""
    api.with_status.clear()
    tried = 0
    patch = api.patch

    async def counted(*args: Any, status: bool = False) -> Any:
        nonlocal tried
        tried += status
        return await patch(*args, status=status)

    api.patch = counted  # type: ignore[method-assign,assignment]
    async with led(tmp_path, api) as (_, master, slave):
        master.kill()
        await until(lambda: slave.leads == 2)
        await until(lambda: roles(api) == ["slave2", "master2", "leader", "standby"])
        assert 1 <= tried <= 10
        assert conditions(api) == {}


async def test_a_pod_that_is_gone_is_not_asked_for_again_and_again(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, _, _):
        mirror = mirror_of(here)
        await until(lambda: roles(api)[:2] == ["master1", "slave1"])
        api.remove(PODS, PODS_OF_GROUP[1])
        await here.app._transfers.switch(GROUP, 1)
        await until(lambda: PODS_OF_GROUP[1] not in mirror._pods.resources)
        assert mirror._pods.resources.keys() == {PODS_OF_GROUP[0], *CONTROLLERS}
