"""Retention always moves: what is hidden for ever, or stored while a clock was wrong, holds no segment back."""

from typing import Any

import pytest

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.log import record
from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.options import BrokerOptions, LogOptions
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from tests.unit.broker.core_world import metrics, world_of_segments
from tests.unit.broker.world import FOLDER, World, attempts, handles

HOUR_MS = 3_600_000


def pass_days(world: World, days: int = 1) -> None:
    """Time in which much is put and deleted."""
    for _ in range(days):
        world.clock.advance(80 * HOUR_MS)
        fill(world)
        world.retain()
        world.save()


def filled() -> World:
    """Messages 0 to 2 among others that fill segments."""
    world = World(0, BrokerOptions(log=LogOptions(segment_bytes=4096)))
    world.add_topic("t")
    world.add_group("g")
    for number in range(3):
        world.put("t", b"%d" % number)
    fill(world)
    return world


def fill(world: World) -> None:
    """Put what takes some segments."""
    for _ in range(12):
        world.put("t", b"y" * 1000)


def rest(world: World) -> list[Message]:
    """All that is there for the group."""
    found: list[Message] = []
    world.flush()
    while some := world.pop("g", "t"):
        found += some
    return found


def prolong(world: World, handle: str) -> str:
    """Hide a message for longer: its new handle."""
    return world.core.acks.change_invisible("g", "t", handle, 12 * HOUR_MS)


def test_a_message_that_is_hidden_for_ever_holds_no_segment_back() -> None:
    world = filled()
    kept, renewed, acked = handles(world.pop("g", "t", 3, invisible_ms=12 * HOUR_MS))
    log = world.core.store.log
    for _ in range(4):
        before = log.start_position
        entry = pb.RenewEntry(group="g", topic="t", receipt_handle=renewed)
        assert world.core.acks.renew([entry], 1000 * HOUR_MS)[0].code == Code.OK
        kept = prolong(world, kept)
        pass_days(world)
        assert log.start_position > before
        assert log.end_position - log.start_position < 12 * 4096
    assert f"popwheel_pop_relocated_messages_total {world.core.relocation.messages}.0" in metrics(world)
    assert world.ack("g", "t", acked) == [Code.OK], "its handle is the one it was given"
    assert world.revive() == 2 - 1, "changed for twelve hours, renewed for a thousand"
    (back,) = [each for each in rest(world) if each.body == b"0"]
    assert attempts([back]) == [2]
    assert world.ack("g", "t", *handles([back]), renewed) == [Code.OK, Code.OK]


@pytest.mark.parametrize("kind", ["process", "power"])
def test_what_was_moved_comes_again_after_a_crash(kind: str) -> None:
    world = filled()
    (first, *_) = handles(world.pop("g", "t", 3, invisible_ms=1000 * HOUR_MS))
    pass_days(world)
    before = world.deliveries()
    assert [len(each.copies) for each in world.core.state.table] == [3]
    world.crash(kind)  # type: ignore[arg-type]
    assert world.deliveries() == before
    assert world.ack("g", "t", first) == [Code.OK]
    pass_days(world, 2)
    assert [len(each.copies) for each in world.core.state.table] == [2], "moved once more, without what was acked"
    world.crash(kind)  # type: ignore[arg-type]
    world.clock.advance(1000 * HOUR_MS)
    assert world.revive() == 2
    world.flush()
    assert {b"1", b"2"} <= set(world.bodies(rest(world)))


def test_what_was_moved_is_there_before_the_controller_is_learned_of() -> None:
    world = filled()
    world.pop("g", "t", 3, invisible_ms=1000 * HOUR_MS)
    pass_days(world)
    world.view = ClusterView()
    world.crash("process")
    pass_days(world, 2)
    assert [len(each.copies) for each in world.core.state.table] == [3], "moved once more"
    world.clock.advance(1000 * HOUR_MS)
    assert world.revive() == 3


def test_copies_whose_delivery_was_not_written_mean_nothing() -> None:
    world = filled()
    world.pop("g", "t", 3, invisible_ms=1000 * HOUR_MS)
    world.clock.advance(80 * HOUR_MS)
    fill(world)
    core = world.core
    assert len(core.relocation.copy(core.expiry.to_relocate(), core.revive_topic)) == 1
    before = world.deliveries()
    world.crash("process")
    assert world.deliveries() == before
    assert world.core.expiry.expired_before() == 0
    assert world.relocate() == 3
    world.save()
    assert world.retain() > 0


def test_what_was_done_with_between_the_copies_and_the_delivery_stays_so() -> None:
    world = filled()
    first, second, _ = handles(world.pop("g", "t", 3, invisible_ms=1000 * HOUR_MS))
    world.clock.advance(80 * HOUR_MS)
    fill(world)
    core = world.core
    copied = core.relocation.copy(core.expiry.to_relocate(), core.revive_topic)
    world.ack("g", "t", first)
    second = prolong(world, second)
    world.flush()
    core.relocation.rewrite(copied)
    world.flush()
    pass_days(world)
    world.crash("process")
    assert world.ack("g", "t", first) == [Code.INVALID_RECEIPT_HANDLE]
    world.revive()
    bodies = world.bodies(rest(world))
    assert b"0" not in bodies
    assert bodies.count(b"1") == 1


@pytest.mark.parametrize("crashes", [False, True])
def test_what_was_moved_does_not_outlive_its_topic(crashes: bool) -> None:
    world = filled()
    world.pop("g", "t", 3, invisible_ms=1000 * HOUR_MS)
    pass_days(world)
    if crashes:  # as the deletion is written down, and nothing that follows from it
        put = world.core.store.put
        world.core.store.put = lambda records: put(records[:1])  # type: ignore[method-assign]
    world.delete_topic("t")
    if crashes:
        world.crash("process")
    world.add_topic("t")
    assert not len(world.core.state.table)
    world.clock.advance(2000 * HOUR_MS)
    assert world.revive() == 0
    assert world.pop("g", "t") == []
    world.crash("process")
    assert not len(world.core.state.table)


def test_a_delivery_says_where_copies_stand() -> None:
    for copies in ({}, {0: 7}, {1: 1 << 40, 2: 0}):
        delivery = Delivery(
            *(8, "g", "t", 0, 0, 5, 8, 100, 10, 110, 4096, range(5, 8)), call=77, copies=copies, renewed={1: 120}
        )
        decoded = Delivery.decode(delivery.encode(), 3)
        assert (decoded.copies, decoded.call, decoded.renewed) == (copies, 77, {1: 120})


def test_a_disk_that_is_short_moves_what_is_little_and_not_what_is_much() -> None:
    for held, moves in ((1, True), (4, False)):
        world = World(0, BrokerOptions(log=LogOptions(segment_bytes=4096)))
        world.add_topic("t")
        world.add_group("g")
        for _ in range(30):
            world.put("t", b"x" * 200)
        world.pop("g", "t", held, invisible_ms=1000 * HOUR_MS)
        world.save()
        assert world.relocate() == 0, "nothing is past its time"
        world.disk.fill(0)
        assert bool(world.core.expiry.to_relocate()) is moves


def test_damage_of_one_lets_a_disk_that_is_short_move_the_others() -> None:
    world = filled()
    for _ in range(3):
        world.pop("g", "t", 1, invisible_ms=1000 * HOUR_MS)
    world.save()
    store = world.core.store
    damaged = store.queues["t", 0].read(1, 1)[0].position
    world.disk.flip_bit(FOLDER / "commitlog" / f"{0:020}.log", 8 * (damaged + 80))
    world.disk.fill(0)
    assert len(world.core.expiry.to_relocate()) == 3
    assert store.log.damaged == {damaged}
    world.disk.fill(1 << 30)
    pass_days(world)
    assert sorted(len(each.copies) for each in world.core.state.table) == [0, 1, 1]


def test_one_that_cannot_be_copied_keeps_its_segment_and_others_move(monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled()
    for _ in range(3):
        world.pop("g", "t", 1, invisible_ms=1000 * HOUR_MS)
    before = record.encode

    def encode(each: Record, *place: Any) -> Any:
        if each.kind == RecordKind.COPY and Message.FromString(each.payload).body == b"1":
            raise ValueError("poison")
        return before(each, *place)

    with monkeypatch.context() as patch:
        patch.setattr(record, "encode", encode)
        pass_days(world)
        assert sorted(len(each.copies) for each in world.core.state.table) == [0, 1, 1]
    assert world.core.quarantine.faults[Step.RETENTION] >= 1
    start = world.core.store.log.start_position
    pass_days(world, 2)
    assert [len(each.copies) for each in world.core.state.table] == [1, 1, 1]
    assert world.core.store.log.start_position > start


def test_a_clock_that_was_set_forward_and_back_holds_no_segment_back() -> None:
    """Nor does it delete one before its time."""
    world = world_of_segments(8)
    now_ms = world.clock.wall_ms()
    world.clock.set_wall_ms(now_ms + 72 * HOUR_MS + HOUR_MS)
    for _ in range(8):
        world.put("t", b"z" * 1000)
    assert world.core.expiry.expired_before() == 0
    world.clock.set_wall_ms(now_ms)
    for _ in range(8):
        world.put("t", b"z" * 1000)
    world.clock.advance(73 * HOUR_MS)
    world.put("t", b"new")
    world.save()
    left = len(world.core.store.log.segments())
    assert world.retain() == left - 1
