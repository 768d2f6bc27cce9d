"""A topic that is deleted and made again is another one: what was sent to either is not mixed with the other, whoever
learns of it first, the broker or the proxy that sends (S1, P4).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.log.refusals import disk_full
from popwheel_broker.log.timer_record import TIMER_QUEUE, TIMER_TOPIC, decode_delay
from popwheel_broker.topics.topic_registry import Names
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.names import revive_topic
from popwheel_common.contract.put import MessageRun, PutKind, PutResult
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, Cluster, ClusterUpdate, Topic, WatchRequest
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Service, Stream
from tests.harness import names_in_log
from tests.harness.memory_disk import CrashKind
from tests.unit.broker.group_world import GroupWorld, damage, group_of, until
from tests.unit.broker.test_stale_view import fail_over, learn
from tests.unit.broker.world import KEY, World, wire_message

GONE = ClusterUpdate(version=2, deleted_topics=["t"])
ANEW = ClusterUpdate(version=3, topics=[Topic(name="t", queues=2, id=3)])
HOUR_MS = 3_600_000


def run_of(body: bytes, topic_id: int) -> MessageRun:
    payload, properties = wire_message("t", body)
    return MessageRun("t", 0, [payload], [properties], [""], topic_id=topic_id)


async def pending(w: GroupWorld) -> int:
    return (await w.channel.call(methods.TIMER_STATS, pb.TimerStatsRequest())).pending


async def fail_over_without_controller(w: GroupWorld) -> None:
    """The new master can't ask what there is now."""
    w.members[1].alive.controller_watch.renew = lambda: None  # type: ignore[method-assign]
    await fail_over(w)


async def test_what_is_put_into_a_topic_that_was_made_anew_is_kept_by_a_broker_that_learns_of_it_later() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await w.put(b"old", topic_id=1)
        assert (await w.put(b"new", topic_id=3)).code == Code.OK
        assert sorted(await w.pop()) == [b"new"]
        await w.put(b"newer", topic_id=3)
        await learn(master, GONE, ANEW)
        assert sorted(await w.pop()) == [b"newer"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_another_replica_and_another_process_know_the_topic_by_the_log(restarts: bool) -> None:
    async with group_of(1 if restarts else 2) as w:
        master = await w.lead(0)
        await w.put(b"old", topic_id=1)
        await w.put(b"new", topic_id=3)
        if restarts:
            await master.kill()
            await master.start()
            await w.lead(0)
        else:
            await fail_over(w)
            master = w.members[1]
        assert master.alive.core.topic_registry.topic_ids["t"] == 3
        assert (await w.put(b"late", topic_id=2)).code == Code.TOPIC_NOT_FOUND
        await learn(master, GONE, ANEW)
        assert sorted(await w.pop()) == [b"new"]


async def test_a_delayed_message_that_came_before_its_broker_had_learned_of_the_topic_goes_with_it() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await learn(master, GONE)
        due_ms = w.clock.wall_ms() + 1500
        assert (await w.put(b"1", due_ms=due_ms, topic_id=3)).code == Code.OK
        await learn(master, ANEW)
        again = Topic(name="t", queues=2, id=5)
        await learn(master, ClusterUpdate(version=4, deleted_topics=["t"]), ClusterUpdate(version=5, topics=[again]))
        await until(lambda: master.alive.core.timer.state.pending.total == 0)
        assert sorted(await w.pop()) == []


async def test_a_put_for_a_topic_that_was_deleted_is_refused_and_what_comes_with_it_is_not() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        await learn(master, GONE)
        assert (await w.put(b"1", topic_id=1)).code == Code.TOPIC_NOT_FOUND
        assert (await w.put(b"1", topic_id=1, again=True)).code == Code.TOPIC_NOT_FOUND
        await learn(master, ANEW)
        end = master.end
        assert (await w.put(b"1", topic_id=1)).code == Code.TOPIC_NOT_FOUND
        assert (await w.put(b"1", topic_id=1, due_ms=w.clock.wall_ms() + HOUR_MS)).code == Code.TOPIC_NOT_FOUND
        assert master.end == end
        runs = [run_of(b"%d" % topic_id, topic_id) for topic_id in (1, 3, 2)]
        results = await w.channel.call(methods.PUT, runs)
        assert [result.code for result in results] == [Code.TOPIC_NOT_FOUND, Code.OK, Code.TOPIC_NOT_FOUND]
        assert sorted(await w.pop()) == [b"3"]


@pytest.mark.parametrize("is_delayed", [False, True])
async def test_what_is_forgotten_before_it_is_durable_is_refused(is_delayed: bool) -> None:
    async with group_of() as w:
        master = await w.lead(0)
        await w.in_sync(0, 1)
        await w.members[1].kill()
        end = master.end
        due_ms = w.clock.wall_ms() + HOUR_MS if is_delayed else 0
        puts = [asyncio.create_task(w.put(b"1", topic_id=1, due_ms=due_ms))]
        await until(lambda: master.end > end)
        await learn(master, GONE, ANEW)
        puts.append(asyncio.create_task(w.put(b"1", topic_id=3, due_ms=due_ms)))
        assert [(await put).code for put in puts] == [Code.TOPIC_NOT_FOUND, Code.OK]


async def test_what_is_refused_for_a_topic_that_goes_meanwhile_is_not_stored_behind_its_end() -> None:
    """Delayed messages are refused, and what came with them is appended before that is on the device."""
    async with group_of(1) as w:
        master = await w.lead(0)
        await w.put(b"old", topic_id=1)
        app, waits, goes_on = master.alive, asyncio.Event(), asyncio.Event()
        sync_refused = app.leader.flusher.sync_refused

        def refuse(runs: Sequence[MessageRun], refusals: list[StatusError]) -> list[PutResult]:
            raise disk_full()

        async def keep_slowly(error: StatusError) -> None:
            waits.set()
            await goes_on.wait()
            await sync_refused(error)

        app.leader.server._put_handler._writers[PutKind.AT_TIME].put = refuse  # type: ignore[method-assign]
        app.leader.flusher.sync_refused = keep_slowly  # type: ignore[method-assign]
        runs = [
            run_of(b"plain", 1),
            replace(run_of(b"late", 1), kind=PutKind.AT_TIME, times_ms=[HOUR_MS]),
        ]
        put = asyncio.create_task(w.channel.call(methods.PUT, runs))
        await waits.wait()
        await learn(master, GONE, ANEW)
        goes_on.set()
        assert [result.code for result in await put] == [Code.TOPIC_NOT_FOUND] * 2
        assert sorted(await w.pop()) == []


async def test_what_waits_for_damage_to_be_mended_is_not_stored_for_a_topic_that_goes_meanwhile() -> None:
    async with group_of(2) as w:
        master = await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"body-1", topic_id=1)
        damage(master, b"body-1")
        putting, waits, goes_on = master.alive.leader.server._put_handler._reads, asyncio.Event(), asyncio.Event()
        repair = putting._repair

        async def repair_slowly(position: int) -> bool:
            waits.set()
            await goes_on.wait()
            return await repair(position)

        putting._repair = repair_slowly
        put = asyncio.create_task(w.put(b"body-2", topic_id=1, again=True))
        await waits.wait()
        await learn(master, GONE, ANEW)
        goes_on.set()
        assert (await put).code == Code.TOPIC_NOT_FOUND
        assert sorted(await w.pop()) == []


async def test_a_topic_is_not_learned_of_by_a_put_before_anything_was_learned_of_the_cluster() -> None:
    """Its name is not known either, and with it where records of topics go."""
    async with group_of(1) as w:
        reports = asyncio.Event()

        async def watch(call: Call, stream: Stream[WatchRequest, ClusterUpdate]) -> None:
            await stream.receive()
            await reports.wait()
            await stream.send([w.snapshot])
            await asyncio.Event().wait()

        master = w.members[0]
        await master.stop()
        w.service = Service()
        w.service.stream(methods.WATCH, watch)
        await master.start()
        w.elect(0)
        await until(lambda: master.alive.role.leader is not None)
        await master.alive.roles.until_leads()
        end = master.end
        with pytest.raises(StatusError) as refused:
            await w.put(b"1", topic_id=1)
        assert (refused.value.code, master.end) == (Code.HA_NOT_AVAILABLE, end)
        reports.set()
        await until(lambda: master.alive.view.ready)
        assert (await w.put(b"1", topic_id=1)).code == Code.OK
        await w.pop()
        assert {queue.topic for queue in master.alive.core.store.queues} == {"t", revive_topic("test")}


async def test_a_try_that_was_stored_before_the_topic_was_made_anew_does_not_count() -> None:
    async with group_of(1) as w:
        master = await w.lead(0)
        due_ms = w.clock.wall_ms() + HOUR_MS
        for topic_id in (1, 3):
            for again in (False, True, True):
                assert (await w.put(b"1", topic_id=topic_id, again=again)).code == Code.OK
                assert (await w.put(b"2", topic_id=topic_id, again=again, due_ms=due_ms)).code == Code.OK
        core = master.alive.core
        timers = core.store.queue(TIMER_TOPIC, TIMER_QUEUE)
        assert timers is not None
        live = [decode_delay(each.origin).topic_id for each in core.store.records.read_many(timers.read(0, 9))]
        queue = core.store.queue("t", 0)
        assert queue is not None
        assert (live, queue.max_offset - queue.min_offset) == ([1, 3], 1)
        assert sorted(await w.pop()) == [b"1"]


async def test_a_topic_is_new_to_who_has_learned_of_later_routes() -> None:
    """Routes are not stored: a controller that begins anew may give an id that is less than the version told before."""
    async with group_of(1) as w:
        master = await w.lead(0)
        await learn(master, ClusterUpdate(version=7, brokers=[BrokerInfo(name="another")], named=1))
        assert (await w.put(b"1", topic="new", topic_id=2)).code == Code.OK


async def test_a_topic_goes_by_the_id_that_all_say_though_the_log_knows_a_larger_one() -> None:
    """A controller that has lost its state counts from the beginning again."""
    async with group_of(1) as w:
        master = await w.lead(0)
        await w.put(b"1", topic_id=9)
        w.snapshot.version = w.snapshot.topics[0].id = 2
        await learn(master, w.snapshot)
        assert (await w.put(b"2", topic_id=2)).code == Code.OK
        for version in (8, 9):  # it has come to where it was, and has told of all up to there
            await learn(master, ClusterUpdate(version=version))
            assert (await w.put(b"%d" % version, topic_id=2)).code == Code.OK
        assert sorted(await w.pop()) == [b"1", b"2", b"8", b"9"]


async def test_a_topic_that_was_deleted_stays_so_at_a_master_that_has_not_learned_of_it() -> None:
    """Its delayed messages, too. What the log tells of the cluster is later than the view, and goes on to be so."""
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"delayed", due_ms=w.clock.wall_ms() + 1500, topic_id=1)
        await learn(w.members[0], GONE)
        await fail_over_without_controller(w)
        master = w.members[1]
        assert (await w.put(b"1", topic_id=1)).code == Code.TOPIC_NOT_FOUND
        await until(lambda: master.alive.core.timer.state.pending.total == 0)
        assert sorted(await w.pop()) == []
        assert (await w.put(b"3", topic_id=3)).code == Code.OK
        await learn(master, GONE, ANEW)
        assert sorted(await w.pop()) == [b"3"]


async def test_what_was_made_and_deleted_unknown_is_not_taken_up_by_a_late_send() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await learn(w.members[0], GONE, ANEW, ClusterUpdate(version=4, deleted_topics=["t"]))
        await fail_over_without_controller(w)
        assert (await w.put(b"3", topic_id=3)).code == Code.TOPIC_NOT_FOUND


async def test_a_controller_that_has_lost_its_state_may_have_a_topic_that_was_deleted() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await learn(w.members[0], GONE)
        await fail_over(w)  # the new master asks anew, and is notified of the first version
        await until(lambda: "t" in w.members[1].alive.core.topic_registry.topic_ids)
        assert (await w.put(b"1", topic_id=1)).code == Code.OK
        assert sorted(await w.pop()) == [b"1"]


async def test_a_send_for_a_topic_that_was_deleted_is_not_mixed_into_the_later_one_by_a_view_that_is_behind() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await learn(w.members[0], GONE, ANEW)
        await w.put(b"3", topic_id=3)
        await fail_over_without_controller(w)
        assert (await w.put(b"1", topic_id=1)).code == Code.TOPIC_NOT_FOUND
        assert (await w.put(b"5", topic_id=5)).code == Code.OK  # by its word; the view comes to 3 only
        await learn(w.members[1], GONE, ANEW)
        assert (await w.put(b"3", topic_id=3)).code == Code.TOPIC_NOT_FOUND
        assert sorted(await w.pop()) == [b"5"]


def test_a_deletion_of_which_a_crash_cut_off_the_end_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.add_topic("t")
    world.put("t", b"1")
    before = ClusterUpdate(version=2, snapshot=True, cluster=Cluster(name="test", receipt_key=KEY))
    before.topics.append(world.view.topics["t"])
    monkeypatch.setattr(world.core.cluster_changes, "forget_topic", lambda topic: None)
    world.delete_topic("t")
    assert world.core.topic_registry.known_version == 3
    world.flush()
    world.saved = None
    world.view = ClusterView()
    world.view.apply(before)
    world.crash("power")
    assert (world.core.topic_registry.known_version, dict(world.core.topic_registry.topic_ids)) == (3, {"t": 1})
    world.learn(ClusterUpdate(version=3, deleted_topics=["t"]))
    world.core.cluster_changes.apply()
    assert (dict(world.core.topic_registry.topic_ids), world.held("t")) == ({}, [])


@pytest.mark.parametrize("made_at", [1, 8])
def test_a_broker_that_was_away_learns_from_a_snapshot_what_was_deleted(made_at: int) -> None:
    """Its data is dropped, but not that of a name that was made after the deletion, nor what nobody knows."""
    world = World()
    for name in ("t", "kept"):
        world.add_topic(name)
        world.put(name, b"1")
    world.add_group("g")
    world.pop("g", "t")
    world.flush()
    names_in_log.record(world.core.topic_registry, Names({"t": made_at}))
    snapshot = ClusterUpdate(version=9, snapshot=True, cluster=Cluster(name="test", receipt_key=KEY))
    snapshot.gone_topics["t"], snapshot.gone_groups["g"] = 7, 8
    world.learn(snapshot)
    world.core.cluster_changes.apply()
    left = {"kept"} if made_at < 7 else {"kept", "t"}
    assert (set(world.core.topic_registry.topic_ids), world.core.topic_registry.knows_group("g")) == (left, False)
    assert [bool(world.held(name)) for name in ("t", "kept")] == [made_at > 7, True]


def world_of_many() -> World:
    """Ten topics and groups, all deleted, that hold a message and progress; and nothing was dealt with yet."""
    world = World()
    many = range(10)
    for number in many:
        world.add_topic(f"t{number}")
        world.add_group(f"g{number}")
        world.put(f"t{number}", b"old")
        assert world.bodies(world.pop(f"g{number}", f"t{number}")) == [b"old"]
    topics, groups = [f"t{each}" for each in many], [f"g{each}" for each in many]
    world.learn(ClusterUpdate(version=50, deleted_topics=topics, deleted_groups=groups))
    return world


def test_many_that_are_deleted_at_once_go_some_at_a_time() -> None:
    world = world_of_many()
    names, buffer = world.core.topic_registry, world.core.state.merge_buffer
    left = []
    while names.can_apply_changes:
        world.core.cluster_changes.apply()
        left.append((len(names.topic_ids), len(names.group_ids), len(world.core.store.queues), buffer.pairs))
    system = len(world.core.store.queues)
    assert [(*each[:2], each[2] - system, each[3]) for each in left] == [(6, 6, 6, 6), (2, 2, 2, 2), (0, 0, 0, 0)]


def test_what_a_call_needs_of_many_that_are_deleted_goes_at_once_and_nothing_else() -> None:
    world = world_of_many()
    world.core.cluster_changes.apply(("t9", "%DLQ%g8"), ("g7",))
    assert [each for each in range(10) if f"t{each}" not in world.core.topic_registry.topic_ids] == [9]
    assert [each for each in range(10) if f"g{each}" not in world.core.topic_registry.group_ids] == [7, 8]
    assert (world.held("t9"), len(world.held("t0"))) == ([], 1)
    assert world.core.topic_registry.can_apply_changes


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_topic_that_is_made_again_is_empty_after_a_crash_in_the_midst_of_many_deletions(is_saved: bool) -> None:
    world = world_of_many()
    world.core.cluster_changes.apply()
    world.flush()
    if is_saved:
        world.save()
    world.crash("process")
    for number in range(10):
        world.learn(ClusterUpdate(version=60 + number, topics=[Topic(name=f"t{number}", queues=1, id=60 + number)]))
        world.core.cluster_changes.apply((f"t{number}",), ("g0",))
        assert (world.held(f"t{number}"), world.pop("g0", f"t{number}")) == ([], [])
    buffer = world.core.state.merge_buffer
    assert [progress.queue.topic for progress in buffer] == []


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_deletion_that_was_dealt_with_outlasts_the_process(is_saved: bool) -> None:
    """By the log, or by the checkpoint that was made of it."""
    world = World()
    world.add_topic("t")
    before = ClusterUpdate(version=2, snapshot=True, cluster=Cluster(name="test", receipt_key=KEY))
    before.topics.append(world.view.topics["t"])
    world.delete_topic("t")
    world.flush()
    if is_saved:
        world.save()
        world.start()  # what is read from the log is what came since
    else:
        world.saved = None
    world.view = ClusterView()
    world.view.apply(before)
    world.crash("power")
    assert dict(world.core.topic_registry.topic_ids) == {}
    world.add_topic("t")
    assert dict(world.core.topic_registry.topic_ids) == {"t": 3}


@pytest.mark.parametrize("after", ["process", "power"])
def test_a_topic_may_be_made_again_before_what_it_stored_is_confirmed(after: CrashKind) -> None:
    def append(body: bytes) -> None:
        world.core.store.put([Record(RecordKind.MESSAGE, "t", 0, *wire_message("t", body))])

    world = World()
    world.add_topic("t")
    world.add_group("g")
    world.put("t", b"1")
    append(b"2")
    world.delete_topic("t")
    world.add_topic("t")
    append(b"3")
    world.save()  # of what is confirmed: the first message
    world.crash(after)
    assert [message.body for message in world.pop("g", "t")] == [b"3"]
