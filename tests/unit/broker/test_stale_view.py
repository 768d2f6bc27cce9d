"""A view of the cluster that is behind what the log tells of it: nothing is taken for deleted that is younger (S1, P1).

The view comes from the controller, the log from the master before; a new master may have heard less than that one had.
"""

from collections.abc import Sequence

from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic
from popwheel_rpc import methods
from tests.unit.broker.group_world import GroupWorld, Member, group_of, until
from tests.unit.broker.world import World

T3 = ClusterUpdate(version=3, topics=[Topic(name="t", queues=2, id=3)])
G5 = ClusterUpdate(version=5, groups=[Group(name="g", max_attempts=3, id=5)])


async def learn(member: Member, *updates: ClusterUpdate) -> None:
    """One replica learns of the cluster, and a master has settled it."""
    for update in updates:
        member.alive.view.apply(update)
    await until(lambda: member.alive.role.leader is None or not member.alive.core.topic_registry.has_pending_changes)


async def fail_over(w: GroupWorld) -> None:
    await w.in_sync(0, 1)
    await w.members[0].kill()
    await w.lead(1)


async def pop_as(w: GroupWorld, group: str, invisible_ms: int) -> Sequence[bytes]:
    request = pb.PopRequest(group=group, topic="t", queue_id=-1, max_messages=9, invisible_ms=invisible_ms)
    return list((await w.channel.call(methods.POP, request)).messages)


async def test_a_topic_that_was_made_anew_keeps_its_messages_at_a_master_that_has_not_learned_of_it() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await learn(w.members[0], ClusterUpdate(version=2, deleted_topics=["t"]), T3)
        await w.put(b"1", b"2")
        await fail_over(w)
        assert sorted(await w.pop(1)) == [b"1"]
        await learn(w.members[1], T3)
        assert sorted(await w.pop(1)) == [b"2"]


async def test_the_deletion_before_a_topic_was_made_anew_is_learned_late() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await learn(w.members[0], ClusterUpdate(version=2, deleted_topics=["t"]), T3)
        await w.put(b"1")
        await fail_over(w)
        await learn(w.members[1], ClusterUpdate(version=2, deleted_topics=["t"]))
        await learn(w.members[1], T3)
        assert sorted(await w.pop()) == [b"1"]


async def test_a_group_that_was_made_anew_keeps_its_progress_at_a_master_that_has_not_learned_of_it() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await learn(w.members[0], ClusterUpdate(version=4, deleted_groups=["g"]), G5)
        await w.put(b"1", b"2")
        await w.ack(*(await w.pop(1)).values())
        await fail_over(w)
        assert sorted(await w.pop()) == [b"2"]
        await learn(w.members[1], ClusterUpdate(version=4, deleted_groups=["g"]))
        await learn(w.members[1], G5)
        assert sorted(await w.pop()) == []


async def test_what_was_given_to_a_group_comes_again_though_the_new_master_has_not_learned_of_the_group() -> None:
    async with group_of() as w:
        new = ClusterUpdate(version=2, groups=[Group(name="new", max_attempts=1, id=2)])
        await w.lead(0)
        await w.in_sync(0, 1)
        await learn(w.members[0], new)
        await w.put(b"1", b"2")
        assert len(await pop_as(w, "new", 100)) == 2
        await fail_over(w)
        await until(lambda: w.members[1].alive.core.state.table.open_messages == 0)
        await learn(w.members[1], new)
        assert len(await pop_as(w, "new", 60_000)) == 2


async def test_a_master_whose_view_is_behind_its_log_asks_for_the_whole_state() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await learn(w.members[0], ClusterUpdate(version=2, deleted_topics=["t"]), T3)
        await w.put(b"1")
        w.snapshot.version = 7  # and no word of it comes by the stream that is there
        w.snapshot.topics[0].id = 3
        await fail_over(w)
        await until(lambda: w.members[1].alive.view.version == 7, 0.5)
        assert w.members[1].alive.view.topics["t"].id == 3
        assert sorted(await w.pop()) == [b"1"]


async def test_a_slave_forgets_deletions_that_are_dealt_with() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        gone = ClusterUpdate(version=2, deleted_topics=["t", "later"], deleted_groups=["g"])
        for member in w.members:
            await learn(member, gone)
        await w.in_sync(0, 1)
        slave = w.members[1].alive
        await until(lambda: not slave.core.topic_registry.topic_ids)
        await learn(w.members[1], T3)
        assert not slave.core.topic_registry._topics.deleted and not slave.core.topic_registry._groups.deleted


async def test_a_slave_deletes_what_its_master_had_no_time_to() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"1")
        await learn(w.members[1], ClusterUpdate(version=2, deleted_topics=["t"]))
        await fail_over(w)
        await learn(w.members[1], T3)
        assert sorted(await w.pop()) == []


def test_a_controller_that_has_lost_its_state_and_makes_topics_and_groups_again_costs_nothing() -> None:
    world = World()
    world.add_topic("t")
    world.add_group("g")
    world.put("t", b"1")
    world.put("t", b"2")
    world.pop("g", "t", 1)
    before = dict(world.core.topic_registry.topic_ids), dict(world.core.topic_registry.group_ids)
    world.view.topics["t"].id = world.view.groups["g"].id = 1
    world.core.cluster_changed(ClusterUpdate(version=1))
    world.core.cluster_changes.apply()
    assert (dict(world.core.topic_registry.topic_ids), dict(world.core.topic_registry.group_ids)) == before
    assert world.bodies(world.pop("g", "t")) == [b"2"]
