"""SendMessage among fakes: what is checked, how sends join, and what happens when a broker fails."""

import asyncio

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.log.record import hash_tag
from popwheel_broker.log.tag import wanted_hashes
from popwheel_common.contract.put import PutResult
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageType
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendMessageResponse
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.protocol.validation import _check_tag, filter_of
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError
from tests.unit.proxy.fake_broker import FakeBroker, decoded
from tests.unit.proxy.world import CLIENT, message, turns, until, world

OLD_CLIENT = {"x-mq-client-id": "rust", "x-mq-client-version": "5.0.0"}


def put_sizes(one: FakeBroker) -> list[int]:
    return [sum(len(run.payloads) for run in request) for request in one.asked("Put") if isinstance(request, list)]


async def test_a_message_is_stored_as_it_came() -> None:
    async with world() as w:
        sent = message(tag="a", keys=["k1", "k2"])
        sent.user_properties["color"] = "blue"
        sent.system_properties.born_timestamp.FromMilliseconds(1)
        sent.system_properties.body_digest.type = d.MD5
        sent.system_properties.body_digest.checksum = "841A2D689AD86BD1611447453C22C6FC"
        answer = await w.send(sent)
        assert answer.status.code == Code.OK
        (entry,) = answer.entries
        assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, "01" + "A" * 32, 0)
        assert entry.transaction_id == ""
        (stored,) = w.broker.topics["orders"]
        assert decoded(stored) == sent
        assert stored.tag == "a"


async def test_what_is_the_servers_to_say_is_dropped() -> None:
    async with world() as w:
        for tag in ("a", "a"):  # the second is cut out as one like the first
            forged = message(tag=tag, receipt_handle="h", delivery_attempt=5, queue_offset=8)
            forged.system_properties.dead_letter_queue.topic = "elsewhere"
            forged.system_properties.invisible_duration.nanos = 5
            forged.system_properties.store_timestamp.nanos = 5
            assert (await w.send(forged, forged)).status.code == Code.OK
        said = message(tag="a").system_properties
        for stored in w.broker.topics["orders"]:
            kept = decoded(stored).system_properties
            assert {field.name for field, _ in kept.ListFields()} <= {
                *(field.name for field, _ in said.ListFields()),
                *("body_digest", "body_encoding", "born_timestamp", "born_host"),
            }


async def test_sends_of_one_turn_join_and_those_that_come_meanwhile_join_the_next() -> None:
    async with world() as w:
        w.broker.put_gate.clear()
        first = [asyncio.create_task(w.send(message())) for _ in range(5)]
        await until(lambda: put_sizes(w.broker) == [5])
        second = [asyncio.create_task(w.send(message())) for _ in range(7)]
        await turns()
        assert put_sizes(w.broker) == [5]
        w.broker.put_gate.set()
        answers = await asyncio.gather(*first, *second)
        assert put_sizes(w.broker) == [5, 7]
        assert sorted(answer.entries[0].offset for answer in answers) == list(range(12))


async def test_a_send_that_is_alone_waits_for_no_others_and_notices_when_they_come() -> None:
    async with world() as w:
        for _ in range(4):
            await w.send(message())
        for _ in range(16):
            await asyncio.gather(w.send(message()), w.send(message()))
        sizes = put_sizes(w.broker)
        assert (sizes[:8], sizes[-8:]) == ([1] * 8, [2] * 8)


async def test_a_put_is_bounded_in_messages_and_in_bytes() -> None:
    async with world(send={"put_messages_max": 4}) as w:
        await asyncio.gather(*(w.send(message()) for _ in range(10)))
        assert put_sizes(w.broker) == [4, 4, 2]
    async with world(send={"put_bytes_max": 65536}) as w:
        await asyncio.gather(*(w.send(message(body=bytes(30_000))) for _ in range(5)))
        assert put_sizes(w.broker) == [2, 2, 1]


async def test_what_waits_for_a_broker_is_bounded() -> None:
    async with world(send={"waiting_messages_max": 3}) as w:
        w.broker.put_gate.clear()
        first = asyncio.create_task(w.send(message()))
        await until(lambda: put_sizes(w.broker) == [1])
        waiting = [asyncio.create_task(w.send(message())) for _ in range(2)]
        await turns()
        assert (await w.send(message())).status.code == Code.TOO_MANY_REQUESTS
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "send.waiting_messages_max"}) == 1
        w.controller.add_topic("others")
        await turns()
        waiting.append(asyncio.create_task(w.send(message("others"))))
        await turns()
        assert not waiting[-1].done(), "another topic has a share of its own"
        w.broker.put_gate.set()
        assert {one.status.code for one in await asyncio.gather(first, *waiting)} == {Code.OK}


async def test_messages_go_round_brokers_and_queues() -> None:
    async with world("b1", "b2") as w:
        for _ in range(16):
            await w.send(message())
        for one in w.brokers.values():
            assert [stored.queue_id for stored in one.topics["orders"]] == [0, 1, 2, 3, 0, 1, 2, 3]


async def test_a_broker_that_is_not_reached_is_passed_over() -> None:
    async with world("b1", "b2") as w:
        w.brokers["b1"].put_error = NotProcessedError("connection refused")
        for _ in range(4):
            assert (await w.send(message())).status.code == Code.OK
        assert len(w.brokers["b2"].topics["orders"]) == 4
        assert len(w.brokers["b1"].asked("Put")) == 1, "it is left alone for a moment"


async def test_the_only_broker_is_tried_again_until_it_is_back() -> None:
    async with world() as w:
        w.broker.put_error = RpcError(GrpcStatus.UNAVAILABLE, "connection refused")
        send = asyncio.create_task(w.send(message()))
        await until(lambda: len(w.broker.asked("Put")) >= 2)
        w.broker.put_error = None
        assert (await send).status.code == Code.OK


async def test_a_put_of_unknown_outcome_is_repeated_at_the_same_broker_which_is_notified_so() -> None:
    async with world("b1", "b2", failover={"hold_ms": 50}) as w:
        for broker in w.brokers.values():
            broker.put_error = RpcError(GrpcStatus.DEADLINE_EXCEEDED, "too slow")
        assert (await w.send(message())).status.code == Code.PROXY_TIMEOUT
        asked, not_asked = sorted((broker.asked("Put") for broker in w.brokers.values()), key=len, reverse=True)
        assert not_asked == []
        assert [run.is_retry for runs in asked for run in runs] == [False, *[True] * (len(asked) - 1)]  # type: ignore[attr-defined]
        assert len(asked) > 1


async def test_a_refusal_of_the_broker_reaches_the_client() -> None:
    async with world() as w:
        w.broker.put_error = StatusError(Code.MASTER_PERSISTENCE_TIMEOUT, "the disk is full")
        answer = await w.send(message())
        assert (answer.status.code, answer.status.message) == (Code.MASTER_PERSISTENCE_TIMEOUT, "the disk is full")


async def test_many_messages_in_one_request_get_an_entry_each() -> None:
    async with world() as w:
        w.controller.add_topic("bills")
        await until(lambda: "bills" in w.app.view.topics)
        sent = [message(message_id="a"), message("bills", message_id="b"), message(message_id="c")]
        answer = await w.send(*sent)
        assert answer.status.code == Code.OK
        assert [entry.message_id for entry in answer.entries] == ["a", "b", "c"]
        assert [decoded(one).system_properties.message_id for one in w.broker.topics["orders"]] == ["a", "c"]


async def test_different_results_are_reported_as_such() -> None:
    async with world() as w:
        w.controller.add_topic("bills")
        await until(lambda: "bills" in w.app.view.topics)
        w.broker.put_results = [PutResult(Code.INTERNAL_SERVER_ERROR, "broken")]
        answer = await w.send(message(), message("bills"))
        assert answer.status.code == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in answer.entries] == [Code.INTERNAL_SERVER_ERROR, Code.OK]


def with_properties(count: int, size: int = 1) -> d.Message:
    made = message()
    for index in range(count):
        made.user_properties[f"{index:04}"] = "v" * size
    return made


def with_property(name: str) -> d.Message:
    made = message()
    made.user_properties[name] = "v"
    return made


def born(seconds: int, nanos: int = 0) -> d.Message:
    return message(born_timestamp=Timestamp(seconds=seconds, nanos=nanos))


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (message(body=bytes(4 * 1024 * 1024 + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (message(body=b""), Code.MESSAGE_BODY_EMPTY),
        (message("no such topic"), Code.ILLEGAL_TOPIC),
        (message("t" * 128), Code.ILLEGAL_TOPIC),
        (message(""), Code.ILLEGAL_TOPIC),
        (message("nowhere"), Code.TOPIC_NOT_FOUND),
        (message("%DLQ%group"), Code.ILLEGAL_TOPIC),
        (message("%RETRY%group_orders"), Code.ILLEGAL_TOPIC),
        (message("rmq_sys_anything"), Code.ILLEGAL_TOPIC),
        (message(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag=""), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a\nb"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="*"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a "), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="\u00a0a"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="t" * 8_193), Code.ILLEGAL_MESSAGE_TAG),
        (born(seconds=2**63 - 1), Code.BAD_REQUEST),
        (born(seconds=253_402_300_800), Code.BAD_REQUEST),
        (born(seconds=-62_135_596_801), Code.BAD_REQUEST),
        (born(seconds=5, nanos=-1), Code.BAD_REQUEST),
        (born(seconds=5, nanos=1_000_000_000), Code.BAD_REQUEST),
        (message(keys=["good", " "]), Code.ILLEGAL_MESSAGE_KEY),
        (message(keys=["a\x00"]), Code.ILLEGAL_MESSAGE_KEY),
        (message(message_id=""), Code.ILLEGAL_MESSAGE_ID),
        (message(message_id="x" * 256), Code.ILLEGAL_MESSAGE_ID),
        (with_properties(129), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_properties(1, 16 * 1024), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(keys=["k" * 17_000]), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_property(" "), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_property("a\tb"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(message_type=MessageType.FIFO, message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_type=0, message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_type=77), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
)
async def test_each_rule_has_its_code_and_nothing_is_stored(bad: d.Message, code: int) -> None:
    async with world() as w:
        answer = await w.send(bad)
        assert answer.status.code == code, answer
        assert answer.status.message
        together = await w.send(message(), bad)
        assert together.status.code == code
        assert w.broker.topics == {}


async def test_a_tag_that_is_too_long_is_not_remembered() -> None:
    async with world() as w:
        kept = _check_tag.cache_info().currsize
        assert (await w.send(message(tag="long" * 5_000))).status.code == Code.MESSAGE_PROPERTIES_TOO_LARGE
        assert _check_tag.cache_info().currsize == kept


@given(tag=st.text(max_size=5) | st.text(alphabet="a |*\t\u00a0", max_size=4))
def test_a_tag_is_taken_if_a_consumer_can_ask_for_it(tag: str) -> None:
    """For it alone, and beside another."""

    def finds(expression: str) -> bool:
        try:
            found = filter_of(d.FilterExpression(type=d.FilterType.TAG, expression=expression))
        except StatusError:
            return False
        return wanted_hashes(found) == frozenset(map(hash_tag, {tag} if expression == tag else {tag, "b"}))

    try:
        _check_tag(tag)
    except StatusError as refusal:
        assert refusal.code == Code.ILLEGAL_MESSAGE_TAG
        assert not (finds(tag) and finds(f"b || {tag}"))
    else:
        assert finds(tag)
        assert finds(f"b || {tag}")


@pytest.mark.parametrize("good", [with_properties(128, 100), with_properties(1, 16 * 1024 - 4), message(keys=["a b"])])
async def test_what_is_just_within_the_limits_is_taken(good: d.Message) -> None:
    async with world() as w:
        assert (await w.send(good)).status.code == Code.OK


async def test_a_body_of_the_largest_size_is_taken() -> None:
    async with world() as w:
        assert (await w.send(message(body=bytes(4 * 1024 * 1024)))).status.code == Code.OK


@pytest.mark.parametrize(
    "later",
    [
        message("mixed", message_type=MessageType.LITE),
        message("mixed", message_type=MessageType.PRIORITY),
    ],
)
async def test_what_comes_later_is_refused_and_never_stored(later: d.Message) -> None:
    async with world() as w:
        w.controller.add_topic("mixed", TopicType.MIXED)
        await until(lambda: "mixed" in w.app.view.topics)
        assert (await w.send(later)).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert w.broker.topics == {}


async def test_too_many_messages_or_none() -> None:
    async with world(message={"batch_messages_max": 3}) as w:
        assert (await w.send(*[message()] * 4)).status.code == Code.PAYLOAD_TOO_LARGE
        assert (await w.send()).status.code == Code.BAD_REQUEST
        garbage = await w.channel.call(protocol.SEND_MESSAGE, b"\x0a\xff", metadata=CLIENT)
        assert SendMessageResponse.FromString(garbage).status.code == Code.BAD_REQUEST


async def test_old_clients_get_codes_that_they_know() -> None:
    async with world() as w:
        assert (await w.send(message(body=b""), metadata=OLD_CLIENT)).status.code == Code.BAD_REQUEST
        assert (await w.send(message("nowhere"), metadata=OLD_CLIENT)).status.code == Code.TOPIC_NOT_FOUND


async def test_a_topic_is_made_on_first_use_where_that_is_allowed() -> None:
    async with world(auto_create_topics=True) as w:
        assert (await w.send(message("fresh"))).status.code == Code.OK
        assert w.controller.topics["fresh"].type == TopicType.MIXED
        w.controller.away = True
        assert (await w.send(message("other"))).status.code == Code.HA_NOT_AVAILABLE
        assert (await w.send(message("fresh"))).status.code == Code.OK


async def test_names_of_a_namespace_are_kept_apart() -> None:
    async with world(auto_create_topics=True) as w:
        sent = message()
        sent.topic.resource_namespace = "shop"
        assert (await w.send(sent)).status.code == Code.OK
        assert list(w.broker.topics) == ["shop%orders"]


async def test_without_a_broker_there_is_a_clear_answer() -> None:
    async with world() as w:
        w.controller.remove_broker("b1")
        await until(lambda: not w.app.ready)
        assert (await w.send(message())).status.code == Code.HA_NOT_AVAILABLE


async def test_a_send_that_was_given_up_is_not_put() -> None:
    async with world() as w:
        w.broker.put_gate.clear()
        first = asyncio.create_task(w.send(message()))
        await until(lambda: put_sizes(w.broker) == [1])
        abandoned = asyncio.create_task(w.send(message()))
        last = asyncio.create_task(w.send(message()))
        await turns()
        abandoned.cancel()
        await turns()
        w.broker.put_gate.set()
        await asyncio.gather(first, last)
        assert put_sizes(w.broker) == [1, 1]


async def test_sends_under_way_end_when_the_proxy_does() -> None:
    async with world() as w:
        w.broker.put_gate.clear()
        sends = [asyncio.create_task(w.send(message())) for _ in range(2)]
        await until(lambda: put_sizes(w.broker) == [2])
        waiting = asyncio.create_task(w.send(message()))
        await turns()
        await w.app._background.finish(0)
        answers = await asyncio.gather(*sends, waiting, return_exceptions=True)
        assert all(isinstance(one, BaseException) for one in answers)
        assert w.app._send_handler.waiting_messages == 0


async def test_topics_that_are_no_more_are_forgotten_a_part_at_a_time() -> None:
    async with world() as w:
        await w.send(message())
        handler = w.app._send_handler
        handler._turns.update((f"gone-{number}", 0) for number in range(1200))
        left = []
        for _ in range(4):
            handler.tick()
            left.append(len(handler._turns))
        assert left == [701, 201, 1, 1]
        assert list(handler._turns) == ["orders"]
