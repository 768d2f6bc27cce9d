"""Names at the edge, at a real process: the table of kinds and calls, and what was seen before there was a gate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from popwheel_common.contract import names
from popwheel_common.contract.names import Kind, Use
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient
from tests.harness.hostility import (
    GROUP,
    HOUR_S,
    MIB,
    RESOURCE,
    TOPIC,
    WITH_TOPIC,
    check,
    endured,
    hostile_server,
    naming,
    nothing_changes,
    poll,
    queue,
    status_of,
)
from tests.harness.names import BAD_GROUPS, BAD_TOPICS, OF_KIND
from tests.harness.proxy_calls import CALLS
from tests.harness.standalone import StandaloneProcess

TOPICS = [text for text in BAD_TOPICS if "\ud800" not in text]  # no call can carry that
GROUPS = [text for text in BAD_GROUPS if text and "\ud800" not in text]  # some calls may leave the group out

USE_OF = {
    "SendMessage": Use.SEND,
    "RecallMessage": Use.SEND,
    "EndTransaction": Use.SEND,
    "ReceiveMessage": Use.RECEIVE,
    "QueryAssignment": Use.RECEIVE,
    "AckMessage": Use.RECEIVE,
    "ChangeInvisibleDuration": Use.RECEIVE,
    "ForwardMessageToDeadLetterQueue": Use.RECEIVE,
    "SyncLiteSubscription": Use.RECEIVE,
    "PullMessage": Use.PULL,
    "PullRecords": Use.PULL,
    "QueryRoute": Use.QUERY,
    "QueryOffset": Use.QUERY,
    "GetOffset": Use.QUERY,
    "UpdateOffset": Use.COMMIT,
}
GROWTH_BYTES_MAX = 150 * MIB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    yield from hostile_server(tmp_path_factory)


def requests(topic: str = TOPIC, group: str = GROUP) -> dict[str, Any]:
    """A request of each call that names a topic or group."""
    of_group, of_topic = d.Resource(name=group), d.Resource(name=topic)
    return {
        **naming(topic, group),
        "RecallMessage": pb.RecallMessageRequest(topic=of_topic, recall_handle="none"),
        "EndTransaction": pb.EndTransactionRequest(topic=of_topic, transaction_id="none"),
        "SyncLiteSubscription": pb.SyncLiteSubscriptionRequest(topic=of_topic, group=of_group),
        "Heartbeat": pb.HeartbeatRequest(group=of_group),
        "NotifyClientTermination": pb.NotifyClientTerminationRequest(group=of_group),
        "Telemetry": pb.TelemetryCommand(
            settings=d.Settings(
                subscription=d.Subscription(group=of_group, subscriptions=[d.SubscriptionEntry(topic=of_topic)])
            )
        ),
    }


def publishing(topic: str) -> pb.TelemetryCommand:
    """The settings of a producer."""
    return pb.TelemetryCommand(settings=d.Settings(publishing=d.Publishing(topics=[d.Resource(name=topic)])))


def test_no_call_is_left_out() -> None:
    assert set(CALLS) == set(requests())
    assert set(USE_OF) == {*WITH_TOPIC, "RecallMessage", "EndTransaction", "SyncLiteSubscription"}


@pytest.mark.parametrize("kind", Kind)
async def test_the_table_of_kinds_and_calls_holds(server: StandaloneProcess, kind: Kind) -> None:
    async with MessagingClient(server.grpc_address) as client:
        for topic in (*OF_KIND[kind], *_there(kind)):
            for method, use in USE_OF.items():
                if method == "SendMessage" and kind is Kind.USER:
                    continue  # what can be sent to is sent to everywhere else
                status = await status_of(client, method, requests(topic)[method])
                if use in names.USES[kind]:
                    assert status.code != Code.ILLEGAL_TOPIC, (method, topic, status.message)
                else:
                    check(status, Code.ILLEGAL_TOPIC)
            for settings, use in ((publishing(topic), Use.SEND), (requests(topic)["Telemetry"], Use.RECEIVE)):
                expected = Code.OK if use in names.USES[kind] else Code.ILLEGAL_TOPIC
                assert (await status_of(client, "Telemetry", settings)).code == expected, topic
    for topic in OF_KIND[kind]:
        answer = httpx.delete(f"{server.http_url}/api/v1/topics/{topic.replace('%', '%25')}")
        if Use.CREATE in names.USES[kind]:
            assert answer.status_code in (200, 404), answer.text
        else:
            assert (answer.status_code, answer.json()["code"]) == (400, "ILLEGAL_TOPIC")


def _there(kind: Kind) -> tuple[str, ...]:
    """Topics of a kind that are there."""
    return {Kind.RETRY: (f"%RETRY%{GROUP}+{TOPIC}",), Kind.DEAD_LETTER: (f"%DLQ%{GROUP}",)}.get(kind, ())


async def test_no_call_lets_a_name_in_that_is_none(server: StandaloneProcess) -> None:
    async with nothing_changes(server), MessagingClient(server.grpc_address) as client:
        for topic in TOPICS:
            for method in USE_OF:
                check(await status_of(client, method, requests(topic)[method]), Code.ILLEGAL_TOPIC)
            check(await status_of(client, "Telemetry", publishing(topic)), Code.ILLEGAL_TOPIC)
        for group in GROUPS:
            for method, request in requests(group=group).items():
                if method not in ("SendMessage", "RecallMessage", "EndTransaction", "QueryRoute", "QueryOffset"):
                    check(await status_of(client, method, request), Code.ILLEGAL_CONSUMER_GROUP)


@pytest.mark.parametrize("namespace", ["a%b", "../..", "a b", "%", "n" * 128, "n" * 100_000])
async def test_what_is_no_namespace(server: StandaloneProcess, namespace: str) -> None:
    async def hostility() -> None:
        async with MessagingClient(server.grpc_address) as client:
            within = d.Resource(resource_namespace=namespace, name="a")
            check(await status_of(client, "QueryRoute", pb.QueryRouteRequest(topic=within)), Code.ILLEGAL_TOPIC)
            request = pb.QueryAssignmentRequest(topic=RESOURCE, group=within)
            check(await status_of(client, "QueryAssignment", request), Code.ILLEGAL_CONSUMER_GROUP)

    await endured(server, hostility)


@pytest.mark.parametrize(
    "name",
    ["a b", "%2e%2e", "%00", "n" * 256, "%ff", "%ed%a0%80", "%F0%9F%98%80", "%25RETRY%25g+t", "%25DLQ%25g", "rmq_sys_"],
)
def test_the_admin_api_refuses_by_name(server: StandaloneProcess, name: str) -> None:
    url = f"{server.http_url}/api/v1"
    for method in ("GET", "DELETE"):
        answer = httpx.request(method, f"{url}/topics/{name}")
        assert (answer.status_code, answer.json()["code"]) == (400, "ILLEGAL_TOPIC"), answer.text
    assert httpx.get(f"{url}/timers", params={"topic": "\n"}).json()["code"] == "ILLEGAL_TOPIC"
    assert httpx.get(f"{url}/brokers/{name}").json()["code"] in ("BAD_REQUEST", "NOT_FOUND")


@pytest.mark.parametrize(("what", "code"), [("topics", "ILLEGAL_TOPIC"), ("groups", "ILLEGAL_CONSUMER_GROUP")])
@pytest.mark.parametrize("name", ["\\ud800", "/../", "\\u0000", "", "😀"])
def test_the_admin_api_makes_nothing_of_such_a_name(server: StandaloneProcess, what: str, code: str, name: str) -> None:
    content, headers = f'{{"name": "{name}"}}'.encode(), {"content-type": "application/json"}
    answer = httpx.post(f"{server.http_url}/api/v1/{what}", content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["code"] in ((code, "BAD_REQUEST") if name == "\\ud800" else (code,)), answer.text


# What was seen


async def test_names_of_sixty_sixty_and_one_hundred_and_twenty_characters(server: StandaloneProcess) -> None:
    """The retry topic of the retry topic had over 255 bytes; its delivery ended the broker at each start."""
    group, topic, reader = "g" * 60, "t" * 60, "r" * 120
    retry = names.retry_topic(group, topic)
    async with nothing_changes(server), MessagingClient(server.grpc_address) as client:
        for text in (retry, f"%RETRY%{reader}+{retry}"):
            for asker in (reader, GROUP):
                status = await status_of(
                    client, "ReceiveMessage", poll(group=d.Resource(name=asker), message_queue=queue(text, -1))
                )
                check(status, Code.ILLEGAL_TOPIC)


async def test_an_offset_in_a_queue_that_can_not_be(server: StandaloneProcess) -> None:
    """It was a queue in the checkpoint, and no replica could start again."""
    async with nothing_changes(server), MessagingClient(server.grpc_address) as client:
        for text in (f"%RETRY%{GROUP}+{'n' * 300}", f"%RETRY%{GROUP}+/../{TOPIC}", f"%RETRY%{GROUP}+{TOPIC}"):
            check(await status_of(client, "UpdateOffset", requests(text)["UpdateOffset"]), Code.ILLEGAL_TOPIC)


async def test_names_of_four_megabytes_leave_nothing(server: StandaloneProcess) -> None:
    """Sixty polls took a process from 77 to 1,085 MiB, as labels of its metrics."""
    async with nothing_changes(server), MessagingClient(server.grpc_address) as client:
        metrics_bytes, log_bytes, resident = _sizes(server)
        for number in range(60):
            text = f"%RETRY%{GROUP}+{number}{'n' * (4 * MIB)}"
            check(await status_of(client, "ReceiveMessage", poll(message_queue=queue(text, -1))), Code.ILLEGAL_TOPIC)
        metrics_after, log_after, resident_after = _sizes(server)
    assert metrics_after < metrics_bytes + 10_000
    assert log_after < log_bytes + 10_000
    assert resident_after < resident + GROWTH_BYTES_MAX


def _sizes(server: StandaloneProcess) -> tuple[int, int, int]:
    """Bytes of metrics, of the log, and of the process."""
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    (kib,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")]
    return len(httpx.get(f"{server.http_url}/metrics").content), len(server.log_text()), kib * 1024


async def test_a_group_does_not_get_its_messages_from_its_own_retry_topic(server: StandaloneProcess) -> None:
    """What it took there it could neither acknowledge nor change, and nobody got it again."""
    async with MessagingClient(server.grpc_address) as client:
        group, topic = "own-retries", "OwnRetries"
        assert httpx.post(f"{server.http_url}/api/v1/topics", json={"name": topic}).status_code == 201
        assert (await client.send(topic, b"1")).status.code == Code.OK
        (first,) = await client.receive_all(group, topic, 1, invisible_s=0.5)
        own = poll(group=d.Resource(name=group), message_queue=queue(f"%RETRY%{group}+{topic}", -1))
        check(await status_of(client, "ReceiveMessage", own), Code.ILLEGAL_TOPIC)
        (again,) = await client.receive_all(group, topic, 1, invisible_s=HOUR_S)
        check_ids = {message.system_properties.message_id for message in (first, again)}
        assert len(check_ids) == 1
        assert again.system_properties.delivery_attempt == 2
        check(await status_of(client, "ReceiveMessage", own), Code.ILLEGAL_TOPIC)
        assert (await client.ack(group, topic, [again])).status.code == Code.OK
