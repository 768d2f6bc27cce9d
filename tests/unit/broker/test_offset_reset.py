"""A group is set back or forward: it gets what stands there and behind as if it had never read it, and nothing else."""

import pytest

from popwheel_broker.core import cluster_changes, offset_reset
from popwheel_broker.core.offset_reset import ResetPlan
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from tests.unit.broker.core_world import world_of
from tests.unit.broker.world import FOLDER, INVISIBLE_MS, World, handles


def reset(world: World, offset: int, group: str = "g") -> ResetPlan:
    plan = world.core.offset_reset.plan(group, "t", {world.core.store.queues["t", 0]: offset})
    world.carry_out(plan)
    world.flush()
    return plan


def world_with(count: int) -> World:
    world = world_of()
    for number in range(count):
        world.put("t", b"%d" % number)
    return world


@pytest.mark.parametrize("crashes", [False, True])
def test_what_was_acknowledged_comes_again(crashes: bool) -> None:
    world = world_with(3)
    assert set(world.ack("g", "t", *handles(world.pop("g", "t")))) == {Code.OK}
    assert world.pop("g", "t") == []
    reset(world, 1)
    if crashes:
        world.save()
        world.crash("process")
    assert world.bodies(world.pop("g", "t")) == [b"1", b"2"]


@pytest.mark.parametrize("crashes", [False, True])
def test_what_is_delivered_is_revoked(crashes: bool) -> None:
    world = world_with(3)
    given = world.pop("g", "t")
    assert reset(world, 2).in_flight == 3
    if crashes:
        world.crash("process")
    assert world.ack("g", "t", *handles(given)) == [Code.INVALID_RECEIPT_HANDLE] * 3
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 0
    assert world.bodies(world.pop("g", "t")) == [b"2"]


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("ends", ["reset", "expiry", "deleted topic"])
def test_what_was_revoked_is_acknowledged_by_no_second_try(ends: str, crashes: bool) -> None:
    """The log tells what a client was done with from what left its delivery otherwise (P7, S6)."""
    world = world_with(2)
    given = handles(world.pop("g", "t"))
    if ends == "reset":
        reset(world, 0)
    elif ends == "expiry":
        world.clock.advance(INVISIBLE_MS)
        assert world.revive() == 2
    else:
        world.core.cluster_changes.forget_topic("t")
        world.clock.advance(INVISIBLE_MS)
        world.revive()
    world.flush()
    if crashes:
        world.crash("process")
    refused = world.core.acks.ack("g", "t", given, call=7, is_retry=True)
    assert [each.code for each in refused] == [Code.INVALID_RECEIPT_HANDLE] * 2
    with pytest.raises(StatusError, match="receipt handle"):
        world.core.acks.dead_letter("g", "t", given[0], call=7, is_retry=True)


def test_what_waits_to_be_tried_again_is_passed_over() -> None:
    world = world_with(2)
    world.pop("g", "t")
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 2
    world.flush()
    assert len(world.held(names.retry_topic("g", "t"))) == 2
    reset(world, 2)
    assert world.pop("g", "t") == []
    reset(world, 0)
    assert world.bodies(world.pop("g", "t")) == [b"0", b"1"]


def test_so_is_what_waits_there_and_can_not_be_read_yet() -> None:
    world = world_with(1)
    (given,) = handles(world.pop("g", "t"))
    world.core.acks.release("g", "t", [given], True)
    reset(world, 0)
    assert world.bodies(world.pop("g", "t")) == [b"0"]
    assert world.pop("g", "t") == []


def test_a_queue_that_stands_still_at_damage_goes_on_behind_it() -> None:
    world = world_with(3)
    entry = world.core.store.queues["t", 0].read(0, 1)[0]
    world.disk.flip_bit(FOLDER / "commitlog" / f"{0:020}.log", 8 * (entry.position + 80))
    with pytest.raises(StatusError, match="stands still at a damaged record"):
        world.pop("g", "t")
    reset(world, 1)
    assert world.bodies(world.pop("g", "t")) == [b"1", b"2"]


def test_another_group_and_another_topic_go_on_as_they_were() -> None:
    world = world_with(2)
    world.add_group("h", 3)
    world.add_topic("u", 1)
    world.put("u", b"of u")
    of_another_topic = world.pop("g", "u")
    of_another_group = world.pop("h", "t")
    reset(world, 0)
    assert world.ack("g", "u", *handles(of_another_topic)) == [Code.OK]
    assert world.ack("h", "t", *handles(of_another_group)) == [Code.OK] * 2


def test_a_group_that_has_read_nothing_may_begin_at_the_end() -> None:
    world = world_with(3)
    world.add_group("new", 3)
    reset(world, 3, "new")
    assert world.pop("new", "t") == []
    world.put("t", b"later")
    assert world.bodies(world.pop("new", "t")) == [b"later"]


def test_nothing_changes_where_there_is_no_room_for_more_progress() -> None:
    world = world_of(progress_max=16)
    world.put("t", b"1")
    for number in range(15):
        world.add_group(f"new{number}", 3)
        reset(world, 1, f"new{number}")
    world.add_group("last", 3)
    with pytest.raises(StatusError, match=r"broker\.pop\.progress_max") as refused:
        reset(world, 1, "last")
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    assert world.bodies(world.pop("new0", "t")) == []
    assert world.core.state.merge_buffer.get("last", world.core.store.queues["t", 0]) is None


def test_nothing_changes_on_a_full_disk() -> None:
    world = world_with(2)
    given = world.pop("g", "t")
    world.flush()
    world.disk.fill(10)
    with pytest.raises(StatusError):
        reset(world, 0)
    world.disk.fill(1 << 30)
    assert world.ack("g", "t", *handles(given)) == [Code.OK] * 2
    assert world.pop("g", "t") == []


@pytest.fixture
def much_delivered(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which 70 deliveries are many: 40 go at once, and 20 by a step."""
    for module in (offset_reset, cluster_changes):
        monkeypatch.setattr(module, "_AT_ONCE_MAX", 40)
        monkeypatch.setattr(module, "_STEP", 20)
    return world_with(70)


def delivered(world: World) -> list[str]:
    return [handle for _ in range(70) for handle in handles(world.pop("g", "t", 1))]


def test_what_is_delivered_at_large_is_revoked_some_at_a_time_and_is_nobodys_at_once(much_delivered: World) -> None:
    world = much_delivered
    shown = delivered(world)
    core = world.core
    plan = core.offset_reset.plan("g", "t", {core.store.queues["t", 0]: 60})
    core.offset_reset.begin(plan)
    assert len(core.state.table) == 70, "not by one write"
    assert world.ack("g", "t", shown[0]) == [Code.INVALID_RECEIPT_HANDLE]
    with pytest.raises(StatusError, match="not valid any more"):
        core.acks.change_invisible("g", "t", shown[1], 1000)
    with pytest.raises(StatusError, match="is under way"):
        core.offset_reset.begin(core.offset_reset.plan("g", "t", {}))
    assert (world.pop("g", "t"), core.pops.waiting("g", "t", None)) == ([], 0)
    world.clock.advance(INVISIBLE_MS)
    core.acks.redeliver([(core.state.table.of_group("g")[0], 0)], attempted=True)
    assert len(core.state.table) == 69
    assert core.store.queue(names.retry_topic("g", "t"), 0) is None, "nothing of it comes again"
    steps = 1
    while core.offset_reset.revoke_some(plan):
        steps += 1
    core.offset_reset.end(plan)
    assert (len(core.state.table), steps) == (0, 4)
    world.crash("process")
    assert len(world.core.state.table) == 0
    assert world.bodies(world.pop("g", "t")) == [b"%d" % number for number in range(60, 70)]


@pytest.mark.parametrize("crashes", [False, True])
def test_one_that_is_cut_off_leaves_the_rest_to_come_again(much_delivered: World, crashes: bool) -> None:
    world = much_delivered
    shown = delivered(world)
    core = world.core
    plan = core.offset_reset.plan("g", "t", {core.store.queues["t", 0]: 70})
    core.offset_reset.begin(plan)
    core.offset_reset.revoke_some(plan)
    if crashes:
        world.flush()
        world.crash("process")
    else:
        core.offset_reset.end(plan)
    assert len(world.core.state.table) == 50
    assert world.ack("g", "t", shown[0]) == [Code.OK]
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 49
    reset(world, 70)
    assert world.pop("g", "t") == []


@pytest.mark.parametrize("crashes", [False, True])
def test_a_group_goes_some_at_a_time_with_what_is_delivered_to_it(much_delivered: World, crashes: bool) -> None:
    world = much_delivered
    delivered(world)
    world.delete_group("g")
    assert len(world.core.state.table) == 50
    with pytest.raises(StatusError, match=r"are being (revoked|dropped)"):
        world.core.cluster_changes.apply(("t",), ("g",))
    if crashes:
        world.flush()
        world.crash("process")
    world.add_group("g", 3)
    while world.core.topic_registry.can_apply_changes:
        world.core.cluster_changes.apply()
    assert len(world.core.state.table) == 0
    world.flush()
    assert len(world.pop("g", "t")) == 32
    assert world.revive() == 0


def reset_one(world: World, queue_id: int, offset: int) -> ResetPlan:
    plan = world.core.offset_reset.plan("g", "t", {world.core.store.queues["t", queue_id]: offset}, queue_id)
    world.carry_out(plan)
    world.flush()
    return plan


def world_with_queues(fifo: bool = False) -> World:
    """A topic with two queues, and two messages in each."""
    world = world_of(queues=2)
    world.add_group("g", 3, fifo=fifo)
    for queue_id in (0, 0, 1, 1):
        world.put("t", b"of %d" % queue_id, queue_id=queue_id)
    return world


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("fifo", [False, True])
def test_one_queue_alone_is_reset_and_what_is_delivered_of_it_revoked(fifo: bool, crashes: bool) -> None:
    world = world_with_queues(fifo)
    given = {0: list[str](), 1: list[str]()}
    while messages := world.pop("g", "t"):
        for message, handle in zip(messages, handles(messages), strict=True):
            given[int(world.bodies([message])[0].split()[1])].append(handle)
    assert reset_one(world, 0, 1).in_flight == 2
    if crashes:
        world.crash("process")
    assert world.ack("g", "t", *given[0]) == [Code.INVALID_RECEIPT_HANDLE] * 2
    assert world.ack("g", "t", *given[1]) == [Code.OK] * 2
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    assert world.bodies(world.pop("g", "t")) == [b"of 0"]
    assert world.pop("g", "t") == []


@pytest.mark.parametrize("crashes", [False, True])
def test_retries_stay_where_one_queue_alone_is_reset(crashes: bool) -> None:
    world = world_with_queues()
    while world.pop("g", "t"):
        pass
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 4
    world.flush()
    plan = reset_one(world, 0, 2)
    assert (plan.in_flight, plan.retries, len(plan.retries_kept)) == (0, (), 1)
    if crashes:
        world.crash("process")
    again: list[bytes] = []
    while messages := world.pop("g", "t"):
        again += world.bodies(messages)
    assert sorted(again) == [b"of 0", b"of 0", b"of 1", b"of 1"]


def test_while_one_queue_is_revoked_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_reset, "_AT_ONCE_MAX", 0)
    world = world_with_queues()
    by_queue = {0: list[str](), 1: list[str]()}
    while messages := world.pop("g", "t"):
        for message, handle in zip(messages, handles(messages), strict=True):
            by_queue[int(world.bodies([message])[0].split()[1])].append(handle)
    core = world.core
    plan = core.offset_reset.plan("g", "t", {core.store.queues["t", 0]: 0}, 0)
    core.offset_reset.begin(plan)
    assert world.ack("g", "t", by_queue[0][0]) == [Code.INVALID_RECEIPT_HANDLE]
    assert world.ack("g", "t", by_queue[1][0]) == [Code.OK]
    while core.offset_reset.revoke_some(plan):
        pass
    core.offset_reset.end(plan)
    assert world.ack("g", "t", by_queue[1][1]) == [Code.OK]


def test_one_level_of_a_priority_topic_is_reset() -> None:
    world = world_of()
    world.add_topic("t", 2, kind=TopicType.PRIORITY)
    for queue_id in (0, 0, 1, 1):
        world.put("t", b"of %d" % queue_id, queue_id=queue_id)
    while world.pop("g", "t"):
        pass
    assert reset_one(world, 1, 1).in_flight == 2
    assert world.bodies(world.pop("g", "t")) == [b"of 1"]
