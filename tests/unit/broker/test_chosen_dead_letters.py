"""Dead letters that an operator chooses: they alone come to their group again, and none of the others is lost."""

import random

import pytest

from popwheel_broker.log.record import Record, RecordKind, hash_tag
from popwheel_common.contract import names
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, Resource, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.broker.served_broker import Broker, running
from tests.unit.broker.world import World, handles

ALL = 1 << 40
SIZE = 1 << 20


def letter(number: int, topic: str = "t") -> Record:
    """A dead letter of group g."""
    properties = SystemProperties(message_id=str(number))
    properties.dead_letter_queue.topic = topic
    message = Message(topic=Resource(name=topic), body=b"%d" % number)
    return Record(
        RecordKind.MESSAGE,
        names.dead_letter_topic("g"),
        0,
        message.SerializeToString(),
        properties.SerializeToString(),
        hash_tag(""),
    )


def world_with(count: int) -> World:
    world = World()
    world.add_topic("t")
    if "g" not in world.view.groups:
        world.add_group("g", 3)
    world.core.store.put([letter(number) for number in range(count)])
    world.flush()
    return world


def dead(world: World) -> list[bytes]:
    """What is listed, the oldest first."""
    letters = world.core.dead_letters
    queue = letters.queue("g")
    assert queue is not None
    found = letters.read(queue, letters.first_offset("g", queue), 10_000, SIZE)
    return [Message.FromString(each.payload).body for each in found]


@pytest.mark.parametrize("crashes", [False, True])
def test_the_others_go_to_the_end(crashes: bool) -> None:
    world = world_with(6)
    assert world.core.dead_letters.redrive("g", 4, ALL, SIZE, {1, 3}) == (2, 0, 2)
    world.flush()
    if crashes:
        world.crash("process")
    assert dead(world) == [b"4", b"5", b"0", b"2"]
    messages = world.pop("g", "t")
    assert sorted(world.bodies(messages)) == [b"1", b"3"]
    assert world.ack("g", "t", *handles(messages)) == [Code.OK, Code.OK]
    assert world.pop("g", "t") == []


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_chosen_each_letter_is_in_one_place(seed: int) -> None:
    chance = random.Random(seed)
    world = world_with(40)
    given: list[bytes] = []
    for _ in range(6):
        queue = world.core.dead_letters.queue("g")
        assert queue is not None
        first = world.core.dead_letters.first_offset("g", queue)
        chosen = set(chance.sample(range(first, queue.max_offset), min(5, queue.max_offset - first)))
        if chosen:
            world.core.dead_letters.redrive("g", 100, max(chosen) + 1, SIZE, chosen)
            world.flush()
        if chance.random() < 0.5:
            world.crash("process")
        messages = world.pop("g", "t", 32)
        given += world.bodies(messages)
        world.ack("g", "t", *handles(messages))
    assert sorted(given + dead(world)) == sorted(b"%d" % number for number in range(40))


async def bury(broker: Broker, count: int) -> None:
    """Make a number of messages of a queue dead letters."""
    for number in range(count):
        await broker.put(b"%d" % number)
    while handles_of := await broker.pop():
        for handle in handles_of:
            request = pb.DeadLetterRequest(group="g", topic="t", receipt_handle=handle)
            await broker.channel.call(methods.DEAD_LETTER, request)


async def choose(broker: Broker, *offsets: int, dry_run: bool = False) -> pb.DeadLetterSelectResponse:
    request = pb.DeadLetterSelectRequest(group="g", offsets=offsets, dry_run=dry_run)
    return await broker.channel.call(methods.DEAD_LETTER_SELECT, request)


async def listed(broker: Broker) -> dict[int, bytes]:
    answer = await broker.channel.call(methods.DEAD_LETTER_LIST, pb.DeadLetterListRequest(group="g", limit=1_000))
    found = [Message.FromString(each) for each in answer.messages]
    return {each.system_properties.queue_offset: each.body for each in found}


async def test_a_dry_run_says_what_is_done_then() -> None:
    async with running() as broker:
        assert [*(await choose(broker, 0, 7)).gone] == [0, 7]
        await bury(broker, 6)
        would = await choose(broker, 3, 1, 3, 99, dry_run=True)
        assert (would.redriven, would.kept, would.moved, [*would.gone]) == (2, 0, 2, [99])
        assert len(await listed(broker)) == 6
        assert await choose(broker, 3, 1, 3, 99) == would
        assert await listed(broker) == {4: b"4", 5: b"5", 6: b"0", 7: b"2"}
        again = await choose(broker, 3, 1)
        assert (again.redriven, [*again.gone]) == (0, [1, 3])
        assert len(await broker.pop()) == 2


async def test_batches_by_rising_offsets_take_all_that_was_chosen() -> None:
    """Others that were moved come behind all of it, so what was chosen keeps its place."""
    async with running() as broker:
        await bury(broker, 20)
        for batch in ((2, 5), (6, 11), (19,)):
            assert (await choose(broker, *batch)).redriven == len(batch)
        assert len(await listed(broker)) == 15


async def test_one_far_behind_the_oldest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popwheel_broker.calls.group_server._AT_ONCE_MAX", 4)
    async with running() as broker:
        await bury(broker, 6)
        answer = await choose(broker, 3, 4)
        assert (answer.redriven, [*answer.too_far], [*answer.gone]) == (1, [4], [])


async def test_many_take_no_long_turn_of_the_loop() -> None:
    async with running() as broker:
        await bury(broker, 900)
        with measured_turns() as turns:
            answer = await choose(broker, *range(0, 900, 9))
        assert (answer.redriven, answer.moved) == (100, 792)
        assert turns.longest_s < TURN_S_MAX, str(turns)
