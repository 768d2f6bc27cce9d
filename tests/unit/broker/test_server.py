"""The broker as a proxy sees it."""

import asyncio
from typing import Any

import pytest

from popwheel_broker.log.record import StoredRecord
from popwheel_broker.options import BrokerOptions, PopOptions
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.unit.broker.served_broker import events, refused, running
from tests.unit.broker.world import tag_filter, wire_message


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


async def test_what_was_popped_and_could_not_be_delivered_comes_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
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
        await refused(call(methods.DEAD_LETTER, dead), Code.INVALID_RECEIPT_HANDLE, "not valid any more")


async def test_what_no_record_can_hold_is_refused_by_name_and_changes_nothing() -> None:
    async with running() as broker:
        await broker.put(b"1")
        (handle,) = await broker.pop()
        core = broker.app.core
        end, made = core.store.log.end_position, core.state.table.next_number
        for hidden_ms in (-1, 1 << 49, (1 << 63) - 1):
            pop = pb.PopRequest(group="g", topic="t", queue_id=-1, max_messages=1, invisible_ms=hidden_ms)
            entry = pb.RenewEntry(group="g", topic="t", receipt_handle=handle)
            renewal = pb.RenewRequest(entries=[entry], invisible_ms=hidden_ms)
            change = pb.ChangeInvisibleRequest(group="g", topic="t", receipt_handle=handle, invisible_ms=hidden_ms)
            await refused(broker.channel.call(methods.POP, pop), Code.ILLEGAL_INVISIBLE_TIME, "can be hidden for")
            await refused(broker.channel.call(methods.RENEW, renewal), Code.ILLEGAL_INVISIBLE_TIME, "can be hidden for")
            if hidden_ms > 0:  # below 0 it is 0
                await refused(
                    broker.channel.call(methods.CHANGE_INVISIBLE, change),
                    Code.ILLEGAL_INVISIBLE_TIME,
                    "can be hidden for",
                )
        payload, properties = wire_message("t", b"2")
        for queue_id in (-1, 1 << 16, (1 << 31) - 1):
            kinds = {PutKind.NOW: [], PutKind.AT_TIME: [broker.clock.wall_ms() + 60_000], PutKind.HALF: [1000]}
            for kind, times_ms in kinds.items():
                run = MessageRun("t", queue_id, [payload], [properties], [""], kind, times_ms)
                await refused(broker.channel.call(methods.PUT, [run]), Code.BAD_REQUEST, "a queue's number")
        assert (core.store.log.end_position, core.state.table.next_number) == (end, made)
        assert await broker.ack(handle) == [Code.OK]


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
    monkeypatch.setattr("popwheel_broker.calls.pull_handler._SCAN_ENTRIES", 8)
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


async def test_notify_reports_at_once_and_at_every_arrival() -> None:
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
