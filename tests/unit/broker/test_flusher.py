"""Group commit: nobody is told that it is on the device before it is (S1)."""

import asyncio
from collections.abc import Iterator
from typing import Literal

import pytest

from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.log.refusals import WriterStoppedError
from popwheel_broker.options import ReplicationOptions
from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.sync_state_set import SyncStateSet
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from tests.harness.manual_clock import run_virtually
from tests.unit.broker.world import World


class Flushing:
    """A flusher on a world's store."""

    def __init__(self, mode: Literal["sync", "async"] = "sync") -> None:
        self.world = World()
        self.store = self.world.core.store
        self.disk = self.world.disk
        self.failures: list[Exception] = []
        self.flusher = Flusher(self.store, mode, 500, self.failures.append)

    def put(self) -> int:
        return self.store.put([Record(RecordKind.MESSAGE, "t", 0, b"x")]).end_position

    def readable(self) -> int:
        queue = self.store.queue("t", 0)
        return 0 if queue is None else queue.max_offset

    def waiter(self) -> "asyncio.Task[None]":
        """A send that waits."""
        return asyncio.create_task(self.flusher.durable(self.put()))


def group_of(*members: int) -> BrokerGroup:
    """The state of a group with a sync-state set."""
    return BrokerGroup(version=1, sync_state_set=members)


@pytest.fixture
def each() -> Iterator[Flushing]:
    """One whose syncs go on when its test has ended, however that did: the loop would wait for them for ever."""
    flushing = Flushing()
    yield flushing
    flushing.disk.release_syncs()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_waiter_is_let_go_only_after_the_sync(each: Flushing) -> None:
    each.flusher.start()
    each.disk.hold_syncs()
    waiting = each.waiter()
    await turns()
    assert (waiting.done(), each.readable(), each.disk.unsynced_bytes > 0) == (False, 0, True)
    each.disk.release_syncs()
    await waiting
    assert (each.readable(), each.disk.unsynced_bytes) == (1, 0)
    await each.flusher.stop()


async def test_who_no_longer_waits_is_forgotten_before_anything_goes_on(each: Flushing) -> None:
    waiting = [each.waiter() for _ in range(4)]
    await turns()
    for index in (0, 3, 2):
        waiting[index].cancel()
        await turns()
    assert len(each.flusher._waiting) == 1
    await each.flusher.sync()
    await waiting[1]


async def test_those_who_come_while_the_device_is_busy_share_the_next_sync(each: Flushing) -> None:
    each.flusher.start()
    begun = each.disk.syncs_begun
    each.disk.hold_syncs()
    first = each.waiter()
    await turns()
    others = [each.waiter() for _ in range(20)]
    await turns()
    assert each.disk.syncs_begun == begun + 1
    each.disk.release_syncs()
    await first
    await asyncio.gather(*others)
    assert (each.disk.syncs_begun, each.readable()) == (begun + 2, 21)
    await each.flusher.stop()


async def test_where_the_device_is_quick_nobody_waits_for_a_turn_of_the_loop(each: Flushing) -> None:
    each.disk.quick = True
    each.put()
    await each.flusher.sync()  # the segment's name, which goes through a thread
    begun = each.disk.syncs_begun - each.readable()
    for count in (2, 3):
        with pytest.raises(StopIteration):
            each.flusher.durable(each.put()).send(None)
        assert (each.readable(), each.disk.unsynced_bytes, each.disk.syncs_begun) == (count, 0, begun + count)


async def test_with_too_few_replicas_a_quick_sync_lets_nobody_go_either(each: Flushing) -> None:
    options = ReplicationOptions(min_in_sync_replicas=2)
    members = SyncStateSet(0, group_of(0), 0, 0, options, ReplicationConstants(), each.flusher.advance)
    each.disk.quick = True
    each.put()
    await each.flusher.sync()  # the segment's name, which goes through a thread
    each.flusher.start()
    each.flusher.attend(members)
    end = each.put()
    members.appended(end, 0)
    with pytest.raises(StatusError) as raised:
        await each.flusher.durable(end)
    assert raised.value.code == Code.SLAVE_PERSISTENCE_TIMEOUT
    await each.flusher.stop()


async def test_a_sync_lets_nobody_go_whose_record_came_after_it_began(each: Flushing) -> None:
    each.flusher.start()
    await each.waiter()
    each.disk.hold_syncs()
    first = each.waiter()
    await turns()
    second = each.waiter()
    await turns()
    each.disk.release_syncs()
    each.disk.hold_syncs()
    await first
    await turns()
    assert (second.done(), each.readable()) == (False, 2)
    each.disk.release_syncs()
    await second
    await each.flusher.stop()


async def test_after_a_failure_all_fail_and_nothing_is_confirmed(each: Flushing) -> None:
    each.flusher.start()
    each.disk.hold_syncs()
    first = each.waiter()
    await turns()
    second = each.waiter()
    await turns()
    each.disk.fail_syncs(1)
    each.disk.release_syncs()
    for waiting in (first, second):
        with pytest.raises(WriterStoppedError):
            await waiting
    assert [type(failure) for failure in each.failures] == [OSError]
    with pytest.raises(WriterStoppedError):
        each.put()
    with pytest.raises(WriterStoppedError):
        await each.flusher.durable(0)
    with pytest.raises(OSError, match="Input/output"):
        await each.flusher.sync()
    await each.flusher.stop()
    assert (each.readable(), len(each.failures)) == (0, 1)


async def test_a_quick_sync_that_fails_ends_the_writing_as_any_other(each: Flushing) -> None:
    each.disk.quick = True
    each.put()
    await each.flusher.sync()
    each.disk.fail_syncs(1)
    with pytest.raises(WriterStoppedError):
        await each.flusher.durable(each.put())
    assert (each.readable(), [type(failure) for failure in each.failures]) == (1, [OSError])
    with pytest.raises(WriterStoppedError):
        each.put()
    await each.flusher.stop()


async def test_the_name_of_a_new_segment_is_synced_in_a_thread(each: Flushing) -> None:
    each.disk.quick = True
    waiting = each.waiter()
    await turns()
    assert not waiting.done()
    each.flusher.start()
    await waiting
    await each.flusher.stop()


async def test_what_is_being_synced_in_a_thread_is_waited_for_there(each: Flushing) -> None:
    each.flusher.start()
    await each.waiter()
    each.disk.hold_syncs()
    first = each.waiter()
    await turns()
    each.disk.quick = True
    begun = each.disk.syncs_begun
    second = each.waiter()
    await turns()
    assert (each.disk.syncs_begun, second.done()) == (begun, False)
    each.disk.release_syncs()
    await asyncio.gather(first, second)
    await each.flusher.stop()


async def test_much_is_synced_in_a_thread_though_the_device_is_quick(each: Flushing) -> None:
    each.disk.quick = True
    each.put()
    await each.flusher.sync()
    end = each.store.put([Record(RecordKind.MESSAGE, "t", 0, bytes(300_000))]).end_position
    waiting = asyncio.create_task(each.flusher.durable(end))
    await turns()
    assert not waiting.done()
    each.flusher.start()
    await waiting
    await each.flusher.stop()


async def test_where_slaves_may_have_it_a_failure_leaves_of_unknown_outcome_what_was_asked_for(each: Flushing) -> None:
    """They may lead in a moment: a proxy that is told so asks there again, and does not tell the client of an error."""
    members = SyncStateSet(0, group_of(0, 1), 0, 0, ReplicationOptions(), ReplicationConstants(), lambda: None)
    each.flusher.start()
    each.flusher.attend(members)
    each.disk.hold_syncs()
    waiting = each.waiter()
    held = asyncio.create_task(each.flusher.replicated(each.store.log.end_position + 1))
    await turns()
    each.disk.fail_syncs(1)
    each.disk.release_syncs()
    for refused in (waiting, held, each.flusher.durable(0)):
        with pytest.raises(StatusError) as raised:
            await refused
        assert raised.value.code == Code.SLAVE_PERSISTENCE_TIMEOUT
    assert len(each.failures) == 1
    await each.flusher.stop()


async def test_what_the_set_does_not_have_is_neither_replicated_nor_replicated(each: Flushing) -> None:
    """Pops and acks are answered when it is held (P2, P3), checkpoints are saved when it is replicated (S4, S6)."""
    members = SyncStateSet(0, group_of(0, 1), 0, 0, ReplicationOptions(), ReplicationConstants(), each.flusher.advance)
    each.flusher.attend(members)
    end = each.put()
    members.appended(end, 0)
    members.connected(1, 0, 0, 0)
    held = asyncio.create_task(each.flusher.replicated(end))
    replicated = asyncio.create_task(each.flusher.fully_synced(end))
    await turns()
    await each.flusher.sync()
    await turns()
    assert (held.done(), replicated.done(), each.flusher.is_replicated(end)) == (False, False, False)
    members.progress(1, end, 0, 0)
    await turns()
    assert (held.done(), replicated.done(), each.flusher.is_replicated(end)) == (True, False, True)
    members.progress(1, end, end, 0)
    await replicated


async def test_a_writer_that_stopped_by_itself_is_notified_too(each: Flushing) -> None:
    each.flusher.start()
    waiting = each.waiter()
    each.store.log.stop_writing("a failed write could not be rolled back")
    with pytest.raises(WriterStoppedError, match="rolled back"):
        await waiting
    assert len(each.failures) == 1
    await each.flusher.stop()


async def test_what_nobody_waits_for_is_synced_when_it_ends(each: Flushing) -> None:
    each.flusher.start()
    each.put()
    await each.flusher.stop()
    assert (each.disk.unsynced_bytes, each.readable()) == (0, 1)


async def test_ending_in_the_middle_of_a_sync_syncs_once_more(each: Flushing) -> None:
    """The sync that was given up says nothing about the device."""
    each.flusher.start()
    each.disk.hold_syncs()
    waiting = each.waiter()
    await turns()
    stopping = asyncio.create_task(each.flusher.stop())
    await turns()
    assert (waiting.done(), each.readable()) == (False, 0)
    each.disk.release_syncs()
    await stopping
    await waiting
    assert each.disk.unsynced_bytes == 0


async def test_a_waiter_who_has_gone_holds_nobody_up(each: Flushing) -> None:
    each.flusher.start()
    each.disk.hold_syncs()
    first, second = each.waiter(), each.waiter()
    await turns()
    first.cancel()
    each.disk.release_syncs()
    await second
    await asyncio.gather(first, return_exceptions=True)
    assert each.readable() == 2
    await each.flusher.stop()


async def test_async_confirms_at_once() -> None:
    each = Flushing("async")
    each.disk.hold_syncs()
    await each.flusher.durable(each.put())
    assert each.readable() == 1
    each.put()
    each.flusher.commit_later()
    assert each.readable() == 2
    each.disk.release_syncs()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_nobody_waits_for_is_synced_every_interval(mode: Literal["sync", "async"]) -> None:
    each = Flushing(mode)

    async def work() -> None:
        each.flusher.start()
        each.put()
        await asyncio.sleep(0.499)
        assert each.disk.unsynced_bytes > 0
        await asyncio.sleep(0.002)
        assert (each.disk.unsynced_bytes, each.readable()) == (0, 1)
        await each.flusher.stop()

    run_virtually(each.world.clock, work())


async def test_what_was_synced_for_one_who_has_gone_is_readable(each: Flushing) -> None:
    """Nothing is left to be synced, so no later sync would tell of it."""
    each.put()
    each.disk.hold_syncs()
    waiting = asyncio.create_task(each.flusher.sync())
    await each.disk.until_stored()
    waiting.cancel()
    each.disk.release_syncs()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (each.store.log.needs_sync, each.readable()) == (False, 1)
