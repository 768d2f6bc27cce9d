"""What fails for one record because of that record is quarantined, and all others go on."""

import asyncio
from typing import Any
from unittest import mock

import pytest

from popwheel_broker.consume import pop_state
from popwheel_broker.consume.quarantine_entry import EntryFlag, QuarantineEntry, Step, encode_end, key_of
from popwheel_broker.consume.quarantine_table import QuarantineTable
from popwheel_broker.core.checkpoint import decode as decode_checkpoint
from popwheel_broker.log import record
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.record import Record, RecordKind, StoredRecord, stored
from popwheel_broker.options import BrokerOptions, LogOptions
from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from tests.harness.memory_disk import CrashKind
from tests.harness.poison import ERRORS, MARK, Poison, failing_fold
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.world import INVISIBLE_MS, World, handles

CRASHES: tuple[CrashKind, ...] = ("process", "power")


def entries(world: World) -> list[QuarantineEntry]:
    return list(world.core.quarantine.table)


def quarantined_one(world: World, body: bytes = MARK) -> QuarantineEntry:
    """A message that fails as it is redelivered."""
    world.put("t", body)
    world.pop("g", "t")
    world.clock.advance(INVISIBLE_MS)
    with Poison(["redelivery"]).spread():
        world.revive()
    world.flush()
    return entries(world)[-1]


# What counts as a record's own


@pytest.mark.parametrize("error", ERRORS)
def test_an_unexpected_error_is_the_records(error: type[Exception]) -> None:
    with pytest.raises(RecordFaultError, match=f"{error.__name__}: .*what"), RECORD_STEP:
        raise error("what")


@pytest.mark.parametrize(
    "error",
    [
        OSError(5, "the device"),
        CorruptDataError("damage"),
        UnknownFormatError("newer"),
        StatusError(Code.INTERNAL_ERROR, "the disk is full"),
        MemoryError(),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
    ],
)
def test_what_is_the_devices_the_logs_or_the_callers_is_not(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, RECORD_STEP:
        raise error
    assert raised.value is error


# Redelivery


@pytest.mark.parametrize("step", ["redelivery", "writing"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_redelivery_that_fails_is_quarantined_and_others_go_on(step: str, error: type[Exception]) -> None:
    world = world_of()
    for body in (b"a", MARK, b"b"):
        world.put("t", body)
    world.pop("g", "t")
    world.clock.advance(INVISIBLE_MS)
    with Poison([step], lambda: error).spread() as poison:
        world.revive()
    assert poison.hits
    world.flush()
    assert world.bodies(world.pop("g", "t")) == [b"a", b"b"]
    (entry,) = entries(world)
    assert (entry.step, entry.group, entry.topic, entry.queue_offset) == (Step.REDELIVERY, "g", "t", 1)
    assert error.__name__ in entry.reason
    assert world.core.state.table.open_messages == 2


def test_a_release_of_several_quarantines_the_one_that_fails() -> None:
    world = world_of()
    for body in (b"a", MARK, b"b"):
        world.put("t", body)
    given = handles(world.pop("g", "t"))
    with Poison(["redelivery"]).spread():
        results = world.core.acks.release("g", "t", given, attempted=False)
    assert [result.code for result in results] == [Code.OK] * 3
    world.flush()
    assert world.bodies(world.pop("g", "t")) == [b"a", b"b"]
    assert len(entries(world)) == 1
    assert world.ack("g", "t", given[1]) == [Code.INVALID_RECEIPT_HANDLE]


def test_what_was_redelivered_before_one_that_cannot_be_quarantined_comes_once() -> None:
    world = World(0, BrokerOptions(quarantine_max=1))
    world.add_topic("t")
    world.add_group("g")
    quarantined_one(world)
    for body in (b"a", MARK, b"b"):
        world.put("t", body)
    world.pop("g", "t")
    world.clock.advance(INVISIBLE_MS)
    held = [(each, index) for each in world.core.state.table for index in each.open_indexes()]
    with Poison(["redelivery"]).spread():
        for _ in range(2):
            with pytest.raises(StatusError):
                world.core.acks.redeliver(held, attempted=True)
    world.core.acks.redeliver(held, attempted=True)
    world.flush()
    assert sorted(world.bodies(world.pop("g", "t"))) == [b"a", b"b", MARK]


def test_a_topic_full_of_bad_messages_leaves_room_for_those_of_others() -> None:
    table, taken = QuarantineTable(), {"bad": 0, "other": 0}
    for topic in taken:
        while table.shares.room(topic, 10):
            position = len(table)
            entry = QuarantineEntry(
                *(Step.READING, EntryFlag(0), b"", position, position, "", f"{topic}+lite", 0, 0, "why"),
                *(1, position, 1),
            )
            table.record_fault(entry)
            table.record_fault(entry)
            taken[topic] += 1
    assert taken == {"bad": 5, "other": 3}
    again = QuarantineTable()
    again.restore(table.saved(1 << 60))
    assert (again.shares.share("bad"), again.shares.total) == (5, 8)
    for kind, body in (
        (RecordKind.QUARANTINE_END, encode_end(next(iter(again)).key)),
        (RecordKind.FORGET_TOPIC, b"nobody"),
        (RecordKind.FORGET_TOPIC, b"other"),
    ):
        again.apply(stored(Record(kind, "t", 0, body), 0, 1, 1, 0, 0))
    assert (again.shares.share("bad"), again.shares.total, len(again)) == (4, 4, 4)


@pytest.mark.parametrize("kind", CRASHES)
@pytest.mark.parametrize("saved", [True, False])
def test_it_stays_quarantined_after_a_restart(kind: CrashKind, saved: bool) -> None:
    world = world_of()
    entry = quarantined_one(world)
    if saved:
        world.save()
    world.crash(kind)
    assert entries(world) == [entry]
    assert world.deliveries() == {}
    world.clock.advance(10 * INVISIBLE_MS)
    assert world.revive() == 0
    world.save()
    world.crash(kind)
    assert entries(world) == [entry]


@pytest.mark.parametrize("is_written", [True, False])
def test_a_crash_between_its_records_leaves_one_of_both(is_written: bool) -> None:
    world = world_of()
    world.put("t", MARK)
    world.pop("g", "t")
    world.save()
    log = world.core.store.log
    begin = log.end_position
    world.clock.advance(INVISIBLE_MS)
    with Poison(["redelivery"]).spread():
        world.revive()
    world.flush()
    end_of_record = next(found.position + found.length for found in log.records(begin, log.end_position))
    log.cut(end_of_record if is_written else begin)
    world.crash("process")
    assert (len(entries(world)), len(world.deliveries())) == ((1, 0) if is_written else (0, 1))
    world.clock.advance(INVISIBLE_MS)
    with Poison(["redelivery"]).spread():
        world.revive()
    assert (len(entries(world)), len(world.deliveries())) == (1, 0)


# The answer


@pytest.mark.parametrize("error", ERRORS)
def test_an_answer_is_made_of_the_others(error: type[Exception]) -> None:
    world = world_of()
    for body in (b"a", MARK, b"b"):
        world.put("t", body)
    with Poison(["answer"], lambda: error).spread():
        found = world.pop("g", "t")
        assert world.bodies(found) == [b"a", b"b"]
        assert world.ack("g", "t", *handles(found)) == [Code.OK] * 2
        world.clock.advance(INVISIBLE_MS)
        assert world.revive() == 0
    assert [entry.step for entry in entries(world)] == [Step.ANSWER]


def test_what_fails_as_it_is_read_is_quarantined_where_it_is_and_keeps_its_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of()
    for body in (b"a", MARK, b"b"):
        world.put("t", body)
    records = world.core.store.records
    before = type(records).read_many

    def read_many(self: object, wanted: list[object]) -> list[StoredRecord]:
        found = before(records, wanted)  # type: ignore[arg-type]
        if any(MARK in each.payload for each in found):
            raise KeyError("poison")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(type(records), "read_many", read_many)
        assert world.bodies(world.pop("g", "t")) == [b"a", b"b"]
    (entry,) = entries(world)
    assert entry.is_pinned
    assert world.core.quarantine.table.needed_from() == entry.position
    assert MARK in world.core.retrial.message(entry).payload
    assert world.core.retrial.retry(entry.id)
    world.flush()
    assert MARK in world.bodies(world.pop("g", "t"))


def test_what_cannot_be_copied_either_is_quarantined_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    before = record.encode

    def encode(each: Record, *place: Any) -> Any:
        if each.kind == RecordKind.QUARANTINE and each.system_properties:
            raise KeyError("poison")
        return before(each, *place)

    with monkeypatch.context() as patch:
        patch.setattr(record, "encode", encode)
        entry = quarantined_one(world)
    assert entry.is_pinned
    world.save()
    world.crash("process")
    assert entries(world) == [entry]
    assert world.core.retrial.retry(entry.id)
    world.flush()
    assert world.bodies(world.pop("g", "t")) == [MARK]


# The fold


@pytest.mark.parametrize("error", ERRORS)
def test_a_record_that_cannot_be_folded_is_passed_over_at_a_start(error: type[Exception]) -> None:
    world = world_of()
    world.save()
    for body in (b"a", MARK, b"b"):
        world.put("t", body)
    (_, marked), *_ = [each for each in world.held("t") if MARK in each[1].payload]
    with failing_fold(lambda found: found.position == marked.position, error):
        world.crash("process")
    (entry,) = entries(world)
    assert (entry.step, entry.position, entry.topic, entry.queue_offset) == (Step.FOLD, marked.position, "t", 1)
    assert world.bodies(world.pop("g", "t")) == [b"a", MARK, b"b"]  # it stayed where it was
    world.crash("process")  # saved when it was known
    assert entries(world) == [entry]
    assert world.core.retrial.drop(entry.id)
    world.flush()
    world.crash("power")
    assert entries(world) == []


def test_a_delivery_that_cannot_be_folded_gives_its_messages_out_again() -> None:
    world = world_of()
    world.put("t", b"a")
    world.pop("g", "t")
    world.flush()
    delivery_position = next(found for _, found in _all(world) if found.kind == RecordKind.DELIVERY).position

    before = pop_state.PopState.apply

    def apply(state: pop_state.PopState, found: StoredRecord) -> None:
        if found.position == delivery_position:
            raise KeyError("poison")
        before(state, found)

    world.saved = None
    with mock.patch.object(pop_state.PopState, "apply", apply):
        world.crash("process")
    assert [entry.step for entry in entries(world)] == [Step.FOLD]
    assert world.bodies(world.pop("g", "t")) == [b"a"]


def _all(world: World) -> list[tuple[int, StoredRecord]]:
    log = world.core.store.log
    return [(found.position, found) for found in log.records(log.start_position, log.end_position)]


# Retention


def test_retention_goes_on_past_a_first_record_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0, BrokerOptions(log=LogOptions(segment_bytes=4096)))
    world.add_topic("t")
    for _ in range(12):
        world.put("t", b"x" * 1000)
    world.save()
    world.clock.advance(100 * 3_600_000)
    store = world.core.store
    begins = [start for start, _ in store.log.segments()][1]
    records = store.records
    before = type(records).first_store_time_ms

    def first_store_time_ms(self: object, position: int) -> int | None:
        if position == begins:
            raise KeyError("poison")
        return before(records, position)

    monkeypatch.setattr(type(records), "first_store_time_ms", first_store_time_ms)
    assert world.retain() > 1
    assert world.core.quarantine.faults[Step.RETENTION] >= 1
    assert entries(world)[0].step is Step.RETENTION


def test_what_is_quarantined_goes_when_retention_takes_its_copy() -> None:
    world = World(0, BrokerOptions(log=LogOptions(segment_bytes=4096)))
    world.add_topic("t")
    world.add_group("g")
    quarantined_one(world)
    for _ in range(12):
        world.put("t", b"x" * 1000)
    world.save()
    world.clock.advance(100 * 3_600_000)
    assert world.retain()
    world.save()
    assert entries(world) == []


# What operators do


@pytest.mark.parametrize("kind", CRASHES)
def test_a_retry_releases_it_and_counts_the_attempt(kind: CrashKind) -> None:
    world = world_of()
    entry = quarantined_one(world)
    assert world.core.retrial.retry(entry.id)
    world.flush()
    for _ in range(2):
        assert entries(world) == []
        assert not world.core.retrial.retry(entry.id)
        assert not world.core.retrial.drop(entry.id)
        world.crash(kind)
    (message,) = world.pop("g", "t")
    assert (message.body, message.system_properties.delivery_attempt) == (MARK, 2)


def test_a_retry_that_fails_again_leaves_it_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    entry = quarantined_one(world)

    def redelivered(*_: object, **__: object) -> None:
        raise KeyError("poison")

    monkeypatch.setattr("popwheel_broker.core.retrial.redelivered", redelivered)
    with pytest.raises(StatusError, match="fails again") as refusal:
        world.core.retrial.retry(entry.id)
    assert refusal.value.code == Code.INTERNAL_ERROR
    assert entries(world) == [entry]


def test_damage_that_a_retry_meets_is_noted_so_that_it_is_mended() -> None:
    world = world_of()
    entry = quarantined_one(world)
    (path,) = [path for path in world.disk.files() if path.suffix == ".log"]
    world.disk.flip_bit(path, 8 * (entry.record_position + 80))
    with pytest.raises(CorruptDataError):
        world.core.retrial.retry(entry.id)
    assert world.core.store.log.damaged == {entry.record_position}
    assert entries(world) == [entry]


def test_one_past_the_limit_of_attempts_goes_to_the_dead_letters_by_a_retry() -> None:
    world = world_of(max_attempts=1)
    entry = quarantined_one(world)
    assert world.core.retrial.retry(entry.id)
    world.flush()
    assert [MARK in found.payload for _, found in world.held("%DLQ%g")] == [True]


@pytest.mark.parametrize("kind", CRASHES)
def test_what_is_dropped_is_gone_for_good(kind: CrashKind) -> None:
    world = world_of()
    entry = quarantined_one(world)
    assert world.core.retrial.drop(entry.id)
    world.flush()
    world.crash(kind)
    assert entries(world) == []
    world.clock.advance(10 * INVISIBLE_MS)
    assert world.revive() == 0
    assert world.pop("g", "t") == []


@pytest.mark.parametrize("deleted", ["topic", "group"])
def test_what_is_quarantined_goes_with_its_topic_and_its_group(deleted: str) -> None:
    world = world_of()
    quarantined_one(world)
    world.delete_topic("t") if deleted == "topic" else world.delete_group("g")
    world.flush()
    assert entries(world) == []
    world.crash("power")
    assert entries(world) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_what_another_group_has_of_dead_letters_goes_with_the_group_they_are_of(restarts: bool) -> None:
    world = world_of()
    world.add_group("h")
    world.put("t", MARK)
    world.core.acks.dead_letter("g", "t", *handles(world.pop("g", "t")))
    world.flush()
    assert len(world.pop("h", "%DLQ%g")) == 1
    world.clock.advance(INVISIBLE_MS)
    with Poison(["redelivery"]).spread():
        world.revive()
    assert [(entry.group, entry.topic) for entry in entries(world)] == [("h", "%DLQ%g")]
    world.delete_group("g")
    world.flush()
    if restarts:
        world.crash("process")
    assert entries(world) == []


@pytest.mark.parametrize("wrong", ["", "x", "1.", ".1", "-1", "1.2.3", "99999999999999999999999", "9" * 5_000, "１"])
def test_what_is_no_id_is_refused(wrong: str) -> None:
    assert key_of(wrong) is None
    with pytest.raises(StatusError) as refusal:
        world_of().core.retrial.retry(wrong)
    assert refusal.value.code == Code.BAD_REQUEST


def test_an_id_leads_back_to_its_key() -> None:
    entry = quarantined_one(world_of())
    assert key_of(entry.id) == entry.key


# The limit


def test_past_the_limit_it_waits_where_it_is_and_others_go_on() -> None:
    world = World(0, BrokerOptions(quarantine_max=1))
    world.add_topic("t")
    world.add_group("g")
    first = quarantined_one(world)
    for body in (MARK, b"b"):
        world.put("t", body)
    world.pop("g", "t")
    world.clock.advance(INVISIBLE_MS)
    returned = 0
    with Poison(["redelivery"]).spread():
        for delivery, indexes in world.core.state.table.take_due(world.core.pop_clock.now_ms(), 10):
            for index in indexes:
                try:
                    world.core.acks.redeliver([(delivery, index)], attempted=True)
                    returned += 1
                except StatusError as refusal:
                    assert refusal.code == Code.TOO_MANY_REQUESTS
                    world.core.state.table.postpone(delivery, world.core.pop_clock.now_ms() + 1000)
    assert returned == 1
    assert entries(world) == [first]
    assert world.core.state.table.open_messages == 1
    assert world.core.retrial.drop(first.id)
    world.clock.advance(1000)
    with Poison(["redelivery"]).spread():
        world.revive()
    assert len(entries(world)) == 1


def test_metrics_report_how_many_and_at_which_step() -> None:
    world = world_of()
    quarantined_one(world)
    reported = metrics(world)
    assert 'popwheel_quarantined_messages{step="redelivery"} 1.0' in reported
    assert 'popwheel_quarantined_messages{step="firing"} 0.0' in reported
    assert 'popwheel_record_faults_total{step="redelivery"} 1.0' in reported
    assert "popwheel_quarantine_max 10000.0" in reported


def test_a_checkpoint_of_before_has_nothing_quarantined() -> None:
    world = world_of()
    world.save()
    assert world.saved is not None
    assert decode_checkpoint(world.saved).quarantine == []


def test_the_message_that_is_shown_is_the_senders() -> None:
    world = world_of()
    entry = quarantined_one(world, b"head" + MARK + b"tail")
    stored = world.core.retrial.message(entry)
    assert Message.FromString(stored.payload).body == b"head" + MARK + b"tail"
