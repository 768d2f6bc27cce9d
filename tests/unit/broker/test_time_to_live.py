"""Messages past their time to live: delivered to nobody, and for each group dropped or made dead letters."""

import random

import pytest

from popwheel_broker.consume import acks
from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.redelivery import dead_letter
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.options import BrokerOptions
from popwheel_broker.time_to_live.time_to_live import TimeToLive, time_to_live_metrics
from popwheel_common.contract import names
from popwheel_common.contract.put import MessageRun
from popwheel_common.contract.send_id import encode_send_id
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, Resource, SystemProperties
from popwheel_common.pb.popwheel.v1.broker_pb2 import MESSAGE_TIME_TO_LIVE_PASSED
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic
from popwheel_rpc import methods
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import CrashKind, MemoryDisk
from tests.harness.poison import Poison
from tests.unit.broker.served_broker import Broker
from tests.unit.broker.world import INVISIBLE_MS, World, handles

LIFE_MS = 5_000
DEAD = names.dead_letter_topic("g")


def world_with(goal: str, *, fifo: bool = False, max_attempts: int = 3) -> World:
    world = World(0)
    world._apply(topics=[Topic(name="t", queues=1, id=world._next_id, expired_messages=goal)])
    world.add_group("g", max_attempts, fifo=fifo)
    return world


def put(world: World, body: bytes, life: str | None = str(LIFE_MS), message_group: str = "") -> None:
    properties = SystemProperties(message_id=body.hex())
    if message_group:
        properties.message_group = message_group
    message = Message(topic=Resource(name="t"), body=body)
    if life is not None:
        message.user_properties["TTL_MS"] = life
    sent = properties.SerializeToString() + encode_send_id(int.from_bytes(body[-4:]))
    world.core.store.put([Record(RecordKind.MESSAGE, "t", 0, message.SerializeToString(), sent)])
    world.flush()


def pop(world: World, count: int = 32) -> list[bytes]:
    found = [each.body for each in world.pop("g", "t", count)]
    world.flush()
    return found


def ended(world: World) -> dict[str, int]:
    (wing,) = [each for each in world.core.wings if each.name == "time_to_live"]
    assert isinstance(wing.ending, TimeToLive)
    return wing.ending.ended_messages


@pytest.mark.parametrize("goal", ["drop", "dead_letter"])
def test_a_message_lives_for_its_time_and_then_ends(goal: str) -> None:
    world = world_with(goal)
    put(world, b"one")
    put(world, b"two", life=None)
    put(world, b"three", life=str(2 * LIFE_MS))
    world.clock.advance(LIFE_MS - 1)
    assert world.core.pops.waiting("g", "t", None) == 3
    world.clock.advance(1)
    assert pop(world) == [b"two", b"three"]
    letters = [Message.FromString(stored.payload) for _, stored in world.held(DEAD)]
    assert [each.body for each in letters] == [b"one"] * (goal == "dead_letter")
    assert ended(world) == {"drop": goal == "drop", "dead_letter": goal == "dead_letter"}
    assert world.core.state.table.open_messages == 2
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 2
    world.flush()
    assert pop(world) == [b"two"], "the retry of the other one is past its time by now"


def test_where_a_topic_does_not_ask_for_it_nothing_ends() -> None:
    world = world_with("")
    put(world, b"one")
    world.clock.advance(100 * LIFE_MS)
    assert pop(world) == [b"one"]


@pytest.mark.parametrize("life", ["", "0", "-5", "1.5", "soon", "9" * 16, "\u0664"])
def test_a_property_that_is_no_time_ends_nothing(life: str) -> None:
    world = world_with("drop")  # proxies refuse these, but did not before the topic asked for it
    put(world, b"one", life=life)
    world.clock.advance(10_000_000_000)
    assert pop(world) == [b"one"]


def test_the_time_counts_on_through_retries_and_a_redriven_message_begins_anew() -> None:
    world = world_with("dead_letter", max_attempts=16)
    put(world, b"one", life=str(3 * INVISIBLE_MS))
    for _ in range(3):
        assert pop(world) == [b"one"]
        world.clock.advance(INVISIBLE_MS)
        assert world.revive() == 1
        world.flush()
    assert pop(world) == []
    ((_, letter),) = world.held(DEAD)
    assert letter.kind == RecordKind.MESSAGE
    assert world.core.dead_letters.redrive("g", 1, 1, 1 << 20).redriven == 1
    world.flush()
    assert pop(world) == [b"one"]


def test_the_time_counts_on_in_the_quarantine() -> None:
    world = world_with("drop")
    put(world, b"one", life=str(2 * INVISIBLE_MS))
    assert pop(world) == [b"one"]
    world.clock.advance(INVISIBLE_MS)
    with Poison(["redelivery"], is_marked=lambda *_: True).spread():
        world.revive()
    (entry,) = world.core.quarantine.table
    world.clock.advance(INVISIBLE_MS)
    assert world.core.retrial.retry(entry.id)
    world.flush()
    assert pop(world) == []
    assert ended(world)["drop"] == 1


@pytest.mark.parametrize("goal", ["drop", "dead_letter"])
def test_each_message_of_an_ordered_group_gives_way_to_the_next(goal: str) -> None:
    world = world_with(goal, fifo=True)
    for body in (b"a1", b"a2", b"b1"):
        put(world, body, message_group=body[:1].decode())
    put(world, b"a3", life=None, message_group="a")
    assert pop(world, 1) == [b"a1"], "delivered in time"
    world.clock.advance(LIFE_MS)
    assert pop(world) == [], "a1 is in flight, a2 waits behind it, b1 has ended"
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    found = [pop(world) for _ in range(4)]
    assert [each for each in found if each] == [[b"a3"]]
    assert sum(ended(world).values()) == 3


@pytest.mark.parametrize("kind", ["process", "power"])
@pytest.mark.parametrize("goal", ["drop", "dead_letter"])
def test_what_has_ended_stays_so_through_a_crash(goal: str, kind: CrashKind) -> None:
    world = world_with(goal)
    for number in range(10):
        put(world, b"m%d" % number, life=str(LIFE_MS) if number % 2 else None)
    world.clock.advance(LIFE_MS)
    delivered = world.pop("g", "t")
    assert len(delivered) == 5
    world.flush()
    before = [stored.payload for _, stored in world.held(DEAD)]
    world.crash(kind)
    assert [stored.payload for _, stored in world.held(DEAD)] == before
    assert world.core.state.table.open_messages == 5
    assert set(world.ack("g", "t", *handles(delivered))) == {Code.OK}
    world.flush()
    assert pop(world) == []


def test_a_disk_that_is_full_between_the_two_writes_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with("dead_letter")
    put(world, b"one")
    world.clock.advance(LIFE_MS)
    monkeypatch.setattr(TimeToLive, "end", disk_full)
    assert pop(world) == []
    monkeypatch.undo()
    assert (world.held(DEAD), world.core.state.table.open_messages) == ([], 1)
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 1
    world.flush()
    assert pop(world) == []
    assert len(world.held(DEAD)) == 1


def disk_full(*_: object) -> None:
    raise StatusError(Code.INTERNAL_ERROR, "the disk is full")


def test_a_poison_message_beside_it_hides_nothing() -> None:
    world = world_with("drop")
    for body in (b"one", b"poison", b"two"):
        put(world, body, life=None if body == b"two" else str(LIFE_MS))
    world.clock.advance(LIFE_MS)
    with Poison(["answer"], is_marked=lambda payload, _: b"two" in payload).spread():
        assert pop(world) == []
    assert ended(world)["drop"] == 2
    assert len(world.core.quarantine.table) == 1


def test_a_message_that_can_be_no_dead_letter_goes_to_the_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with("dead_letter")
    for body in (b"one", b"two"):
        put(world, body)
    world.clock.advance(LIFE_MS)

    def fails(delivery: Delivery, index: int, stored: StoredRecord) -> Record:
        if b"one" in stored.payload:
            raise KeyError
        return dead_letter(delivery, index, stored)

    monkeypatch.setattr(acks, "dead_letter", fails)
    assert pop(world) == []
    assert len(world.core.quarantine.table) == 1
    assert [Message.FromString(stored.payload).body for _, stored in world.held(DEAD)] == [b"two"]


def test_its_event_is_the_end_and_no_delivery() -> None:
    world = world_with("drop")
    put(world, b"one")
    world.clock.advance(LIFE_MS)
    pop(world)
    events, _ = world.core.state.events.step([("t", 0, 0)], [0], "g", 0)
    assert [each.kind for each in events] == [MESSAGE_TIME_TO_LIVE_PASSED]
    assert len(world.core.state.events) == 1


async def test_a_pop_that_finds_expired_messages_alone_makes_their_dead_letters_readable() -> None:
    clock = ManualClock()
    broker = Broker(MemoryDisk(random.Random(0), 1 << 30), BrokerOptions(flush="async"), clock)
    broker.controller.snapshot.topics[0].expired_messages = "dead_letter"
    await broker.start()
    message = Message(topic=Resource(name="t"), body=b"one", user_properties={"TTL_MS": str(LIFE_MS)})
    run = MessageRun("t", 0, [message.SerializeToString()], [b""], [""])
    assert (await broker.channel.call(methods.PUT, [run]))[0].code == Code.OK
    clock.advance(LIFE_MS)
    assert await broker.pop() == []
    store = broker.app.files.core.store
    letters = store.queue(DEAD, 0)
    assert letters is not None and letters.max_offset == 1
    assert store.high_watermark == store.log.end_position
    await broker.channel.close()
    await broker.app.stop()
    await broker.to_controller.close()


def test_metrics_count_them() -> None:
    (family,) = time_to_live_metrics({"drop": 3, "dead_letter": 4})
    assert {each.labels["outcome"]: each.value for each in family.samples} == {"drop": 3, "dead_letter": 4}


def test_one_feature_ends_messages_at_their_delivery() -> None:
    assert [each.name for each in world_with("drop").core.wings if each.ending is not None] == ["time_to_live"]
