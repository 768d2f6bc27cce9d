"""Topics and groups as resources, both ways, against an API server in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, TopicType
from popwheel_controller.app import ControllerApp
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.kubernetes.api import CONSUMER_GROUPS, TOPICS, ApiRefusalError, Resource, ResourceKind
from popwheel_controller.kubernetes.declaration import FINALIZER, SHOWN, shown_name
from popwheel_controller.kubernetes.reconciler import Reconciler
from popwheel_controller.kubernetes.state_store import KubernetesStateStore
from popwheel_controller.options import ResourceOptions
from tests.unit.controller.fake_replicas import Machines, make_controller, until
from tests.unit.controller.memory_api import MemoryApi
from tools.generate_values_schema import CHART


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popwheel_controller.kubernetes.reconciler._REST_S", 0.0)
    monkeypatch.setattr("popwheel_controller.kubernetes.rounds._POLL_S", 0.02)


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@asynccontextmanager
async def led(
    folder: Path, api: MemoryApi, address: str = "c-0.c.ns.svc:8083", **options: Any
) -> AsyncIterator[ControllerApp]:
    app = make_controller(
        folder, Machines(), KubernetesStateStore(api, "popwheel"), address, replication={"lease_ms": 60_000}, **options
    )
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


async def declare(api: MemoryApi, name: str, kind: ResourceKind = TOPICS, **spec: Any) -> None:
    labels = spec.pop("labels", {})
    await api.create(kind, {"kind": kind.kind, "metadata": {"name": name, "labels": labels}, "spec": spec})


async def make_topic(app: ControllerApp, name: str, topic_type: str = "NORMAL") -> None:
    kind = TopicType.Value(topic_type)
    await app._state_writer.change(lambda state: state.create_topic(app._options, name, kind))


async def delete_topic(app: ControllerApp, name: str) -> None:
    await app._state_writer.change(lambda state: state.delete_topic(name))


def ready(api: MemoryApi, name: str, kind: ResourceKind = TOPICS) -> tuple[str, str]:
    status = api.objects.get((kind.plural, name), {}).get("status") or {}
    ((reported),) = status.get("conditions") or ({"status": "", "reason": ""},)
    return reported["status"], reported["reason"]


def there(api: MemoryApi, kind: ResourceKind = TOPICS) -> set[str]:
    return {name for plural, name in api.objects if plural == kind.plural}


async def quiet(api: MemoryApi) -> None:
    """Nothing is written any more."""
    lists: list[int] = []

    def is_quiet() -> bool:
        lists.append(len(api.events))
        return len(lists) > 100 and lists[-1] == lists[-100]

    await until(is_quiet)


def of_kind(app: ControllerApp, kind: ResourceKind) -> Reconciler[Any]:
    (found,) = (each for each in app._shows if isinstance(each, Reconciler) and each._kind.resource is kind)
    return found


def gauge(app: ControllerApp, name: str, *labels: str) -> float:
    found: float = getattr(of_kind(app, TOPICS)._metrics, name).labels("topics", *labels)._value.get()
    return found


async def test_what_is_declared_comes_and_goes(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as app:
        await declare(api, "orders", topicName="Orders", type="FIFO", queues=4, deletionPolicy="Delete")
        await declare(api, "billing", CONSUMER_GROUPS, maxAttempts=5)
        await until(lambda: ready(api, "orders") == ready(api, "billing", CONSUMER_GROUPS) == ("True", "Exists"))
        topic, group = app.state.topics["Orders"], app.state.groups["billing"]
        assert (topic.type, topic.queues, group.max_attempts) == (TopicType.FIFO, 4, 5)
        assert api.objects["topics", "orders"]["metadata"]["finalizers"] == [FINALIZER]
        for name, kind in (("orders", TOPICS), ("billing", CONSUMER_GROUPS)):
            await api.delete(kind, name, None)
        await until(lambda: "Orders" not in app.state.topics and not there(api))
        now_ms = app._clock.wall_ms()
        assert app.state.deleted_topics.resting("Orders", now_ms) is not None  # a resource's deletion is by hand
        await until(lambda: there(api, CONSUMER_GROUPS) == {shown_name("billing")})  # it stays, and is shown
        assert app.state.groups["billing"] == group
        lines = [(each.who, each.verb, each.object) for each in await app.changes.latest()]
        assert lines[0] == ("resource orders", "topic delete", "Orders")
        assert sorted(lines[1:]) == [
            ("resource billing", "group create", "billing"),
            ("resource orders", "topic create", "Orders"),
        ]
        await declare(api, "orders", topicName="Orders")  # and so is its creation
        await until(lambda: "Orders" in app.state.topics)
        assert app.state.deleted_topics.resting("Orders", now_ms) is None


async def test_what_is_declared_otherwise_is_changed_or_shows_why_it_is_not(tmp_path: Path, api: MemoryApi) -> None:
    def message(name: str, kind: ResourceKind) -> str:
        reported: str = api.objects[kind.plural, name]["status"]["conditions"][0]["message"]
        return reported

    async with led(tmp_path, api) as app:
        await declare(api, "orders", queues=4)
        await declare(api, "billing", CONSUMER_GROUPS)
        await until(lambda: ready(api, "orders") == ready(api, "billing", CONSUMER_GROUPS) == ("True", "Exists"))
        made = app.state.topics["orders"].id
        await api.patch(TOPICS, "orders", {"spec": {"queues": 8}})
        await until(lambda: api.objects["topics", "orders"]["status"].get("queues") == 8)
        assert (app.state.topics["orders"].queues, app.state.topics["orders"].id) == (8, made)
        await api.patch(TOPICS, "orders", {"spec": {"queues": 2}})
        await until(lambda: ready(api, "orders") == ("False", "Differs"))
        assert "topic orders has 8 queues and can't get 2" in message("orders", TOPICS)
        assert app.state.topics["orders"].queues == 8
        await api.patch(TOPICS, "orders", {"spec": {"queues": 9}})
        await until(lambda: ready(api, "orders") == ("True", "Exists"))

        async def refuse(state: ClusterState, update: ClusterUpdate) -> StatusError:
            return StatusError(Code.PRECONDITION_FAILED, "it is in use")

        reconciler = of_kind(app, CONSUMER_GROUPS)
        reconciler._refusal, agree = refuse, reconciler._refusal
        await api.patch(CONSUMER_GROUPS, "billing", {"spec": {"fifo": True, "maxAttempts": 3}})
        await until(lambda: ready(api, "billing", CONSUMER_GROUPS) == ("False", "Differs"))
        assert "it is left as it is: it is in use." in message("billing", CONSUMER_GROUPS)
        assert app.state.groups["billing"].max_attempts == 17
        reconciler._refusal = agree
        reconciler._rounds.soon()
        await until(lambda: ready(api, "billing", CONSUMER_GROUPS) == ("True", "Exists"))
        assert (app.state.groups["billing"].fifo, app.state.groups["billing"].max_attempts) == (True, 3)


async def test_what_others_make_is_shown_and_goes_when_it_goes(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as app:
        await make_topic(app, "Clicks", "MIXED")
        name = shown_name("Clicks")
        await until(lambda: ready(api, name) == ("True", "Exists"))
        shown = api.objects["topics", name]
        assert shown["spec"] == {"topicName": "Clicks", "type": "MIXED", "queues": 8}
        assert shown["metadata"]["labels"] == {"popwheel.io/cluster": "popwheel", SHOWN: "true"}
        await api.delete(TOPICS, name, None)  # a slip: nothing is lost, and it is shown again
        await until(lambda: api.objects.get(("topics", name), {}).get("status", {}).get("id") is not None)
        assert api.objects["topics", name]["metadata"]["uid"] != shown["metadata"]["uid"]
        await declare(api, "clicks", topicName="Clicks", type="MIXED")
        await until(lambda: there(api) == {"clicks"} and ready(api, "clicks") == ("True", "Exists"))
        assert app.state.topics["Clicks"].id == shown["status"]["id"]
        await api.delete(TOPICS, "clicks", None)
        await until(lambda: ready(api, name)[0] == "True")
        await delete_topic(app, "Clicks")
        await until(lambda: not there(api))


async def test_what_is_declared_is_made_again_and_what_is_not_is_not(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as app:
        await declare(api, "orders")
        await until(lambda: ready(api, "orders")[0] == "True")
        first = app.state.topics["orders"].id
        await delete_topic(app, "orders")
        await until(lambda: api.objects["topics", "orders"]["status"]["id"] > first)
        await api.delete(TOPICS, "orders", None)
        await until(lambda: there(api) == {shown_name("orders")})
        await delete_topic(app, "orders")
        await until(lambda: not there(api))
        await quiet(api)
        assert "orders" not in app.state.topics


async def test_nothing_is_written_when_nothing_changes(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as app:
        await declare(api, "orders", deletionPolicy="Delete")
        await declare(api, "no", topicName="no name")
        await make_topic(app, "Clicks")
        await until(
            lambda: (
                [ready(api, each)[0] for each in ("orders", "no", shown_name("Clicks"))] == ["True", "False", "True"]
            )
        )
        await quiet(api)
        before = len(api.events)
        for _ in range(20):
            await of_kind(app, TOPICS)._round()
        assert {plural for _, plural, *_ in api.events[before:]} <= {"leases"}
        assert gauge(app, "_refused") == 1
        # For `orders` what holds it and the status, for `no` the status, for what shows itself and its status.
        assert gauge(app, "writes") == 5 == len([plural for _, plural, *_ in api.events if plural == "topics"]) - 2


async def test_the_api_server_away_and_answers_that_are_lost(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as app:
        await declare(api, "orders", deletionPolicy="Delete")
        await until(lambda: ready(api, "orders")[0] == "True")
        await until(lambda: FINALIZER in api.objects["topics", "orders"]["metadata"].get("finalizers", ()))
        await quiet(api)
        api.away = True
        with pytest.raises(StatusError):
            await make_topic(app, "meanwhile")
        api.end_watches(forget=True)
        api.away = False
        await declare(api, "later")
        await api.delete(TOPICS, "orders", None)
        api.lost_answers = 5
        await until(lambda: ready(api, "later")[0] == "True" and "orders" not in there(api), 20)
        assert set(app.state.topics) == {"later"}
        api.lost_answers = 2
        await make_or_find(app, "again")
        await until(lambda: ready(api, shown_name("again"))[0] == "True", 20)


async def make_or_find(app: ControllerApp, name: str) -> None:
    """Make a topic whose answer may be lost."""
    while name not in app.state.topics:
        try:
            await make_topic(app, name)
        except StatusError as error:
            assert "known whether" in error.message or "there already" in error.message


async def test_changes_that_are_made_twice_or_are_reported_late_do_no_harm(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as app:
        api.repeated_changes = 20
        for name in ("a", "b", "c"):
            await declare(api, name, deletionPolicy="Delete")
        await until(lambda: [ready(api, name)[0] for name in "abc"] == ["True"] * 3)
        api.end_watches(forget=True)
        await api.delete(TOPICS, "b", None)
        await until(lambda: there(api) == {"a", "c"})
        assert set(app.state.topics) == {"a", "c"}


async def test_what_cannot_be_undone_is_decided_on_the_resource_as_it_is_now(
    tmp_path: Path, api: MemoryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch may not have told yet that somebody took the policy back, or the resource away."""
    async with led(tmp_path, api) as app:
        topics = of_kind(app, TOPICS)
        await declare(api, "orders", deletionPolicy="Delete")
        await until(lambda: bool(api.objects.get(("topics", "orders"), {})["metadata"].get("finalizers")))
        await until(lambda: ready(api, "orders")[0] == "True")
        await declare(api, "gone")
        await until(lambda: ready(api, "gone")[0] == "True")
        await quiet(api)
        await topics._rounds.stop()
        await api.delete(TOPICS, "orders", None)
        await until(lambda: "deletionTimestamp" in topics._watch.resources["orders"]["metadata"])
        await topics._watch.stop()
        monkeypatch.setattr(
            topics._watch, "_watching", app._leadership._leading
        )  # as if it still ran, and told nothing
        await api.patch(TOPICS, "orders", {"spec": {"deletionPolicy": "Retain"}})
        await api.delete(TOPICS, "gone", None)
        await delete_topic(app, "gone")
        await topics._round()
        assert set(app.state.topics) == {"orders"}
        assert "orders" not in there(api)
        monkeypatch.undo()


async def test_another_controller_goes_on_where_one_ended(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path / "1", api) as app:
        await declare(api, "orders", deletionPolicy="Delete")
        await until(lambda: ready(api, "orders")[0] == "True")
        await until(lambda: bool(api.objects["topics", "orders"]["metadata"].get("finalizers")))
        await quiet(api)
    await api.delete(TOPICS, "orders", None)
    await declare(api, "later")
    assert there(api) == {"orders", "later"}
    async with led(tmp_path / "2", api, "c-1.c.ns.svc:8083") as app:
        await until(lambda: there(api) == {"later"} and ready(api, "later")[0] == "True")
        assert set(app.state.topics) == {"later"}


async def test_one_that_does_not_lead_does_nothing(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path / "1", api) as app, led(tmp_path / "2", api, "c-1.c.ns.svc:8083") as other:
        assert app.leads and not other.leads
        await declare(api, "orders")
        await until(lambda: ready(api, "orders")[0] == "True")
        assert not other.state.topics and of_kind(other, TOPICS)._rounds._running is None


async def test_resources_of_another_cluster_are_left_alone(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as app:
        await declare(api, "theirs", labels={"popwheel.io/cluster": "another"})
        await declare(api, "ours", labels={"popwheel.io/cluster": "popwheel"})
        await until(lambda: ready(api, "ours")[0] == "True")
        await quiet(api)
        assert set(app.state.topics) == {"ours"}
        assert "status" not in api.objects["topics", "theirs"]


async def test_that_many_are_shown_and_no_more(tmp_path: Path, api: MemoryApi) -> None:
    limits = ResourceOptions(shown_max=2, declared_max=2)
    async with led(tmp_path, api, resources=limits) as app:
        for number in range(5):
            await make_topic(app, f"t{number}")
        await until(lambda: len(there(api)) == 2)
        await quiet(api)
        assert len(there(api)) == 2
        assert gauge(app, "_resources", "controller") == 2
        shown = sorted(there(api))
        await declare(api, "t4")
        await until(lambda: ready(api, "t4")[0] == "True")
        await api.patch(TOPICS, shown[0], {"spec": {"deletionPolicy": "Delete"}})
        await until(lambda: bool(api.objects["topics", shown[0]]["metadata"].get("finalizers")))
        await quiet(api)
    async with led(tmp_path / "2", api, resources=ResourceOptions(shown_max=0)) as app:
        await until(lambda: there(api) == {"t4"})
        await quiet(api)
        assert set(app.state.topics) == {f"t{number}" for number in range(5)}  # nothing goes with what showed it


async def test_resources_past_the_limit_are_not_looked_at_until_there_is_room(tmp_path: Path, api: MemoryApi) -> None:
    for number in range(4):
        await declare(api, f"t{number}", deletionPolicy="Delete" if number == 1 else "Retain")
    async with led(tmp_path, api, resources=ResourceOptions(shown_max=1, declared_max=1)) as app:
        await until(lambda: set(app.state.topics) == {"t0", "t1"} and ready(api, "t1")[0] == "True")
        await api.delete(TOPICS, "t1", None)  # perhaps one that is not looked at declares its topic as well
        await declare(api, "t4")
        await make_topic(app, "other")
        await quiet(api)
        assert of_kind(app, TOPICS)._watch.left_out and gauge(app, "_left_out") == 1
        assert gauge(app, "_resources", "user") == 2
        assert there(api) == {f"t{number}" for number in range(5)}  # and none is shown
        await api.delete(TOPICS, "t0", None)
        api.end_watches()
        await until(lambda: "t2" in app.state.topics)
        assert app.state.topics.keys() == {"t0", "t1", "t2", "other"}
        for number in (3, 4):
            await api.delete(TOPICS, f"t{number}", None)
        api.end_watches(forget=True)
        await until(lambda: "t1" not in app.state.topics and "t1" not in there(api))
        await until(lambda: gauge(app, "_left_out") == 0)


async def test_nothing_is_shown_that_would_itself_be_left_out(tmp_path: Path, api: MemoryApi) -> None:
    for name in ("t0", "t1"):
        await declare(api, name)
    async with led(tmp_path, api, resources=ResourceOptions(shown_max=1, declared_max=1)) as app:
        await until(lambda: set(app.state.topics) == {"t0", "t1"})
        await make_topic(app, "other")
        await quiet(api)
        assert there(api) == {"t0", "t1"} and not of_kind(app, TOPICS)._watch.left_out
        await api.delete(TOPICS, "t1", None)
        await until(lambda: len(there(api)) == 2)  # "other" or "t1", whose topic is kept


async def test_one_that_the_api_server_does_not_take_holds_up_no_other(tmp_path: Path, api: MemoryApi) -> None:
    patch = api.patch

    async def picky(kind: ResourceKind, name: str, change: Resource, *, status: bool = False) -> Resource:
        if name == "a":
            raise ApiRefusalError("the API server answers 422")
        return await patch(kind, name, change, status=status)

    api.patch = picky  # type: ignore[method-assign]
    async with led(tmp_path, api) as app:
        await declare(api, "a")
        await declare(api, "b")
        await make_topic(app, "c")
        await until(lambda: ready(api, "b")[0] == ready(api, shown_name("c"))[0] == "True")
        assert "a" in app.state.topics


async def test_without_the_right_to_topics_the_rest_goes_on(tmp_path: Path, api: MemoryApi) -> None:
    api.forbidden = TOPICS
    async with led(tmp_path, api) as app:
        await make_topic(app, "orders")
        await declare(api, "billing", CONSUMER_GROUPS)
        await until(lambda: ready(api, "billing", CONSUMER_GROUPS)[0] == "True")
        assert not there(api)


async def test_many_come_in_rounds_that_write_so_much_and_no_more(
    tmp_path: Path, api: MemoryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(25):
        await declare(api, f"t{number:02}")
    monkeypatch.setattr("popwheel_controller.kubernetes.reconciler._A_ROUND", 10)
    monkeypatch.setattr("popwheel_controller.kubernetes.rounds._POLL_S", 60.0)
    monkeypatch.setattr("popwheel_controller.kubernetes.reconciler._REST_S", 60.0)
    async with led(tmp_path, api) as app:
        topics = of_kind(app, TOPICS)
        await until(lambda: len(app.state.topics) == 10 and ready(api, "t09")[0] == "True")
        for rounds in (20, 25):
            await topics._round()
            assert len(app.state.topics) == rounds


async def test_what_is_written_is_as_the_definitions_have_it(tmp_path: Path, api: MemoryApi) -> None:
    async with led(tmp_path, api) as app:
        await declare(api, "orders", deletionPolicy="Delete")
        await declare(api, "no", topicName="rmq_sys_x")
        await make_topic(app, "Clicks")
        await declare(api, "billing", CONSUMER_GROUPS)
        await app._state_writer.change(lambda state: state.create_group(app._options, "Readers", fifo=True))
        await until(lambda: len(there(api)) == 3 and len(there(api, CONSUMER_GROUPS)) == 2)
        await quiet(api)
    for kind, count in ((TOPICS, 3), (CONSUMER_GROUPS, 2)):
        path = CHART / "crds" / f"{kind.plural}.yaml"
        (version,) = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]
        schema = closed(version["schema"]["openAPIV3Schema"])
        written = [each for (plural, _), each in api.objects.items() if plural == kind.plural]
        assert len(written) == count
        for each in written:
            Draft202012Validator(schema).validate({key: each[key] for key in ("spec", "status")})


def closed(schema: Any) -> Any:
    """A schema that knows no other fields than those it names."""
    if isinstance(schema, dict):
        further = {"additionalProperties": False} if "properties" in schema else {}
        return {key: closed(value) for key, value in schema.items()} | further
    return [closed(each) for each in schema] if isinstance(schema, list) else schema
