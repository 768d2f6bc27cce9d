"""Acknowledging among fakes: any handle, a status for each, one on top."""

import pytest
from google.protobuf.duration_pb2 import Duration

from popwheel_common.contract import receipt
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_proxy.protocol import client_methods as protocol
from tests.unit.proxy.fake_controller import KEY
from tests.unit.proxy.world import CLIENT, World, message, poll_request, until, world


def handle_of(name: str, key: bytes = KEY) -> str:
    """A handle as another broker would have made it."""
    return receipt.HandleMaker(
        key, "group", "orders", receipt.ReceiptHandle(1, 1, 1, 0, receipt.FROM_TOPIC, name, 0, 7)
    ).handle(7)


async def received(w: World, count: int) -> list[str]:
    for index in range(count):
        await w.send(message(body=b"%d" % index))
    handles: list[str] = []
    for name in w.brokers:
        handles += (await w.receive(poll_request(wait_s=0, broker=name))).handles
    return handles


async def change(w: World, handle: str, seconds: float) -> pb.ChangeInvisibleDurationResponse:
    duration = Duration()
    duration.FromMilliseconds(int(seconds * 1000))
    request = pb.ChangeInvisibleDurationRequest(
        group=d.Resource(name="group"),
        topic=d.Resource(name="orders"),
        receipt_handle=handle,
        invisible_duration=duration,
    )
    return await w.channel.call(protocol.CHANGE_INVISIBLE_DURATION, request, metadata=CLIENT)


async def forward(w: World, handle: str) -> pb.ForwardMessageToDeadLetterQueueResponse:
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=d.Resource(name="group"), topic=d.Resource(name="orders"), receipt_handle=handle
    )
    return await w.channel.call(protocol.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE, request, metadata=CLIENT)


async def test_each_broker_is_asked_once_for_its_own() -> None:
    async with world("b1", "b2") as w:
        handles = await received(w, 4)
        answer = await w.ack(handles[0], handles[2], handles[1], handles[3])
        assert answer.status.code == Code.OK
        assert [entry.receipt_handle for entry in answer.entries] == [handles[0], handles[2], handles[1], handles[3]]
        assert [entry.message_id for entry in answer.entries] == ["0", "1", "2", "3"]
        for one in w.brokers.values():
            assert len(one.asked("Ack")) == 1
            assert len(one.acked) == 2


async def test_one_entry_puts_its_status_on_top_and_different_ones_are_reported_as_such() -> None:
    async with world() as w:
        (handle,) = await received(w, 1)
        assert (await w.ack(handle)).status.code == Code.OK
        assert (await w.ack(handle)).status.code == Code.INVALID_RECEIPT_HANDLE
        (another,) = await received(w, 1)
        mixed = await w.ack(another, "garbage")
        assert mixed.status.code == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in mixed.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


@pytest.mark.parametrize("handle", ["", "garbage", "1 2 3 4 5 b1 7 8", "\x00" * 600, handle_of("b7", b"another key")])
async def test_a_bad_handle_is_called_that_and_reaches_no_broker(handle: str) -> None:
    async with world() as w:
        assert (await w.ack(handle)).status.code == Code.INVALID_RECEIPT_HANDLE
        assert (await change(w, handle, 10)).status.code == Code.INVALID_RECEIPT_HANDLE
        assert (await forward(w, handle)).status.code == Code.INVALID_RECEIPT_HANDLE
        assert w.broker.calls == []


async def test_a_good_handle_of_a_broker_that_is_away_is_to_be_tried_again() -> None:
    async with world() as w:
        handle = handle_of("b7")
        assert (await w.ack(handle)).status.code == Code.HA_NOT_AVAILABLE
        assert (await change(w, handle, 10)).status.code == Code.HA_NOT_AVAILABLE
        assert (await forward(w, handle)).status.code == Code.HA_NOT_AVAILABLE


async def test_a_changed_invisible_duration_gives_a_new_handle() -> None:
    async with world() as w:
        (handle,) = await received(w, 1)
        answer = await change(w, handle, 0)
        assert answer.status.code == Code.OK
        assert answer.receipt_handle == handle + "+"
        (asked,) = w.broker.asked("ChangeInvisible")
        assert isinstance(asked, broker.ChangeInvisibleRequest)
        assert asked.invisible_ms == 0
        assert (await change(w, handle, 12 * 3600 + 1)).status.code == Code.ILLEGAL_INVISIBLE_TIME
        assert (await change(w, handle, -1)).status.code == Code.ILLEGAL_INVISIBLE_TIME


async def test_a_message_is_forwarded_to_the_dead_letter_queue() -> None:
    async with world() as w:
        (handle,) = await received(w, 1)
        assert (await forward(w, handle)).status.code == Code.OK
        assert (await forward(w, handle)).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_too_many_entries_or_none() -> None:
    async with world(receive={"acknowledgements_max": 2}) as w:
        assert (await w.ack("a", "b", "c")).status.code == Code.PAYLOAD_TOO_LARGE
        assert (await w.ack()).status.code == Code.BAD_REQUEST


async def test_a_receive_with_auto_renew_is_renewed_until_it_is_acknowledged() -> None:
    async with world() as w:
        await w.send(message())
        got = await w.receive(poll_request(auto_renew=True))
        (pop,) = w.broker.asked("Pop")
        assert isinstance(pop, broker.PopRequest)
        assert pop.invisible_ms == 60_000
        assert w.metric("popwheel_proxy_renewed_handles") == 1
        w.clock.shift_s += 21
        await until(lambda: len(w.broker.asked("Renew")) == 1)
        (renew,) = w.broker.asked("Renew")
        assert isinstance(renew, broker.RenewRequest)
        assert renew.invisible_ms == 60_000
        assert [entry.receipt_handle for entry in renew.entries] == got.handles
        await until(lambda: w.metric("popwheel_proxy_renewals_total") == 1)
        await w.ack(*got.handles)
        assert w.metric("popwheel_proxy_renewed_handles") == 0


async def test_renewing_ends_when_the_client_says_it_stops() -> None:
    async with world() as w:
        await w.send(message())
        await w.receive(poll_request(auto_renew=True))
        await w.channel.call(protocol.NOTIFY_CLIENT_TERMINATION, pb.NotifyClientTerminationRequest(), metadata=CLIENT)
        w.clock.shift_s += 21
        await until(lambda: w.metric("popwheel_proxy_renewed_handles") == 0)
        assert w.broker.asked("Renew") == []


async def test_a_receive_whose_handles_could_not_be_renewed_is_refused() -> None:
    async with world(renewal={"handles_max": 10}) as w:
        assert (await w.receive(poll_request(auto_renew=True, batch=11))).code == Code.TOO_MANY_REQUESTS
        assert w.broker.asked("Pop") == []


async def test_a_broker_that_does_not_answer_is_notified_of() -> None:
    async with world() as w:
        (handle,) = await received(w, 1)
        w.controller.remove_broker("b1")
        await until(lambda: not w.app.ready)
        assert (await w.ack(handle)).status.code == Code.HA_NOT_AVAILABLE
