"""Damaged records are had from another replica, and only the right ones."""

import asyncio

import pytest

from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.repair import BYTES_MAX, RecordReader
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import ReadRecordsRequest
from popwheel_rpc.service import Call
from tests.harness.manual_clock import ManualClock
from tests.unit.broker.replica.memory_log import MemoryLog, damaged_at
from tests.unit.broker.replica.replicas import GROUP, World

CALL = Call("/popwheel.v1.Broker/ReadRecords", {}, None, "local")


def three(count: int = 10) -> tuple[World, ManualClock]:
    """Three replicas with the same log, of two epochs."""
    clock = ManualClock()
    world = World(clock, 3)
    for each in world.replicas:
        each.log.epochs.begin(1, 0)
        each.log.write(count // 2)
        each.log.epochs.begin(2, each.log.end_position)
        each.log.write(count - count // 2)
    return world, clock


async def test_the_record_of_another_replica_takes_the_place_of_a_damaged_one() -> None:
    world, _ = three()
    mine = world.replicas[0]
    good = bytes(mine.log.data)
    for position in mine.log.positions()[3:8:2]:
        mine.log.damage(position)
        assert await mine.repairer.repair(position)
    assert bytes(mine.log.data) == good
    assert (mine.statistics.repaired_records, mine.statistics.irreparable) == (3, 0)
    assert mine.statistics.repaired_bytes == 3 * len(good) // 10


async def test_what_is_good_is_left_as_it_is() -> None:
    world, _ = three()
    mine = world.replicas[0]
    assert await mine.repairer.repair(mine.log.positions()[3])
    assert mine.log.mended == []


async def test_the_next_replica_is_asked_if_one_has_none_or_is_away() -> None:
    world, _ = three()
    mine, second, third = world.replicas
    position = mine.log.positions()[3]
    mine.log.damage(position)
    second.log.damage(position)
    assert await mine.repairer.repair(position)
    mine.log.damage(position)
    world.link(0, 1).up = False
    assert await mine.repairer.repair(position)
    third.log.damage(position)
    mine.log.damage(position)
    assert not await mine.repairer.repair(position)
    assert mine.statistics.irreparable == 1


async def test_what_nobody_had_is_not_asked_for_again_at_once() -> None:
    world, clock = three()
    mine, second, third = world.replicas
    position = mine.log.positions()[3]
    for each in world.replicas:
        each.log.damage(position)
    assert not await mine.repairer.repair(position)
    second.log.data[:] = third.log.data[:]
    second.log.damage(position)  # damaged twice is good again
    assert not damaged_at(second.log, position)
    assert not await mine.repairer.repair(position)
    clock.advance(5000)
    assert await mine.repairer.repair(position)


async def test_who_may_have_a_record_is_known_where_all_others_say_that_they_do_not() -> None:
    world, _ = three()
    mine, _, third = world.replicas
    position = mine.log.positions()[3]
    for each in world.replicas:
        each.log.damage(position)
    assert not await mine.repairer.repair(position)
    assert await mine.repairer.who_may_have(position) == []
    world.link(0, 1).up = False
    (one,) = await mine.repairer.who_may_have(position)
    assert one.startswith("replica 1: ")
    world.link(0, 1).up = True
    third.log.data[:] = world.replicas[1].log.data[:]
    third.log.damage(position)  # damaged twice is good again
    assert await mine.repairer.who_may_have(position) == ["replica 2 has another record there"]


async def test_a_record_of_another_epoch_is_not_taken() -> None:
    world, _ = three()
    mine, second, third = world.replicas
    position = mine.log.positions()[7]
    for other in (second, third):
        await other.log.cut(mine.log.positions()[5])
        other.log.epochs.begin(3, other.log.end_position)
        other.log.write(5)
    mine.log.damage(position)
    assert not await mine.repairer.repair(position)
    assert mine.log.mended == []


async def test_a_record_that_reaches_beyond_the_log_is_not_taken() -> None:
    world, _ = three()
    mine = world.replicas[0]
    position = mine.log.positions()[9]
    del mine.log.data[-5:]
    assert not await mine.repairer.repair(position)


async def test_records_are_given_that_are_good_and_stored() -> None:
    log = MemoryLog()
    log.epochs.begin(1, 0)
    log.write(5)
    reader = RecordReader(GROUP, log)
    positions = log.positions()
    length = positions[1]

    async def read(position: int, bytes_max: int = 1, group: str = GROUP) -> bytes:
        request = ReadRecordsRequest(group=group, position=position, bytes_max=bytes_max)
        return (await reader.read_records(CALL, request)).data

    assert await read(positions[1]) == bytes(log.data[length : 2 * length])
    assert await read(positions[1], 2 * length + 5) == bytes(log.data[length : 3 * length])
    assert await read(positions[1], 2**31 - 1) == bytes(log.data[length:])
    assert await read(positions[1], -1) == bytes(log.data[length : 2 * length])
    await log.delete_before(positions[1])
    log.damage(positions[2])
    for position, group, code in (
        (positions[0], GROUP, Code.NOT_FOUND),
        (positions[1] + 1, GROUP, Code.NOT_FOUND),
        (positions[2], GROUP, Code.NOT_FOUND),
        (log.end_position, GROUP, Code.NOT_FOUND),
        (positions[1], "other", Code.BAD_REQUEST),
    ):
        with pytest.raises(StatusError) as refused:
            await read(position, group=group)
        assert refused.value.code == code
    assert BYTES_MAX < 8 * 2**20, "an answer must fit into a message"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"silence_ms_max": 900}, "at least twice"),
        ({"window_bytes": 4096}, "at least joining_bytes"),
        ({"chunk_bytes": 2**24}, "at least chunk_bytes"),
        ({"joining_bytes": 2**24}, "at least joining_bytes"),
    ],
)
def test_impossible_constants_are_refused(values: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ReplicationConstants(**values)


async def test_what_is_not_stored_is_not_asked_for() -> None:
    world, _ = three()
    mine = world.replicas[0]
    for position in (mine.log.end_position, 1 << 40):
        assert not await mine.repairer.repair(position)
    mine.log.start_position = mine.log.positions()[3]
    assert not await mine.repairer.repair(0)
    assert (mine.statistics.irreparable, mine.log.mended) == (0, [])


def delete_before(log: MemoryLog, position: int) -> None:
    del log.data[: position - log.start_position]
    log.start_position = position


async def test_what_is_deleted_while_it_waits_for_its_turn_is_let_be() -> None:
    world, _ = three()
    mine = world.replicas[0]
    position, later = mine.log.positions()[3], mine.log.positions()[5]
    mine.log.damage(position)
    async with mine.repairer._mending:
        repairing = asyncio.create_task(mine.repairer.repair(position))
        await asyncio.sleep(0)
        delete_before(mine.log, later)
    assert not await repairing
    assert mine.log.mended == []


async def test_what_is_deleted_while_others_are_asked_is_let_be() -> None:
    world, _ = three()
    mine = world.replicas[0]
    position, later = mine.log.positions()[3], mine.log.positions()[5]
    mine.log.damage(position)
    world.link(0, 1).hold()
    repairing = asyncio.create_task(mine.repairer.repair(position))
    for _ in range(5):
        await asyncio.sleep(0)
    delete_before(mine.log, later)
    world.link(0, 1).release()
    assert not await repairing
    assert mine.log.mended == []
