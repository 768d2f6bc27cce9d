"""InFlightSummary, InFlightRelease and MessageEvents as the controller calls them."""

from collections.abc import Iterator

import pytest

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.revive_table import ReviveTable
from popwheel_common.contract import names, receipt
from popwheel_common.contract.put import MessageRun
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.broker.served_broker import Broker, refused, running
from tests.unit.broker.world import INVISIBLE_MS, wire_message

RETRY = names.retry_topic("g", "t")
EVER_MS = 1 << 62


async def summary(broker: Broker, limit: int = 100) -> pb.InFlightSummaryResponse:
    return await broker.channel.call(methods.IN_FLIGHT_SUMMARY, pb.InFlightSummaryRequest(limit=limit))


def release(broker: Broker, offset: int = 0, topic: str = "t", *, dry_run: bool = False) -> object:
    request = pb.InFlightReleaseRequest(group="g", topic=topic, queue_id=0, queue_offset=offset, dry_run=dry_run)
    return broker.channel.call(methods.IN_FLIGHT_RELEASE, request)


async def test_a_summary_of_what_is_in_flight() -> None:
    async with running() as broker:
        nothing = await summary(broker)
        assert (nothing.total, len(nothing.groups), nothing.other_clients, nothing.epoch) == (0, 0, 0, 1)
        for number in range(6):
            await broker.put(b"%d" % number)
        popped_ms = broker.clock.wall_ms()
        await broker.pop(1, client_id="a")
        broker.clock.advance(10)
        await broker.pop(3, client_id="b")
        await broker.pop(1)
        found = await summary(broker)
        assert found.total == 5
        assert [(each.group, each.in_flight, each.clients) for each in found.groups] == [("g", 5, 2)]
        assert found.groups[0].oldest_popped_ms == popped_ms
        assert [
            (each.group, each.client_id, each.in_flight, each.oldest_popped_ms - popped_ms) for each in found.clients
        ] == [
            ("g", "b", 3, 10),
            ("g", "a", 1, 0),
            ("g", "", 1, 10),
        ]
        assert (found.other_groups, found.other_clients) == (0, 0)
        assert 0 < found.known_since_ms <= popped_ms
        less = await summary(broker, 1)
        assert ([each.client_id for each in less.clients], less.other_clients) == (["b"], 2)


async def test_the_list_says_who_has_what() -> None:
    async with running() as broker:
        for number in range(4):
            await broker.put(b"%d" % number)
        await broker.pop(2, client_id="a")
        await broker.pop(2, client_id="b")
        everything = await broker.channel.call(methods.IN_FLIGHT_LIST, pb.InFlightListRequest(limit=10))
        assert [each.client_id for each in everything.messages] == ["a", "a", "b", "b"]
        assert everything.known_since_ms == broker.clock.wall_ms()
        request = pb.InFlightListRequest(topic="t", group="g", client_id="b", limit=1)
        first = await broker.channel.call(methods.IN_FLIGHT_LIST, request)
        request.begin = first.next
        second = await broker.channel.call(methods.IN_FLIGHT_LIST, request)
        assert [each.queue_offset for each in (*first.messages, *second.messages)] == [2, 3]
        trace = await broker.channel.call(
            methods.MESSAGE_TRACE, pb.MessageTraceRequest(topic="t", message_id=b"2".hex(), until_ms=EVER_MS)
        )
        assert [holding.client_id for place in trace.messages for holding in place.groups] == ["b"]
        assert trace.known_since_ms == everything.known_since_ms


async def test_one_delivery_is_ended() -> None:
    async with running() as broker:
        await broker.put(b"a")
        await broker.put(b"b")
        (one, two) = await broker.pop(2, client_id="c")
        would = await release(broker, dry_run=True)  # type: ignore[misc]
        assert would == pb.InFlightReleaseResponse(message_id=b"a".hex(), attempt=1, client_id="c")
        assert await broker.ack(one) == [Code.OK], "a dry run changes nothing"
        await refused(release(broker), Code.MESSAGE_NOT_FOUND, "g has no message 0 of queue 0 of 't' in flight")
        done = await release(broker, 1)  # type: ignore[misc]
        assert done == pb.InFlightReleaseResponse(released=True, message_id=b"b".hex(), attempt=1, client_id="c")
        assert await broker.ack(two) == [Code.INVALID_RECEIPT_HANDLE]
        assert len(await broker.pop(client_id="d")) == 1, "it comes again at once"
        last = await release(broker, 0, RETRY)  # type: ignore[misc]
        assert (last.attempt, last.dead_letter) == (2, True)
        await refused(release(broker, 0, "%RETRY%"), Code.ILLEGAL_TOPIC, "topic")


async def test_what_waits_in_a_line_cannot_be_released() -> None:
    async with running() as broker:
        for body in (b"a1", b"a2"):
            payload, properties = wire_message("t", body, message_group="a")
            await broker.channel.call(methods.PUT, [MessageRun("t", 0, [payload], [properties], [""])])
        request = pb.PopRequest(group="g", topic="t", queue_id=-1, max_messages=9, invisible_ms=1000, ordered=True)
        assert len((await broker.channel.call(methods.POP, request)).messages) == 1
        await refused(release(broker, 1), Code.PRECONDITION_FAILED, "is blocked by its message group")
        released = await release(broker)  # type: ignore[misc]
        assert (released.message_id, released.attempt) == (b"a1".hex(), 1)
        (again,) = (await broker.channel.call(methods.POP, request)).messages
        assert Message.FromString(again).body == b"a1"


async def test_what_happened_to_a_message() -> None:
    async with running() as broker:
        began_ms = broker.clock.wall_ms()
        await broker.put(b"a")
        (handle,) = await broker.pop(client_id="c")
        await broker.ack(handle)
        request = pb.MessageEventsRequest(topic="t", message_id=b"a".hex(), until_ms=EVER_MS)
        found = await broker.channel.call(methods.MESSAGE_EVENTS, request)
        assert [each.kind for each in found.events] == [pb.MESSAGE_STORED, pb.MESSAGE_DELIVERED, pb.MESSAGE_ACKED]
        assert (found.known_since_ms, found.dropped, found.next, found.epoch) == (began_ms, 0, "", 1)
        request.message_id = "nothing"
        assert len((await broker.channel.call(methods.MESSAGE_EVENTS, request)).events) == 0
        request.message_id = ""
        await refused(broker.channel.call(methods.MESSAGE_EVENTS, request), Code.ILLEGAL_MESSAGE_ID, "message id")


def crowd(table: ReviveTable, groups: int, clients: int) -> Iterator[Delivery]:
    """Deliveries of many clients."""
    for number in range(groups * clients):
        delivery = Delivery(
            id=table.make_id(),
            group=f"group-{number % groups}",
            topic="t",
            origin=receipt.FROM_TOPIC,
            queue_id=0,
            start_offset=number,
            next_offset=number + 1,
            pop_time_ms=1_000 + number,
            invisible_ms=INVISIBLE_MS,
            due_ms=1 << 60,
            first_position=0,
            offsets=range(number, number + 1),
        )
        delivery.holder = table.holders.of(delivery.group, f"client-{number}")
        yield delivery


@pytest.mark.parametrize(("groups", "clients"), [(2_000, 10), (1, 20_000)])
async def test_no_turn_of_the_loop_is_long(groups: int, clients: int) -> None:
    async with running() as broker:
        table = broker.app.core.state.table
        for delivery in crowd(table, groups, clients):
            table.open(delivery)
        with measured_turns() as turns:
            found = await summary(broker, 1_000)
        assert found.total == groups * clients
        assert found.other_clients == groups * clients - 1_000
        assert found.other_groups == max(0, groups - 1_000)
        assert turns.longest_s < TURN_S_MAX, str(turns)
