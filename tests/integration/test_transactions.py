"""Half messages at the real process: committed, rolled back, asked about, and kept through its end (X2)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, duration, half_message, make_message
from tests.harness.standalone import StandaloneProcess
from tests.integration.conftest import QUICK

SOON = [
    *QUICK,
    *("--set", "broker.transaction.first_check_ms=500"),
    *("--set", "broker.transaction.check_interval_ms=500"),
]
PATIENCE_S = 10.0


async def send_half(client: MessagingClient, topic: str, body: bytes) -> service.SendResultEntry:
    answer = await client.send_messages(half_message(topic, body))
    assert answer.status.code == Code.OK, answer.status
    (entry,) = answer.entries
    assert entry.transaction_id
    return entry


async def end(
    client: MessagingClient,
    topic: str,
    entry: service.SendResultEntry,
    resolution: definition.TransactionResolution.ValueType,
) -> int:
    status = await client.end_transaction(topic, entry.transaction_id, resolution, entry.message_id)
    assert status.code < Code.INTERNAL_ERROR, status
    return status.code


async def next_check(
    checks: AsyncIterator[service.RecoverOrphanedTransactionCommand],
) -> service.RecoverOrphanedTransactionCommand:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(checks)


async def test_what_is_committed_comes_and_what_is_rolled_back_does_not(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with MessagingClient(server.grpc_address) as client:
            kept = await send_half(client, "Orders", b"kept")
            dropped = await send_half(client, "Orders", b"dropped")
            open_one = await send_half(client, "Orders", b"open")
            assert (await client.receive("first", "Orders", poll_s=1.0)).messages == []
            for _ in range(2):  # told again, it is so again
                assert await end(client, "Orders", kept, definition.COMMIT) == Code.OK
                assert await end(client, "Orders", dropped, definition.ROLLBACK) == Code.OK
            assert await end(client, "Orders", kept, definition.ROLLBACK) == Code.PRECONDITION_FAILED
            assert await end(client, "Orders", dropped, definition.COMMIT) == Code.PRECONDITION_FAILED
            (message,) = await client.receive_all("first", "Orders", 1)
            assert message.body == b"kept"
            assert message.system_properties.message_id == kept.message_id
            assert (await client.receive("first", "Orders", poll_s=1.0)).messages == []
            unsaid = definition.TRANSACTION_RESOLUTION_UNSPECIFIED
            assert await end(client, "Orders", open_one, unsaid) == Code.OK
            assert await end(client, "Orders", open_one, definition.COMMIT) == Code.OK
            (message,) = await client.receive_all("first", "Orders", 1)
            assert message.body == b"open"
        metrics = httpx.get(f"{server.http_url}/metrics").text
        assert 'popwheel_transactions_ended_total{resolution="committed"} 2.0' in metrics
        assert 'popwheel_transactions_ended_total{resolution="rolled_back"} 1.0' in metrics
        assert "popwheel_transactions_open 0.0" in metrics


async def test_a_poll_that_waits_is_woken_by_a_commit(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with MessagingClient(server.grpc_address) as client:
            half = await send_half(client, "Orders", b"one")
            poll = asyncio.create_task(client.receive("first", "Orders", poll_s=10.0))
            await asyncio.sleep(1.0)
            assert not poll.done()
            began = time.monotonic()
            assert await end(client, "Orders", half, definition.COMMIT) == Code.OK
            assert [message.body for message in (await poll).messages] == [b"one"]
            assert time.monotonic() - began < 2.0


async def test_bad_ids_and_conflicts_are_refused(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with MessagingClient(server.grpc_address) as client:
            half = await send_half(client, "Orders", b"one")
            await client.send("Others", b"so that it is there")
            for topic, identity, message_id in (
                ("Orders", "", ""),
                ("Orders", "nonsense", ""),
                ("Orders", half.transaction_id[:-4] + "AAAA", ""),
                ("Others", half.transaction_id, ""),
                ("Orders", half.transaction_id, "another"),
            ):
                status = await client.end_transaction(topic, identity, definition.COMMIT, message_id)
                assert status.code == Code.INVALID_TRANSACTION_ID, (topic, identity, status)
            delayed = half_message("Orders", b"delayed")
            delayed.system_properties.delivery_timestamp.FromSeconds(int(time.time()) + 60)
            ordered = half_message("Orders", b"ordered")
            ordered.system_properties.message_group = "group"
            for message in (delayed, ordered):
                answer = await client.send_messages(message)
                assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, answer.status
            late = half_message("Orders", b"late")
            late.system_properties.orphaned_transaction_recovery_duration.CopyFrom(duration(3601))
            assert (await client.send_messages(late)).status.code == Code.BAD_REQUEST
            made = {"name": "Plain", "type": "NORMAL"}
            assert httpx.post(f"{server.http_url}/api/v1/topics", json=made).status_code == 201
            refused = await client.send_messages(half_message("Plain", b"one"))
            assert refused.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
            assert (await client.receive("first", "Orders", poll_s=0.5)).messages == []


async def test_halves_in_one_request_with_others_have_each_their_own_transaction(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with MessagingClient(server.grpc_address) as client:
            answer = await client.send_messages(
                half_message("Orders", b"a"), make_message("Orders", b"plain"), half_message("Orders", b"b")
            )
            assert answer.status.code == Code.OK
            first, plain, second = answer.entries
            assert not plain.transaction_id
            assert [message.body for message in await client.receive_all("g", "Orders", 1)] == [b"plain"]
            assert await end(client, "Orders", second, definition.COMMIT) == Code.OK
            assert await end(client, "Orders", first, definition.ROLLBACK) == Code.OK
            assert [message.body for message in await client.receive_all("g", "Orders", 1)] == [b"b"]


@pytest.mark.parametrize("transport", ["popwheel", "grpcio"])
async def test_a_producer_is_asked_and_its_answer_counts(tmp_path: Path, transport: str) -> None:
    options = [*SOON, "--set", f"proxy.transport={transport}"]
    with StandaloneProcess(tmp_path / "data", options) as server:
        async with MessagingClient(server.grpc_address) as dead:
            half = await send_half(dead, "Orders", b"left alone")
        async with (
            MessagingClient(server.grpc_address) as client,
            aclosing(client.checks("Orders")) as checks,
        ):
            asked = await next_check(checks)
            assert asked.transaction_id == half.transaction_id
            assert asked.message.body == b"left alone"
            properties = asked.message.system_properties
            assert (properties.message_id, properties.body_encoding) == (half.message_id, definition.IDENTITY)
            assert properties.body_digest.checksum
            again = await next_check(checks)  # it has not answered
            assert again.transaction_id == half.transaction_id
            status = await client.end_transaction(
                "Orders", again.transaction_id, definition.COMMIT, half.message_id, definition.SOURCE_SERVER_CHECK
            )
            assert status.code == Code.OK
            (message,) = await client.receive_all("g", "Orders", 1)
            assert message.body == b"left alone"


async def test_the_sender_says_when_it_is_first_asked(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with (
            MessagingClient(server.grpc_address) as client,
            aclosing(client.checks("Orders")) as checks,
        ):
            message = half_message("Orders", b"soon")
            message.system_properties.orphaned_transaction_recovery_duration.CopyFrom(duration(1))
            waiting = asyncio.create_task(next_check(checks))
            began = time.monotonic()
            assert (await client.send_messages(message)).status.code == Code.OK
            assert (await waiting).message.body == b"soon"
            assert 0.9 < time.monotonic() - began < 4.0


async def test_what_nobody_ends_is_rolled_back_in_the_end(tmp_path: Path) -> None:
    options = [*SOON, "--set", "broker.transaction.checks_max=2"]
    with StandaloneProcess(tmp_path / "data", options) as server:
        async with MessagingClient(server.grpc_address) as client:
            half = await send_half(client, "Orders", b"forgotten")
            await asyncio.sleep(3.0)
            assert await end(client, "Orders", half, definition.COMMIT) == Code.INVALID_TRANSACTION_ID
            assert (await client.receive("g", "Orders", poll_s=0.5)).messages == []
        assert half.message_id in server.log_text()


async def test_open_transactions_have_a_limit(tmp_path: Path) -> None:
    options = [*QUICK, "--set", "broker.transaction.open_max=4"]
    with StandaloneProcess(tmp_path / "data", options) as server:
        async with MessagingClient(server.grpc_address) as client:
            halves = [await send_half(client, "Orders", b"%d" % number) for number in range(2)]
            answer = await client.send_messages(half_message("Orders", b"too many"))
            assert answer.status.code == Code.TOO_MANY_REQUESTS
            assert "broker.transaction.open_max" in answer.status.message
            assert await end(client, "Orders", halves[0], definition.ROLLBACK) == Code.OK
            await send_half(client, "Orders", b"one more")


@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_open_halves_outlive_the_process(tmp_path: Path, way: str) -> None:
    with StandaloneProcess(tmp_path / "data", SOON) as server:
        async with MessagingClient(server.grpc_address) as client:
            committed, rolled_back, later, asked = [
                await send_half(client, "Orders", body) for body in (b"committed", b"dropped", b"later", b"asked")
            ]
            assert await end(client, "Orders", committed, definition.COMMIT) == Code.OK
            assert await end(client, "Orders", rolled_back, definition.ROLLBACK) == Code.OK
        for _ in range(2):
            if way == "kill":
                server.kill()
            else:
                server.stop()
            server.start()
        async with (
            MessagingClient(server.grpc_address) as client,
            aclosing(client.checks("Orders")) as checks,
        ):
            assert await end(client, "Orders", committed, definition.COMMIT) == Code.OK
            assert await end(client, "Orders", rolled_back, definition.COMMIT) == Code.PRECONDITION_FAILED
            assert await end(client, "Orders", later, definition.COMMIT) == Code.OK
            check = await next_check(checks)
            assert check.transaction_id == asked.transaction_id
            assert await end(client, "Orders", asked, definition.COMMIT) == Code.OK
            got = await client.receive_all("g", "Orders", 4, patience_s=4.0)
            assert sorted(message.body for message in got) == [b"asked", b"committed", b"later"]
