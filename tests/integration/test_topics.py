"""Topics and groups: made on first use, or by hand only."""

import asyncio
import json
import time
from pathlib import Path

import httpx
from click.testing import CliRunner

from popwheel_cli.main import main
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageType
from tests.harness.client import MessagingClient, bodies, delayed_message
from tests.harness.metrics import metrics
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


async def test_no_metric_names_a_topic_or_a_group_that_was_deleted(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    def named(name: str) -> set[str]:
        shown = metrics(server).keys() | metrics(server, pairs=True).keys()
        return {metric for metric, labels in shown if name in dict(labels).values()}

    for topic, group in (("Going", "staying"), ("Staying", "going"), ("Staying", "staying")):
        await client.send(topic, b"acked")
        await client.ack(group, topic, await client.receive_all(group, topic, 1))
        await client.send(topic, b"forwarded")
        await client.forward_to_dead_letters(group, topic, (await client.receive_all(group, topic, 1))[0])
        await client.send(topic, b"given out")
        await client.receive_all(group, topic, 1)
    for name in ("Going", "going"):
        assert {"rocketmq_messages_out_total", "is_long_polling_total", "rocketmq_consumer_lag_messages"} <= named(name)
    both = named("Staying") | named("staying")
    for path in ("topics/Going", "groups/going"):
        assert httpx.delete(f"{server.http_url}/api/v1/{path}").status_code == 200
    assert named("Going") == named("going") == set()
    assert named("Staying") | named("staying") >= both  # some are only there once the queues have been looked at


async def test_a_topic_that_is_deleted_and_made_again_at_once_has_what_is_sent_to_it_and_nothing_of_before(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    url = f"{server.http_url}/api/v1/topics"
    for number in range(10):
        made = httpx.post(url, json={"name": "Anew", "type": "MIXED", "queues": 1 + number % 3})
        assert made.status_code == 201, made.text
        later = delayed_message("Anew", b"later", round(time.time() * 1000) + 400)
        answers = [await client.send("Anew", b"%d" % number), await client.send_messages(later)]
        assert [answer.status.code for answer in answers] == [Code.OK] * 2
        assert bodies(await client.receive_all("anew", "Anew", 1)) == [b"%d" % number]
        if number < 9:
            assert httpx.delete(f"{url}/Anew").status_code == 200
    assert bodies(await client.receive_all("anew", "Anew", 2, patience_s=2)) == [b"later"]


async def test_what_was_deleted_is_gone_for_those_who_go_on(server: StandaloneProcess, client: MessagingClient) -> None:
    """A group's consumers poll on, and a topic's producer sends on: neither makes anything anew."""
    url = f"{server.http_url}/api/v1"
    for number in range(20):
        assert (await client.send("Kept", b"%d" % number)).status.code == Code.OK
    taken = await client.receive_all("leavers", "Kept", 20)
    assert (await client.ack("leavers", "Kept", taken)).status.code == Code.OK
    await client.send("Kept", b"unread")
    polls = [asyncio.create_task(client.receive("leavers", "Kept", poll_s=5.0)) for _ in range(3)]
    assert bodies((await next(asyncio.as_completed(polls))).messages) == [b"unread"]
    gone = httpx.delete(f"{url}/groups/leavers")
    assert (gone.status_code, gone.json()["in_flight"], gone.json()["used_with"]) == (200, 1, ["Kept"])
    await client.send("Kept", b"after")  # it wakes the polls that were there before
    later = await client.receive("leavers", "Kept", poll_s=5.0)
    assert sorted(len(each.messages) for each in await asyncio.gather(*polls)) == [0, 0, 1]
    assert (later.code, later.messages) == (Code.CONSUMER_GROUP_NOT_FOUND, [])
    assert "was deleted by an operator" in later.text
    assert httpx.get(f"{url}/groups/leavers").status_code == 404

    assert httpx.delete(f"{url}/topics/Kept").status_code == 200
    refused = await client.send("Kept", b"late")
    assert refused.status.code == Code.TOPIC_NOT_FOUND
    assert httpx.get(f"{url}/topics/Kept").status_code == 404
    made = httpx.post(f"{url}/topics", json={"name": "Kept", "type": "NORMAL"})
    assert made.status_code == 201
    assert (await client.send("Kept", b"anew")).status.code == Code.OK
    assert bodies(await client.receive_all("others", "Kept", 1)) == [b"anew"]


async def test_a_check_sees_messages_go_through_and_leaves_nothing_behind(server: StandaloneProcess) -> None:
    words = ["admin", "--server", server.http_url, "check", "--proxy", server.grpc_address, "-o", "json"]
    checked = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert checked.exit_code == 0, checked.stderr
    took = json.loads(checked.stdout)["seconds"]
    assert took["receive when due"] >= 1.5
    for kind in ("topics", "groups"):
        assert httpx.get(f"{server.http_url}/api/v1/{kind}?prefix=popwheel-check").json()["total"] == 0
