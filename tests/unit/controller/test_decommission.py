"""Replicas and broker groups that are gone for good leave the store, by an operator's word and by nothing else."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from popwheel_common.errors import StatusError
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_controller.broker_groups.broker_group import IllegalStepError, follow_up
from popwheel_controller.broker_groups.decommission import Decommission
from popwheel_controller.broker_groups.metrics import GroupMetrics
from popwheel_controller.broker_groups.replicas import Replicas, Session
from popwheel_controller.kubernetes.state_store import KubernetesStateStore
from popwheel_controller.store.state_store import ConflictError, StateStore, group_document_name
from tests.unit.controller.fake_replicas import DETECTION_MS, GROUP, FakeReplica, Scene, scene, until
from tests.unit.controller.memory_api import MemoryApi
from tests.unit.controller.memory_store import MemoryStore

WORD = f"forget-all-of-{GROUP}"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path) as made:
        yield made


def decommission(here: Scene) -> Decommission:
    return here.app._decommission


async def join(here: Scene, *replicas: FakeReplica) -> None:
    """Let replicas register and be recorded."""
    await here.join(*replicas)
    await until(lambda: len(here.app.overseer.groups.states[GROUP].replicas) == len(replicas))


async def refused(work: Any, code: int, sentence: str) -> None:
    with pytest.raises(StatusError, match=sentence) as caught:
        await work
    assert caught.value.code == code


async def until_dead(here: Scene, *numbers: int) -> None:
    """Wait until replicas are given up."""
    views = here.app.overseer.replica_views
    await until(lambda: all(views(GROUP)[number].liveness.value == "dead" for number in numbers))


async def test_a_replica_that_is_gone_is_forgotten_and_is_a_new_one_if_it_comes_back(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    work = decommission(here).of_replica
    await refused(work("nothing", 1), Code.NOT_FOUND, "no broker group nothing")
    await refused(work(GROUP, 7), Code.NOT_FOUND, "no replica 7; it has 0, 1")
    await refused(work(GROUP, 1), Code.PRECONDITION_FAILED, "replica 1 of broker-0 lives; stop it first")
    slave.kill()
    await until_dead(here, 1)
    await refused(work(GROUP, 1), Code.PRECONDITION_FAILED, "is of the sync-state set")
    await master.ask_for_set(here.channel, 0)
    assert sorted((await work(GROUP, 1)).replicas) == [0]
    await until(lambda: [each.number for each in master.group.replicas] == [0])
    await refused(work(GROUP, 1), Code.NOT_FOUND, "no replica 1")
    await refused(master.ask_for_set(here.channel, 0, 1), Code.BAD_REQUEST, "has no replica 1")
    assert sorted(here.app.overseer.replica_views(GROUP)) == [0]
    back = slave.next_life()
    await here.join(back)
    await until(lambda: sorted(each.number for each in back.group.replicas) == [0, 1])
    assert list(back.group.sync_state_set) == [0]


async def test_the_master_is_not_forgotten_nor_one_that_may_come_back(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await join(here, master, slave)
    work = decommission(here).of_replica
    slave.cut()
    await asyncio.sleep(0.05)
    await refused(work(GROUP, 1), Code.PRECONDITION_FAILED, "replica 1 of broker-0 may live")
    master.kill()
    await until_dead(here, 0, 1)
    await refused(work(GROUP, 0), Code.PRECONDITION_FAILED, "is of the sync-state set")
    await here.restart()
    await refused(decommission(here).of_replica(GROUP, 1), Code.PRECONDITION_FAILED, "may live")
    await asyncio.sleep(1.2 * DETECTION_MS / 1000)
    await decommission(here).of_replica(GROUP, 1)
    await here.restart()
    assert sorted(here.app.overseer.groups.states[GROUP].replicas) == [0]


@pytest.mark.parametrize("kind", ["file", "memory", "kubernetes"])
async def test_a_group_that_is_gone_leaves_the_store_and_is_made_anew_if_it_comes_back(
    tmp_path: Path, kind: str
) -> None:
    shared: StateStore | None = MemoryStore() if kind == "memory" else None
    if kind == "kubernetes":
        shared = KubernetesStateStore(MemoryApi(), "popwheel")
    async with scene(tmp_path, shared=shared) as here:
        master, slave = FakeReplica(0), FakeReplica(1)
        await here.led_with(master, slave)
        await refused(decommission(here).of_group("nothing", ""), Code.NOT_FOUND, "no broker group nothing")
        await refused(decommission(here).of_group(GROUP, WORD), Code.PRECONDITION_FAILED, "replica 0, 1 of .* lives")
        for each in (master, slave):
            each.report.end_position, each.report.last_epoch = 100, 1
        await asyncio.sleep(0.1)
        master.kill()
        slave.kill()
        await until_dead(here, 0, 1)
        await refused(decommission(here).of_group(GROUP, "please"), Code.BAD_REQUEST, WORD)
        assert here.app.roles.groups
        await until(lambda: here.app.state.away == {GROUP})
        await decommission(here).of_group(GROUP, WORD)
        await refused(decommission(here).of_group(GROUP, WORD), Code.NOT_FOUND, "no broker group")
        await until(lambda: not here.app.state.away)
        assert (here.route(), here.app.overseer.names(), here.app.roles.groups) == (None, [], {})
        await asyncio.sleep(0.6)  # it looks at the store meanwhile, and at all groups
        assert GROUP not in here.app.overseer.groups.states
        assert not here.app.overseer.replicas._detector._watched
        assert await here.app._store.read(group_document_name(GROUP)) is None
        if kind == "file":
            await here.restart()
            assert here.app.overseer.names() == []
        slave, master = slave.next_life(), master.next_life()
        here.machines.add(slave, master)
        await slave.join(here.channel)
        await asyncio.sleep(0.2)
        assert not slave.learned  # who has everything is known by all of the latest set
        await master.join(here.channel)
        await until(lambda: bool(slave.learned and master.learned))
        assert master.group.epoch > 1 and sorted(each.number for each in master.group.replicas) == [0, 1]


@pytest.mark.parametrize("done", [False, True])
async def test_a_group_whose_deletion_has_no_answer_can_be_forgotten_again(tmp_path: Path, done: bool) -> None:
    class Store(MemoryStore):
        fails = True

        async def delete(self, name: str, expected: str | None) -> None:
            if done or not self.fails:
                await super().delete(name, expected)
            if self.fails:
                self.fails = False
                raise OSError("the answer was lost")

    store = Store()
    async with scene(tmp_path, shared=store) as here:
        master = FakeReplica(0)
        await here.join(master)
        master.kill()
        await until_dead(here, 0)
        await refused(decommission(here).of_group(GROUP, WORD), Code.INTERNAL_SERVER_ERROR, "the answer was lost")
        assert GROUP in here.app.overseer.names()
        await decommission(here).of_group(GROUP, WORD)
        await asyncio.sleep(0.6)  # it looks at the store meanwhile
        assert group_document_name(GROUP) not in store.history
        assert here.app.overseer.names() == []


@pytest.mark.parametrize("kind", ["memory", "kubernetes"])
async def test_what_somebody_else_has_changed_is_not_deleted(kind: str) -> None:
    store: StateStore = MemoryStore() if kind == "memory" else KubernetesStateStore(MemoryApi(), "popwheel")
    name = group_document_name("b")
    document: dict[str, Any] = {"name": "b", "master": 0, "sync_state_set": []}
    first = await store.write(name, document, None)
    second = await store.write(name, {**document, "master": 1}, first)
    with pytest.raises(ConflictError):
        await store.delete(name, first)
    await store.delete(name, second)
    assert await store.read(name) is None
    with pytest.raises(ConflictError):
        await store.delete(name, second)
    await store.close()


async def test_only_an_operator_has_a_replica_forgotten(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await join(here, master, slave)
    state = here.app.overseer.groups.states[GROUP]
    with pytest.raises(IllegalStepError, match="not forgotten"):
        follow_up(state, state.without_replica(1))
    assert follow_up(state, state.without_replica(1), removes=True) == replace(
        state.without_replica(1), version=state.version + 1
    )
    with pytest.raises(IllegalStepError, match="known replicas"):
        follow_up(state, state.without_replica(0), removes=True)


async def test_no_series_of_a_forgotten_group_is_shown(here: Scene) -> None:
    registry = CollectorRegistry()
    metrics = GroupMetrics(registry)
    await here.join(FakeReplica(0))
    metrics.show(here.app.overseer.groups.states[GROUP], has_master=False)
    assert f'popwheel_controller_group_replicas{{broker="{GROUP}"}} 1.0' in generate_latest(registry).decode()
    metrics.forget(GROUP)
    shown = generate_latest(registry).decode()
    assert f'broker="{GROUP}"' not in shown and "groups_without_master 0.0" in shown


async def test_the_admin_api_forgets(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await join(here, master, slave)
    slave.kill()
    await until_dead(here, 1)
    transport = httpx.ASGITransport(make_http_app("test", "0", CollectorRegistry(), {}, [here.app.admin]))
    async with httpx.AsyncClient(transport=transport, base_url="http://controller") as http:
        path = f"/api/v1/brokers/{GROUP}/forget"
        for wanted, status in (({"replica": 1}, 200), ({"replica": 0}, 409), ({"replica": 7}, 404), ({}, 409)):
            would = await http.post(f"{path}?dry_run=true", json=wanted)
            assert would.status_code == status, "a dry run refuses what would be refused"
        assert sorted(here.app.overseer.groups.states[GROUP].replicas) == [0, 1], "and changes nothing"
        answer = await http.post(path, json={"replica": 1})
        assert (answer.status_code, answer.json()) == (200, {"name": GROUP, "replicas": [0]})
        assert (await http.post(path, json={"replica": 1})).status_code == 404
        assert (await http.post(path, json={"replica": 0})).status_code == 409
        master.kill()
        await until_dead(here, 0)
        would = (await http.post(f"{path}?dry_run=true", json={})).json()
        assert (would["replicas"], would["word"]) == ([0], WORD)
        assert "messages may be lost" in would["loss"]
        wordless = await http.post(path, json={})
        assert (wordless.status_code, WORD in wordless.json()["message"]) == (400, True)
        answer = await http.post(path, json={"word": WORD})
        assert (answer.status_code, answer.json()) == (200, {"name": GROUP, "replicas": []})
        assert (await http.get(f"/api/v1/brokers/{GROUP}")).status_code == 404
        lines = (await http.get("/api/v1/changes", params={"object": GROUP})).json()["changes"]
    reported = [(line["who"], line["verb"], line["outcome"]) for line in lines if line["verb"] == "broker forget"]
    assert [outcome for _, _, outcome in reported[:2]] == ["done", "refused BAD_REQUEST"]
    assert lines[0]["before"].startswith("master ") and lines[0]["after"] == f'{{"name":"{GROUP}","replicas":[]}}'
    assert ("controller", "broker elect") in [(line["who"], line["verb"]) for line in lines]


def test_one_that_is_registered_is_not_forgotten() -> None:
    replicas = Replicas(3.0, 1.5)
    replicas.register(Session(ReplicaReport(group="b", replica=1), 0, None, lambda: None), 0.0)
    replicas.forget(("b", 1))
    assert replicas.last("b", 1) is not None
