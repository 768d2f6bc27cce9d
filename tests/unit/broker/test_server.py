"""The broker as a proxy sees it: a whole `BrokerApp` on a disk in memory, called through a local channel."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.broker.app import BrokerApp
from services.broker.options import BrokerOptions, LogOptions, PopOptions, RetentionOptions
from services.broker.records.record import StoredRecord
from services.broker.state.checkpoint import BEGIN
from services.common.contract import names
from services.common.contract.put import MessageRun, PutResult
from services.common.errors import CorruptDataError, StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.common.pb.popwheel.v1.controller_pb2 import (
    BrokerGroup,
    Cluster,
    ClusterUpdate,
    Group,
    Topic,
    WatchRequest,
)
from services.rpc import methods
from services.rpc.local import LocalChannel
from services.rpc.service import Call, Service, Stream
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.index_bytes import index_files, rot_entry
from tests.unit.broker.world import INVISIBLE_MS, KEY, tag_filter, wire_message, with_small_timer

FOLDER = Path("/broker")


class FakeController:
    """Streams one snapshot, and then what the test publishes."""

    def __init__(self) -> None:
        self.snapshot = ClusterUpdate(
            version=1,
            snapshot=True,
            cluster=Cluster(name="test", receipt_key=KEY),
            topics=[Topic(name="t", queues=2, id=1)],
            groups=[Group(name="g", max_attempts=2, id=1)],
        )
        self.updates: asyncio.Queue[ClusterUpdate] = asyncio.Queue()
        self.service = Service()
        self.service.stream(methods.WATCH, self._watch)

    async def _watch(self, call: Call, stream: Stream[WatchRequest, ClusterUpdate]) -> None:
        await stream.receive()
        await stream.send([self.snapshot])
        while True:
            await stream.send([await self.updates.get()])


class Broker:
    """A broker and short calls of it."""

    def __init__(self, disk: MemoryDisk, options: BrokerOptions, clock: ManualClock) -> None:
        self.disk, self.clock = disk, clock
        self.registry = CollectorRegistry()
        self.controller = FakeController()
        self.to_controller = LocalChannel(self.controller.service, clock=clock)
        self.app = BrokerApp(
            with_small_timer(options), FOLDER, clock, random.Random(0), self.registry, self.to_controller, disk
        )
        self.channel = LocalChannel(self.app.service, clock=clock)

    async def start(self) -> None:
        """Recover, and lead."""
        await self.app.start()
        self.hear()
        await self.app.roles.until_leads()
        await self.app.controller_follower.wait_ready()

    def hear(self) -> None:
        """The controller says that this replica leads, alone."""
        self.app.roles.hear(BrokerGroup(name="broker-0", version=1, epoch=1, master=0, sync_state_set=[0]))

    async def put(self, body: bytes, tag: str = "", queue_id: int = 0, topic: str = "t") -> PutResult:
        payload, properties = wire_message(topic, body, tag)
        run = MessageRun(topic, queue_id, [payload], [properties], [tag])
        return (await self.channel.call(methods.PUT, [run]))[0]

    async def pop(self, max_messages: int = 32, invisible_ms: int = INVISIBLE_MS) -> list[str]:
        """Handles of what was popped."""
        request = pb.PopRequest(group="g", topic="t", queue_id=-1, max_messages=max_messages, invisible_ms=invisible_ms)
        return (await self.channel.call(methods.POP, request)).handles

    async def ack(self, *handles: str) -> list[int]:
        request = pb.AckRequest(group="g", topic="t", receipt_handles=handles)
        results = (await self.channel.call(methods.ACK, request)).results
        return [result.code for result in results] or [Code.OK] * len(handles)

    async def pull(
        self, offset: int, max_messages: int = 32, wait_ms: int = 0, expression: str = "*"
    ) -> tuple[list[bytes], int]:
        request = pb.PullRequest(
            group="g",
            topic="t",
            queue_id=0,
            offset=offset,
            max_messages=max_messages,
            wait_ms=wait_ms,
            filter=tag_filter(expression),
        )
        response = await self.channel.call(methods.PULL, request)
        return [Message.FromString(each).body for each in response.messages], response.next_offset

    def metrics(self) -> str:
        return generate_latest(self.registry).decode()


@asynccontextmanager
async def running(
    disk: MemoryDisk | None = None, options: BrokerOptions | None = None, clock: ManualClock | None = None
) -> AsyncIterator[Broker]:
    broker = Broker(disk or MemoryDisk(random.Random(0), 1 << 30), options or BrokerOptions(), clock or ManualClock())
    await broker.start()
    await asyncio.sleep(0)
    try:
        yield broker
    finally:
        await broker.channel.close()
        await broker.app.stop()
        await broker.to_controller.close()


async def refused(work: object, code: int, sentence: str) -> None:
    with pytest.raises(StatusError, match=sentence) as caught:
        await work  # type: ignore[misc]
    assert caught.value.code == code


async def test_put_pop_ack() -> None:
    async with running() as broker:
        result = await broker.put(b"1")
        assert (result.code, result.queue_offset, result.store_time_ms) == (Code.OK, 0, broker.clock.wall_ms())
        assert broker.disk.unsynced_bytes == 0, "an OK means it is on the device"
        (handle,) = await broker.pop()
        assert await broker.pop() == []
        assert await broker.ack(handle, handle, "nonsense") == [
            Code.OK,
            Code.INVALID_RECEIPT_HANDLE,
            Code.INVALID_RECEIPT_HANDLE,
        ]
        text = broker.metrics()
        assert 'rocketmq_messages_in_total{topic="t"} 1.0' in text
        assert 'rocketmq_messages_out_total{consumer_group="g",topic="t"} 1.0' in text
        assert 'rocketmq_consumer_inflight_messages{consumer_group="g",topic="t"}' not in text
        assert broker.app.health() is None


async def test_what_was_popped_and_could_not_be_given_out_comes_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as broker:
        await broker.put(b"1")
        store = broker.app.core.store
        errors = iter([KeyError("by itself"), CorruptDataError("the record is damaged")])
        read = store.records.read_checked

        def read_checked(*place: Any) -> list[StoredRecord]:
            for error in errors:
                raise error
            return read(*place)

        monkeypatch.setattr(store.records, "read_checked", read_checked)
        assert await broker.pop(invisible_ms=10) == []
        broker.clock.advance(10)
        async with asyncio.timeout(5):
            while not broker.app.leader.reviver.redelivered:
                await asyncio.sleep(0.001)
        assert len(await broker.pop()) == 1


async def test_what_ends_or_changes_a_delivery() -> None:
    async with running() as broker:
        for number in range(4):
            await broker.put(b"%d" % number)
        first, second, third, fourth = await broker.pop()
        call = broker.channel.call
        changed = await call(
            methods.CHANGE_INVISIBLE,
            pb.ChangeInvisibleRequest(group="g", topic="t", receipt_handle=first, invisible_ms=60_000),
        )
        assert await broker.ack(first) == [Code.INVALID_RECEIPT_HANDLE]
        renewed = await call(
            methods.RENEW,
            pb.RenewRequest(
                entries=[pb.RenewEntry(group="g", topic="t", receipt_handle=each) for each in (first, second)],
                invisible_ms=60_000,
            ),
        )
        assert [each.code for each in renewed.results] == [Code.INVALID_RECEIPT_HANDLE, Code.OK]
        released = await call(methods.RELEASE, pb.ReleaseRequest(group="g", topic="t", receipt_handles=[third, "x"]))
        assert [each.code for each in released.results] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
        await call(methods.DEAD_LETTER, pb.DeadLetterRequest(group="g", topic="t", receipt_handle=fourth))
        assert await broker.ack(changed.receipt_handle, second, third, fourth) == [
            Code.OK,
            Code.OK,
            Code.INVALID_RECEIPT_HANDLE,
            Code.INVALID_RECEIPT_HANDLE,
        ]
        assert 'rocketmq_send_to_dlq_messages_total{consumer_group="g"} 1.0' in broker.metrics()
        await broker.app.leader.flusher.sync()
        assert len(await broker.pop()) == 1
        dead = pb.DeadLetterRequest(group="g", topic="t", receipt_handle=fourth)
        await refused(call(methods.DEAD_LETTER, dead), Code.INVALID_RECEIPT_HANDLE, "not good any more")


async def test_a_full_disk_refuses_sends_and_nothing_else() -> None:
    async with running() as broker:
        await broker.put(b"1")
        await broker.put(b"2")
        broker.disk.fill(broker.disk.used_bytes // 25)
        broker.clock.advance(1000)
        await refused(broker.put(b"3"), Code.INTERNAL_ERROR, "disk is nearly full")
        assert broker.app.health() is None  # all but sends goes on, so it must not be taken out of service
        assert "popwheel_broker_refused_disk_full_total 1.0" in broker.metrics()
        broker.disk.fill(1000)
        (first, second) = await broker.pop()
        assert await broker.ack(first) == [Code.OK]
        broker.disk.fill(1 << 30)
        broker.clock.advance(1000)
        assert (await broker.put(b"3")).code == Code.OK
        assert await broker.ack(second) == [Code.OK]


async def test_sends_are_refused_when_the_device_does_not_keep_up() -> None:
    options = BrokerOptions(waiting_bytes_max=1 << 20)
    async with running(options=options) as broker:
        broker.disk.hold_syncs()
        waiting = [asyncio.create_task(broker.put(bytes(300_000))) for _ in range(2)]
        await asyncio.sleep(0)
        await refused(broker.put(b"1"), Code.TOO_MANY_REQUESTS, r"broker\.waiting_bytes_max")
        behind = next(line for line in broker.metrics().splitlines() if line.startswith("rocketmq_storage_dispatch"))
        assert float(behind.split()[1]) > 1 << 20
        broker.disk.release_syncs()
        assert [each.code for each in await asyncio.gather(*waiting)] == [Code.OK, Code.OK]
        assert (await broker.put(b"1")).code == Code.OK


async def test_pull() -> None:
    async with running() as broker:
        assert await broker.pull(0) == ([], 0)
        for number in range(5):
            await broker.put(b"%d" % number, tag="even" if number % 2 == 0 else "odd")
        assert await broker.pull(0, 2) == ([b"0", b"1"], 2)
        assert await broker.pull(2) == ([b"2", b"3", b"4"], 5)
        assert await broker.pull(5) == ([], 5)
        assert await broker.pull(0, expression="odd") == ([b"1", b"3"], 5)
        assert await broker.pull(0, 1, expression="odd") == ([b"1"], 2)
        for offset in (-1, 6):
            await refused(broker.pull(offset), Code.ILLEGAL_OFFSET, f"offset {offset} is not between 0 and .* 5")


async def test_a_pull_waits_for_a_first_message() -> None:
    async with running() as broker:
        pull = asyncio.create_task(broker.pull(0, wait_ms=60_000, expression="a"))
        await asyncio.sleep(0)
        await broker.put(b"1", tag="b")
        await asyncio.sleep(0)
        assert not pull.done()
        await broker.put(b"2", tag="a")
        assert await pull == ([b"2"], 2)
        assert broker.app.leader.server._pulls._waiting == {}


async def test_pulls_that_wait_have_a_limit_that_groups_share() -> None:
    async with running(options=BrokerOptions(pop=PopOptions(pulls_waiting_max=3))) as broker:
        pulls = [asyncio.create_task(broker.pull(0, wait_ms=60_000)) for _ in range(2)]
        while "popwheel_pulls_waiting 2.0" not in broker.metrics():
            await asyncio.sleep(0)
        await refused(broker.pull(0, wait_ms=1000), Code.TOO_MANY_REQUESTS, r"group g.*broker\.pop\.pulls_waiting_max")
        assert await broker.pull(0) == ([], 0), "one that does not wait is served"
        await broker.put(b"1")
        await asyncio.gather(*pulls)
        assert "popwheel_pulls_waiting 0.0" in broker.metrics()


async def test_a_pull_that_waits_goes_on_over_what_its_filter_passes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.broker.calls.pull_handler._SCAN_ENTRIES", 8)
    async with running() as broker:
        for _ in range(50):
            await broker.put(b"other", tag="other")
        await broker.put(b"rare", tag="rare")
        async with asyncio.timeout(5):
            assert await broker.pull(0, wait_ms=60_000, expression="rare") == ([b"rare"], 51)


async def test_offsets() -> None:
    async with running() as broker:
        call = broker.channel.call

        async def committed() -> int:
            request = pb.GetOffsetRequest(group="g", topic="t", queue_id=0)
            return (await call(methods.GET_OFFSET, request)).offset

        async def query(policy: pb.OffsetPolicy.ValueType, timestamp_ms: int = 0) -> int:
            request = pb.QueryOffsetRequest(topic="t", queue_id=0, policy=policy, timestamp_ms=timestamp_ms)
            return (await call(methods.QUERY_OFFSET, request)).offset

        def update(offset: int) -> object:
            request = pb.UpdateOffsetRequest(group="g", topic="t", queue_id=0, offset=offset)
            return call(methods.UPDATE_OFFSET, request)

        assert (await committed(), await query(pb.END)) == (-1, 0)
        begun_ms = broker.clock.wall_ms()
        for number in range(3):
            await broker.put(b"%d" % number)
            broker.clock.advance(100)
        assert [await query(policy) for policy in (pb.BEGINNING, pb.END)] == [0, 3]
        assert [await query(pb.TIMESTAMP, begun_ms + after) for after in (-1, 100, 101, 1000)] == [0, 1, 2, 3]
        await update(2)  # type: ignore[misc]
        assert (await committed(), broker.disk.unsynced_bytes) == (2, 0)
        for offset in (-1, 4):
            await refused(update(offset), Code.ILLEGAL_OFFSET, "query the offset first")
        held = len(broker.app.core.store.queues)
        for queue_id in (1, 70_000, -1):
            await call(methods.UPDATE_OFFSET, pb.UpdateOffsetRequest(group="g", topic="t", queue_id=queue_id, offset=0))
        assert len(broker.app.core.store.queues) == held, "where nothing is, nothing is made"


async def events(stream: object) -> dict[int, int]:
    received = await stream.receive()  # type: ignore[attr-defined]
    return {event.id: event.waiting for event in received.events}


async def test_notify_tells_at_once_and_at_every_arrival() -> None:
    async with running() as broker:
        await broker.put(b"1", tag="a")
        stream = broker.channel.open(methods.NOTIFY)
        await stream.send(
            [
                pb.NotifyInterest(id=1, topic="t", group="g"),
                pb.NotifyInterest(id=2, topic="t", group="g", filter=tag_filter("b")),
                pb.NotifyInterest(id=3, topic="u", group="g"),
            ]
        )
        async with asyncio.timeout(5):
            assert await events(stream) == {1: 1, 2: 1, 3: 0}, "a filter leaves open whether any is wanted"
            assert "popwheel_notify_interests 3.0" in broker.metrics()
            await broker.put(b"2", tag="b")
            assert await events(stream) == {1: 1, 2: 1}
            await stream.send([pb.NotifyInterest(id=1, cancel=True)])
            await broker.put(b"3", tag="a", queue_id=1)
            await broker.put(b"4", tag="b", queue_id=1)
            assert await events(stream) == {2: 1}
            handles = await broker.pop()
            request = pb.ReleaseRequest(group="g", topic="t", receipt_handles=handles[:2])
            await broker.channel.call(methods.RELEASE, request)
            await broker.app.leader.flusher.sync()
            assert await events(stream) == {2: 2}
        stream.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "popwheel_notify_interests 0.0" in broker.metrics()


async def test_it_goes_on_where_it_ended() -> None:
    disk, clock = MemoryDisk(random.Random(0), 1 << 30), ManualClock()
    options = BrokerOptions(log=LogOptions(segment_bytes=4096))
    async with running(disk, options, clock) as broker:
        for number in range(30):
            await broker.put(b"%d" % number)
        handles = await broker.pop(10)
        assert set(await broker.ack(*handles[:9])) == {Code.OK}
    async with running(disk, options, clock) as broker:
        assert await broker.ack(*handles) == [*[Code.INVALID_RECEIPT_HANDLE] * 9, Code.OK]
        assert len(await broker.pop()) == 20


@pytest.mark.parametrize("seed", range(10))
async def test_a_power_loss_at_any_moment_takes_no_send_that_was_answered(seed: int) -> None:
    """With the app's own checkpoints, segments and folders on the way (S1, P3)."""
    disk, clock = MemoryDisk(random.Random(seed), 1 << 30), ManualClock()
    options = BrokerOptions(log=LogOptions(segment_bytes=4096, index_entries_max=16), checkpoint_interval_ms=10)
    dice = random.Random(seed)
    sent: list[bytes] = []
    for life in range(4):
        broker = Broker(disk, options, clock)
        await broker.start()
        found = []
        for number in range(dice.randrange(12)):
            body = b"%d-%d" % (life, number)
            await broker.put(body)
            sent.append(body)
            if dice.random() < 0.3:
                await broker.app.leader.upkeep.save()
        offset = 0
        while True:
            bodies, offset = await broker.pull(offset)
            if not bodies:
                break
            found += bodies
        assert found == sent
        disk.crash("power")
        await end_dead(broker)


async def end_dead(broker: Broker) -> None:
    """End the tasks of a process that has crashed, which must not write any more."""
    flushing, taking = broker.app.leader.flusher._task, broker.app.roles._task
    assert flushing is not None and taking is not None
    tasks = [taking, *broker.app.leader._tasks, flushing]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await broker.channel.close()
    await broker.app.leader.reviver.stop()
    await broker.app.leader.timer.stop()
    await broker.app.controller_follower.stop()
    await broker.to_controller.close()


async def test_a_failed_sync_ends_the_broker_and_is_never_followed_by_an_ok() -> None:
    async with running() as broker:
        await broker.put(b"1")
        broker.disk.fail_syncs(1)
        await refused(broker.put(b"2"), Code.SLAVE_PERSISTENCE_TIMEOUT, "the broker stops.*can't be told")
        assert isinstance(await broker.app.failure, OSError)
        assert "has stopped" in str(broker.app.health())


async def test_what_comes_after_a_failed_sync_is_told_that_it_was_not_done_and_may_ask_again() -> None:
    """As the refusals of any replica that can't serve: so a proxy holds it, for the next master or this one."""
    async with running() as broker:
        for body in (b"1", b"2", b"6"):
            await broker.put(body)
        acked, dead = await broker.pop(2)
        broker.disk.fail_syncs(1)
        await refused(broker.put(b"3"), Code.SLAVE_PERSISTENCE_TIMEOUT, "the broker stops")
        for later in (
            broker.put(b"4"),
            broker.pop(1),
            broker.ack(acked),
            broker.channel.call(methods.DEAD_LETTER, pb.DeadLetterRequest(group="g", topic="t", receipt_handle=dead)),
        ):
            await refused(later, Code.HA_NOT_AVAILABLE, "the broker stops")


async def test_a_send_whose_refusal_could_not_be_made_to_last_is_in_doubt() -> None:
    """What was taken back may come again: its client must not hear that nothing was stored (S2)."""
    async with running() as broker:
        await broker.put(b"1")
        broker.disk.fail_writes(1)
        broker.disk.fail_syncs(1)
        await refused(broker.put(b"2"), Code.SLAVE_PERSISTENCE_TIMEOUT, "can't be told")
        await broker.app.failure


async def test_a_broker_that_has_failed_ends_once_a_sync_that_is_under_way_has() -> None:
    """Its files are not closed under the device."""
    disk = MemoryDisk(random.Random(0), 1 << 30)
    async with running(disk) as broker:
        disk.hold_syncs()
        sending = asyncio.create_task(broker.put(b"1"))
        await asyncio.sleep(0.01)
        broker.app._fail(OSError("the device is gone"))
        asyncio.get_running_loop().call_later(0.05, disk.release_syncs)
    await asyncio.gather(sending, return_exceptions=True)


async def test_a_consume_queue_that_could_not_be_synced_is_not_trusted_later() -> None:
    """The system forgets what it could not write: a later sync that goes well says nothing about it."""
    for seed in range(20):
        disk, clock = MemoryDisk(random.Random(seed), 1 << 30), ManualClock()
        options = BrokerOptions(log=LogOptions(queue_entries_in_memory=0))
        broker = Broker(disk, options, clock)
        await broker.start()
        for number in range(5):
            await broker.put(b"%d" % number)
        disk.fail_syncs(1, of=lambda path: path.parent.name == "queueindex")
        for _ in range(2):  # until it has ended, the broker tries again
            with pytest.raises(OSError, match="Input/output"):
                await broker.app.leader.upkeep.save()
        assert isinstance(await broker.app.failure, OSError)
        disk.crash("process")
        await end_dead(broker)
        async with running(disk, options, clock) as broker:
            assert (await broker.pull(0))[0] == [b"0", b"1", b"2", b"3", b"4"]


async def test_queues_that_are_made_again_are_not_trusted_before_a_checkpoint_says_so() -> None:
    """The files that take the place of missing ones are on the device only once a checkpoint was saved after them."""
    for seed in range(20):
        disk, clock = MemoryDisk(random.Random(seed), 1 << 30), ManualClock()
        options = BrokerOptions(log=LogOptions(queue_entries_in_memory=0))
        async with running(disk, options, clock) as broker:
            for number in range(5):
                await broker.put(b"%d" % number)
        for path in index_files(disk):
            disk.remove(path)
        broker = Broker(disk, options, clock)
        disk.fail_syncs(1, of=lambda path: path.parent.name == "queueindex")
        await broker.app.start()
        broker.hear()
        assert isinstance(await broker.app.failure, OSError)
        disk.crash("process")
        await broker.app.stop()
        await broker.to_controller.close()
        broker = Broker(disk, options, clock)
        await broker.start()
        disk.crash("power")
        await end_dead(broker)
        async with running(disk, options, clock) as broker:
            assert (await broker.pull(0))[0] == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_queues_of_an_earlier_release_are_made_again_as_index_files_and_their_folder_goes() -> None:
    disk, clock = MemoryDisk(random.Random(0), 1 << 30), ManualClock()
    async with running(disk, clock=clock) as broker:
        for number in range(5):
            await broker.put(b"%d" % number)
    for path in index_files(disk):
        disk.remove(path)
    kept = FOLDER.parent / "other"
    disk.make_folder(FOLDER / "consumequeue" / "t" / "0")
    for path in (kept, FOLDER / "consumequeue" / "t" / "0" / f"{0:020d}.queue"):
        disk.open(path).write(0, [bytes(100)])
    async with running(disk, BrokerOptions(log=LogOptions(queue_entries_in_memory=0)), clock) as broker:
        assert (await broker.pull(0))[0] == [b"0", b"1", b"2", b"3", b"4"]
        assert disk.list(FOLDER / "consumequeue" / "t" / "0") == []
        assert index_files(disk)
        assert kept in disk.files()


async def test_a_queue_whose_index_file_is_too_short_stands_still_and_others_go_on() -> None:
    disk = MemoryDisk(random.Random(0), 1 << 30)
    options = BrokerOptions(log=LogOptions(queue_entries_in_memory=0))
    async with running(disk, options) as broker:
        await broker.put(b"1", queue_id=0)
        await broker.app.leader.upkeep.save()
        await broker.put(b"2", queue_id=1)
        for path in index_files(disk):
            disk.open(path).truncate(0)
        assert len(await broker.pop()) == 1
        assert len(broker.app.core.pops.damaged) == 1


async def test_a_damaged_entry_of_a_revive_queue_that_a_start_meets_hides_no_ack() -> None:
    disk = MemoryDisk(random.Random(0), 1 << 30)
    async with running(disk) as broker:
        await broker.put(b"1")
        await broker.put(b"2")
        handles = await broker.pop()
        assert await broker.ack(handles[0]) == [Code.OK]
    queues = [queue for queue in broker.app.core.store.queues if names.REVIVE_PREFIX in queue.topic]
    (ack,) = [entry for queue in queues for entry in queue.read(1, 1)]
    rot_entry(disk, ack, 8)  # of the ACK's position
    async with running(disk) as broker:  # queues are made again from the log
        (left,) = broker.app.core.state.table
        assert (left.start_offset, left.open_indexes()) == (0, [1])
        assert await broker.ack(handles[1]) == [Code.OK]


async def test_a_damaged_consume_queue_does_not_end_the_broker_when_retention_meets_it() -> None:
    disk = MemoryDisk(random.Random(0), 1 << 30)
    options = BrokerOptions(log=LogOptions(queue_entries_in_memory=0), retention=RetentionOptions(interval_ms=10))
    async with running(disk, options) as broker:
        await broker.put(b"1")
        assert len(await broker.pop()) == 1
        await broker.app.leader.upkeep.save()
        for path in index_files(disk):
            disk.open(path).truncate(0)
        await asyncio.sleep(0.05)
        assert not broker.app.failure.done()
        await broker.put(b"2")
        assert len(await broker.pop()) == 1


async def test_damage_of_what_was_answered_is_refused_at_the_start() -> None:
    disk = MemoryDisk(random.Random(0), 1 << 30)
    async with running(disk) as broker:
        await broker.put(b"1")
    disk.flip_bit(FOLDER / "checkpoint", 8 * (BEGIN + 20))
    broker = Broker(disk, BrokerOptions(), ManualClock())
    with pytest.raises(CorruptDataError, match="checkpoint file is damaged"):
        await broker.app.start()
    await broker.to_controller.close()


async def test_retention_deletes_segment_by_segment() -> None:
    options = BrokerOptions(
        log=LogOptions(segment_bytes=4096),
        retention=RetentionOptions(hours=1, interval_ms=10),
        checkpoint_interval_ms=10,
    )
    async with running(options=options) as broker:
        for _ in range(40):
            await broker.put(bytes(200))
        before = broker.app.core.store.log.segment_count
        broker.clock.advance(2 * 3_600_000)
        await broker.put(b"young")
        async with asyncio.timeout(5):
            while broker.app.core.store.log.segment_count > 2:
                await asyncio.sleep(0.005)
        assert before > 4
