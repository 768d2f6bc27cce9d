"""`--skip-record`: one damaged message of the log is passed over, and all others are there."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from popwheel_broker.consume import delivered_message
from popwheel_broker.core.checkpoint import Checkpoint
from popwheel_broker.log.fault import RecordFaultError
from popwheel_broker.log.record import HEADER_BYTES, Record, RecordKind
from popwheel_broker.log.record_block import choose
from popwheel_broker.log.stored_records import StoredRecords
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_broker.replication.record_skip import RecordSkip
from popwheel_common.contract import names
from popwheel_common.contract.record_block import decode_block, encode_block
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker import world as worlds
from tests.unit.broker.core_world import world_of
from tests.unit.broker.files_world import FOLDER, Store, no_repair
from tests.unit.broker.world import INVISIBLE_MS, World, handles

COUNT = 8


async def nobody(position: int) -> list[str]:
    return []


async def a_log(*, saved: bool) -> tuple[MemoryDisk, list[int]]:
    """Messages of two queues, by turns, and where each stands; with a checkpoint behind them or one before them."""
    store = Store()
    await store.start(alone=True)
    await store.files.finish(1)
    core = store.files.core
    positions = [
        core.store.put([Record(RecordKind.MESSAGE, "t", number % 2, b"%d" % number * 100)]).positions[0]
        for number in range(COUNT)
    ]
    await store.files.sync()
    if saved:
        core.store.commit(store.files.log.synced_position)
        await store.files.save(lambda: asyncio.sleep(0))
    return store.disk, positions


def damage(disk: MemoryDisk, position: int, byte: int) -> None:
    start = max(int(Path(path).stem) for path in disk.files() if path.suffix == ".log" and int(path.stem) <= position)
    disk.flip_bit(FOLDER / "commitlog" / f"{start:020}.log", 8 * (position - start + byte))


async def skip(
    disk: MemoryDisk,
    position: int,
    repair: Callable[[int], Awaitable[bool]] = no_repair,
    who: Callable[[int], Awaitable[list[str]]] = nobody,
) -> Store:
    store = Store(disk=disk)
    await store.load()
    await store.files.skip_record(position, repair, who)
    return store


async def payloads(disk: MemoryDisk) -> list[bytes]:
    """The messages that a start finds in both queues."""
    store = Store(disk=disk)
    await store.start(alone=True)
    await store.files.finish(2)
    records = StoredRecords(store.files.log)
    found: list[bytes] = []
    for number in range(2):
        queue = store.files.core.store.queue("t", number)
        assert queue is not None
        assert queue.max_offset == COUNT // 2
        for offset in range(COUNT // 2):
            (stored,) = records.read_checked(queue, (offset,), queue.read(offset, 1))
            if stored.kind == RecordKind.MESSAGE:
                found.append(stored.payload[:1])
    return sorted(found)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("number", [0, 3, COUNT - 1])
async def test_all_messages_but_the_damaged_one_are_there(number: int, saved: bool) -> None:
    disk, positions = await a_log(saved=saved)
    damage(disk, positions[number], HEADER_BYTES + 30)
    with capture_logs() as lines:
        await skip(disk, positions[number])
    (line,) = [each for each in lines if "skipped" in each["event"]]
    assert (line["position"], line["topic"], line["queue"]) == (positions[number], "t", number % 2)
    assert (line["offset"], line["bytes"]) == (number // 2, HEADER_BYTES + 101)
    assert await payloads(disk) == sorted(b"%d" % each for each in range(COUNT) if each != number)
    kept = disk.contents(Path(line["kept"]))
    assert kept is not None
    assert kept.count(b"%d" % number) >= 98
    await skip(disk, positions[number])  # it may stay set


async def refusal(disk: MemoryDisk, position: int, **more: Callable[[int], Awaitable[list[str]]]) -> str:
    before = disk.files()
    with pytest.raises(StatusError) as refused:
        await skip(disk, position, **more)  # type: ignore[arg-type]
    assert refused.value.code == Code.PRECONDITION_FAILED
    assert disk.files() == before, "nothing was changed"
    return refused.value.message


async def test_what_is_sound_or_no_record_is_not_skipped() -> None:
    disk, positions = await a_log(saved=True)
    assert "is sound" in await refusal(disk, positions[2])
    assert "no record begins there" in await refusal(disk, positions[2] + 7)
    assert "the log ends at" in await refusal(disk, 1 << 40)


@pytest.mark.parametrize(
    ("byte", "words"),
    [
        (3, "its length is not known"),
        (8, "its length is not known"),
        (19, "its length is not known"),
        (33, "it is not known what is missing"),
        (41, "it is not known what is missing"),
        (HEADER_BYTES, "it is not known what is missing"),
    ],
)
async def test_one_whose_header_is_damaged_is_not_skipped(byte: int, words: str) -> None:
    disk, positions = await a_log(saved=True)
    damage(disk, positions[2], byte)
    assert words in await refusal(disk, positions[2])


async def test_of_two_side_by_side_the_second_is_skipped_first() -> None:
    disk, positions = await a_log(saved=True)
    for number in (2, 3):
        damage(disk, positions[number], HEADER_BYTES + 30)
    assert "skip that one first" in await refusal(disk, positions[2])
    await skip(disk, positions[3])
    await skip(disk, positions[2])
    assert len(await payloads(disk)) == COUNT - 2


async def test_what_another_replica_may_have_is_not_skipped() -> None:
    disk, positions = await a_log(saved=True)
    damage(disk, positions[2], HEADER_BYTES + 30)

    async def somebody(position: int) -> list[str]:
        return ["replica 1: it is away"]

    async def repairs(position: int) -> bool:
        return True

    assert "replica 1: it is away" in await refusal(disk, positions[2], who=somebody)
    before = disk.files()
    await skip(disk, positions[2], repair=repairs)
    assert disk.files() == before


async def test_what_the_broker_keeps_of_groups_is_not_skipped() -> None:
    store = Store()
    await store.start(alone=True)
    await store.files.finish(1)
    revive = names.revive_topic("popwheel")
    positions = store.files.core.store.put([Record(RecordKind.ACK, revive, 0, b"x" * 20)] * 3).positions
    await store.files.sync()
    damage(store.disk, positions[1], HEADER_BYTES + len(revive) + 3)
    assert "it is no message" in await refusal(store.disk, positions[1])


async def test_one_that_was_cut_off_is_made_once_more() -> None:
    for seed in range(20):
        disk, positions = await a_log(saved=True)
        damage(disk, positions[2], HEADER_BYTES + 30)
        disk.hold_syncs()
        task = asyncio.create_task(skip(disk, positions[2]))
        await disk.until_stored()
        for _ in range(random.Random(seed).randrange(30)):
            await asyncio.sleep(0)
        disk.release_syncs()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        disk.crash("power")
        await skip(disk, positions[2])
        assert len(await payloads(disk)) == COUNT - 1


def skip_in(world: World, position: int) -> None:
    history = EpochHistory()
    history.begin(1, 0)
    passed_over = RecordSkip(world.core.store.log, Checkpoint(), history, world.disk, worlds.FOLDER)
    asyncio.run(passed_over.skip(position, no_repair, nobody))


def world_with_a_skipped() -> World:
    """Three messages, the one in the middle of which was skipped."""
    world = world_of()
    for number in range(3):
        world.put("t", b"%d" % number, message_group="line", keys=("k",))
    position = world.core.store.queues["t", 0].read(1, 1)[0].position
    world.disk.flip_bit(worlds.FOLDER / "commitlog" / f"{0:020}.log", 8 * (position + 80))
    skip_in(world, position)
    return world


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("fifo", [False, True])
def test_consumers_get_all_others(fifo: bool, crashes: bool) -> None:
    world = world_with_a_skipped()
    world.add_group("g", 3, fifo=fifo)
    if crashes:
        world.crash("process")
    got: list[bytes] = []
    for _ in range(6):
        messages = world.pop("g", "t")
        got += world.bodies(messages)
        if messages:
            assert set(world.ack("g", "t", *handles(messages))) == {Code.OK}
        world.clock.advance(INVISIBLE_MS)
        world.revive()
        world.flush()
    assert got == [b"0", b"2"]
    assert len(world.core.state.table) == 0


def test_readers_by_offset_pass_over_it() -> None:
    world = world_with_a_skipped()
    queue = world.core.store.queues["t", 0]
    records = world.core.store.records
    found = records.read_checked(queue, range(3), queue.read(0, 3))
    with pytest.raises(RecordFaultError, match="an operator had it skipped"):
        delivered_message.pulled_message(found[1], b"")
    places, behind = choose(queue.read_packed(0, 3), 0, None, 3, 1 << 20)
    block = decode_block(b"".join([encode_block(behind, places.lengths, records.read_block(queue, places))]))
    assert (block.next_offset, block.heads()["queue_offset"].tolist()) == (3, [0, 2])
    assert Message.FromString(found[1].payload).body == bytes(len(found[1].payload) - 6)


def test_dead_letters_pass_over_it() -> None:
    world = world_of(max_attempts=1)
    for number in range(3):
        world.put("t", b"%d" % number)
    world.pop("g", "t")
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    letters = world.core.dead_letters.queue("g")
    assert letters is not None
    position = letters.read(1, 1)[0].position
    world.disk.flip_bit(worlds.FOLDER / "commitlog" / f"{0:020}.log", 8 * (position + HEADER_BYTES + 20))
    skip_in(world, position)
    redriven = world.core.dead_letters.redrive("g", 10, 10, 1 << 20)
    assert (redriven.redriven, redriven.kept) == (2, 0)
    assert world.core.dead_letters.first_offset("g", letters) == 3


def test_it_was_delivered_before() -> None:
    world = world_of()
    for number in range(3):
        world.put("t", b"%d" % number)
    world.pop("g", "t")
    position = world.core.store.queues["t", 0].read(1, 1)[0].position
    world.disk.flip_bit(worlds.FOLDER / "commitlog" / f"{0:020}.log", 8 * (position + 80))
    world.clock.advance(INVISIBLE_MS)
    with pytest.raises(CorruptDataError):
        world.revive()
    skip_in(world, position)
    world.crash("process")
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    assert world.bodies(world.pop("g", "t")) == [b"0", b"2"]
    assert len(world.core.state.table.of_group("g")) == 1
