"""Kubernetes shows how things are, and an operator's wish comes from there: against an API server in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.broker_groups.broker_group import GroupState
from popwheel_controller.kubernetes.api import (
    BROKER_GROUPS,
    EVENTS,
    PODS,
    ApiAwayError,
    ApiRefusalError,
    Resource,
    ResourceKind,
)
from popwheel_controller.kubernetes.group_events import (
    EVENTS_PER_MINUTE,
    MESSAGE_LENGTH_MAX,
    GroupEvent,
    GroupEvents,
    event_resource,
)
from popwheel_controller.kubernetes.mirror import SWITCHOVER, KubernetesMirror, _Leader, _news
from popwheel_controller.kubernetes.state_store import KubernetesStateStore
from tests.harness.manual_clock import ManualClock
from tests.unit.controller.fake_replicas import GROUP, FakeReplica, Machines, Scene, make_controller, scene, until
from tests.unit.controller.memory_api import MemoryApi

PODS_OF_GROUP = [f"{GROUP}-0", f"{GROUP}-1"]
CONTROLLERS = ["c-0", "c-1"]


async def make_pod(api: MemoryApi, name: str, release: str = "popwheel") -> None:
    component = "broker" if name in PODS_OF_GROUP else "controller"
    labels = {"app.kubernetes.io/name": "popwheel", "app.kubernetes.io/component": component}
    labels["app.kubernetes.io/instance"] = release
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


def events(api: MemoryApi) -> list[tuple[str, str, str]]:
    found = [each for (plural, _), each in api.objects.items() if plural == "events"]
    assert all(each["involvedObject"]["name"] == GROUP for each in found)
    assert all(each["involvedObject"]["uid"] == api.objects["brokergroups", GROUP]["metadata"]["uid"] for each in found)
    return [(each["type"], each["reason"], each["message"]) for each in found]


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


async def test_a_pod_that_may_not_be_changed_holds_up_no_other(tmp_path: Path, api: MemoryApi) -> None:
    """One of a group that is not in the chart's values any more."""
    patch = api.patch

    async def narrowed(kind: ResourceKind, name: str, change: Resource, *, status: bool = False) -> Resource:
        if name == PODS_OF_GROUP[0]:
            raise ApiRefusalError("the API server answers 403 Forbidden")
        return await patch(kind, name, change, status=status)

    api.patch = narrowed  # type: ignore[method-assign]
    async with led(tmp_path, api) as (here, _, _):
        await until(lambda: roles(api) == ["-", "slave1", "leader", "standby"])
        with pytest.raises(ApiRefusalError):
            await mirror_of(here)._mark_pods()


async def test_pods_of_another_release_are_left_alone(tmp_path: Path, api: MemoryApi) -> None:
    await make_pod(api, "other-0", "other")
    async with led(tmp_path, api):
        await until(lambda: roles(api) == ["master1", "slave1", "leader", "standby"])
        assert "popwheel.io/role" not in api.objects["pods", "other-0"]["metadata"]["labels"]


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
            reported = f"{GROUP}-{leads.report.replica} leads {GROUP} in epoch {epoch}"
            assert conditions(api)["SwitchedOver"] == ("True", "Done", reported)
            await until(lambda leads=leads, epoch=epoch: leads.leads == epoch)  # type: ignore[misc]
            other = slave if leads is master else master
            await leads.ask_for_set(here.channel, *sorted((leads.report.replica, other.report.replica)))
        lines = [each for each in await here.app.changes.latest() if each.verb == "broker switchover"]
    assert [(each.who, each.object, each.outcome) for each in lines] == [(f"resource {GROUP}", GROUP, "done")] * 3
    assert lines[-1].before.startswith("master 0, epoch 1") and lines[-1].after == f"{GROUP}-1 leads {GROUP} in epoch 2"


@pytest.mark.parametrize(
    ("asked", "reason", "part"),
    [
        ("broker-7-1", "BAD_REQUEST", f"must be a pod of this group, such as {GROUP}-1, or its number"),
        ("", "BAD_REQUEST", "must be a pod"),
        ("9", "NOT_FOUND", "has no replica 9; it has 0, 1"),
    ],
)
async def test_an_impossible_switchover_is_notified_and_changes_nothing(
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
            await mirror._mirror_groups()
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


async def test_events_report_elections_and_of_a_group_without_a_master(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, master, slave):
        await until(lambda: events(api) == [("Normal", "Elected", f"{GROUP}-0 leads in epoch 1")])
        master.kill()
        await until(lambda: slave.leads == 2)
        await until(lambda: ("Normal", "Elected", f"{GROUP}-1 leads in epoch 2") in events(api))
        await slave.ask_for_set(here.channel, 1)
        slave.kill()
        await until(lambda: events(api)[-1][:2] == ("Warning", "NoMaster"), 20)
        assert "waits for replica 1" in events(api)[-1][2]


async def test_a_controller_that_leads_next_reports_nothing_twice(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, _, _):
        await until(lambda: conditions(api).get("Ready", ("",))[0] == "True")
        await until(lambda: len(events(api)) == 1)
        other = make_controller(
            tmp_path / "other", Machines(), KubernetesStateStore(api, "popwheel"), "c-1.c.ns.svc:8083"
        )
        await other.start()
        await here.app.stop()
        await until(lambda: roles(api)[2:] == ["standby", "leader"])
        (mirror,) = (each for each in other._shows if isinstance(each, KubernetesMirror))
        await mirror._rounds.stop()  # it must not look at the same time
        for _ in range(3):
            await mirror._mirror_groups()
        await other.stop()
        assert [reason for _, reason, _ in events(api) if reason == "Elected"] == ["Elected"]


async def test_events_report_switchovers_and_why_one_is_refused(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, _, slave):
        await api_says(api, "nonsense")
        await until(lambda: any(reason == "SwitchoverRefused" for _, reason, _ in events(api)))
        assert "must be a pod of this group" in events(api)[-1][2]
        await until(lambda: not annotations(api))
        with pytest.raises(StatusError):  # as `popwheel admin broker switchover` does
            await mirror_of(here)._transfers.switch(GROUP, 9)
        await until(lambda: "has no replica 9" in events(api)[-1][2])
        await api_says(api, "1")
        await until(lambda: slave.leads == 2)
        reported = ("Normal", "SwitchedOver", f"{GROUP}-1 leads {GROUP} in epoch 2, as requested by an annotation")
        await until(lambda: reported in events(api))


async def test_events_come_at_a_bounded_rate_and_wait_for_the_api_server(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as (here, _, _):
        mirror = mirror_of(here)
        await until(lambda: len(events(api)) == 1)
        api.forbidden = EVENTS
        for number in range(3):
            mirror._refused(GROUP, StatusError(Code.NOT_FOUND, f"try {number}"))
        with pytest.raises(ApiAwayError):
            await mirror._events.write()
        api.forbidden, api.lost_answers = None, 2
        for number in range(10, 10 + 2 * EVENTS_PER_MINUTE):
            mirror._refused(GROUP, StatusError(Code.NOT_FOUND, f"try {number}"))

        def is_written() -> bool:
            mirror._rounds.soon()  # the next round would come after five seconds
            return not mirror._events._waiting

        await until(is_written)
        assert len(events(api)) <= EVENTS_PER_MINUTE
        messages = [message for _, _, message in events(api)]
        assert len(set(messages)) == len(messages), "one whose answer was lost is not written again under another name"
        assert events(api)[-1][0] == "Warning"


async def test_an_event_that_is_refused_keeps_no_other_back(api: MemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seen fault: one refusal (400, 422) dropped all that waited."""
    registry = CollectorRegistry()
    waiting = GroupEvents(api, ManualClock(), registry)
    about: Any = {"metadata": {"name": GROUP, "namespace": "n", "uid": "u"}}
    written: list[str] = []

    async def picky(kind: ResourceKind, resource: Resource) -> Resource:
        if resource["reason"] == "Bad":
            raise ApiRefusalError("422")
        written.append(resource["reason"])
        return resource

    monkeypatch.setattr(api, "create", picky)
    for reason in ("Good", "Bad", "Better"):
        waiting.record(GroupEvent("Normal", reason, ""), about)
    with pytest.raises(ApiRefusalError):
        await waiting.write()
    assert written == ["Good", "Better"]
    assert registry.get_sample_value("popwheel_controller_events_left_out_total") == 1
    await waiting.write()


def test_a_master_that_comes_back_was_not_elected() -> None:
    state = GroupState(GROUP, 7, 3, 1, frozenset({1}), {})
    gone, leads = _Leader(3, deposed=True), _Leader(3, deposed=False)
    found = [
        _news(state, before, leads, "") for before in (gone, _Leader(2, deposed=True), _Leader(2, deposed=False), leads)
    ]
    assert [each and each.reason for each in found] == ["MasterReturned", "Elected", "Elected", None]


def test_an_event_is_as_kubernetes_takes_it() -> None:
    about: Any = {"metadata": {"name": GROUP, "namespace": "n", "uid": "u"}}
    made = event_resource(GroupEvent("Warning", "NoMaster", "ä" * 2_000), about, 1_700_000_000_123, 7)
    kubernetes_validate.validate(dict(made), "1.37", strict=True)
    assert len(made["message"].encode()) <= MESSAGE_LENGTH_MAX
    assert made["firstTimestamp"] == "2023-11-14T22:13:20Z"
    other = event_resource(GroupEvent("Warning", "NoMaster", ""), about, 1_700_000_000_123, 8)
    assert made["metadata"]["name"] != other["metadata"]["name"]
