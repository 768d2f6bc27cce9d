"""While others are served nothing waits for the device on the loop, however short memory is."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from popwheel_broker.options import BrokerOptions, LogOptions, RetentionOptions
from popwheel_common.contract import names
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.served_broker import Broker, events
from tests.unit.broker.test_notify import registered
from tests.unit.broker.world import INVISIBLE_MS, wire_message

SAVED_S = 6
"""By then the queues' entries are in files."""


def serve(work: Callable[[Broker], Awaitable[None]], **options: object) -> None:
    """Run calls of a broker whose entries are all read from files, on a disk of which no plain call may wait."""
    clock = ManualClock()
    log = {"segment_bytes": 64 * 1024, "queue_entries_in_memory": 1, "index_entries_max": 1000}
    disk = MemoryDisk(random.Random(0), 1 << 30)

    async def all_of_it() -> None:
        broker = Broker(disk, BrokerOptions(log=LogOptions(**log), **options), clock)  # type: ignore[arg-type]
        await broker.start()
        disk.may_block, disk.cached_bytes = False, 0
        await work(broker)
        disk.may_block = True
        await broker.channel.close()
        await broker.app.stop()
        await broker.to_controller.close()

    run_virtually(clock, all_of_it())


async def stored(broker: Broker, count: int, padding: bytes = b"") -> list[MessageRun]:
    """Put messages, one a second, and have them saved."""
    runs: list[MessageRun] = []
    for number in range(count):
        payload, properties = wire_message("t", b"%d" % number + padding, "")
        runs.append(MessageRun("t", 0, [payload], [properties], [""]))
        await broker.channel.call(methods.PUT, [runs[-1]])
        broker.clock.advance(1000)
    await asyncio.sleep(SAVED_S)
    return runs


def bodies(messages: object) -> list[bytes]:
    return [Message.FromString(each).body for each in messages]  # type: ignore[attr-defined]


async def popped(broker: Broker, count: int = 32, group: str = "g") -> PopAnswer:
    request = pb.PopRequest(group=group, topic="t", queue_id=-1, max_messages=count, invisible_ms=INVISIBLE_MS)
    answer: PopAnswer = await broker.channel.call(methods.POP, request)
    return answer


def test_pop_takes_each_message_once_and_in_order() -> None:
    async def work(broker: Broker) -> None:
        await stored(broker, 12)
        answers = await asyncio.gather(*(popped(broker, 3) for _ in range(5)))
        found = [bodies(a.messages) for a in answers]
        assert [body for each in found for body in each] == [b"%d" % number for number in range(12)]
        assert broker.app.files.core.store.reads.fetched_bytes > 0

    serve(work)


def test_a_pop_that_nobody_waits_for_any_more_gives_nothing_out() -> None:
    """Pops of short polls that had ended filled the line to a slow device, so that no poll got anything, for ever."""

    async def work(broker: Broker) -> None:
        await stored(broker, 2)
        request = pb.PopRequest(
            group="g", topic="t", queue_id=-1, max_messages=2, invisible_ms=INVISIBLE_MS, wanted_for_ms=200
        )
        pops = [asyncio.create_task(broker.channel.call(methods.POP, request)) for _ in range(3)]
        await asyncio.sleep(0)
        broker.clock.advance(300)  # while the device reads for the first of them
        assert [(len(each.messages), each.waiting) for each in await asyncio.gather(*pops)] == [(0, 1)] * 3
        assert len((await popped(broker)).messages) == 2

    serve(work)


def test_a_pop_of_one_queue_reads_what_it_says_of_others_before_it_delivers_something() -> None:
    async def work(broker: Broker) -> None:
        for number in range(-2, 4):
            await broker.put(b"%d" % number, queue_id=number % 2)
            if number < 0:
                await broker.ack(*(await broker.pop()))
        for queue_id in range(2, 600):  # so that the index is more than a page
            await broker.put(b"", queue_id=queue_id)
        await broker.app.stop()
        broker.disk.may_block = True
        again = Broker(broker.disk, broker.app._options, broker.clock)
        await again.start()
        again.disk.may_block = False
        found = [await popped(again, 2) for _ in range(2)]
        assert sorted(body for each in found for body in bodies(each.messages)) == [b"0", b"1", b"2", b"3"]
        assert [each.waiting for each in found] == [2, 0]
        await again.app.stop()

    serve(work)


def test_a_pop_that_has_something_does_not_wait_for_more() -> None:
    async def work(broker: Broker) -> None:
        await stored(broker, 1)
        payload, properties = wire_message("t", b"warm", "")
        await broker.channel.call(methods.PUT, [MessageRun("t", 1, [payload], [properties], [""])])
        answers = [await popped(broker), await popped(broker)]
        assert sorted(len(each.handles) for each in answers) in ([0, 2], [1, 1])
        assert sum(len(each.handles) for each in answers) == 2

    serve(work)


def test_a_queue_that_has_to_be_read_is_the_first_of_a_pop_as_often_as_others() -> None:
    async def work(broker: Broker) -> None:
        await stored(broker, 1)
        payload, properties = wire_message("t", b"warm", "")
        await broker.channel.call(methods.PUT, [MessageRun("t", 1, [payload], [properties], [""])])
        turns = iter([0])  # queue 0 comes first in it, and it is drawn once though there are several tries
        broker.app.files.core.pops.rotation = turns.__next__  # type: ignore[method-assign]
        assert bodies((await popped(broker, 1)).messages) == [b"0"]
        assert not list(turns)

    serve(work)


def test_pull_and_offsets() -> None:
    async def work(broker: Broker) -> None:
        start_ms = broker.clock.wall_ms()
        await stored(broker, 9)
        assert (await broker.pull(2, 4))[0] == [b"2", b"3", b"4", b"5"]
        assert "popwheel_storage_cold_calls 0.0" in broker.metrics()
        assert "popwheel_storage_cold_read_bytes_total 0.0" not in broker.metrics()
        request = pb.QueryOffsetRequest(topic="t", queue_id=0, policy=pb.TIMESTAMP, timestamp_ms=start_ms + 3500)
        assert (await broker.channel.call(methods.QUERY_OFFSET, request)).offset == 4

    serve(work)


def test_what_ends_a_delivery() -> None:
    async def work(broker: Broker) -> None:
        await stored(broker, 3)
        first, second, _ = await broker.pop()
        await asyncio.sleep(SAVED_S)
        call = broker.channel.call
        released = await call(methods.RELEASE, pb.ReleaseRequest(group="g", topic="t", receipt_handles=[first]))
        assert [each.code for each in released.results] == [Code.OK]
        await call(methods.DEAD_LETTER, pb.DeadLetterRequest(group="g", topic="t", receipt_handle=second))
        await asyncio.sleep(INVISIBLE_MS / 1000)  # and the third comes due
        store = broker.app.files.core.store
        held = [store.queue(name, 0) for name in (names.retry_topic("g", "t"), names.dead_letter_topic("g"))]
        assert [queue and queue.max_offset for queue in held] == [2, 1]
        await asyncio.sleep(SAVED_S)
        assert len(await broker.pop()) == 2

    serve(work)


def test_a_send_that_is_tried_again() -> None:
    async def work(broker: Broker) -> None:
        run = (await stored(broker, 2))[-1]
        run.is_retry = True
        (result,) = await broker.channel.call(methods.PUT, [run])
        assert (result.code, result.queue_offset) == (Code.OK, 1)

    serve(work)


def test_delayed_messages_are_recalled_listed_and_fire() -> None:
    async def work(broker: Broker) -> None:
        due_ms = broker.clock.wall_ms() + 60_000
        payload, properties = wire_message("t", b"later", "")
        run = MessageRun(
            "t", 0, [payload] * 2, [properties] * 2, ["", ""], PutKind.AT_TIME, [due_ms, due_ms], topic_id=1
        )
        (result,) = await broker.channel.call(methods.PUT, [run])
        await asyncio.sleep(SAVED_S)
        listed = await broker.channel.call(
            methods.TIMER_LIST, pb.TimerListRequest(topic="t", within_ms=90_000, limit=9)
        )
        assert len(listed.timers) == 2
        recall = pb.RecallRequest(topic="t", recall_handle=result.references[0])
        await broker.channel.call(methods.RECALL, recall)
        await asyncio.sleep(SAVED_S)
        await asyncio.sleep(60)
        assert (await broker.pull(0))[0] == [b"later"]

    serve(work)


def test_retention() -> None:
    async def work(broker: Broker) -> None:
        await stored(broker, 200, bytes(1000))
        request = pb.PopRequest(group="g", topic="t", queue_id=0, max_messages=2, invisible_ms=5 * 3_600_000)
        await broker.channel.call(methods.POP, request)
        broker.clock.advance(3 * 3600 * 1000)
        await stored(broker, 1)
        await asyncio.sleep(30)
        log = broker.app.files.log
        assert log.segment_count < 3
        assert log.start_position > 0
        assert broker.app.files.core.relocation.messages == 2
        queue = broker.app.files.core.store.queue("t", 0)
        assert queue is not None
        begin = await broker.app.files.core.store.reads.run(lambda: queue.min_offset)
        assert (await broker.pull(begin))[0]

    serve(work, retention=RetentionOptions(hours=1, interval_ms=1000))


def test_what_waits_is_notified_without_a_read_when_retention_has_moved_on() -> None:
    async def work(broker: Broker) -> None:
        await stored(broker, 200, bytes(1000))
        broker.clock.advance(3 * 3600 * 1000)
        await asyncio.sleep(30)
        assert broker.app.files.log.start_position > 0
        async with registered(broker, (1, "t", "g")) as stream:
            assert await events(stream) == {1: 200}, "what retention took is counted until somebody looks"
            held = len((await popped(broker, 200)).messages)
            assert 0 < held < 200
            await stream.send([pb.NotifyInterest(id=2, topic="t", group="late")])
            assert await events(stream) == {2: held}

    serve(work, retention=RetentionOptions(hours=1, interval_ms=1000))
