"""The state as Kubernetes resources: compare-and-swap by resource versions, against an API server in memory."""

import asyncio
import base64
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from popwheel_common.disk import SystemDisk
from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_controller.broker_groups.broker_group import (
    NO_MASTER,
    GroupState,
    ReplicaRecord,
    group_document,
    group_of,
)
from popwheel_controller.broker_groups.group_writer import GroupWriter
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.kubernetes.api import BROKER_GROUPS, CLUSTERS, ApiAwayError, Resource, ResourceKind
from popwheel_controller.kubernetes.state_store import KubernetesStateStore
from popwheel_controller.options import ControllerOptions
from popwheel_controller.store.file_state_store import FileStateStore
from popwheel_controller.store.lease import Lease
from popwheel_controller.store.private_disk import folder_lock
from popwheel_controller.store.state_store import CLUSTER, LEASE, ConflictError, StateStore, group_document_name
from tests.unit.controller.changes import document_of, state_of
from tests.unit.controller.fake_replicas import GROUP, FakeReplica, Machines, make_controller, scene, until
from tests.unit.controller.memory_api import MemoryApi
from tests.unit.controller.memory_store import MemoryStore

KEY = bytes(range(32))


def group(version: int, epoch: int = 1, name: str = "b") -> GroupState:
    return GroupState(name, version, epoch, 0, frozenset((0,)), {0: ReplicaRecord(0, "host:1", b"id")})


def cluster(topics: int, key: bytes = KEY) -> ClusterState:
    state = ClusterState("popwheel", key)
    for number in range(topics):
        state = state.after(state.create_topic(ControllerOptions(), f"t-{number}", TopicType.NORMAL))
    return state


@pytest.fixture(autouse=True)
def quiet_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is shown of broker groups: what is looked at here is written by the store."""
    monkeypatch.setattr("popwheel_controller.kubernetes.mirror._REST_S", 60.0)


@pytest.fixture
async def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
async def store(api: MemoryApi) -> AsyncIterator[KubernetesStateStore]:
    store = KubernetesStateStore(api, "popwheel")
    yield store
    await store.close()


def files(folder: Path) -> StateStore:
    return FileStateStore(folder, SystemDisk(), folder_lock(folder / "lock"), "me")


@pytest.mark.parametrize(
    "make",
    [lambda _: MemoryStore(), files, lambda _: KubernetesStateStore(MemoryApi(), "popwheel")],
    ids=["memory", "files", "kubernetes"],
)
async def test_every_store_keeps_the_same_promises(make: Callable[[Path], StateStore], tmp_path: Path) -> None:
    store = make(tmp_path)
    documents = {
        group_document_name("b"): (group_document(group(1)), group_document(group(2))),
        group_document_name("B_%1"): (group_document(group(1, name="B_%1")), group_document(group(2, name="B_%1"))),
        CLUSTER: (document_of(cluster(0)), document_of(cluster(3))),
        LEASE: (Lease("me", "me:1", "admin", 1).document(), Lease("", "", "", 2).document()),
    }
    for name, (first, second) in documents.items():
        assert await store.read(name) is None
        with pytest.raises(ConflictError):
            await store.write(name, first, "7")
        made = await store.write(name, first, None)
        with pytest.raises(ConflictError):
            await store.write(name, second, None)
        changed = await store.write(name, second, made)
        assert changed != made
        with pytest.raises(ConflictError):
            await store.write(name, first, made)
        stored = await store.read(name)
        assert stored is not None
        assert (json.loads(json.dumps(stored.document)), stored.version) == (json.loads(json.dumps(second)), changed)
        assert store.where(name)
    versions = await store.versions()
    assert versions.keys() >= documents.keys() - {LEASE}
    for name in documents.keys() - {LEASE}:
        stored = await store.read(name)
        assert stored is not None
        assert stored.version == versions[name]
    await store.close()


async def test_an_operator_sees_the_group_in_its_resource(api: MemoryApi, store: KubernetesStateStore) -> None:
    await store.write(group_document_name("broker-0"), group_document(group(1, 3, "broker-0")), None)
    resource = api.objects["brokergroups", "broker-0"]
    assert (resource["apiVersion"], resource["kind"]) == ("popwheel.io/v1", "BrokerGroup")
    assert resource["metadata"]["labels"] == {"popwheel.io/cluster": "popwheel"}
    assert resource["spec"] == {
        "name": "broker-0",
        "version": 1,
        "epoch": 3,
        "master": 0,
        "syncStateSet": [0],
        "replicas": [{"number": 0, "address": "host:1", "identity": "6964"}],
    }


async def test_clusters_of_one_namespace_do_not_touch_one_another(api: MemoryApi) -> None:
    """Nor do those whose names are no names for Kubernetes."""
    clusters = ["a", "a-b", "A", "_a", "a_", "a" * 64]
    stores = [KubernetesStateStore(api, name) for name in clusters]
    written = []
    for number, store in enumerate(stores):
        for name in (f"c-{number}", f"_{number}"):
            document = group_document(group(1, number + 1, name))
            written.append((store, name, number + 1, await store.write(group_document_name(name), document, None)))
        await store.write(CLUSTER, document_of(replace(cluster(0), name=clusters[number])), None)
        await store.write(LEASE, Lease(clusters[number], "", "", 1).document(), None)
    for store, name, epoch, version in written:
        stored = await store.read(group_document_name(name))
        assert stored is not None
        assert (stored.document["epoch"], stored.version) == (epoch, version)
        assert len(await store.versions()) == 3
    for resource in api.objects.values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", *resource["metadata"]["labels"].values())
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", resource["metadata"]["name"])
    for store in stores:
        await store.close()


async def test_a_group_of_the_name_of_another_clusters_group_is_refused(api: MemoryApi) -> None:
    """Its resource is named as the group is: such clusters need namespaces of their own."""
    mine, other = KubernetesStateStore(api, "mine"), KubernetesStateStore(api, "other")
    await mine.write(group_document_name("broker-a"), group_document(group(1, name="broker-a")), None)
    with pytest.raises(ConflictError):
        await other.write(group_document_name("broker-a"), group_document(group(1, name="broker-a")), None)
    with pytest.raises(UnknownFormatError, match=r"broker-a is not of this cluster: .* is mine, not other"):
        await other.read(group_document_name("broker-a"))
    assert (await other.versions(), await mine.versions()) == ({}, {group_document_name("broker-a"): "101"})
    for store in (mine, other):
        await store.close()


async def test_what_others_say_of_a_group_is_left_alone_and_is_no_conflict(tmp_path: Path, api: MemoryApi) -> None:
    """An operator annotates it, its status is written: a change of the group goes on from there."""
    conflicts: list[None] = []
    async with scene(tmp_path, shared=KubernetesStateStore(api, "popwheel"), replication={"lease_ms": 60_000}) as here:
        master, slave = FakeReplica(0), FakeReplica(1)
        await here.led_with(master, slave)
        here.app.overseer.groups._conflicted = lambda: conflicts.append(None)
        await api.patch(BROKER_GROUPS, GROUP, {"metadata": {"annotations": {"who": "me"}, "labels": {"team": "a"}}})
        await api.patch(BROKER_GROUPS, GROUP, {"status": {"checkpointTime": "now"}}, status=True)
        assert (await here.app._transfers.switch(GROUP, 1)).epoch == 2
    resource = api.objects["brokergroups", GROUP]
    assert (resource["spec"]["master"], resource["status"], conflicts) == (1, {"checkpointTime": "now"}, [])
    assert (resource["metadata"]["annotations"], resource["metadata"]["labels"]["team"]) == ({"who": "me"}, "a")


async def test_a_group_without_a_master_names_none(api: MemoryApi, store: KubernetesStateStore) -> None:
    name = group_document_name("b")
    version = await store.write(name, group_document(group(1)), None)
    await store.write(name, group_document(replace(group(2), master=NO_MASTER)), version)
    assert "master" not in api.objects["brokergroups", "b"]["spec"]
    stored = await store.read(name)
    assert stored is not None
    assert group_of(stored.document, "it").master == NO_MASTER


async def test_what_somebody_else_made_is_left_alone(api: MemoryApi, store: KubernetesStateStore) -> None:
    await store.write(CLUSTER, document_of(cluster(1)), None)
    name = group_document_name("b")
    await store.write(name, group_document(group(1)), None)
    for key in (("brokergroups", "b"), ("secrets", "popwheel-receipt-key")):
        api.objects[key]["metadata"]["labels"] = {"popwheel.io/cluster": "another"}
    for attempt in (store.read(name), store.read(CLUSTER), store.write(CLUSTER, document_of(cluster(2)), "1")):
        with pytest.raises(UnknownFormatError, match="another, not popwheel"):
            await attempt


async def test_the_key_is_in_a_secret_alone(api: MemoryApi, store: KubernetesStateStore) -> None:
    await store.write(CLUSTER, document_of(cluster(2)), None)
    key = base64.b64encode(KEY).decode()
    assert api.objects["secrets", "popwheel-receipt-key"]["data"] == {"key": key}
    spec = api.objects["popwheelclusters", "popwheel"]["spec"]
    assert (spec["topics"], spec["version"], key in json.dumps(spec)) == (2, 2, False)
    other = KubernetesStateStore(api, "popwheel")
    with pytest.raises(ConflictError):
        await other.write(CLUSTER, document_of(cluster(0, bytes(32))), None)


async def test_ten_thousand_topics_and_groups_fit(api: MemoryApi, store: KubernetesStateStore) -> None:
    """An object of etcd has at most 1.5 MiB."""
    options = ControllerOptions()
    made = options.group.backoff_ms
    document: dict[str, Any] = dict(document_of(cluster(0)))
    document["topics"] = [{"name": f"topic-{n}", "type": "NORMAL", "queues": 8, "id": n} for n in range(10_000)]
    document["groups"] = [
        {"name": f"group-{n}", "max_attempts": 17, "fifo": False, "backoff_ms": made, "id": n} for n in range(10_000)
    ]
    await store.write(CLUSTER, document, None)
    assert len(json.dumps(api.objects["popwheelclusters", "popwheel"])) < 500_000
    stored = await store.read(CLUSTER)
    assert stored is not None
    assert len(state_of(stored.document, "it").groups) == 10_000


async def test_what_is_damaged_is_said(api: MemoryApi, store: KubernetesStateStore) -> None:
    await store.write(CLUSTER, document_of(cluster(1)), None)
    await store.write(group_document_name("b"), group_document(group(1)), None)
    await store.write(LEASE, Lease("me", "me:1", "", 1).document(), None)
    api.objects["popwheelclusters", "popwheel"]["spec"]["contents"] = "AAAA"
    del api.objects["brokergroups", "b"]["spec"]["syncStateSet"]
    del api.objects["leases", "popwheel-controller"]["metadata"]["annotations"]
    for name in (CLUSTER, group_document_name("b"), LEASE):
        with pytest.raises(CorruptDataError, match="is damaged"):
            await store.read(name)


async def test_watches_end_lag_and_are_forgotten(api: MemoryApi, store: KubernetesStateStore) -> None:
    """What others change is noticed all the same."""
    other = KubernetesStateStore(api, "popwheel")
    another_cluster = KubernetesStateStore(api, "another")
    name = group_document_name("b")
    version = await other.write(name, group_document(group(1)), None)
    await another_cluster.write(group_document_name("c"), group_document(group(1, name="c")), None)
    assert await store.versions() == {name: version}

    async def noticed(changed: str) -> None:
        async with asyncio.timeout(10):
            while (await store.versions()).get(name) != changed:
                await asyncio.sleep(0)

    for turn in range(2, 6):
        version = await other.write(name, group_document(group(turn)), version)
        if turn == 3:
            api.end_watches()
        if turn == 4:
            api.end_watches(forget=True)
        await noticed(version)
    began = api.watches
    api.away = True
    api.end_watches()
    await asyncio.sleep(0.01)
    api.away = False
    version = await other.write(name, group_document(group(9)), version)
    await noticed(version)
    assert api.watches > began


async def test_a_watch_that_cannot_begin_anew_does_not_run_in_circles(
    api: MemoryApi, store: KubernetesStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popwheel_controller.kubernetes.resource_watch._PAUSE_S", 0.05)
    await store.versions()
    began = api.lists
    api.lists_fail = True
    api.end_watches(forget=True)
    await asyncio.sleep(0.2)
    assert 2 <= api.lists - began <= 10  # two kinds, a few times each
    api.lists_fail = False
    other = KubernetesStateStore(api, "popwheel")
    version = await other.write(group_document_name("b"), group_document(group(1)), None)
    async with asyncio.timeout(10):
        while (await store.versions()).get(group_document_name("b")) != version:
            await asyncio.sleep(0.01)


async def test_a_cluster_of_which_only_the_secret_was_made_is_made_with_its_key(tmp_path: Path, api: MemoryApi) -> None:
    """A process that was killed between the two left a cluster that could never start."""
    create = api.create

    async def create_no_cluster(kind: ResourceKind, resource: Resource) -> Resource:
        if kind is CLUSTERS:
            raise ApiAwayError("killed here")
        return await create(kind, resource)

    api.create = create_no_cluster  # type: ignore[method-assign]
    killed = make_controller(tmp_path, Machines(), KubernetesStateStore(api, "popwheel"), "one:1")
    await killed.start()
    assert killed.health() == "this controller cannot lead: killed here"
    await killed.stop()
    api.create = create  # type: ignore[method-assign]
    key = api.objects["secrets", "popwheel-receipt-key"]["data"]["key"]
    for name in ("two", "three"):
        app = make_controller(tmp_path, Machines(), KubernetesStateStore(api, "popwheel"), name)
        await app.start()
        await until(lambda app=app: app.leads)  # type: ignore[misc]
        assert base64.b64encode(app.state.receipt_key).decode() == key
        await app.stop()


async def test_a_stale_read_leads_to_a_conflict_and_no_further(api: MemoryApi, store: KubernetesStateStore) -> None:
    """Two group_writers decide on what they have read, be it old: each change is made from what was really there."""
    conflicts = 0

    def conflicted() -> None:
        nonlocal conflicts
        conflicts += 1

    stores = [store, KubernetesStateStore(api, "popwheel")]
    group_writers = [GroupWriter(each, 10, conflicted) for each in stores]
    dice = random.Random(3)
    await group_writers[0].change("b", lambda _: GroupState("b", 0, 1, 0, frozenset((0,)), group(1).replicas))
    await group_writers[1].load()
    for step in range(60):
        api.stale_reads = dice.randrange(2)
        api.lost_answers = int(dice.random() < 0.1)
        group_writer = group_writers[step % 2]
        with contextlib.suppress(StatusError):
            record = ReplicaRecord(0, f"host:{step}", b"id")  # each wants something else
            await group_writer.change("b", lambda state, record=record: state and state.with_replica(record))  # type: ignore[misc]
    final = await store.read(group_document_name("b"))
    assert final is not None
    assert final.document["version"] == api.revision - 100  # none was lost
    assert conflicts > 10
    await stores[1].close()


async def test_a_change_that_was_made_twice_on_its_way_has_come_about(tmp_path: Path, api: MemoryApi) -> None:
    """A refusal would tell the master that asked that the set was not stored, and yet the slave may lead."""
    async with scene(tmp_path, shared=KubernetesStateStore(api, "popwheel")) as here:
        master, slave = FakeReplica(0), FakeReplica(1)
        await here.join(master, slave)
        await until(lambda: len(master.group.replicas) == 2)
        api.repeated_changes = 1
        assert list((await master.ask_for_set(here.channel, 0, 1)).sync_state_set) == [0, 1]
        api.repeated_changes = 1
        assert (await here.app._transfers.switch(GROUP, 1)).master == 1


async def test_a_failover_is_seen_in_the_resources(tmp_path: Path, api: MemoryApi) -> None:
    store = KubernetesStateStore(api, "popwheel")
    async with scene(tmp_path, shared=store) as here:
        master, slave = FakeReplica(0), FakeReplica(1)
        await here.led_with(master, slave)
        master.kill()
        await until(lambda: slave.leads == 2)
    seen = [
        (each["spec"]["epoch"], each["spec"]["master"], each["spec"]["syncStateSet"])
        for _, kind, each, _ in api.events
        if kind == "brokergroups"
    ]
    assert seen == [(1, 0, [0]), (1, 0, [0]), (1, 0, [0, 1]), (2, 1, [1])]
    assert api.objects["brokergroups", GROUP]["spec"]["version"] == 4


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "at the next change"])
async def test_a_group_that_somebody_deleted_is_stored_as_it_was(tmp_path: Path, api: MemoryApi, noticed: bool) -> None:
    """Its replicas go on, and a failover finds it: before, every change of it met a conflict for ever."""
    times = {} if noticed else {"replication": {"lease_ms": 60_000}}
    async with scene(tmp_path, shared=KubernetesStateStore(api, "popwheel"), **times) as here:
        master, slave = FakeReplica(0), FakeReplica(1)
        await here.led_with(master, slave)
        name = GROUP
        before = api.objects["brokergroups", name]["spec"]
        api.remove(BROKER_GROUPS, name)
        if noticed:
            await until(lambda: ("brokergroups", name) in api.objects)
            assert api.objects["brokergroups", name]["spec"] == before
        master.kill()
        await until(lambda: slave.leads == 2)
        assert api.objects["brokergroups", name]["spec"]["epoch"] == 2


async def test_the_api_server_away_when_a_master_dies(tmp_path: Path, api: MemoryApi) -> None:
    """C2: nobody elects; L2: when it is back, somebody does."""
    async with scene(tmp_path, shared=KubernetesStateStore(api, "popwheel"), replication={"lease_ms": 60_000}) as here:
        master, slave = FakeReplica(0), FakeReplica(1)
        await here.led_with(master, slave)
        api.away = True
        master.kill()
        await asyncio.sleep(0.6)
        assert slave.leads is None
        api.away = False
        await until(lambda: slave.leads == 2)


async def test_a_controller_that_starts_while_the_api_server_begins_anew_leads_later(
    tmp_path: Path, api: MemoryApi
) -> None:
    """It ended for good: the API server answers 429 for some seconds after its own start."""
    api.away, api.refusal = True, "the API server answers 429 Too Many Requests: storage is (re)initializing"
    async with scene(tmp_path, shared=KubernetesStateStore(api, "popwheel")) as here:
        assert (here.app.leads, "storage is (re)initializing" in (here.app.health() or "")) == (False, True)
        api.away = False
        await until(lambda: here.app.leads)
        assert here.app.health() is None
        master = FakeReplica(0)
        await here.join(master)
        await until(lambda: master.leads == 1)
