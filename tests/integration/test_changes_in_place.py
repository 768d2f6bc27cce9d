"""Topics and groups of a server are changed while they are used: nothing is lost, comes twice or loses its order."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
from click.testing import CliRunner, Result

from popwheel_cli.main import main
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageType
from tests.harness.client import MessagingClient, bodies, ordered_message
from tests.harness.standalone import StandaloneProcess


async def made(server: StandaloneProcess, kind: str, **body: Any) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{server.http_url}/api/v1/{kind}", json=body)
        assert answer.status_code == 201, answer.text


async def admin(server: StandaloneProcess, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["admin", "--server", server.http_url, *words])


async def changed(server: StandaloneProcess, *words: str) -> list[dict[str, Any]]:
    done = await admin(server, *words, "-o", "json")
    assert done.exit_code == 0, done.stderr
    shown: list[dict[str, Any]] = json.loads(done.stdout)
    return shown


async def test_nothing_is_lost_or_comes_twice_while_a_topic_gets_more_queues(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    await made(server, "topics", name="Growing", type="MIXED", queues=4)
    await made(server, "groups", name="growers")
    sent: list[bytes] = []
    got: Counter[bytes] = Counter()
    queues: Counter[int] = Counter()
    grown = asyncio.Event()

    async def send(number: int) -> None:
        count = after = 0
        while after < 100:  # that many once the topic has grown
            body = b"%d %d" % (number, count)
            answer = await client.send("Growing", body)
            assert answer.status.code == Code.OK, answer.status.message
            sent.append(body)
            count += 1
            after += grown.is_set()

    async def receive() -> None:
        idle = 0
        while idle < 3:
            received = await client.receive("growers", "Growing", poll_s=1.0, invisible_s=60.0)
            assert received.code in (Code.OK, Code.MESSAGE_NOT_FOUND), received
            got.update(each.body for each in received.messages)
            queues.update(each.system_properties.queue_id for each in received.messages)
            if received.messages:
                assert (await client.ack("growers", "Growing", received.messages)).status.code == Code.OK
            idle = 0 if received.messages or not senders.done() else idle + 1

    senders = asyncio.gather(*(send(number) for number in range(4)))
    receivers = asyncio.gather(*(receive() for _ in range(3)))
    for step in (6, 16):
        await asyncio.sleep(0.5)
        change = await changed(server, "topic", "update", "Growing", "--queues", str(step))
        assert change[0]["after"] == step
    grown.set()
    async with asyncio.timeout(120):
        await senders
        await receivers
    assert got == Counter(sent)  # each once
    assert set(queues) == set(range(16))
    assert len((await client.route("Growing")).message_queues) == 16


async def test_a_poll_that_waits_is_notified_of_what_comes_into_a_new_queue(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    await made(server, "topics", name="Awaited", queues=1)
    await client.receive("waiters", "Awaited")
    poll = asyncio.create_task(client.receive("waiters", "Awaited", poll_s=20.0))
    await asyncio.sleep(0.3)
    await changed(server, "topic", "update", "Awaited", "--queues", "2")
    assert not poll.done()
    for number in range(2):  # one of each queue
        assert (await client.send("Awaited", b"%d" % number)).status.code == Code.OK
    async with asyncio.timeout(5):
        first = (await poll).messages
        rest = await client.receive_all("waiters", "Awaited", 2 - len(first))
    assert sorted(bodies([*first, *rest])) == [b"0", b"1"]
    assert {each.system_properties.queue_id for each in [*first, *rest]} == {0, 1}


async def test_message_groups_keep_their_order_while_their_topic_gets_more_queues(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    await made(server, "topics", name="Lanes", type="MIXED", queues=2)
    await made(server, "groups", name="orderly", fifo=True)
    lines = [f"line{number}" for number in range(12)]

    async def send(line: str, *numbers: int) -> None:
        for number in numbers:
            answer = await client.send_messages(ordered_message("Lanes", f"{line} {number}".encode(), line))
            assert answer.status.code == Code.OK, answer.status.message

    await asyncio.gather(*(send(line, 0, 1) for line in lines))
    await changed(server, "topic", "update", "Lanes", "--queues", "16")
    await asyncio.gather(*(send(line, 2, 3) for line in lines))
    found: list[bytes] = []
    for _ in range(50):
        messages = (await client.receive("orderly", "Lanes")).messages
        if not messages:
            break
        assert {each.system_properties.queue_id for each in messages} <= {0, 1}
        found += bodies(messages)
        await client.ack("orderly", "Lanes", messages)
    for line in lines:
        assert [each.split()[1] for each in found if each.split()[0] == line.encode()] == [b"0", b"1", b"2", b"3"]


async def test_a_type_grows_wider_at_once_and_never_narrower(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    await made(server, "topics", name="Wider", type="NORMAL")
    refused = await client.send_messages(ordered_message("Wider", b"x", "line"))
    assert refused.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    await changed(server, "topic", "update", "Wider", "--type", "mixed")
    taken = await client.send_messages(ordered_message("Wider", b"x", "line"))
    assert taken.status.code == Code.OK, taken.status.message
    assert MessageType.FIFO in (await client.route("Wider")).message_queues[0].accept_message_types
    for words, part in (
        (("topic", "update", "Wider", "--type", "NORMAL"), "would refuse what may be sent to it now"),
        (("topic", "update", "Wider", "--queues", "7"), "could not be read any more"),
        (("topic", "update", "Wider", "--lite-expiration", "5m"), "only topics of type LITE"),
        (("topic", "update", "Wider"), "nothing is to be changed"),
        (("topic", "update", "Nowhere", "--queues", "7"), "there is no topic Nowhere"),
    ):
        answer = await admin(server, *words)
        assert answer.exit_code and part in answer.stderr
    before = httpx.get(f"{server.http_url}/api/v1/cluster").json()["version"]
    dry = await changed(server, "topic", "update", "Wider", "--queues", "20", "--dry-run")
    assert dry == [{"setting": "queues", "before": 8, "after": 20}]
    again = await admin(server, "topic", "update", "Wider", "--queues", "8")
    assert (again.exit_code, "is so already" in again.stderr) == (0, True)
    assert httpx.get(f"{server.http_url}/api/v1/cluster").json()["version"] == before


async def test_attempts_and_waits_count_from_the_next_failure_on(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    await made(server, "groups", name="failing", max_attempts=16, backoff_ms=[600_000])
    await client.route("Failing")
    await client.send("Failing", b"one")
    (first,) = await client.receive_all("failing", "Failing", 1)
    await changed(server, "group", "update", "failing", "--max-attempts", "2", "--backoff", "1s")
    reported = await client.agree_on_settings(
        definition.Settings(
            client_type=definition.PUSH_CONSUMER,
            subscription=definition.Subscription(group=definition.Resource(name="failing")),
        )
    )
    assert reported.backoff_policy.max_attempts == 2
    assert [each.seconds for each in reported.backoff_policy.customized_backoff.next] == [1]
    assert (await client.change_invisible("failing", "Failing", first, None)).status.code == Code.OK
    (second,) = await client.receive_all("failing", "Failing", 1, patience_s=20)  # not after ten minutes
    assert second.system_properties.delivery_attempt == 2
    assert (await client.change_invisible("failing", "Failing", second, None)).status.code == Code.OK
    assert bodies(await client.receive_all("undertakers", "%DLQ%failing", 1, patience_s=20)) == [b"one"]


async def test_the_order_of_a_group_changes_only_while_nobody_uses_it(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    await made(server, "groups", name="turning")
    await client.route("Turning")
    await client.send("Turning", b"one")
    (held,) = await client.receive_all("turning", "Turning", 1)
    in_use = await admin(server, "group", "update", "turning", "--fifo", "--max-attempts", "3")
    assert in_use.exit_code == 1 and "PRECONDITION_FAILED" in in_use.stderr
    assert "1 messages are in flight, 0 wait for a retry" in in_use.stderr
    shown = httpx.get(f"{server.http_url}/api/v1/groups/turning").json()
    assert (shown["fifo"], shown["max_attempts"]) == (False, 17)  # neither of the two
    await changed(server, "group", "update", "turning", "--max-attempts", "3")  # that does not mind
    await client.ack("turning", "Turning", [held])
    poll = asyncio.create_task(client.receive("turning", "Turning", poll_s=5.0))
    await asyncio.sleep(0.5)
    polled = await admin(server, "group", "update", "turning", "--fifo")
    assert polled.exit_code == 1 and "clients poll at 1 proxies" in polled.stderr
    await client.send("Turning", b"two")
    await client.ack("turning", "Turning", (await poll).messages)
    until = asyncio.get_running_loop().time() + 60
    while (done := await admin(server, "group", "update", "turning", "--fifo")).exit_code:
        assert asyncio.get_running_loop().time() < until, done.stderr
        await asyncio.sleep(0.5)
    for number in range(2):
        await client.send_messages(ordered_message("Turning", b"%d" % number, "line"))
    assert bodies((await client.receive("turning", "Turning")).messages) == [b"0"]
