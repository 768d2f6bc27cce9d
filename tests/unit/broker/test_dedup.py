"""What an earlier try of a send has stored is found, wherever the queue's end is kept."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from popwheel_broker.calls import dedup
from popwheel_broker.calls.dedup import Dedup
from popwheel_broker.delay.timer_server import TimerServer
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.log.timer_record import TIMER_QUEUE, TIMER_TOPIC, Delay
from popwheel_broker.options import LogOptions
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.contract.send_id import encode_send_id
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.index_bytes import replace_entry, rot_entry

TOPIC = "topic"
COUNT = 50
OPTIONS = LogOptions(segment_bytes=4096, index_entries_max=16, queue_entries_in_memory=4)


class Later:
    """What is to be done later, at most one thing."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.action: Callable[[], None] | None = None

    def __call__(self, delay_s: float, action: Callable[[], None]) -> "Later":
        assert self.action is None
        self.delay_s, self.action = delay_s, action
        return self

    def cancel(self) -> None:
        self.action = None

    def come(self, clock: ManualClock) -> None:
        assert self.action is not None
        clock.advance(self.delay_s * 1000)
        action, self.action = self.action, None
        action()


def finder_of(store: MessageStore, clock: ManualClock, later: Later | None = None) -> Dedup:
    timers = Mock(kind=TimerServer.kind, queue=TimerServer.queue, leaves_by_itself=True, sent=TimerServer.sent)
    return Dedup(store, clock, later or Later(), lambda topic: (), [timers])


def run_of(*numbers: int, again: bool = False, queue_id: int = 0) -> MessageRun:
    count = len(numbers)
    properties = [SystemProperties(message_id="same").SerializeToString() + encode_send_id(each) for each in numbers]
    return MessageRun(TOPIC, queue_id, [b"payload"] * count, properties, [""] * count, is_retry=again)


@pytest.mark.parametrize("saved", [0, 1, 16, 17, 40, COUNT - 1, COUNT])
async def test_all_are_found_whether_they_are_in_files_or_in_memory(saved: int) -> None:
    clock = ManualClock()
    store = MessageStore(MemoryDisk(random.Random(1)), Path("/broker"), OPTIONS, clock, lambda queue, tag_hashes: None)
    for number in range(COUNT):
        appended = store.put_runs([run_of(number)])
        store.commit(appended.end_position)
        if number + 1 == saved:
            store.checkpoint()
            await store.write_index()
    finder = finder_of(store, clock)
    found = finder.find(run_of(*range(COUNT + 1), again=True))
    assert [each and each.queue_offset for each in found] == [*range(COUNT), None]
    store.put_runs([run_of(COUNT)])  # not confirmed
    assert [each and each.queue_offset for each in finder.find(run_of(COUNT, again=True))] == [COUNT]


def test_another_message_of_the_same_id_is_not_taken_for_an_earlier_try() -> None:
    """Applications choose message ids: the second of two such sends was answered with OK and stored nowhere."""
    clock = ManualClock()
    store = MessageStore(MemoryDisk(random.Random(1)), Path("/broker"), OPTIONS, clock, lambda queue, tag_hashes: None)
    store.put_runs([run_of(1)])
    finder = finder_of(store, clock)
    assert [each and each.queue_offset for each in finder.find(run_of(1, 2, again=True))] == [0, None]
    nameless = replace(run_of(1), system_properties=[SystemProperties(message_id="same").SerializeToString()])
    assert finder.find(nameless) == [None]


def test_a_delayed_message_that_was_rolled_is_found_by_the_name_it_was_given_first() -> None:
    """A recall handle made of its later record was not known."""
    clock = ManualClock()
    store = MessageStore(MemoryDisk(random.Random(1)), Path("/broker"), OPTIONS, clock, lambda queue, tag_hashes: None)
    run, origin = replace(run_of(1), kind=PutKind.AT_TIME, times_ms=[7_000]), Delay(TOPIC, 0, 0, 7_000)

    def put(origin: Delay) -> int:
        record = Record(RecordKind.TIMER, TIMER_TOPIC, TIMER_QUEUE, b"payload", run.system_properties[0])
        return store.put([replace(record, origin=origin.encode())]).positions[0]

    root = put(origin)
    put(origin._replace(root=root, predecessor=root))
    (found,) = finder_of(store, clock).find(run)
    assert found is not None and found.position == root


async def test_what_was_read_is_kept_for_a_minute_after_the_last_look() -> None:
    store, *_ = await saved_store()
    clock, later = ManualClock(), Later()
    finder = finder_of(store, clock, later)
    finder.find(run_of(1, again=True))
    clock.advance(59_000)
    finder.find(run_of(2, again=True))
    kept = finder._queues[TOPIC, 0]
    later.delay_s -= 59
    later.come(clock)
    assert finder._queues == {(TOPIC, 0): kept}
    later.come(clock)
    assert (finder._queues, later.action) == ({}, None)
    assert [each and each.queue_offset for each in finder.find(run_of(1, again=True))] == [1]
    finder.end()
    assert later.action is None


async def test_a_first_try_that_comes_after_the_second_one_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "MESSAGES_MAX", 2 * COUNT)
    store, *_ = await saved_store()
    later = Later()
    finder = finder_of(store, ManualClock(), later)
    finder.find(run_of(COUNT, COUNT + 1, again=True))
    assert finder.is_late(run_of(COUNT + 2, COUNT + 1))
    assert not finder.is_late(run_of(COUNT + 2))
    finder.find(run_of(*range(COUNT + 1, 3 * COUNT + 1), again=True))
    assert (finder.remembered_ids, finder.is_late(run_of(COUNT))) == (2 * COUNT, False)
    clock = finder._clock
    assert isinstance(clock, ManualClock)
    later.come(clock)
    assert (finder.remembered_ids, finder.is_late(run_of(COUNT + 1))) == (0, False)


async def test_what_is_kept_has_a_limit_and_what_was_forgotten_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "MESSAGES_MAX", 2 * COUNT)
    store = MessageStore(
        MemoryDisk(random.Random(1)), Path("/broker"), OPTIONS, ManualClock(), lambda queue, tag_hashes: None
    )
    for queue_id in range(4):
        store.commit(store.put_runs([run_of(*range(COUNT), queue_id=queue_id)]).end_position)
    finder = finder_of(store, ManualClock())
    for queue_id in (0, 1, 0, 2, 3, 0, 1, 2):
        for number in (0, COUNT - 1):
            found = finder.find(run_of(number, again=True, queue_id=queue_id))
            assert [each and each.queue_offset for each in found] == [number]
        assert finder.remembered_messages <= 2 * COUNT
    assert list(finder._queues) == [(TOPIC, 1), (TOPIC, 2)]  # asked about last
    monkeypatch.setattr(dedup, "MESSAGES_MAX", COUNT - 1)  # one queue has more
    assert [each and each.queue_offset for each in finder.find(run_of(1, again=True))] == [1]
    assert finder.remembered_messages == 0


async def test_no_more_is_read_than_the_queues_last_messages_however_much_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "_ENTRIES_MAX", 10)
    store, *_ = await saved_store()
    finder = finder_of(store, ManualClock())
    assert finder.find(run_of(COUNT - 11, again=True)) == [None]
    for number in range(COUNT, 2 * COUNT):
        store.commit(store.put_runs([run_of(number)]).end_position)
    assert finder.find(run_of(COUNT + 1, again=True)) == [None]
    assert finder.remembered_messages == 20
    assert [each and each.queue_offset for each in finder.find(run_of(2 * COUNT - 10, again=True))] == [2 * COUNT - 10]


async def saved_store() -> tuple[MessageStore, MemoryDisk]:
    """A store with two queues, all of whose entries are in files."""
    disk = MemoryDisk(random.Random(1))
    store = MessageStore(disk, Path("/broker"), OPTIONS, ManualClock(), lambda queue, tag_hashes: None)
    for number in range(COUNT):
        store.commit(store.put_runs([run_of(number)]).end_position)
        store.commit(store.put_runs([MessageRun("other", 0, [b""], [b""], [""])]).end_position)
    store.checkpoint()
    await store.write_index()
    return store, disk


@pytest.mark.parametrize("bit", range(64))
async def test_a_rotten_entry_is_reported_of_wherever_it_leads(bit: int) -> None:
    store, disk = await saved_store()
    rot_entry(disk, store.queues[TOPIC, 0].read(3, 1)[0], bit)
    with pytest.raises(CorruptDataError):
        finder_of(store, ManualClock()).find(run_of(1, again=True))


async def test_an_entry_that_leads_to_the_record_of_another_queue_is_notified_of() -> None:
    store, disk = await saved_store()
    entry, of_other = (store.queues[topic, 0].read(3, 1)[0] for topic in (TOPIC, "other"))
    replace_entry(disk, entry, of_other)
    with pytest.raises(CorruptDataError, match="leads to the record"):
        finder_of(store, ManualClock()).find(run_of(1, again=True))
