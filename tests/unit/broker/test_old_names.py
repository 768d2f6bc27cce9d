"""What log and checkpoint say that were written before there was a gate for names is survived, with a warning."""

import json
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from google_crc32c import value
from structlog.testing import capture_logs

from popwheel_broker.progress.check_point import CheckPoint, OffsetCommit
from popwheel_broker.records.record import Record, RecordKind, hash_tag
from popwheel_broker.state import checkpoint as checkpoint_file
from popwheel_common.contract import names, receipt
from tests.unit.broker.world import INVISIBLE_MS, World, wire_message

GROUP, TOPIC = "g" * 60, "t" * 60
RETRY = names.retry_topic(GROUP, TOPIC)
READER = "r" * 120
"""Its retry topic for `RETRY` would have 256 bytes or more."""
IMPOSSIBLE = f"%RETRY%{GROUP}+" + "n" * 300
OUTSIDE = f"%RETRY%{GROUP}+/../{TOPIC}"


def old_world() -> World:
    world = World()
    world.add_topic(TOPIC)
    for group in (GROUP, READER, "h"):
        world.add_group(group)
    return world


def pop_by_hand(world: World, group: str, topic: str, origin: int = receipt.FROM_TOPIC) -> None:
    """Write what a broker without the gate wrote when a group received the first message of a topic."""
    stored_in = topic if origin == receipt.FROM_TOPIC else names.stored_retry_topic(group, topic)
    (_, stored) = world.held(stored_in)[0]
    now_ms = world.clock.steady_ms()
    check_point = CheckPoint(
        id=world.core.state.table.make_id(),
        group=group,
        topic=topic,
        origin=origin,
        queue_id=0,
        start_offset=0,
        next_offset=1,
        pop_time_ms=now_ms,
        invisible_ms=INVISIBLE_MS,
        due_ms=now_ms + INVISIBLE_MS,
        first_position=stored.position,
        offsets=(0,),
    )
    put_by_hand(world, RecordKind.CHECK_POINT, check_point.revive_queue, check_point.encode())


def put_by_hand(world: World, kind: RecordKind, queue_id: int, payload: bytes) -> None:
    world.core.store.put([Record(kind, world.core.revive_topic, queue_id, payload)])
    world.flush()


def put_message(world: World, topic: str, body: bytes) -> None:
    payload, properties = wire_message(TOPIC, body)
    world.core.store.put([Record(RecordKind.MESSAGE, topic, 0, payload, properties, hash_tag(""))])
    world.flush()


def restart(world: World) -> list[str]:
    """Start anew, and what was warned of."""
    with capture_logs() as logs:
        world.crash("process")
    return [str(entry["topic"]) for entry in logs if "can't be" in entry["event"]]


def revive(world: World) -> list[str]:
    """Let all come due; what was warned of."""
    world.clock.advance(INVISIBLE_MS)
    with capture_logs() as logs:
        world.revive()
    world.flush()
    return [str(entry["topic"]) for entry in logs if "can't be" in entry["event"]]


def dead_letters(world: World, group: str) -> list[bytes]:
    return world.bodies(world.pop(group, names.dead_letter_topic(group)))


@pytest.mark.parametrize("reader", [READER, "h", GROUP], ids=["too long a name", "a short one", "its own"])
def test_what_was_received_from_a_retry_topic_is_a_dead_letter_of_who_received_it(reader: str) -> None:
    world = old_world()
    put_message(world, RETRY, b"1")
    pop_by_hand(world, reader, RETRY)
    assert restart(world) == []
    assert revive(world) == [names.shown(RETRY)]
    assert len(world.core.state.table) == 0, "the check point is closed"
    assert dead_letters(world, reader) == [b"1"]
    assert restart(world) == []
    assert revive(world) == [], "what the reader did not acknowledge comes again as any dead letter does"
    assert dead_letters(world, reader) == [b"1"]
    assert {each.topic for each in world.core.store.queues if "+%RETRY%" in each.topic} == set()


def test_what_came_again_of_a_retry_topic_is_a_dead_letter_too() -> None:
    world = old_world()
    put_message(world, names.stored_retry_topic("h", RETRY), b"1")
    pop_by_hand(world, "h", RETRY, receipt.FROM_RETRY_TOPIC)
    restart(world)
    assert revive(world) == [names.shown(RETRY)]
    assert dead_letters(world, "h") == [b"1"]


def test_an_offset_in_a_queue_that_can_not_be_is_passed_over() -> None:
    world = old_world()
    for _ in range(3):
        put_by_hand(world, RecordKind.OFFSET, 0, OffsetCommit(GROUP, IMPOSSIBLE, 0, 0).encode())
    world.put(TOPIC, b"1")
    assert restart(world) == [names.shown(IMPOSSIBLE)]
    assert IMPOSSIBLE not in {each.topic for each in world.core.store.queues}
    assert world.bodies(world.pop(GROUP, TOPIC)) == [b"1"]


def test_of_very_many_names_a_hundred_are_warned_of() -> None:
    world = old_world()
    for number in range(150):
        put_by_hand(world, RecordKind.OFFSET, 0, OffsetCommit(GROUP, f"{IMPOSSIBLE}{number}", 0, 0).encode())
    assert len(restart(world)) == 100


def with_names(saved: bytes | None, topics: Sequence[str]) -> bytes:
    """A checkpoint file of an older release that knows empty queues of topics, and a group's progress in them."""
    assert saved is not None
    prefix = struct.Struct(">4sHI")
    decoded = checkpoint_file.decode(saved)
    store, pop, known = decoded.store, decoded.pop, decoded.names
    fields: dict[str, Any] = {
        **{name: getattr(store, name) for name in ("position", "synced_position", "epoch", "queues", "offsets_from")},
        **{name: getattr(pop, name) for name in ("offsets", "revive_offsets", "next_number")},
        **{name: getattr(known, name) for name in ("topic_ids", "group_ids", "former_topic_ids", "heard")},
        "pop_time_ms": pop.time.ms,
    }
    for topic in topics:
        fields["queues"][topic] = {"0": [0, 0]}
        fields["offsets"].setdefault(GROUP, {})[topic] = {"0": [0, 0]}
    body = json.dumps(fields).encode()
    return prefix.pack(b"PWCP", 1, value(body)) + body


def test_queues_in_a_checkpoint_that_no_record_can_be_of_are_dropped() -> None:
    world = old_world()
    world.put(TOPIC, b"1")
    world.save()
    world.saved = with_names(world.saved, [IMPOSSIBLE, "\ud800", "", OUTSIDE])
    assert set(restart(world)) == {names.shown(name) for name in (IMPOSSIBLE, "\ud800", "")}
    topics = {each.topic for each in world.core.store.queues}
    assert topics.isdisjoint({IMPOSSIBLE, "\ud800", ""})
    assert OUTSIDE in topics, "a record can be of it: there may be some"
    assert world.bodies(world.pop(GROUP, TOPIC)) == [b"1"]
    world.save()
    assert restart(world) == [], "the next checkpoint knows nothing of them"


def test_a_slave_begins_with_a_checkpoint_that_knows_them() -> None:
    world = old_world()
    with capture_logs() as logs:
        decoded = checkpoint_file.decode(with_names(world.saved, [IMPOSSIBLE]))
    assert len([entry for entry in logs if entry["log_level"] == "warning"]) == 2  # of queues, and of offsets
    assert IMPOSSIBLE not in (decoded.store.queues or {})
    assert IMPOSSIBLE not in decoded.pop.offsets[GROUP]


def test_no_queue_is_made_of_a_name_that_no_record_can_bear() -> None:
    world = old_world()
    end = world.core.store.log.end_position
    with pytest.raises(Exception, match="ILLEGAL_TOPIC"):
        world.core.store.put([Record(RecordKind.MESSAGE, IMPOSSIBLE, 0, b"")])
    assert world.core.store.log.end_position == end
