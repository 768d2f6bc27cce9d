"""ReceiveMessage among fakes: pop with notify, and what becomes of messages whose client has gone."""

import asyncio
from collections.abc import Sequence

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_proxy import app
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.service import Call
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.proxy.fake_broker import StoredMessage
from tests.unit.proxy.world import CLIENT, message, poll_request, turns, until, world


async def test_a_message_that_is_there_is_answered_at_once() -> None:
    async with world() as w:
        await w.send(message(tag="a", keys=["k"]))
        received = await w.receive(poll_request())
        assert received.kinds == ["status", "message", "delivery_timestamp"]
        assert received.code == Code.OK
        (got,) = received.messages
        assert got.body == b"body"
        assert got.system_properties.tag == "a"
        assert got.system_properties.message_id == "01" + "A" * 32
        acked = await w.ack(*received.handles)
        assert acked.status.code == Code.OK
        assert w.broker.acked == received.handles
        assert w.metric("is_short_polling_hit_total", {"topic": "orders", "consumer_group": "group"}) == 1


async def test_a_poll_is_woken_by_a_message_that_arrives() -> None:
    async with world() as w:
        poll = w.poll(poll_request())
        await until(lambda: len(w.broker.interests) == 1)
        await w.send(message())
        assert (await poll).bodies == [b"body"]
        assert len(w.broker.asked("Pop")) == 2


async def test_any_broker_wakes_a_poll_that_named_another() -> None:
    async with world("b1", "b2") as w:
        poll = w.poll(poll_request(broker="b1"))
        await until(lambda: all(len(one.interests) == 1 for one in w.brokers.values()))
        while not w.brokers["b2"].topics:
            await w.send(message())
        first = await poll
        second = await w.receive(poll_request(broker="b1"))
        assert first.bodies + second.bodies == [b"body"] * (len(first.bodies) + len(second.bodies))


async def test_polls_share_one_registration_and_no_more_are_woken_than_messages_came() -> None:
    async with world() as w:
        polls = [w.poll(poll_request(batch=1)) for _ in range(50)]
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 50)
        await until(lambda: len(w.broker.interests) == 1)
        await turns()
        assert len(w.broker.interests) == 1
        await w.send(*(message(body=b"%d" % index) for index in range(3)))
        await until(lambda: sum(poll.done() for poll in polls) == 3)
        await turns()
        assert w.metric("popwheel_proxy_poll_wakes_total") == 3
        assert w.metric("popwheel_proxy_poll_wakes_without_message_total") == 0
        assert len(w.broker.asked("Pop")) == 53
        w.app.drain()
        answers = await asyncio.gather(*polls)
        assert sorted(body for one in answers for body in one.bodies) == [b"0", b"1", b"2"]
        assert {one.code for one in answers if not one.messages} == {Code.MESSAGE_NOT_FOUND}


async def test_what_a_pop_leaves_behind_wakes_the_next_poll() -> None:
    async with world() as w:
        polls = [w.poll(poll_request(batch=2)) for _ in range(3)]
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 3)
        for index in range(6):  # told of one at a time, while pops are under way
            w.broker.topics.setdefault("orders", []).append(StoredMessage(b"\x22\x01%d" % index))
            w.broker.ready["group", "orders"].append(index)
        await w.broker.arrived("orders", 1)
        answers = await asyncio.gather(*polls)
        assert sorted(body for one in answers for body in one.bodies) == [b"%d" % index for index in range(6)]


async def test_a_message_that_arrives_while_the_first_pop_is_under_way_is_not_missed() -> None:
    async with world() as w:
        warm = w.poll(poll_request())
        await until(lambda: len(w.broker.interests) == 1)
        await w.send(message(body=b"warm"))
        await warm
        # The interest is still registered. A pop is answered empty, but only after a notification has come.
        w.broker.pop_gate.clear()
        w.app._book.stream_ended("b1")  # as far as the next poll knows, so that it pops before it waits
        poll = w.poll(poll_request())
        await until(lambda: len(w.broker.asked("Pop")) == 3)
        hidden, w.broker.ready["group", "orders"] = w.broker.ready["group", "orders"], []
        await w.broker.arrived("orders", 1)
        await turns()
        w.broker.pop_gate.set()
        await until(lambda: len(w.broker.asked("Pop")) == 4)
        assert hidden == []
        await w.send(message(body=b"late"))
        assert (await poll).bodies == [b"late"]


async def test_an_empty_poll_is_parked_and_answered_before_the_deadline() -> None:
    async with world(grpc_client_consumer_min_long_polling_timeout_ms=10) as w:
        began = w.clock.monotonic()
        received = await w.receive(poll_request(wait_s=0.2))
        assert received.code == Code.MESSAGE_NOT_FOUND
        assert received.kinds == ["status"]
        assert 0.19 <= w.clock.monotonic() - began < 0.35


@pytest.mark.parametrize("code", [Code.TOO_MANY_REQUESTS, Code.INTERNAL_ERROR, Code.HA_NOT_AVAILABLE])
async def test_a_poll_that_a_broker_refuses_is_parked_like_an_empty_one_and_reported(code: "Code.ValueType") -> None:
    """A client that was told at once would ask again at once; one that was notified of no message would believe it."""
    async with world("b1", "b2", grpc_client_consumer_min_long_polling_timeout_ms=10) as w:
        w.brokers["b1"].pop_error = StatusError(code, "its share (broker.pop.open_messages_max)")
        began = w.clock.monotonic()
        received = await w.receive(poll_request(broker="b1", wait_s=0.5))
        assert (received.code, received.status.message) == (code, w.brokers["b1"].pop_error.message)
        assert 0.49 <= w.clock.monotonic() - began < 0.65
        assert len(w.brokers["b1"].asked("Pop")) <= 4
        assert (await w.receive(poll_request(broker="b2", wait_s=0.1))).code == Code.MESSAGE_NOT_FOUND


async def test_a_poll_that_was_not_woken_as_another_was_refused_is_notified_so() -> None:
    async with world(grpc_client_consumer_min_long_polling_timeout_ms=10) as w:
        first, second = w.poll(poll_request(wait_s=0.3)), w.poll(poll_request(wait_s=0.15))
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 2 and len(w.broker.interests) > 0)
        asked = len(w.broker.asked("Pop"))
        w.broker.pop_error = StatusError(Code.TOO_MANY_REQUESTS, "no room")
        await w.broker.arrived("orders", 1)
        assert ((await second).code, len(w.broker.asked("Pop"))) == (Code.TOO_MANY_REQUESTS, asked + 1)
        assert (await first).code == Code.TOO_MANY_REQUESTS


async def test_a_poll_that_was_refused_takes_what_is_there_once_there_is_room() -> None:
    async with world() as w:
        await w.send(message())
        w.broker.pop_error = StatusError(Code.TOO_MANY_REQUESTS, "no room")
        poll = w.poll(poll_request())
        await until(lambda: len(w.broker.asked("Pop")) == 1)
        w.broker.pop_error = None
        await w.broker.arrived("orders", 1)
        assert (await poll).bodies == [b"body"]


async def test_what_was_refused_before_an_empty_answer_is_not_reported() -> None:
    async with world(grpc_client_consumer_min_long_polling_timeout_ms=10) as w:
        w.broker.pop_error = StatusError(Code.TOO_MANY_REQUESTS, "no room")
        poll = w.poll(poll_request(wait_s=0.6))
        await until(lambda: len(w.broker.asked("Pop")) == 1)
        w.broker.pop_error = None
        await until(lambda: len(w.broker.interests) == 1)
        await w.broker.arrived("orders", 1)
        assert (await poll).code == Code.MESSAGE_NOT_FOUND


async def test_a_poll_below_the_minimum_pops_everywhere_once_and_does_not_wait() -> None:
    async with world("b1", "b2", "b3") as w:
        received = await w.receive(poll_request(wait_s=4.9))
        assert received.code == Code.MESSAGE_NOT_FOUND
        assert [len(one.asked("Pop")) for one in w.brokers.values()] == [1, 1, 1]
        assert not any(one.interests for one in w.brokers.values())


async def test_a_pop_says_for_how_long_somebody_waits_for_it() -> None:
    async with world(grpc_client_consumer_min_long_polling_timeout_ms=10) as w:
        await w.receive(poll_request(wait_s=0.3))
        (pop,) = w.broker.asked("Pop")
        assert isinstance(pop, broker.PopRequest)
        assert 200 < pop.wanted_for_ms <= 500  # with what a pop under way may take longer


async def test_messages_popped_for_a_client_that_has_gone_are_released_at_once() -> None:
    async with world() as w:
        await w.send(message())
        w.broker.pop_gate.clear()
        stream = w.open_receive(poll_request())
        await stream.send((poll_request(),))
        await until(lambda: len(w.broker.asked("Pop")) == 1)
        stream.cancel()
        await turns()
        w.broker.pop_gate.set()
        await until(lambda: len(w.broker.asked("Release")) == 1)
        (release,) = w.broker.asked("Release")
        assert isinstance(release, broker.ReleaseRequest)
        assert not release.attempted
        assert (await w.receive(poll_request())).bodies == [b"body"]


async def test_a_waiting_poll_whose_client_goes_leaves_nothing_behind() -> None:
    async with world() as w:
        request = poll_request()
        stream = w.open_receive(request)
        await stream.send((request,))
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 1)
        stream.cancel()
        await until(lambda: w.metric("popwheel_proxy_polls") == 0)
        assert w.metric("popwheel_proxy_polls_waiting") == 0


async def test_a_broken_notify_stream_is_opened_again_and_misses_nothing() -> None:
    async with world() as w:
        poll = w.poll(poll_request())
        await until(lambda: len(w.broker.interests) == 1)
        w.broker.watchers[0].interests.clear()  # this stream tells no more
        (stream,) = [watcher.stream for watcher in w.broker.watchers]
        await w.send(message())
        assert not poll.done()
        link = w.app._notifications._links["b1"]
        assert link.stream is not None
        link.stream.cancel()
        assert (await poll).bodies == [b"body"]
        assert w.metric("popwheel_proxy_notify_streams_broken_total") == 1
        assert stream is not w.broker.watchers[0].stream


async def test_a_broker_that_comes_later_is_asked_too() -> None:
    async with world() as w:
        poll = w.poll(poll_request())
        await until(lambda: len(w.broker.interests) == 1)
        w.controller.add_broker("b2")
        await until(lambda: "b2" in w.brokers and len(w.brokers["b2"].interests) == 1)
        w.controller.remove_broker("b1")
        await until(lambda: w.app._brokers.names == ("b2",))
        await w.send(message())
        assert (await poll).bodies == [b"body"]


async def test_a_pop_that_fails_in_passing_does_not_end_the_poll() -> None:
    async with world() as w:
        w.broker.pop_error = RpcError(GrpcStatus.UNAVAILABLE, "gone for a moment")
        poll = w.poll(poll_request())
        await until(lambda: len(w.broker.interests) == 1)
        w.broker.pop_error = None
        await w.send(message())
        assert (await poll).bodies == [b"body"]


async def test_a_pop_that_is_refused_ends_the_poll_with_the_reason() -> None:
    async with world() as w:
        w.broker.pop_error = StatusError(Code.UNSUPPORTED, "not yet")
        received = await w.receive(poll_request())
        assert (received.code, received.status.message) == (Code.UNSUPPORTED, "not yet")


async def test_drain_ends_polls_with_an_empty_answer() -> None:
    async with world() as w:
        polls = [w.poll(poll_request()) for _ in range(5)]
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 5)
        w.app.drain()
        assert {one.code for one in await asyncio.gather(*polls)} == {Code.MESSAGE_NOT_FOUND}
        assert (await w.receive(poll_request())).code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"invisible_s": 9.0}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_s": 12 * 3600 + 1.0}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"group": d.Resource(name="no group!")}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": d.MessageQueue(topic=d.Resource(name="nowhere"))}, Code.TOPIC_NOT_FOUND),
        ({"message_queue": d.MessageQueue(topic=d.Resource(name="a b"))}, Code.ILLEGAL_TOPIC),
        (
            {"filter_expression": d.FilterExpression(type=d.FilterType.SQL, expression="a > ")},
            Code.ILLEGAL_FILTER_EXPRESSION,
        ),
        (
            {"filter_expression": d.FilterExpression(type=d.FilterType.TAG, expression="a ||")},
            Code.ILLEGAL_FILTER_EXPRESSION,
        ),
    ],
)
async def test_each_rule_has_its_code(change: dict[str, object], code: int) -> None:
    async with world() as w:
        assert (await w.receive(poll_request(**change))).code == code  # type: ignore[arg-type]
        assert w.broker.asked("Pop") == []


async def test_an_sql_filter_goes_to_the_broker_as_it_is() -> None:
    async with world() as w:
        wanted = d.FilterExpression(type=d.FilterType.SQL, expression=" a > 1 ")
        await w.receive(poll_request(wait_s=0, filter_expression=wanted))
        (pop,) = w.broker.asked("Pop")
        assert isinstance(pop, broker.PopRequest)
        assert (pop.filter.kind, pop.filter.expression) == (broker.FilterKind.SQL92, " a > 1 ")


async def test_long_filters_are_read_in_short_turns() -> None:
    """100 polls at once, each with a filter of its own as long as it may be."""
    async with world() as w:
        with measured_turns() as turns_:
            terms = [" OR ".join([f"a<{number}"] * 249) for number in range(100, 200)]
            polls = [
                poll_request(wait_s=0, filter_expression=d.FilterExpression(type=d.FilterType.SQL, expression=each))
                for each in terms
            ]
            answers = await asyncio.gather(*map(w.receive, polls))
        assert {each.code for each in answers} == {Code.MESSAGE_NOT_FOUND}
        assert len(w.broker.asked("Pop")) == 100
        assert turns_.longest_s <= TURN_S_MAX, str(turns_)


async def test_a_group_is_made_on_first_use_only_where_that_is_allowed() -> None:
    fresh = poll_request(wait_s=0, group=d.Resource(name="fresh"))
    async with world() as w:
        assert (await w.receive(fresh)).code == Code.MESSAGE_NOT_FOUND
        assert "fresh" in w.controller.groups
    async with world(auto_create_groups=False) as w:
        assert (await w.receive(fresh)).code == Code.CONSUMER_GROUP_NOT_FOUND


async def test_a_dead_letter_topic_is_readable_when_its_group_is_there() -> None:
    async with world() as w:
        dead = d.MessageQueue(topic=d.Resource(name="%DLQ%group"))
        assert (await w.receive(poll_request(wait_s=0, message_queue=dead))).code == Code.MESSAGE_NOT_FOUND
        other = d.MessageQueue(topic=d.Resource(name="%DLQ%other"))
        assert (await w.receive(poll_request(wait_s=0, message_queue=other))).code == Code.TOPIC_NOT_FOUND


@pytest.mark.parametrize("limit", ["polls_max", "polls_per_client_max", "polls_per_connection_max"])
async def test_one_poll_too_many_is_refused(limit: str) -> None:
    async with world(receive={limit: 3 if limit == "polls_max" else 2}) as w:
        polls = [w.poll(poll_request()) for _ in range(2)]
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 2)
        assert (await w.receive(poll_request())).code == Code.TOO_MANY_REQUESTS
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": f"receive.{limit}"}) == 1
        w.app.drain()
        await asyncio.gather(*polls)


async def test_a_group_that_hoards_polls_leaves_room_for_others_and_pulls_count() -> None:
    async with world(receive={"polls_max": 3}) as w:
        polls = [w.poll(poll_request()) for _ in range(2)]
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 2)
        pull = pb.PullMessageRequest(
            group=d.Resource(name="group"),
            message_queue=d.MessageQueue(topic=d.Resource(name="orders"), broker=d.Broker(name="b1")),
        )
        stream = w.channel.open(protocol.PULL_MESSAGE, metadata=CLIENT)
        await stream.send((pull,))
        answer = await stream.receive()
        assert answer is not None
        assert pb.PullMessageResponse.FromString(answer).status.code == Code.TOO_MANY_REQUESTS
        w.controller.add_group("other")
        other = w.poll(poll_request(group=d.Resource(name="other")))
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 3)
        w.app.drain()
        await asyncio.gather(*polls, other)
        assert w.metric("popwheel_proxy_polls") == 0


async def test_filters_are_bounded_by_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FILTER_BYTES_MAX", 14_000)
    async with world() as w:
        long = [d.FilterExpression(type=d.FilterType.TAG, expression=f"{number}" * 5000) for number in range(2)]
        poll = w.poll(poll_request(filter_expression=long[0]))
        await until(lambda: w.metric("popwheel_proxy_filter_bytes") == 5000)
        assert (await w.receive(poll_request(filter_expression=long[1]))).code == Code.TOO_MANY_REQUESTS
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "filter_bytes_max"}) == 1
        same = w.poll(poll_request(filter_expression=long[0]))
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 2)
        w.app.drain()
        await asyncio.gather(poll, same)


async def test_one_interest_too_many_is_refused() -> None:
    async with world(receive={"interests_max": 1}) as w:
        poll = w.poll(poll_request())
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 1)
        tagged = d.FilterExpression(type=d.FilterType.TAG, expression="a")
        assert (await w.receive(poll_request(filter_expression=tagged))).code == Code.TOO_MANY_REQUESTS
        w.app.drain()
        await poll


async def test_interests_that_nobody_polls_for_are_cancelled() -> None:
    async with world(receive={"interest_idle_ms": 5_000}) as w:
        poll = w.poll(poll_request())
        await until(lambda: len(w.broker.interests) == 1)
        await w.send(message())
        await poll
        assert len(w.broker.interests) == 1
        w.clock.shift_s += 6
        await until(lambda: not w.broker.interests)
        assert w.metric("popwheel_proxy_interests") == 0


async def test_polls_that_no_broker_is_there_for_leave_nothing_behind() -> None:
    async with world("b1", receive={"interest_idle_ms": 5_000}) as w:
        w.controller.remove_broker("b1")
        await until(lambda: not w.app._brokers.names)
        for tag in "ab":
            tagged = d.FilterExpression(type=d.FilterType.TAG, expression=tag)
            assert (await w.receive(poll_request(filter_expression=tagged))).code == Code.HA_NOT_AVAILABLE
        w.clock.shift_s += 6
        await until(lambda: w.metric("popwheel_proxy_interests") == 0)


async def test_a_call_without_client_id_is_refused() -> None:
    async with world() as w:
        assert (await w.receive(poll_request(), metadata={})).code == Code.CLIENT_ID_REQUIRED


async def test_the_broker_is_asked_for_what_the_client_wants() -> None:
    async with world() as w:
        tags = d.FilterExpression(type=d.FilterType.TAG, expression=" a||b ")
        await w.receive(poll_request(wait_s=0, batch=1000, filter_expression=tags, attempt_id="try"))
        (pop,) = w.broker.asked("Pop")
        assert isinstance(pop, broker.PopRequest)
        pop.ClearField("wanted_for_ms")
        assert pop == broker.PopRequest(
            group="group",
            group_id=w.app.view.groups["group"].id,
            topic="orders",
            queue_id=-1,
            max_messages=32,
            invisible_ms=30_000,
            filter=broker.Filter(kind=broker.FilterKind.TAG, expression="a || b"),
            client_id=CLIENT["x-mq-client-id"],
            attempt_id="try",
        )


class SlowReader:
    """A stream whose other side asks for messages and then takes none."""

    async def receive(self) -> pb.ReceiveMessageRequest:
        return poll_request()

    async def send(self, parts: Sequence[bytes]) -> None:
        await asyncio.Event().wait()


async def test_messages_of_a_slow_reader_are_counted_and_released_when_it_goes() -> None:
    async with world(receive={"unsent_bytes_max": 1024 * 1024}) as w:
        await w.send(*(message(body=bytes(40_000)) for _ in range(32)))
        handler = w.app.service.stream_handlers[protocol.RECEIVE_MESSAGE.path][1]
        call = Call(protocol.RECEIVE_MESSAGE.path, CLIENT, None, "somewhere:1")
        reader = asyncio.ensure_future(handler(call, SlowReader()))
        await until(lambda: w.metric("popwheel_proxy_unsent_bytes") > 1024 * 1024)
        assert (await w.receive(poll_request())).code == Code.TOO_MANY_REQUESTS
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "receive.unsent_bytes_max"}) == 1
        reader.cancel()
        await until(lambda: len(w.broker.asked("Release")) == 1)
        (release,) = w.broker.asked("Release")
        assert isinstance(release, broker.ReleaseRequest)
        assert release.attempted
        assert len(release.receipt_handles) == 32
        assert w.metric("popwheel_proxy_unsent_bytes") == 0
        await until(lambda: w.metric("popwheel_proxy_messages_released_total") == 32)


async def test_a_thousand_polls_of_one_burst_get_one_message_each() -> None:
    async with world(receive={"polls_per_client_max": 2000}) as w:
        polls = [w.poll(poll_request(batch=1)) for _ in range(1000)]
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 1000)
        for start in range(0, 1000, 100):
            await w.send(*(message(body=b"%d" % index) for index in range(start, start + 100)))
        answers = await asyncio.gather(*polls)
        assert {body for one in answers for body in one.bodies} == {b"%d" % index for index in range(1000)}
        assert w.metric("popwheel_proxy_poll_wakes_without_message_total") <= 20
