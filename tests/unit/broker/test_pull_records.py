"""Records of the log for readers of whole queues: what a pull by messages gives, checked as well."""

import random

import pytest

from popwheel_broker.log import record
from popwheel_broker.options import BrokerOptions, LogOptions, PopOptions
from popwheel_common.contract.record_block import decode_block
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.served_broker import FOLDER, Broker, running
from tests.unit.broker.test_cold_calls import serve, stored
from tests.unit.broker.world import tag_filter

LARGE = bytes(20_000)
"""Between two messages of a queue: too much to be read along."""


async def pull(
    broker: Broker, offset: int, count: int = 1000, expression: str = "*", queue_id: int = 0
) -> tuple[list[bytes], list[int], int]:
    """Bodies, offsets, and where to go on."""
    request = pb.PullRequest(
        group="g", topic="t", queue_id=queue_id, offset=offset, max_messages=count, filter=tag_filter(expression)
    )
    block = decode_block(await broker.channel.call(methods.PULL_RECORDS, request))
    positions = block.heads()["position"].tolist()
    data = block.data.tobytes()
    found = [record.decode(data, at, position) for at, position in zip(block.begins.tolist(), positions, strict=True)]
    bodies = [Message.FromString(each.payload).body for each in found]
    return bodies, [each.queue_offset for each in found], block.next_offset


async def test_they_are_what_a_pull_by_messages_reads() -> None:
    async with running() as broker:
        for number in range(20):
            await broker.put(b"%d" % number, queue_id=number % 2)
            if number % 7 == 0:
                await broker.put(LARGE, queue_id=1)
        for offset, count in ((0, 1000), (0, 4), (3, 5), (9, 1), (10, 10)):
            bodies, offsets, behind = await pull(broker, offset, count)
            assert (bodies, behind) == await broker.pull(offset, count)
            assert offsets == list(range(offset, behind))
        with pytest.raises(StatusError) as refused:
            await pull(broker, 11)
        assert refused.value.code == Code.ILLEGAL_OFFSET


async def test_a_queue_that_never_had_a_message_has_no_records() -> None:
    async with running() as broker:
        assert await pull(broker, 0, queue_id=1) == ([], [], 0)


async def test_a_filter_keeps_others_back() -> None:
    async with running() as broker:
        for number in range(12):
            await broker.put(b"%d" % number, tag="abc"[number % 3])
        assert await pull(broker, 0, expression="a || c") == (
            [b"0", b"2", b"3", b"5", b"6", b"8", b"9", b"11"],
            [0, 2, 3, 5, 6, 8, 9, 11],
            12,
        )
        assert await pull(broker, 1, 2, "a") == ([b"3", b"6"], [3, 6], 7)
        assert await pull(broker, 0, 9, "x") == ([], [], 12)


async def test_an_answer_has_a_limit_of_bytes_and_holds_one_record_at_the_least() -> None:
    async with running(options=BrokerOptions(pop=PopOptions(response_bytes_max=1024))) as broker:
        for number in range(30):
            await broker.put(b"%d" % number)
        await broker.put(bytes(5000))
        for offset in (0, 7, 30):
            bodies, offsets, behind = await pull(broker, offset)
            assert (bodies, behind) == await broker.pull(offset, 1000)
            assert offsets


@pytest.mark.parametrize("padding", [b"", bytes(9_000)], ids=["close", "apart"])
def test_what_is_not_in_memory_is_read_in_threads_over_the_ends_of_segments(padding: bytes) -> None:
    async def work(broker: Broker) -> None:
        runs = await stored(broker, 40, padding)
        bodies, _, behind = await pull(broker, 0)
        assert bodies == [Message.FromString(run.payloads[0]).body for run in runs]
        assert behind == 40
        assert len(broker.app.core.store.log._starts) > 2 or not padding

    serve(work)


@pytest.mark.parametrize("byte", [0, 8, 12, 30, 61, 200])
async def test_a_damaged_record_is_named_and_those_around_it_can_be_read(byte: int) -> None:
    disk = MemoryDisk(random.Random(0), 1 << 30)
    async with running(disk, BrokerOptions(log=LogOptions(segment_bytes=1 << 20))) as broker:
        for number in range(6):
            await broker.put(b"%d" % number + bytes(200))
        store = broker.app.core.store
        queue = store.queue("t", 0)
        assert queue is not None
        position = store.records.position_of(queue, 3)
        assert position is not None
        disk.flip_bit(FOLDER / "commitlog" / f"{0:020d}.log", 8 * (position + byte))
        with pytest.raises(StatusError, match=f"at {position}") as by_records:
            await pull(broker, 0)
        with pytest.raises(StatusError) as by_messages:
            await broker.pull(0)
        assert str(by_records.value) == str(by_messages.value)
        assert (await pull(broker, 0, 3))[1] == [0, 1, 2]
        assert (await pull(broker, 4))[1] == [4, 5]
