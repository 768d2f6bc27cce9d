"""Controllers that have lost their state, and count from the beginning again, cost no message (S1, P1)."""

import asyncio

import pytest

from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Group, Topic
from tests.unit.broker.group_world import GroupWorld, Member, group_of, until
from tests.unit.broker.test_stale_view import hear

T50 = Topic(name="t", queues=2, id=50)
G51 = Group(name="g", max_attempts=3, id=51)


def made_anew(w: GroupWorld, *topics: Topic, version: int = 0) -> ClusterUpdate:
    """Controllers with an empty store draw another key; who asks them from now on hears this."""
    w.snapshot = ClusterUpdate(
        version=version, snapshot=True, cluster=Cluster(name="test", receipt_key=b"another key" * 3), topics=topics
    )
    return w.snapshot


async def fail_over(w: GroupWorld) -> Member:
    await w.in_sync(0, 1)
    await w.members[0].kill()
    return await w.lead(1)


@pytest.mark.parametrize("known", [1, 7])
async def test_a_topic_and_a_group_that_are_made_again_go_on_where_they_were(known: int) -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await hear(master, ClusterUpdate(version=known, topics=[Topic(name="t", queues=2, id=known)]))
        await w.put(b"1", b"2", topic_id=known)
        await w.ack(*(await w.pop(1)).values())
        await hear(master, made_anew(w))
        await hear(master, ClusterUpdate(version=50, topics=[T50]), ClusterUpdate(version=51, groups=[G51]))
        assert (await w.put(b"3", topic_id=50)).code == Code.OK
        assert sorted(await w.pop()) == [b"2", b"3"]


@pytest.mark.parametrize("hears", ["all of it", "the end of it", "what is made again"])
async def test_what_is_delayed_fires_in_the_topic_that_is_made_again(hears: str) -> None:
    async with group_of() as w:
        master = await w.lead(0)
        await w.put(b"1", due_ms=w.clock.wall_ms() + 1500, topic_id=1)
        if hears == "all of it":
            await hear(master, made_anew(w))
            await hear(master, ClusterUpdate(version=50, topics=[T50]))
        elif hears == "what is made again":
            await hear(master, made_anew(w, T50, version=50))
        snapshot = made_anew(w, T50, version=50)
        snapshot.groups.append(G51)
        await fail_over(w)
        await hear(w.members[1], snapshot)
        got: list[bytes] = []
        async with asyncio.timeout(10):
            while not got:
                await asyncio.sleep(0.1)
                got += await w.pop()
        assert got == [b"1"]


async def test_a_restart_knows_what_is_of_the_state_that_was_lost() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await w.put(b"1", topic_id=1)
        await hear(master, made_anew(w))
        await master.kill()
        made_anew(w, T50, version=50).groups.append(G51)
        await master.start()
        await w.lead(0)
        assert sorted(await w.pop()) == [b"1"]
        assert master.alive.core.names.topic_ids["t"] == 50


async def test_what_is_deleted_by_the_new_state_is_gone() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await w.put(b"1", topic_id=1)
        await w.put(b"2", due_ms=w.clock.wall_ms() + 1500, topic_id=1)
        await hear(master, made_anew(w, T50, version=50))
        await hear(master, ClusterUpdate(version=51, deleted_topics=["t"]))
        await hear(master, ClusterUpdate(version=52, topics=[Topic(name="t", queues=2, id=52)], groups=[G51]))
        await until(lambda: master.alive.core.timer.state.pending.total == 0)
        assert sorted(await w.pop()) == []
