"""Routes and assignments as the official clients need them."""

import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import AddressScheme, Code, MessageType, Permission
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.session.routes import advertised_endpoints
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.proxy.world import CLIENT, World, until, world

ASKED = d.Endpoints(scheme=AddressScheme.DOMAIN_NAME, addresses=[d.Address(host="mq.example.org", port=8081)])


async def route(w: World, topic: str = "orders") -> pb.QueryRouteResponse:
    request = pb.QueryRouteRequest(topic=d.Resource(name=topic), endpoints=ASKED)
    return await w.channel.call(protocol.QUERY_ROUTE, request, metadata=CLIENT)


async def assignment(w: World, group: str = "group") -> pb.QueryAssignmentResponse:
    request = pb.QueryAssignmentRequest(topic=d.Resource(name="orders"), group=d.Resource(name=group), endpoints=ASKED)
    return await w.channel.call(protocol.QUERY_ASSIGNMENT, request, metadata=CLIENT)


async def test_every_queue_of_every_broker_is_in_the_route() -> None:
    async with world("b1", "b2") as w:
        answer = await route(w)
        assert answer.status.code == Code.OK
        queues = answer.message_queues
        assert [(queue.broker.name, queue.id) for queue in queues] == [
            (name, number) for name in ("b1", "b2") for number in range(4)
        ]
        for queue in queues:
            assert queue.topic.name == "orders"
            assert queue.permission == Permission.READ_WRITE
            assert queue.broker.id == 0
            assert queue.broker.endpoints == ASKED
            assert list(queue.accept_message_types) == [MessageType.NORMAL]


async def test_a_long_route_leaves_the_loop_to_others() -> None:
    async with world(*(f"b{number}" for number in range(8))) as w:
        w.controller.add_topic("wide", queues=1024)
        await until(lambda: "wide" in w.app.view.topics)
        addresses = [d.Address(host=f"10.0.0.{number}", port=8081) for number in range(64)]
        endpoints = d.Endpoints(scheme=AddressScheme.IPv4, addresses=addresses)
        request = pb.QueryRouteRequest(topic=d.Resource(name="wide"), endpoints=endpoints)
        with measured_turns() as turns:
            answer = await w.channel.call(protocol.QUERY_ROUTE, request, metadata=CLIENT)
        assert len({(each.broker.name, each.id) for each in answer.message_queues}) == 8 * 1024
        assert turns.longest_s < TURN_S_MAX, str(turns)


async def test_a_mixed_topic_takes_every_type() -> None:
    async with world() as w:
        w.controller.add_topic("mixed", TopicType.MIXED, 1)
        await until(lambda: "mixed" in w.app.view.topics)
        (queue,) = (await route(w, "mixed")).message_queues
        assert list(queue.accept_message_types) == [
            MessageType.NORMAL,
            MessageType.FIFO,
            MessageType.DELAY,
            MessageType.TRANSACTION,
        ]


async def test_a_missing_topic_has_no_route_and_is_not_remembered_as_missing() -> None:
    async with world() as w:
        missing = await route(w, "later")
        assert missing.status.code == Code.TOPIC_NOT_FOUND
        assert not missing.message_queues
        w.controller.add_topic("later")
        await until(lambda: "later" in w.app.view.topics)
        assert (await route(w, "later")).status.code == Code.OK


async def test_a_missing_topic_is_made_where_that_is_allowed() -> None:
    async with world(auto_create_topics=True) as w:
        assert len((await route(w, "fresh")).message_queues) == 4
        assert w.controller.topics["fresh"].type == TopicType.MIXED
        assert (await route(w, "%DLQ%nobody")).status.code == Code.TOPIC_NOT_FOUND
        assert (await route(w, "not a name")).status.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("topic", ["%DLQ%group", "%RETRY%group+orders"])
async def test_topics_of_a_group_have_one_queue(topic: str) -> None:
    async with world() as w:
        (queue,) = (await route(w, topic)).message_queues
        assert (queue.id, queue.permission) == (0, Permission.READ)


async def test_a_push_consumer_gets_each_broker_as_a_whole() -> None:
    async with world("b1", "b2") as w:
        answer = await assignment(w)
        assert [(one.message_queue.broker.name, one.message_queue.id) for one in answer.assignments] == [
            ("b1", -1),
            ("b2", -1),
        ]


async def test_an_ordered_group_gets_each_queue() -> None:
    async with world() as w:
        w.controller.add_group("ordered", fifo=True)
        await until(lambda: "ordered" in w.app.view.groups)
        answer = await assignment(w, "ordered")
        assert [one.message_queue.id for one in answer.assignments] == [0, 1, 2, 3]


async def test_without_a_broker_there_is_no_route() -> None:
    async with world() as w:
        w.controller.remove_broker("b1")
        await until(lambda: not w.app.ready)
        assert (await route(w)).status.code == Code.HA_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("options", "asked", "host", "port", "scheme"),
    [
        ({}, "127.0.0.1", "127.0.0.1", 8081, AddressScheme.IPv4),
        ({}, "::1", "::1", 8081, AddressScheme.IPv6),
        ({}, "mq", "mq", 8081, AddressScheme.DOMAIN_NAME),
        ({}, None, "127.0.0.1", 9, AddressScheme.IPv4),
        ({"advertised_address": "10.0.0.1"}, "mq", "10.0.0.1", 9, AddressScheme.IPv4),
        ({"advertised_address": "[::1]"}, "mq", "::1", 9, AddressScheme.IPv6),
        ({"advertised_address": "mq.example.org:80"}, None, "mq.example.org", 80, 3),
        ({"advertised_address": ":80"}, "mq", "mq", 80, AddressScheme.DOMAIN_NAME),
        ({"advertised_address": ":80"}, None, "127.0.0.1", 80, AddressScheme.IPv4),
    ],
)
def test_the_advertised_address(
    options: dict[str, object], asked: str | None, host: str, port: int, scheme: int
) -> None:
    endpoints = d.Endpoints(addresses=[d.Address(host=asked, port=8081)] if asked else [])
    given = advertised_endpoints(ProxyOptions.model_validate({"grpc_port": 9, **options}), endpoints)
    assert given.scheme == scheme
    assert [(one.host, one.port) for one in given.addresses] == [(host, port)]
