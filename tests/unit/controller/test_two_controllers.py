"""Two controllers on one store: one leads, the other waits and says so; even two that lead do no harm."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.errors import ConfigurationError, StatusError
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, EnsureTopicRequest, TopicType, WatchRequest
from popwheel_controller.broker_groups.broker_group import (
    NO_MASTER,
    GroupState,
    ReplicaRecord,
    group_document,
    group_of,
)
from popwheel_controller.store.lease import Lease
from popwheel_controller.store.state_store import CLUSTER, group_document_name
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import ENSURE_TOPIC, WATCH
from popwheel_rpc.service import ClientStream
from tests.unit.controller.changes import document_of, state_of
from tests.unit.controller.fake_replicas import GROUP, FakeReplica, Machines, make_controller, scene, until
from tests.unit.controller.memory_store import MemoryStore

LEASE_S = 0.4


class Pair:
    """Two controllers, `one` and `two`."""

    def __init__(self, folder: Path, store: MemoryStore | None) -> None:
        self.store = store
        self.machines = Machines()
        shared = {"store": {"folder": str(folder / "shared")}} if store is None else {}
        self.apps = [
            make_controller(folder / name, self.machines, store, f"{name}:1", **shared) for name in ("one", "two")
        ]
        self.channels = [LocalChannel(app.service) for app in self.apps]

    def leading(self) -> list[int]:
        """Which of them lead."""
        return [number for number, app in enumerate(self.apps) if app.leads]


@asynccontextmanager
async def pair(folder: Path, store: MemoryStore | None = None) -> AsyncIterator[Pair]:
    """Both started, the first one leads."""
    async with AsyncExitStack() as stack:
        made = Pair(folder, store)
        for app, channel in zip(made.apps, made.channels, strict=True):
            await app.start()
            stack.push_async_callback(app.stop)
            stack.push_async_callback(channel.close)
        assert made.leading() == [0]
        yield made


async def make_topic(channel: LocalChannel, name: str) -> None:
    await channel.call(ENSURE_TOPIC, EnsureTopicRequest(name=name, type=TopicType.NORMAL))


@pytest.mark.parametrize("on_files", [False, True], ids=["memory", "files"])
async def test_who_does_not_lead_names_the_one_that_does(tmp_path: Path, on_files: bool) -> None:
    async with pair(tmp_path, None if on_files else MemoryStore()) as both:
        replica = FakeReplica(0)
        await replica.join(both.channels[1])
        await until(lambda: replica.refusal is not None)
        watch = both.channels[1].open(WATCH)
        await watch.send([WatchRequest(process="p")])
        refusals = [replica.refusal]
        for attempt in (watch.receive(), make_topic(both.channels[1], "a")):
            with pytest.raises(StatusError) as caught:
                await attempt
            refusals.append(caught.value)
        for refusal in refusals:
            assert isinstance(refusal, StatusError)
            assert (refusal.code, "one:1" in refusal.message) == (Code.HA_NOT_AVAILABLE, True)
        assert both.apps[1].health() is None  # it is well, and waits
        api = make_http_app("test", "0", CollectorRegistry(), {}, [both.apps[1].admin])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://two/api/v1") as http:
            for path in ("/cluster", "/brokers", "/topics", "/cluster/status"):
                answer = await http.get(path)
                assert answer.json()["code"] == "HA_NOT_AVAILABLE"
                assert "admin-of-one:1" in answer.json()["message"]
        replica.cut()


@pytest.mark.parametrize("on_files", [False, True], ids=["memory", "files"])
async def test_when_the_leader_stops_the_other_goes_on_at_once(tmp_path: Path, on_files: bool) -> None:
    async with pair(tmp_path, None if on_files else MemoryStore()) as both:
        await make_topic(both.channels[0], "a")
        replica = FakeReplica(0)
        both.machines.add(replica)
        await replica.join(both.channels[0])
        await until(lambda: replica.leads == 1)
        began = time.perf_counter()
        await both.apps[0].stop()
        await until(lambda: both.leading() == [1])
        assert time.perf_counter() - began < LEASE_S
        assert isinstance(replica.refusal, StatusError)
        assert replica.refusal.code == Code.HA_NOT_AVAILABLE
        replica.cut()
        await replica.join(both.channels[1])
        await make_topic(both.channels[1], "b")
        assert sorted(both.apps[1].state.topics) == ["a", "b"]
        assert both.apps[1].state.receipt_key == both.apps[0].state.receipt_key
        assert both.apps[1].state.brokers[GROUP].epoch == 1
        replica.cut()


async def test_when_the_leader_hangs_the_other_takes_over_and_the_first_steps_down(tmp_path: Path) -> None:
    async with pair(tmp_path, MemoryStore()) as both:
        watch = both.channels[0].open(WATCH)
        await watch.send([WatchRequest(process="p")])
        assert await watch.receive() is not None
        leadership = both.apps[0]._leadership
        assert leadership._renewing is not None
        leadership._renewing.cancel()  # it does not renew its lease any more
        began = time.perf_counter()
        await until(lambda: both.leading() == [1])
        assert LEASE_S * 0.5 < time.perf_counter() - began < 3 * LEASE_S
        with contextlib.suppress(StatusError):
            while await watch.receive() is not None:  # its watchers are sent away
                pass
        leadership._renewing = asyncio.create_task(leadership._renew_lease(both.store))  # type: ignore[arg-type]
        await until(lambda: leadership._holder.leader is not None)
        with pytest.raises(StatusError, match="two:1"):
            await make_topic(both.channels[0], "a")


async def test_two_that_both_lead_overwrite_nothing_of_one_another(tmp_path: Path) -> None:
    """Each believes for good that it leads: topics of both are kept, and no epoch gets two masters."""
    store = MemoryStore()
    machines = Machines()
    apps = [make_controller(tmp_path / name, machines, store, f"{name}:1") for name in ("one", "two")]
    for app in apps:
        app._leadership._store = None  # so that no lease is asked
        await app.start()
    channels = [LocalChannel(app.service) for app in apps]
    dice = random.Random(5)
    replicas = [FakeReplica(number) for number in range(3)]
    machines.add(*replicas)
    learned: dict[int, set[int]] = {}
    for step in range(40):
        for number, replica in enumerate(replicas):
            if dice.random() < 0.3:
                replica.kill()
                replicas[number] = replica.next_life()
                machines.add(replicas[number])
                await replicas[number].join(dice.choice(channels))
        with contextlib.suppress(StatusError):
            await make_topic(channels[step % 2], f"t-{step}")
        for replica in replicas:
            if replica.leads is not None:
                with contextlib.suppress(StatusError):
                    await replica.ask_for_set(dice.choice(channels), 0, 1, 2)
        await asyncio.sleep(0.02)
        for replica in replicas:
            for group in replica.learned:
                if group.master != NO_MASTER:
                    learned.setdefault(group.epoch, set()).add(group.master)
    states = [group_of(_parsed(contents), "memory") for contents in store.history[group_document_name(GROUP)]]
    for old, new in pairwise(states):
        assert new.version == old.version + 1
        assert new.epoch in (old.epoch, old.epoch + 1)
        assert new.epoch == old.epoch or new.master in old.sync_state_set
    assert all(len(masters) == 1 for masters in learned.values())
    assert len(learned) > 5
    topics = {topic["name"] for topic in _parsed(store.history["cluster"][-1])["topics"]}
    assert topics == {f"t-{step}" for step in range(40)}
    for replica in replicas:
        replica.kill()
    for channel, app in zip(channels, apps, strict=True):
        await channel.close()
        await app.stop()


async def test_a_leader_cut_off_from_its_store_sends_everybody_away_when_its_lease_ends(tmp_path: Path) -> None:
    """Not when the store has answered: until then they would not look for another controller."""
    store = MemoryStore()
    async with pair(tmp_path, store) as both:
        replica = FakeReplica(0)
        await replica.join(both.channels[0])
        watch = both.channels[0].open(WATCH)
        await watch.send([WatchRequest(process="p")])
        assert await watch.receive() is not None
        store.hangs = True
        began = time.perf_counter()
        while await watch.receive() is not None:
            pass
        await until(lambda: replica.refusal is not None)
        assert time.perf_counter() - began < 2 * LEASE_S
        assert isinstance(replica.refusal, StatusError)
        assert replica.refusal.code == Code.HA_NOT_AVAILABLE
        store.hangs = False
        await until(lambda: len(both.leading()) == 1)
        replica.cut()


async def test_a_controller_of_another_cluster_leaves_the_lease_to_others_and_says_so(tmp_path: Path) -> None:
    store = MemoryStore()
    async with pair(tmp_path, store) as both:
        odd = make_controller(tmp_path / "odd", both.machines, store, "odd:1", cluster_name="odd")
        await odd.start()
        assert odd.health() is None
        both.apps[1]._leadership._rest_until = time.monotonic() + 3 * LEASE_S  # so that it is the odd one's turn
        await both.apps[0].stop()
        await until(lambda: odd.health() is not None)
        assert "popwheel, whose name cannot be changed to odd" in (odd.health() or "")
        await until(lambda: both.leading() == [1])
        await asyncio.sleep(3 * LEASE_S)
        assert (odd.leads, both.leading()) == (False, [1])
        await odd.stop()


async def test_a_group_without_a_master_that_another_has_stored_is_taken_in(tmp_path: Path) -> None:
    """A list of what is stored may lag behind, so that the one who leads finds it later."""
    store = MemoryStore()
    async with pair(tmp_path, store) as both:
        state = GroupState(GROUP, 2, 1, NO_MASTER, frozenset((0,)), {0: ReplicaRecord(0, "replica-0:1", b"volume-0")})
        await store.write(group_document_name(GROUP), group_document(state), None)
        await until(lambda: GROUP in both.apps[0].overseer.groups.states)
        await asyncio.sleep(LEASE_S)
        assert (both.leading(), both.apps[0].health()) == ([0], None)
        replica = FakeReplica(0)
        await replica.join(both.channels[0])
        await until(lambda: replica.leads == 2)
        replica.cut()


async def test_what_goes_wrong_in_a_look_at_the_groups_does_not_end_the_looks(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        master, slave = FakeReplica(0), FakeReplica(1)
        await here.led_with(master, slave)
        forget_channels, failed = here.app.roles.forget_channels, 0

        async def fail_once() -> None:
            nonlocal failed
            failed += 1
            if failed == 1:
                raise ZeroDivisionError
            await forget_channels()

        here.app.roles.forget_channels = fail_once  # type: ignore[method-assign]
        await until(lambda: failed == 1)
        master.beats = False
        await until(lambda: slave.leads == 2)


async def test_one_that_cannot_start_to_lead_gives_the_lease_back(tmp_path: Path) -> None:
    store, machines = MemoryStore(), Machines()
    first = make_controller(tmp_path / "one", machines, store, "one:1")
    await first.start()
    await first.stop()
    odd = make_controller(tmp_path / "odd", machines, store, "odd:1", cluster_name="odd")
    with pytest.raises(ConfigurationError):
        await odd.start()
    assert _parsed(store.history["lease"][-1])["holder"] == ""


async def test_what_one_that_led_before_writes_late_is_taken_up(tmp_path: Path) -> None:
    store = MemoryStore()
    async with pair(tmp_path, store) as both:
        stored = await store.read(CLUSTER)
        assert stored is not None
        state = state_of(stored.document, "memory")
        late = state.after(state.create_topic(both.apps[1]._options, "late", TopicType.NORMAL, 1))
        await store.write(CLUSTER, document_of(late), stored.version)
        await until(lambda: "late" in both.apps[0].state.topics)
        await make_topic(both.channels[0], "after")
        assert both.apps[0].state.topics.keys() == {"late", "after"}


async def test_what_a_late_read_gives_is_not_led_with(tmp_path: Path) -> None:
    """A topic that was deleted came back: messages were put into it, and the log took them for another one's."""
    store = MemoryStore()
    async with pair(tmp_path, store) as both:
        await make_topic(both.channels[0], "gone")
        await both.apps[0]._state_writer.change(lambda state: state.delete_topic("gone"))
        store.late_reads = 2
        await both.apps[0].stop()
        await until(lambda: both.leading() == [1])
        assert (store.late_reads, list(both.apps[1].state.topics)) == (0, [])


async def test_a_leader_does_not_go_back_to_what_a_late_read_gives(tmp_path: Path) -> None:
    store = MemoryStore()
    async with pair(tmp_path, store) as both:
        await make_topic(both.channels[0], "one")
        await make_topic(both.channels[0], "two")
        watcher = both.channels[0].open(WATCH)
        await watcher.send([WatchRequest(process="proxy-0")])
        store.failing_writes, store.late_reads = 1, 1
        with pytest.raises(StatusError, match="not known whether"):
            await make_topic(both.channels[0], "three")
        await make_topic(both.channels[0], "four")
        reported = [update async for update in _until_topic(watcher, "four")]
        assert [sorted(topic.name for topic in update.topics) for update in reported] == [["one", "two"], ["four"]]


async def test_a_state_that_was_set_back_is_taken_up(tmp_path: Path) -> None:
    """By somebody who has brought back a backup of it, say."""
    store = MemoryStore()
    async with pair(tmp_path, store) as both:
        await make_topic(both.channels[0], "one")
        await make_topic(both.channels[0], "two")
        store.history[CLUSTER].append(store.history[CLUSTER][-2])
        await until(lambda: list(both.apps[0].state.topics) == ["one"])


async def test_a_damaged_lease_is_said_and_nobody_leads(tmp_path: Path) -> None:
    store = MemoryStore()
    async with pair(tmp_path, store) as both:
        store.history["lease"].append('{"holder": 7}')
        await until(lambda: both.leading() == [])


def test_a_lease_is_read_back() -> None:
    lease = Lease("life", "one:1", "admin:1", 7)
    assert Lease.of(lease.document(), "memory") == lease


async def _until_topic(watcher: ClientStream[ClusterUpdate, WatchRequest], name: str) -> AsyncIterator[ClusterUpdate]:
    """What is told up to the update that has a topic."""
    while (update := await watcher.receive()) is not None:
        yield update
        if any(topic.name == name for topic in update.topics):
            return


def _parsed(contents: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(contents)
    return parsed
