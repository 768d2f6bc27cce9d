"""SQL92 filters at the broker: which messages pops deliver, which polls are woken, and what bounds both."""

import asyncio

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from popwheel_broker.consume import scan
from popwheel_broker.consume.message_properties import NamedProperties
from popwheel_broker.consume.sql_filter import FilterCounts, SqlFilter
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.options import BrokerOptions, PopOptions
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.put import MessageRun
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, Resource, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.served_broker import Broker, events, running
from tests.unit.broker.test_cold_calls import serve
from tests.unit.broker.test_notify import registered, silence
from tests.unit.broker.world import INVISIBLE_MS, World, tag_filter


def sql(expression: str) -> pb.Filter:
    return pb.Filter(kind=pb.SQL92, expression=expression)


def wire(body: bytes, /, own: SystemProperties | None = None, **properties: str) -> tuple[bytes, bytes]:
    message = Message(topic=Resource(name="t"), body=body, user_properties=properties)
    own = own or SystemProperties(message_id=body[:20].hex())
    return message.SerializeToString(), own.SerializeToString()


def put(world: World, body: bytes, queue_id: int = 0, **properties: str) -> None:
    payload, system = wire(body, None, **properties)
    world.core.store.put([Record(RecordKind.MESSAGE, "t", queue_id, payload, system)])
    world.flush()


def request(expression: str, count: int = 32, group: str = "g") -> pb.PopRequest:
    return pb.PopRequest(
        group=group, topic="t", queue_id=-1, max_messages=count, invisible_ms=INVISIBLE_MS, filter=sql(expression)
    )


def popped(world: World, expression: str, count: int = 32) -> PopAnswer:
    return world.core.pops.pop(request(expression, count), world.core.pops.rotation())


def bodies(answer: PopAnswer) -> list[bytes]:
    return [Message.FromString(each).body for each in answer.messages]


def stored(payload: bytes, system: bytes = b"") -> StoredRecord:
    return StoredRecord(RecordKind.MESSAGE, "t", 0, payload, system, 0, 0, b"", 0, 0, 1, 0, 0)


def test_a_pop_delivers_what_passes_and_passes_over_the_rest() -> None:
    world = world_of()
    for number in range(10):
        put(world, b"%d" % number, n=str(number))
    put(world, b"none")
    put(world, b"text", n="many")
    assert bodies(popped(world, "n > 3 AND n <= 6", 2)) == [b"4", b"5"]
    assert bodies(popped(world, "n > 3 AND n <= 6")) == [b"6"]
    assert popped(world, "n > 3 AND n <= 6").waiting == 0
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    assert bodies(popped(world, "n = 100")) == [b"4", b"5", b"6"], "what comes again is not asked"
    reported = metrics(world)
    assert 'popwheel_sql_filter_messages_total{outcome="passed"} 3.0' in reported
    assert 'popwheel_sql_filter_messages_total{outcome="not_comparable"} 1.0' in reported


def test_progress_past_what_is_kept_back_outlives_a_restart() -> None:
    world = world_of()
    for number in range(30):
        put(world, b"%d" % number, n=str(number))
    assert bodies(popped(world, "n = 20", 1)) == [b"20"]
    world.save()
    world.crash("power")
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    assert sorted(bodies(popped(world, "n = 5 OR n = 25"))) == [b"20", b"25"]
    assert popped(world, "n < 20").messages == []


def test_two_consumers_of_one_group_with_different_filters_share_the_group_s_progress() -> None:
    world = world_of()
    for number in range(4):
        put(world, b"%d" % number, n=str(number))
    assert bodies(popped(world, "n = 2", 1)) == [b"2"]
    assert bodies(popped(world, "n >= 0")) == [b"3"], "0 and 1 counted as read, as with tags"


def test_a_rare_message_in_a_deep_backlog_is_found_step_by_step() -> None:
    """A scan that ends on its bound says that something waits still, so nobody goes to sleep (L1)."""
    world = world_of(scan_entries_max=64)
    for number in range(100):
        put(world, b"%d" % number, n="1")
    put(world, b"rare", n="2")
    pops = 0
    while not (answer := popped(world, "n = 2")).messages:
        assert answer.waiting > 0
        pops += 1
    assert pops == 100 // (64 // scan.ENTRY_COST)
    assert answer.waiting == 0


def test_large_messages_bound_a_scan_by_their_bytes() -> None:
    world = world_of(scan_entries_max=16)
    for number in range(4):
        put(world, bytes(2000 if number else 20_000), n=str(number))
    looked = []
    while popped(world, "n = 3").messages == []:
        looked.append(world.core.pops.sql_scan.counts.rejected)
    assert looked == [1, 3], "one alone is looked at, however large"


@pytest.mark.parametrize(
    ("expression", "value", "looked_at"),
    [
        ("n = 2", "1", 256),
        (" OR ".join(["n = 2"] * 249), "1", 1024 // (scan.ENTRY_COST + 31)),
        (" OR ".join(["n CONTAINS 'b'"] * 100), "a" * 100, 1024 // (scan.ENTRY_COST + 8 + 39)),
        ("n CONTAINS 'bb' OR n CONTAINS 'bc'", "a" * 16_000, 1024 // (scan.ENTRY_COST + 125 + 15)),
    ],
)
def test_what_a_filter_does_is_part_of_a_scan_s_cost(expression: str, value: str, looked_at: int) -> None:
    world = world_of(scan_entries_max=1024)
    payload, own = wire(b"x", None, n=value)
    world.core.store.put([Record(RecordKind.MESSAGE, "t", 0, payload, own) for _ in range(60)])
    world.flush()
    counts = world.core.pops.sql_scan.counts
    answer = popped(world, expression)
    assert counts.rejected == pytest.approx(min(looked_at, 60), abs=2)
    assert bool(answer.waiting) is (counts.rejected < 60)
    while answer.waiting:
        answer = popped(world, expression)
    assert counts.rejected == 60, "each message is looked at once"


def test_an_answer_of_full_size_is_cut() -> None:
    world = world_of(response_bytes_max=1024)
    for size in (100, 600, 600, 100):
        put(world, bytes(size), n="1")
    sizes = []
    while answer := bodies(popped(world, "n = 1")):
        sizes.append([len(body) for body in answer])
    assert sizes == [[100, 600], [600, 100]]


def test_a_damaged_message_is_neither_delivered_nor_passed_over() -> None:
    world = world_of()
    for number in range(3):
        put(world, b"%d" % number, n=str(number))
    entry = world.core.store.queue("t", 0).read(1, 1)[0]  # type: ignore[union-attr]
    read = world.core.store.log.read

    def damaged(position: int, length: int) -> bytes:
        data = bytearray(read(position, length))
        at = entry.position + entry.length - 1 - position
        if 0 <= at < len(data):
            data[at] ^= 1
        return bytes(data)

    world.core.store.log.read = damaged  # type: ignore[method-assign]
    with pytest.raises(StatusError, match="stands still"):
        while popped(world, "n = 2", 1).messages == []:
            pass
    world.core.store.log.read = read  # type: ignore[method-assign]
    world.core.damage_mended()
    assert bodies(popped(world, "n = 2")) == [b"2"]


def test_what_cannot_be_looked_at_is_delivered_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    for body in (b"a", b"bad", b"c"):
        put(world, body, n="1")
    of = NamedProperties.of

    def failing(self: NamedProperties, found: StoredRecord) -> dict[str, str]:
        if b"bad" in found.payload:
            raise KeyError("poison")
        return of(self, found)

    monkeypatch.setattr(NamedProperties, "of", failing)
    assert bodies(popped(world, "n = 1")) == [b"a", b"bad", b"c"]


def test_a_bad_filter_is_refused_before_anything_is_done() -> None:
    world = world_of()
    put(world, b"1")
    with pytest.raises(StatusError, match="at position 5") as caught:
        popped(world, "n > 'x'")
    assert caught.value.code == Code.ILLEGAL_FILTER_EXPRESSION


def test_pulls_take_tag_filters_only() -> None:
    async def work() -> None:
        async with running() as broker:
            await broker.put(b"1")
            asked = pb.PullRequest(group="g", topic="t", max_messages=1, filter=sql("a = 1"))
            for call in (broker.channel.call(methods.PULL, asked), broker.channel.call(methods.PULL_RECORDS, asked)):
                with pytest.raises(StatusError, match="tag filters only") as caught:
                    await call
                assert caught.value.code == Code.ILLEGAL_FILTER_EXPRESSION

    asyncio.run(work())


def test_system_properties_have_the_names_that_rocketmq_gives_them() -> None:
    system = SystemProperties(
        tag="red", keys=["k1", "k2"], message_id="id", message_group="mg", trace_context="tc", born_host="host"
    )
    system.born_timestamp.FromMilliseconds(1_700_000_000_123)
    system.delivery_timestamp.FromMilliseconds(1_800_000_000_000)
    payload, own = wire(b"body", system, TAGS="forged", n="1")
    for expression in (
        "TAGS = 'red'",
        "KEYS CONTAINS 'k2' AND KEYS STARTSWITH 'k1 '",
        "UNIQ_KEY = 'id'",
        "__SHARDINGKEY = 'mg'",
        "TRACE_CONTEXT = 'tc'",
        "__BORNHOST = 'host'",
        "BORN_TIMESTAMP = 1700000000123",
        "TIMER_DELIVER_MS > 1799999999999",
        "n = 1 AND TAGS <> 'forged'",
    ):
        assert SqlFilter(expression).passes(stored(payload, own), FilterCounts()), expression
    payload, own = wire(b"body", SystemProperties(), TAGS="forged")
    for name in ("TAGS", "KEYS", "__SHARDINGKEY", "TRACE_CONTEXT", "__BORNHOST", "BORN_TIMESTAMP", "TIMER_DELIVER_MS"):
        assert SqlFilter(f"{name} IS NULL").passes(stored(payload, own), FilterCounts()), name


@pytest.mark.parametrize(
    "time",
    [Timestamp(seconds=2**63 - 1), Timestamp(seconds=-(2**63)), Timestamp(nanos=-1), Timestamp(nanos=2**31 - 1)],
)
def test_a_time_that_no_calendar_has_is_null(time: Timestamp) -> None:
    """Proxies refuse these; messages that were stored before they did must not pass every filter."""
    world = world_of()
    payload, own = wire(b"body", SystemProperties(message_id="m", born_timestamp=time, delivery_timestamp=time))
    world.core.store.put([Record(RecordKind.MESSAGE, "t", 0, payload, own)])
    world.flush()
    for name in ("BORN_TIMESTAMP", "TIMER_DELIVER_MS"):
        assert bodies(popped(world, f"{name} > 0 OR {name} <= 0 OR {name} = '' OR {name} <> ''")) == []
        assert SqlFilter(f"{name} IS NULL").passes(stored(payload, own), FilterCounts())


def test_properties_are_read_whatever_order_they_are_written_in() -> None:
    names_ = NamedProperties({"a", "b", "long"})
    reversed_ = b"\x12\x06\x12\x01x\x0a\x01a"  # the text before the name
    assert names_.of(stored(b"\x22\x04body" + reversed_)) == {"a": "x"}
    assert names_.of(stored(reversed_ + b"\x12\x06\x0a\x01a\x12\x01y")) == {"a": "y"}, "the last counts"
    assert names_.of(stored(b"\x12\x03\x0a\x01b\x12\x00")) == {"b": ""}
    text = "ü" * 5000
    payload, _ = wire(bytes(100_000), long=text, other=text)
    assert names_.of(stored(payload)) == {"long": text}
    odd = b"\x12\x08\x0a\x01a\x18\x01\x12\x01z\x22\x03abc"  # with a field that nobody knows
    assert names_.of(stored(odd)) == {}, "as whoever receives it sees it"
    for garbled in (b"\x12\x05\x0a", b"\x12", b"\x0b\x01"):
        with pytest.raises(DecodeError):
            names_.of(stored(garbled))


def test_filters_of_one_expression_are_one() -> None:
    assert SqlFilter("a = 1") == SqlFilter("a = 1") != SqlFilter("a = 2")
    assert len({SqlFilter("a = 1"), SqlFilter("a = 1"), SqlFilter("a  = 1")}) == 2
    assert SqlFilter("a = 1") != frozenset[int]()


async def send(broker: Broker, *numbers: int) -> None:
    wires = [wire(b"%d" % number, n=str(number)) for number in numbers]
    run = MessageRun("t", 0, [each[0] for each in wires], [each[1] for each in wires], [""] * len(wires))
    await broker.channel.call(methods.PUT, [run])


async def interested(stream: object, interest_id: int, message_filter: pb.Filter) -> None:
    interest = pb.NotifyInterest(id=interest_id, topic="t", group="g", filter=message_filter)
    await stream.send([interest])  # type: ignore[attr-defined]
    assert await events(stream) == {interest_id: 0}


async def test_polls_are_woken_for_what_passes_and_only_for_that() -> None:
    async with running() as broker, registered(broker) as stream, asyncio.timeout(5):
        await interested(stream, 1, sql("n >= 5"))
        await interested(stream, 2, sql("n < 5"))
        await interested(stream, 3, tag_filter("red"))
        await send(broker, 7)
        assert await events(stream) == {1: 1}
        await send(broker, 1, 2, 8)
        assert await events(stream) == {1: 1, 2: 2}
        await broker.put(b"no property")
        await silence(stream)
        assert broker.app.core.interests.filter_bytes > 2000
        answer: PopAnswer = await broker.channel.call(methods.POP, request("n >= 5"))
        assert bodies(answer) == [b"7", b"8"]
        released = pb.ReleaseRequest(group="g", topic="t", receipt_handles=answer.handles)
        await broker.channel.call(methods.RELEASE, released)
        assert await events(stream) == {1: 2, 2: 2, 3: 2}, "what comes again passes every filter"


def test_what_arrives_and_is_not_in_memory_wakes_all() -> None:
    async def work(broker: Broker) -> None:
        async with registered(broker) as stream:
            await interested(stream, 1, sql("n >= 5"))
            await send(broker, 1)
            assert await events(stream) == {1: 1}

    serve(work)


def test_a_cold_backlog_is_looked_through() -> None:
    async def work(broker: Broker) -> None:
        for begin in range(0, 700, 100):
            await send(broker, *range(begin, begin + 100))
        await asyncio.sleep(6)
        fetched = broker.app.core.store.reads.fetched_bytes
        counts = []
        while True:
            answer: PopAnswer = await broker.channel.call(methods.POP, request("n >= 698", 4))
            counts.append(len(answer.messages))
            if answer.messages:
                break
            assert answer.waiting
        assert bodies(answer) == [b"698", b"699"]
        assert len(counts) <= 4
        assert broker.app.core.store.reads.fetched_bytes > fetched

    serve(work, pop=PopOptions())


async def test_what_comes_again_passes_a_filter_that_it_would_not_pass() -> None:
    options = BrokerOptions(pop=PopOptions(scan_entries_max=16))
    async with running(options=options) as broker:
        await send(broker, *range(8))
        first: PopAnswer = await broker.channel.call(methods.POP, request("n = 3"))
        while not first.messages:
            first = await broker.channel.call(methods.POP, request("n = 3"))
        changed = pb.ReleaseRequest(group="g", topic="t", receipt_handles=first.handles, attempted=True)
        await broker.channel.call(methods.RELEASE, changed)
        found: list[bytes] = []
        async with asyncio.timeout(5):
            while not found:
                await asyncio.sleep(0.001)  # until what was released is on the device
                answer: PopAnswer = await broker.channel.call(methods.POP, request("n = 8"))
                found += bodies(answer)
        assert found == [b"3"]
