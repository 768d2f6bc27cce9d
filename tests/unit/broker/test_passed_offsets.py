"""Messages that a group passes without a delivery: the log says so soon, so no other master reads them again (S6)."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.consume import progress_record
from popwheel_broker.consume.delivery import OffsetCommit
from popwheel_broker.consume.merge_buffer import pair_of
from popwheel_broker.consume.progress_record import PassedOffsets
from popwheel_broker.core import core
from popwheel_broker.log.record import RecordKind
from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.unit.broker.group_world import group_of, until
from tests.unit.broker.world import World

NAMES = st.text(min_size=1, max_size=40)
OFFSETS = st.integers(0, (1 << 64) - 1)


def world_with(*bodies: bytes) -> World:
    world = World()
    world.add_topic("t", 2)
    world.add_group("g")
    for body in bodies:
        world.put("t", body)
    return world


def record(world: World) -> None:
    deque(world.core.record_progress(), 0)


def records_of(world: World) -> list[list[PassedOffsets]]:
    found = world.held(world.core.revive_topic)
    return [list(progress_record.decode(each.payload)) for _, each in found if each.kind == RecordKind.PROGRESS]


@given(st.dictionaries(st.tuples(NAMES, NAMES, st.integers(0, 65_535)), st.tuples(OFFSETS, OFFSETS), max_size=30))
def test_offsets_come_back_as_they_were_recorded(offsets: dict[tuple[str, str, int], tuple[int, int]]) -> None:
    passed = [PassedOffsets(*pair, *values) for pair, values in offsets.items()]
    assert sorted(progress_record.decode(progress_record.encode(passed))) == sorted(passed)


def test_what_a_filter_passes_is_recorded_once() -> None:
    world = world_with(b"a", b"b", b"c")
    assert world.pop("g", "t", expression="nobody-has-it") == []
    before = world.progress()
    assert records_of(world) == []
    record(world)
    record(world)
    assert records_of(world) == [[PassedOffsets("g", "t", 0, 3, 3)]]
    world.crash("process")
    assert world.progress() == before
    assert world.core.state.merge_buffer.unrecorded == 0


def test_a_delivery_that_says_the_same_is_enough() -> None:
    world = world_with(b"a")
    world.pop("g", "t", expression="nobody-has-it")
    world.put("t", b"b")
    assert len(world.pop("g", "t")) == 1
    record(world)
    assert records_of(world) == []


def test_messages_that_are_in_flight_are_left_to_revive() -> None:
    world = world_with(b"a")
    assert len(world.pop("g", "t")) == 1
    world.put("t", b"b")
    assert world.pop("g", "t", expression="nobody-has-it") == []
    record(world)
    assert records_of(world) == [[PassedOffsets("g", "t", 0, 2, 2)]]
    world.crash("process")
    world.clock.advance(3_600_000)
    assert world.revive() == 1


@pytest.mark.parametrize("is_reset", [True, False])
def test_an_offset_that_is_set_by_hand_before_the_record_counts(is_reset: bool) -> None:
    world = world_with(b"a", b"b", b"c")
    world.pop("g", "t", expression="nobody-has-it")
    queue = world.core.store.queue("t", 0)
    assert queue is not None
    if is_reset:
        world.carry_out(world.core.offset_reset.plan("g", "t", {queue: 1}))
    else:
        world.core.commit_offset(OffsetCommit("g", "t", 0, 1))
    before = world.progress()
    record(world)
    assert world.progress() == before
    world.crash("process")
    assert world.progress() == before
    committed, _ = pair_of(before["g", "t", 0])
    assert committed == 1


def test_nothing_is_recorded_of_a_group_or_topic_that_is_deleted() -> None:
    world = world_with(b"a")
    world.pop("g", "t", expression="nobody-has-it")
    world.delete_group("g")
    record(world)
    world.add_group("g")
    world.pop("g", "t", expression="nobody-has-it")
    world.delete_topic("t")
    record(world)
    assert records_of(world) == []
    assert world.core.state.merge_buffer.unrecorded == 0


def test_on_a_full_disk_it_is_recorded_later() -> None:
    world = world_with(b"a")
    world.pop("g", "t", expression="nobody-has-it")
    world.disk.fill(10)
    with pytest.raises(StatusError):
        record(world)
    assert world.core.state.merge_buffer.unrecorded == 1
    world.disk.fill(1 << 30)
    record(world)
    assert len(records_of(world)) == 1


def test_many_are_recorded_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "_PASSED_AT_ONCE", 4)
    world = world_with(b"a")
    for number in range(10):
        world.add_group(f"g{number}")
        world.pop(f"g{number}", "t", expression="nobody-has-it")
    record(world)
    assert [len(each) for each in records_of(world)] == [4, 4, 2]


def test_a_new_master_goes_on_where_filters_had_let_the_old_one_pass() -> None:
    clock = ManualClock()

    async def story() -> None:
        async with group_of(clock=clock) as world:
            await world.lead(0)
            await world.in_sync(0, 1)
            await world.put(b"a", b"b", b"c")
            passed = pb.PopRequest(
                group="g",
                topic="t",
                queue_id=-1,
                max_messages=8,
                invisible_ms=60_000,
                filter=pb.Filter(kind=pb.TAG, expression="nobody-has-it"),
            )
            await world.channel.call(methods.POP, passed)
            slave = world.members[1].alive.core

            def offsets() -> object:
                queue = slave.store.queue("t", 0)
                return None if queue is None else slave.state.merge_buffer.offsets("g", queue)

            assert offsets() is None
            await until(lambda: offsets() == 3)
            await world.put(b"d")
            await world.lead(1)
            assert set(await world.pop()) == {b"d"}

    run_virtually(clock, story())
