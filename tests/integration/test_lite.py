"""Lite topics on a real server: who reads what, in which order, through kill -9, quotas, and what fails."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import ClientType, Code, Message, OffsetOption
from tests.harness.client import MessagingClient, bodies, lite_message
from tests.harness.standalone import StandaloneProcess
from tests.integration.conftest import QUICK

QUOTAS = ("--set", "broker.lite.topics_max=400")
MAX_ATTEMPTS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("lite") / "data", (*QUICK, *QUOTAS)) as process:
        yield process


async def make(server: StandaloneProcess, path: str, **content: object) -> None:
    async with httpx.AsyncClient() as http:
        (await http.post(f"{server.http_url}/api/v1/{path}", json=content)).raise_for_status()


@asynccontextmanager
async def readers(
    server: StandaloneProcess, topic: str, *groups: str, **more: object
) -> AsyncIterator[list[MessagingClient]]:
    """A topic of lite topics, and a client for each of the groups."""
    await make(server, "topics", name=topic, type="LITE", **more)
    for group in set(groups):
        await make(server, "groups", name=group, max_attempts=MAX_ATTEMPTS)
    clients = [MessagingClient(server.grpc_address) for _ in groups]
    try:
        yield clients
    finally:
        for each in clients:
            await each.close()


async def send(client: MessagingClient, topic: str, lite_topic: str, *texts: str) -> None:
    for text in texts:
        answer = await client.send_messages(lite_message(topic, text.encode(), lite_topic))
        assert answer.status.code == Code.OK, answer.status.message


async def drained(client: MessagingClient, group: str, topic: str, rounds: int = 20) -> list[Message]:
    """All that comes, each answer acknowledged before the next one is asked for."""
    found: list[Message] = []
    for _ in range(rounds):
        messages = (await client.receive(group, topic, poll_s=0.0)).messages
        if not messages:
            break
        assert len({each.system_properties.lite_topic for each in messages}) == len(messages)
        assert (await client.ack(group, topic, messages)).status.code == Code.OK
        found += messages
    return found


async def test_each_client_reads_its_lite_topics_and_kill_9_changes_nothing(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with readers(server, "Sessions", "chat", "chat", "audit") as (anna, bert, audit):
            assert (await anna.sync_lite("chat", "Sessions", "a")).code == Code.OK
            assert (await bert.sync_lite("chat", "Sessions", "b", action=d.COMPLETE_ADD)).code == Code.OK
            poll = asyncio.create_task(bert.receive("chat", "Sessions", poll_s=10.0))
            for lite_topic in "abc":
                await send(anna, "Sessions", lite_topic, *(f"{lite_topic}{number}" for number in range(3)))
            async with asyncio.timeout(5.0):
                (first,) = (await poll).messages
            assert (first.body, first.topic.name, first.system_properties.lite_topic) == (b"b0", "Sessions", "b")
            assert (await bert.ack("chat", "Sessions", [first])).status.code == Code.OK
            (held,) = (await anna.receive("chat", "Sessions", invisible_s=60.0)).messages
            assert held.body == b"a0"
            assert (await audit.sync_lite("audit", "Sessions", "d")).code == Code.OK
            await send(audit, "Sessions", "d", "d0")
            (suspended,) = (await audit.receive("audit", "Sessions", invisible_s=60.0)).messages
            for _ in range(3):
                await audit.change_invisible("audit", "Sessions", suspended, 60.0, suspend=True)
        server.kill()
        server.start()
        async with (
            MessagingClient(server.grpc_address) as carl,
            MessagingClient(server.grpc_address) as audit,
        ):
            nothing = await carl.receive("chat", "Sessions")
            assert nothing.code == Code.MESSAGE_NOT_FOUND
            await carl.sync_lite("chat", "Sessions", "a", "b")
            # The group's progress and what it holds are from before the crash, and so is what each lite topic holds.
            assert bodies(await drained(carl, "chat", "Sessions")) == [b"b1", b"b2"]
            assert (await carl.ack("chat", "Sessions", [held])).status.code == Code.OK
            assert [each.body for each in await drained(carl, "chat", "Sessions")] == [b"a1", b"a2"]
            await audit.sync_lite("audit", "Sessions", "a", "b", "c", "d")
            assert len(await drained(audit, "audit", "Sessions")) == 9
            # What was suspended, however often, has never failed.
            assert (await audit.change_invisible("audit", "Sessions", suspended, 0.0)).status.code == Code.OK
            async with asyncio.timeout(5.0):
                (again,) = await audit.receive_all("audit", "Sessions", 1)
            assert (again.body, again.system_properties.delivery_attempt) == (b"d0", 1)


async def test_clients_of_one_group_share_a_lite_topic_and_a_failing_message_holds_back_that_alone(
    server: StandaloneProcess,
) -> None:
    async with readers(server, "Shared", "team", "team") as (anna, bert):
        for each in (anna, bert):
            await each.sync_lite("team", "Shared", "x", "y")
        await send(anna, "Shared", "x", "x0", "x1")
        await send(anna, "Shared", "y", "y0", "y1")
        (x0,) = (await anna.receive("team", "Shared", count=1, invisible_s=30.0)).messages
        (y0,) = (await bert.receive("team", "Shared", invisible_s=30.0)).messages
        assert {x0.body, y0.body} == {b"x0", b"y0"}
        assert (await bert.receive("team", "Shared")).messages == []
        # It fails: it comes again before its successor, to whoever asks, and the other lite topic goes on.
        failing, good = (x0, y0) if x0.body == b"x0" else (y0, x0)
        assert (await anna.change_invisible("team", "Shared", failing, 0.0)).status.code == Code.OK
        assert (await anna.ack("team", "Shared", [good])).status.code == Code.OK
        async with asyncio.timeout(5.0):
            got = sorted(await anna.receive_all("team", "Shared", 2), key=lambda each: each.body)
        assert [each.body for each in got] == [b"x0", b"y1"]
        assert got[0].system_properties.delivery_attempt == 2
        # Suspended, it counts no attempt; then it fails for the last time, and is a dead letter.
        assert (await bert.change_invisible("team", "Shared", got[0], 0.0, suspend=True)).status.code == Code.OK
        async with asyncio.timeout(5.0):
            (again,) = await bert.receive_all("team", "Shared", 1)
        assert (again.body, again.system_properties.delivery_attempt) == (b"x0", 2)
        assert (await anna.change_invisible("team", "Shared", again, 0.0)).status.code == Code.OK
        async with asyncio.timeout(5.0):
            (after,) = await anna.receive_all("team", "Shared", 1)
        assert after.body == b"x1"
        assert await anna.forward_to_dead_letters("team", "Shared", after) == d.Status(code=Code.OK, message="OK")
        assert bodies(await anna.receive_all("undertaker", "%DLQ%team", 2)) == [b"x0", b"x1"]


async def test_where_a_group_begins(server: StandaloneProcess) -> None:
    async with readers(server, "Begun", "late", "later", "again") as (late, later, again):
        await send(late, "Begun", "x", *"0123456789")
        await late.sync_lite("late", "Begun", "x", option=OffsetOption(policy=OffsetOption.MAX))
        await later.sync_lite("later", "Begun", "x", option=OffsetOption(tail_n=2))
        await again.sync_lite("again", "Begun", "x", option=OffsetOption(offset=7))
        assert await drained(late, "late", "Begun") == []
        assert bodies(await drained(later, "later", "Begun")) == [b"8", b"9"]
        assert bodies(await drained(again, "again", "Begun")) == [b"7", b"8", b"9"]
        await send(late, "Begun", "x", "new")
        assert bodies(await drained(late, "late", "Begun")) == [b"new"]


async def test_clients_are_notified_of_lite_topics_that_end(server: StandaloneProcess) -> None:
    async with readers(server, "Passing", "guests", lite_expiration_ms=1000) as (reader,):
        entry = d.SubscriptionEntry(topic=d.Resource(name="Passing"))
        settings = d.Settings(
            client_type=ClientType.LITE_PUSH_CONSUMER,
            subscription=d.Subscription(group=d.Resource(name="guests"), subscriptions=[entry]),
        )
        async with aclosing(reader.commands(settings)) as commands:
            assert (await anext(commands)).HasField("settings")
            await reader.sync_lite("guests", "Passing", "gone", "never")
            await send(reader, "Passing", "gone", "1")
            assert bodies(await drained(reader, "guests", "Passing")) == [b"1"]
            async with asyncio.timeout(15.0):
                async for command in commands:
                    if command.HasField("notify_unsubscribe_lite_command"):
                        break
            assert command.notify_unsubscribe_lite_command.lite_topic == "gone"
        await send(reader, "Passing", "gone", "2")
        assert (await reader.receive("guests", "Passing")).messages == [], "it is read no more"
        await reader.sync_lite("guests", "Passing", "gone")
        assert bodies(await drained(reader, "guests", "Passing")) == [b"2"]


async def test_quotas_and_refusals_have_their_names(server: StandaloneProcess, client: MessagingClient) -> None:
    async with readers(server, "Limited", "few") as (reader,):
        assert (await reader.sync_lite("few", "Limited", *map(str, range(2000)))).code == Code.OK
        assert (await reader.sync_lite("few", "Limited", "e")).code == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert (await reader.sync_lite("few", "Limited", "a b")).code == Code.ILLEGAL_LITE_TOPIC
        many = await client.send_messages(*(lite_message("Limited", b"1", f"many-{number}") for number in range(100)))
        assert many.status.code == Code.OK
        more = await client.send_messages(*(lite_message("Limited", b"1", f"more-{number}") for number in range(120)))
        codes = {entry.status.code for entry in more.entries}
        assert (more.status.code, codes) == (Code.MULTIPLE_RESULTS, {Code.OK, Code.LITE_TOPIC_QUOTA_EXCEEDED})
        await send(client, "Limited", "many-0", "one that is there takes more")
        kinds = d.SubscriptionEntry(topic=d.Resource(name="Limited"))
        settings = d.Settings(
            client_type=ClientType.SIMPLE_CONSUMER,
            subscription=d.Subscription(group=d.Resource(name="few"), subscriptions=[kinds]),
        )
        await client.agree_on_settings(settings)
        refused = await client.receive("few", "Limited")
        assert (refused.code, "LiteSimpleConsumer" in refused.text) == (Code.BAD_REQUEST, True)
        settings.client_type = ClientType.LITE_PUSH_CONSUMER
        reported = (await reader.agree_on_settings(settings)).subscription
        assert (reported.lite_subscription_quota, reported.max_lite_topic_size, reported.fifo) == (2000, 64, False)
