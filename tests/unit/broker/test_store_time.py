"""The time at which a message was first stored outlives retries and copies."""

import pytest

from popwheel_broker.consume.store_time import first_stored_ms, with_first_stored
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_common.contract import names
from popwheel_common.contract.send_id import encode_send_id, send_id_of
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from tests.unit.broker.test_relocation import filled, pass_days
from tests.unit.broker.world import INVISIBLE_MS, World, handles

PLAIN = SystemProperties(message_id="J").SerializeToString()


def record(properties: bytes, store_time_ms: int) -> StoredRecord:
    return StoredRecord(
        kind=RecordKind.MESSAGE,
        topic="t",
        queue_id=0,
        payload=b"",
        system_properties=properties,
        tag_hash=0,
        attempts=0,
        origin=b"",
        position=0,
        length=0,
        epoch=1,
        store_time_ms=store_time_ms,
        queue_offset=0,
    )


@pytest.mark.parametrize("properties", [b"", PLAIN, PLAIN + encode_send_id(17), b"\x4a", b"\x4a\x05ab"])
def test_it_is_written_once_and_before_the_id_of_the_send(properties: bytes) -> None:
    first = record(properties, 1_700_000_000_123)
    assert first_stored_ms(first) == 1_700_000_000_123
    once = with_first_stored(first)
    assert send_id_of(once) == send_id_of(properties)
    if properties.startswith(b"\x4a"):
        return  # no proxy lets such properties in; nothing can be read from them
    later = record(once, 1_800_000_000_000)
    assert first_stored_ms(later) == 1_700_000_000_123
    assert with_first_stored(later) == once


def test_retries_and_copies_keep_it_and_a_redriven_message_begins_anew() -> None:
    world = World(0)
    world.add_topic("t")
    world.add_group("g", max_attempts=3)
    world.put("t", b"m")
    sent_ms = world.clock.wall_ms()
    retry_topic, dead_topic = names.retry_topic("g", "t"), names.dead_letter_topic("g")
    for _ in range(3):
        world.pop("g", "t")
        world.clock.advance(INVISIBLE_MS)
        world.revive()
        world.flush()
    stored = [each for topic in (retry_topic, dead_topic) for _, each in world.held(topic)]
    assert len(stored) == 3
    assert [first_stored_ms(each) for each in stored] == [sent_ms] * 3
    world.core.dead_letters.redrive("g", 1, 1, 1 << 20)
    world.flush()
    redriven = world.held(retry_topic)[-1][1]
    assert first_stored_ms(redriven) == redriven.store_time_ms > sent_ms


def test_a_message_that_was_copied_keeps_it() -> None:
    world = filled()
    sent_ms = world.held("t")[0][1].store_time_ms
    world.core.acks.change_invisible("g", "t", handles(world.pop("g", "t", 1))[0], 1000 * 3_600_000)
    pass_days(world, 3)
    assert world.core.relocation.messages
    world.clock.advance(1000 * 3_600_000)
    world.revive()
    world.flush()
    (back,) = [each for _, each in world.held(names.retry_topic("g", "t"))]
    assert first_stored_ms(back) == sent_ms < back.store_time_ms
