"""Controllers that have lost their state, and count from the beginning again, cost no message (S1, P1)."""

import asyncio
from collections.abc import Sequence

import pytest

from popwheel_broker.topics.topic_registry import Names
from popwheel_common.contract.cluster_view import VERSIONS_PER_STORE
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Group, Topic
from tests.unit.broker.group_world import GroupWorld, Member, group_of, until
from tests.unit.broker.test_stale_view import learn
from tests.unit.broker.world import World

ANEW = 7 * VERSIONS_PER_STORE
T = Topic(name="t", queues=2, id=ANEW + 1)
G = Group(name="g", max_attempts=3, id=ANEW + 2)
MADE = [
    ClusterUpdate(version=ANEW + 1, topics=[T], named=ANEW + 1),
    ClusterUpdate(version=ANEW + 2, groups=[G], named=ANEW + 2),
]


def made_anew_for(*topics: Topic, groups: Sequence[Group] = ()) -> ClusterUpdate:
    """Controllers with an empty store draw another key and another life."""
    return ClusterUpdate(
        version=ANEW + len(topics) + len(groups),
        snapshot=True,
        cluster=Cluster(name="test", receipt_key=b"another key" * 3),
        topics=topics,
        groups=groups,
        named=ANEW + len(topics) + len(groups),
    )


def made_anew(w: GroupWorld, *topics: Topic, groups: Sequence[Group] = ()) -> ClusterUpdate:
    """Who asks the controllers from now on hears this."""
    w.snapshot = made_anew_for(*topics, groups=groups)
    return w.snapshot


async def fail_over(w: GroupWorld) -> Member:
    await w.in_sync(0, 1)
    await w.members[0].kill()
    return await w.lead(1)


async def got(w: GroupWorld) -> list[bytes]:
    """What comes next, when it comes."""
    async with asyncio.timeout(10):
        while not (found := await w.pop()):
            await asyncio.sleep(0.05)
    return sorted(found)


@pytest.mark.parametrize("known", [1, 7, 9 * VERSIONS_PER_STORE])
async def test_a_topic_and_a_group_that_are_made_again_go_on_where_they_were(known: int) -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await learn(master, ClusterUpdate(version=known, topics=[Topic(name="t", queues=2, id=known)]))
        await w.put(b"1", b"2", topic_id=known)
        await w.ack(*(await w.pop(1)).values())
        await learn(master, made_anew(w), *MADE)
        assert (await w.put(b"3", topic_id=T.id)).code == Code.OK
        assert await got(w) == [b"2", b"3"]


@pytest.mark.parametrize("learns", ["all of it", "the end of it", "what is made again"])
async def test_what_is_delayed_fires_in_the_topic_that_is_made_again(learns: str) -> None:
    async with group_of() as w:
        master = await w.lead(0)
        await w.put(b"1", due_ms=w.clock.wall_ms() + 1500, topic_id=1)
        if learns == "all of it":
            await learn(master, made_anew(w), *MADE)
        elif learns == "what is made again":
            await learn(master, made_anew(w, T))
        snapshot = made_anew(w, T, groups=[G])
        await fail_over(w)
        await learn(w.members[1], snapshot)
        assert await got(w) == [b"1"]


async def test_a_restart_knows_what_is_of_the_state_that_was_lost() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await w.put(b"1", topic_id=1)
        await learn(master, made_anew(w))
        await master.kill()
        made_anew(w, T, groups=[G])
        await master.start()
        await w.lead(0)
        assert await got(w) == [b"1"]
        assert master.alive.core.topic_registry.topic_ids["t"] == T.id


async def test_what_is_deleted_by_the_new_state_is_gone() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await w.put(b"1", topic_id=1)
        await w.put(b"2", due_ms=w.clock.wall_ms() + 1500, topic_id=1)
        await learn(master, made_anew(w), *MADE)
        await learn(master, ClusterUpdate(version=ANEW + 3, deleted_topics=["t"]))
        await learn(master, ClusterUpdate(version=ANEW + 4, topics=[Topic(name="t", queues=2, id=ANEW + 4)]))
        await until(lambda: master.alive.core.timer.state.pending.total == 0)
        assert sorted(await w.pop()) == []


@pytest.mark.parametrize("is_placed", [False, True])
async def test_a_proxy_that_has_not_learned_of_the_new_state_is_to_try_again(is_placed: bool) -> None:
    """By its id, of a later version of the state that was lost, the topic looked deleted and made anew."""
    async with group_of(1) as w:
        master = await w.lead(0)
        old = 9 * VERSIONS_PER_STORE + 40
        await learn(master, ClusterUpdate(version=old, topics=[Topic(name="t", queues=2, id=old)]))
        await w.put(b"1", topic_id=old)
        await learn(master, made_anew(w), *(MADE if is_placed else ()))
        assert (await w.put(b"late", topic_id=old)).code == Code.TOPIC_NOT_FOUND
        assert (await w.put(b"later", topic_id=old + 1)).code == Code.TOPIC_NOT_FOUND
        if not is_placed:
            await learn(master, *MADE)
        assert (await w.put(b"2", topic_id=T.id)).code == Code.OK
        assert await got(w) == [b"1", b"2"]


async def test_a_proxy_that_has_learned_of_the_new_state_first_is_to_try_again() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await w.put(b"1", topic_id=1)
        assert (await w.put(b"2", topic_id=T.id)).code == Code.TOPIC_NOT_FOUND
        await learn(master, made_anew(w, T, groups=[G]))
        assert (await w.put(b"2", topic_id=T.id)).code == Code.OK
        assert await got(w) == [b"1", b"2"]


@pytest.mark.parametrize("again", [False, True])
async def test_what_waits_for_the_device_meanwhile_is_accepted(again: bool) -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        master.disk.hold_syncs()
        put = asyncio.create_task(w.put(b"1", topic_id=1, again=again))
        await master.disk.until_stored()
        master.alive.view.apply(made_anew(w, T, groups=[G]))
        master.alive.core.cluster_changes.apply()
        master.disk.release_syncs()
        assert (await put).code == Code.OK
        assert await got(w) == [b"1"]


async def test_a_second_try_of_what_is_delayed_finds_the_first_one() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        due_ms = w.clock.wall_ms() + 3_600_000
        await w.put(b"1", due_ms=due_ms, topic_id=1)
        await learn(master, made_anew(w, T, groups=[G]))
        assert (await w.put(b"1", due_ms=due_ms, topic_id=T.id, again=True)).code == Code.OK
        assert master.alive.core.timer.state.pending.total == 1


async def test_a_new_master_that_learns_of_the_lost_state_asks_again() -> None:
    """What was deleted and made again in the new state is not taken for what was there before."""
    async with group_of() as w:
        master = await w.lead(0)
        await w.in_sync(0, 1)
        renewed = made_anew(w, T, groups=[G])
        await learn(master, renewed)
        await w.put(b"1", topic_id=T.id)
        await learn(master, ClusterUpdate(version=ANEW + 3, deleted_topics=["t"]))
        again = Topic(name="t", queues=2, id=ANEW + 4)
        await learn(master, ClusterUpdate(version=ANEW + 4, topics=[again]))
        made_anew(w, again, groups=[G]).version = w.snapshot.named = ANEW + 4
        await fail_over(w)
        await w.put(b"2", topic_id=again.id)
        assert await got(w) == [b"2"]


def behind_a_lost_state(deleted: bool) -> World:
    """A master that begins with the word of a state that was lost since; its log is of the state that was made anew."""
    world = World()
    world.add_topic("t")
    world.put("t", b"1")
    if deleted:  # after what it has folded: a slave settles nothing
        world.core.cluster_changed(ClusterUpdate(version=9 * VERSIONS_PER_STORE, deleted_topics=["t"]))
    world.core.cluster_changes._record_names(Names(applied_version=ANEW))
    world.core.cluster_changes._record_names(Names({"t": T.id}, applied_version=T.id))
    world.put("t", b"2")
    return world


def test_a_new_master_that_has_learned_of_the_lost_state_only_goes_by_its_log() -> None:
    """It took the lost state for the later one, as it was another one than its log's."""
    world = behind_a_lost_state(deleted=False)
    world.crash("process")
    names = world.core.topic_registry
    world.core.cluster_changes.apply()
    assert names.topic_ids["t"] == T.id
    assert names.has_pending_changes
    world.learn(made_anew_for(T))
    world.core.cluster_changes.apply()
    assert names.topic_ids["t"] == T.id
    assert not names.has_pending_changes
    assert world.bodies(world.pop("g", "t")) == [b"1", b"2"]


@pytest.mark.parametrize("learns_of_it", [True, False])
def test_a_deletion_that_the_lost_state_reported_of_deletes_nothing_that_was_made_again(learns_of_it: bool) -> None:
    world = behind_a_lost_state(deleted=True)
    world.learn(made_anew_for(*[T] if learns_of_it else []))
    world.core.cluster_changes.apply()
    assert len(world.held("t")) == 2
