"""Topics and groups: made on first use, or by hand only."""

from pathlib import Path

import httpx

from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageType
from tests.harness.client import MessagingClient, bodies
from tests.harness.standalone import StandaloneProcess


async def test_a_topic_is_made_on_first_use(client: MessagingClient) -> None:
    route = await client.route("FirstUse")
    assert route.status.code == Code.OK
    assert [queue.id for queue in route.message_queues] == list(range(8))
    assert all(queue.broker.id == 0 and queue.broker.name for queue in route.message_queues)
    assert all(MessageType.NORMAL in queue.accept_message_types for queue in route.message_queues)


async def test_where_topics_are_made_by_hand_only_a_missing_one_is_refused_until_it_is_there(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", ["--set", "proxy.auto_create_topics=false"]) as server:
        async with MessagingClient(server.grpc_address) as client:
            assert (await client.route("ByHand")).status.code == Code.TOPIC_NOT_FOUND
            assert (await client.send("ByHand", b"one")).status.code == Code.TOPIC_NOT_FOUND
            answer = httpx.post(f"{server.http_url}/api/v1/topics", json={"name": "ByHand", "queues": 2})
            assert answer.status_code == 201, answer.text
            assert (await client.send("ByHand", b"two")).status.code == Code.OK
            assert len((await client.route("ByHand")).message_queues) == 2
            assert bodies(await client.receive_all("by-hand", "ByHand", 1)) == [b"two"]
