"""The broker as a proxy sees it, when its process or its device fails, and at the next start."""

import asyncio
import random

import pytest

from popwheel_broker.core.checkpoint import BEGIN
from popwheel_broker.options import BrokerOptions, LogOptions, RetentionOptions
from popwheel_common.contract import names
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.index_bytes import index_files, rot_entry
from tests.unit.broker.served_broker import FOLDER, Broker, refused, running


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
    await broker.app.leader.transactions.stop()
    await broker.app.controller_watch.stop()
    await broker.to_controller.close()


async def test_a_failed_sync_ends_the_broker_and_is_never_followed_by_an_ok() -> None:
    async with running() as broker:
        await broker.put(b"1")
        broker.disk.fail_syncs(1)
        await refused(broker.put(b"2"), Code.SLAVE_PERSISTENCE_TIMEOUT, "the broker stops.*took effect is unknown")
        assert isinstance(await broker.app.failure, OSError)
        assert "has stopped" in str(broker.app.health())


async def test_what_comes_after_a_failed_sync_is_notified_that_it_was_not_done_and_may_ask_again() -> None:
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


async def test_a_send_whose_refusal_could_not_be_made_to_last_is_of_unknown_outcome() -> None:
    """What was revoked may come again: its client must not hear that nothing was stored (S2)."""
    async with running() as broker:
        await broker.put(b"1")
        broker.disk.fail_writes(1)
        broker.disk.fail_syncs(1)
        await refused(broker.put(b"2"), Code.SLAVE_PERSISTENCE_TIMEOUT, "is unknown")
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
        broker.learn()
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
    (ack,) = [entry for queue in queues if queue.queue_id for entry in queue.read(1, 1)]  # names are in the first
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
