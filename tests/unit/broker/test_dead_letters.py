"""Dead letters are read by ordinary consumers: what is not acknowledged comes again, and dies as the reader's own."""

import pytest

from popwheel_broker.log.record import Record, RecordKind, hash_tag
from popwheel_common.contract import names
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, Resource, SystemProperties
from tests.unit.broker.world import INVISIBLE_MS, World, attempts, handles

ATTEMPTS = 3


def world_with_a_dead_letter(*readers: str, namespace: str = "") -> World:
    """Group `g` (or `shop%g`) has failed on message `1` as often as it may."""
    group = f"{namespace}%g" if namespace else "g"
    topic = f"{namespace}%t" if namespace else "t"
    world = World()
    world.add_topic(topic)
    for each in (group, *readers):
        if each not in world.view.groups:
            world.add_group(each, ATTEMPTS)
    sent = Message(topic=Resource(name="t", resource_namespace=namespace), body=b"1").SerializeToString()
    properties = SystemProperties(message_id="1").SerializeToString()
    world.core.store.put([Record(RecordKind.MESSAGE, topic, 0, sent, properties, hash_tag(""))])
    world.flush()
    for _ in range(ATTEMPTS):
        assert world.bodies(world.pop(group, topic)) == [b"1"]
        lapse(world)
    assert world.pop(group, topic) == []
    return world


def lapse(world: World) -> None:
    """Let what is delivered come due."""
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()


@pytest.mark.parametrize("reader", ["g", "h"], ids=["its own group", "another group"])
def test_a_dead_letter_that_nobody_acknowledges_dies_as_the_readers_own(reader: str) -> None:
    world = world_with_a_dead_letter(reader)
    seen = []
    for _ in range(ATTEMPTS):
        (message,) = world.pop(reader, "%DLQ%g")
        seen += attempts([message])
        assert message.topic.name == "%DLQ%g"
        lapse(world)
        world.crash("process")
    assert seen == [1, 2, 3]
    assert [stored.attempts for _, stored in world.held(f"%RETRY%{reader}+%DLQ%g")] == [1, 2]
    assert len(world.held(f"%DLQ%{reader}")) == (2 if reader == "g" else 1)
    (dead,) = world.pop(reader, f"%DLQ%{reader}")
    assert (dead.body, dead.system_properties.dead_letter_queue.topic) == (b"1", "%DLQ%g")
    assert world.ack(reader, f"%DLQ%{reader}", *handles([dead])) == [Code.OK]
    lapse(world)
    assert world.pop(reader, f"%DLQ%{reader}") == []


def test_every_reader_gets_every_dead_letter() -> None:
    world = world_with_a_dead_letter("h", "i")
    for reader in ("g", "h", "i"):
        messages = world.pop(reader, "%DLQ%g")
        assert world.bodies(messages) == [b"1"]
        assert world.ack(reader, "%DLQ%g", *handles(messages)) == [Code.OK]


@pytest.mark.parametrize("crashes", [False, True])
def test_what_comes_again_of_dead_letters_goes_with_their_group(crashes: bool) -> None:
    world = world_with_a_dead_letter("h")
    assert world.bodies(world.pop("h", "%DLQ%g")) == [b"1"]
    lapse(world)
    retries = names.retry_topic("h", "%DLQ%g")
    assert world.core.topic_registry.knows_topic(retries)
    assert len(world.held(retries)) == 1
    world.delete_group("g")
    assert not world.core.topic_registry.knows_topic(retries)
    assert world.held(retries) == []
    if crashes:
        world.crash("process")
        assert world.held(retries) == []
    world.add_group("g", 1)
    assert world.pop("h", "%DLQ%g") == []
    world.put("t", b"2")
    assert set(world.bodies(world.pop("g", "t"))) >= {b"2"}
    lapse(world)
    assert b"2" in world.bodies(world.pop("h", "%DLQ%g")), "the one that was made again begins anew"


def test_a_dead_letter_of_a_namespace_is_named_as_its_consumers_name_it() -> None:
    world = world_with_a_dead_letter("h", namespace="shop")
    (message,) = world.pop("h", "%DLQ%shop%g")
    assert message.topic == Resource(name="%DLQ%g", resource_namespace="shop")
    for _ in range(ATTEMPTS):
        lapse(world)
        world.pop("h", "%DLQ%shop%g")
    (message,) = world.pop("h", "%DLQ%h")
    assert message.topic == Resource(name="%DLQ%h"), "the reader is of no namespace"
