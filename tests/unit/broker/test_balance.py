"""The balance of a group: each message is at exactly one place, whatever has happened to it."""

import random
from typing import Any

import pytest

from popwheel_broker.calls import balance_server
from popwheel_broker.calls.balance_server import BalanceServer
from popwheel_broker.calls.term_reads import TermReads
from popwheel_common.contract import names
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Call
from tests.harness.poison import MARK, Poison
from tests.unit.broker.core_world import world_of
from tests.unit.broker.served_broker import running
from tests.unit.broker.world import INVISIBLE_MS, World, wire_message

PLACES = ("done", "in_flight", "waiting", "delayed", "dead", "poisoned", "expired")
CALL: Any = Call
RETENTION_MS = 72 * 3_600_000
TOPICS = ("t", "u")


async def balance(world: World, group: str, topic: str = "") -> dict[str, dict[str, int | None]]:
    """The rows, by topic; None is not known."""
    server = BalanceServer(world.core, TermReads(world.core.store.reads, "broker-0"), world.clock)
    answer = await server.balance(CALL, pb.GroupBalanceRequest(group=group, topic=topic))
    return {
        row.topic: dict.fromkeys(("stored", *PLACES)) | {each.name: value for each, value in row.ListFields()[1:]}
        for row in answer.topics
    }


def check(row: dict[str, int | None]) -> None:
    known = {name: count for name, count in row.items() if count is not None}
    assert len(known) == len(row)
    assert all(count >= 0 for count in known.values()), known
    assert known["stored"] == sum(known[name] for name in PLACES), known


def dead_of(world: World, group: str, topic: str) -> int:
    """Dead letters of a group from a topic that were not redriven."""
    queue = world.core.dead_letters.queue(group)
    if queue is None:
        return 0
    first = world.core.dead_letters.first_offset(group, queue)
    letters = [each for offset, each in world.held(names.dead_letter_topic(group)) if offset >= first]
    found = [SystemProperties.FromString(each.system_properties).dead_letter_queue.topic for each in letters]
    return found.count(topic)


class Mixture:
    """Drives two groups, one of them in order, through all that can happen to messages.

    Args:
        seed: what happens.
        loses: filters and retention pass messages by, so that nobody can say how many are acknowledged.
    """

    def __init__(self, seed: int, *, loses: bool) -> None:
        self.random = random.Random(seed)
        self.loses = loses
        self.world = world_of(seed, max_attempts=2, queues=2)
        self.world.add_topic("u")
        self.world.add_group("f", 2, fifo=True)
        self.handles: list[tuple[str, str, Message]] = []
        self.acked: dict[tuple[str, str], set[bytes]] = {(group, topic): set() for group in "gf" for topic in TOPICS}
        self.count = 0

    def step(self) -> None:
        choice, world = self.random, self.world
        what = choice.choice(("put", "put", "pop", "pop", "ack", "ack", "nack", "release", "wait", "revive", "other"))
        group, topic = choice.choice("gf"), choice.choice(TOPICS)
        if what == "put":
            for _ in range(choice.randint(1, 4)):
                self.count += 1
                body = (MARK if choice.random() < 0.05 else b"") + b"%d" % self.count
                queue_id = choice.randint(0, 1) if topic == "t" else 0
                world.put(topic, body, choice.choice("ab"), queue_id, message_group=choice.choice("xyz"))
        elif what == "pop":
            expression = "a" if self.loses and choice.random() < 0.3 else "*"
            found = world.pop(group, topic, choice.randint(1, 4), expression)
            self.handles += [(group, topic, each) for each in found]
            world.flush()
        elif what == "wait":
            world.clock.advance(choice.choice((1_000, INVISIBLE_MS)))
        elif what == "revive":
            with Poison(["redelivery"]).spread():
                world.revive()
            world.flush()
        elif what == "other":
            self.other(group)
        elif self.handles:
            self.answer(what, *self.handles.pop(choice.randrange(len(self.handles))))

    def answer(self, what: str, group: str, topic: str, message: Message) -> None:
        """A consumer says what has become of a message."""
        acks, handle = self.world.core.acks, message.system_properties.receipt_handle
        if what == "ack":
            if self.world.ack(group, topic, handle) == [Code.OK]:
                self.acked[group, topic].add(message.body)
        elif what == "nack":
            try:
                hidden_ms = self.random.choice((0, 5_000, None))
                acks.change_invisible(group, topic, handle, hidden_ms, call=0, is_retry=False, suspends=False)
            except StatusError:
                return
        else:
            with Poison(["redelivery"]).spread():
                acks.release(group, topic, [handle], attempted=self.random.random() < 0.5)
        self.world.flush()

    def other(self, group: str) -> None:
        """What happens seldom."""
        what = self.random.choice(("redrive", "crash", "retain", "drop"))
        if what == "redrive":
            self.world.core.dead_letters.redrive(group, 3, 1 << 40, 1 << 20)
            self.world.flush()
        elif what == "crash":
            self.world.save()
            self.world.crash("process")
        elif what == "retain" and self.loses:
            self.world.clock.advance(RETENTION_MS // 2)
            self.world.retain()


@pytest.mark.parametrize("seed", range(12))
async def test_the_difference_stays_0_and_done_is_what_was_acknowledged(seed: int) -> None:
    mixture = Mixture(seed, loses=False)
    for _ in range(120):
        mixture.step()
        for group in "gf":
            for topic, row in (await balance(mixture.world, group)).items():
                check(row)
                assert row["done"] == len(mixture.acked[group, topic])
                assert row["dead"] == dead_of(mixture.world, group, topic)
                assert row["expired"] == row["delayed"] == 0
    assert any(mixture.acked.values())


@pytest.mark.parametrize("seed", range(12))
async def test_the_difference_stays_0_where_filters_and_retention_pass_messages_by(seed: int) -> None:
    mixture = Mixture(100 + seed, loses=True)
    for _ in range(120):
        mixture.step()
        for group in "gf":
            for row in (await balance(mixture.world, group)).values():
                check(row)


async def test_a_group_of_a_topic_that_it_has_read_nothing_of_has_all_before_it() -> None:
    world = world_of()
    for number in range(3):
        world.put("t", b"%d" % number)
    row = (await balance(world, "g", "t"))["t"]
    assert (row["stored"], row["waiting"], row["done"]) == (3, 3, 0)


async def test_what_retention_takes_before_it_was_read_has_expired() -> None:
    world = world_of()
    for _ in range(20):
        world.put("t", b"x" * 1000)
    assert len(world.pop("g", "t", 2)) == 2
    world.clock.advance(RETENTION_MS + 1)
    world.put("t", b"last")
    world.save()
    assert world.retain()
    row = (await balance(world, "g"))["t"]
    check(row)
    assert row["expired"]
    assert row["in_flight"] == 2


async def test_dead_letters_of_several_topics_are_distinguished_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(max_attempts=1)
    world.add_topic("u")
    for topic in TOPICS:
        for number in range(3):
            world.put(topic, b"%d" % number)
        world.pop("g", topic)
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    rows = await balance(world, "g")
    assert [rows[topic]["dead"] for topic in TOPICS] == [3, 3]
    assert [rows[topic]["done"] for topic in TOPICS] == [0, 0]
    monkeypatch.setattr(balance_server, "DEAD_LETTERS_MAX", 5)
    row = (await balance(world, "g"))["t"]
    assert (row["stored"], row["dead"], row["done"]) == (3, None, None)


async def test_what_is_delayed_is_stored_and_to_come() -> None:
    async with running() as broker:
        payload, properties = wire_message("t", b"later")
        due_ms = broker.clock.wall_ms() + 60_000
        run = MessageRun("t", 0, [payload], [properties], [""], PutKind.AT_TIME, [due_ms])
        await broker.channel.call(methods.PUT, [run])
        await broker.put(b"now")
        await broker.ack(*await broker.pop())
        answer = await broker.channel.call(methods.GROUP_BALANCE, pb.GroupBalanceRequest(group="g"))
        (row,) = answer.topics
        assert (row.stored, row.done, row.delayed, row.waiting, row.in_flight) == (2, 1, 1, 0, 0)
        assert not answer.more
