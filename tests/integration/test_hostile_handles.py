"""Receipt handles that are forged, cut, foreign, stale or of another group: refused, and nothing changes (E1)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, duration
from tests.harness.hostility import (
    GROUP,
    HOUR_S,
    NORMAL_TOPIC,
    OTHER_GROUP,
    TOPIC,
    check,
    endured,
    hostile_server,
    nothing_changes,
    status_of,
)
from tests.harness.standalone import StandaloneProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    yield from hostile_server(tmp_path_factory)


async def held(client: MessagingClient) -> d.Message:
    """A message that the target group has been given for an hour."""
    assert (await client.send(TOPIC, b"held")).status.code == Code.OK
    (message,) = await client.receive_all(GROUP, TOPIC, 1, invisible_s=HOUR_S)
    return message


async def is_refused(client: MessagingClient, handle: str, *, group: str = GROUP, topic: str = TOPIC) -> None:
    """All that is done with a handle is refused."""
    names: dict[str, Any] = {"group": d.Resource(name=group), "topic": d.Resource(name=topic)}
    for method, request in (
        ("AckMessage", pb.AckMessageRequest(**names, entries=[pb.AckMessageEntry(receipt_handle=handle)])),
        (
            "ChangeInvisibleDuration",
            pb.ChangeInvisibleDurationRequest(**names, receipt_handle=handle, invisible_duration=duration(0)),
        ),
        ("ForwardMessageToDeadLetterQueue", pb.ForwardMessageToDeadLetterQueueRequest(**names, receipt_handle=handle)),
    ):
        check(await status_of(client, method, request), Code.INVALID_RECEIPT_HANDLE)


def forged(handle: str) -> Iterator[str]:
    """Handles that are not quite this one."""
    fields = handle.split(" ")
    for index in range(len(fields)):
        if index == 7:
            continue  # the queue offset is not signed: which message of the pop; see the test below
        changed = "0" if fields[index] != "0" else "1"
        yield " ".join([*fields[:index], changed, *fields[index + 1 :]])
    for cut in (0, 1, len(handle) // 2, len(handle) - 1):
        yield handle[:cut]
    yield from (handle + "0", handle + " ", " " + handle, handle.upper() + "!", handle * 2, "9" * 600, "\0" + handle)
    yield " ".join([*fields[:7], "-1", fields[8]])
    yield " ".join([*fields[:7], "٣", fields[8]])
    yield " ".join([*fields[:7], "9" * 30, fields[8]])


async def test_forged_and_truncated_handles(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)

        async def hostility() -> None:
            for handle in forged(message.system_properties.receipt_handle):
                await is_refused(client, handle)

        await endured(server, hostility)
        assert (await client.ack(GROUP, TOPIC, [message])).status.code == Code.OK


async def test_the_handle_of_a_message_that_was_not_delivered_with_it(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)
        fields = message.system_properties.receipt_handle.split(" ")

        async def hostility() -> None:
            for offset in (int(fields[7]) + 1, int(fields[7]) + 100, 2**63):
                await is_refused(client, " ".join([*fields[:7], str(offset), fields[8]]))

        await endured(server, hostility)
        assert (await client.ack(GROUP, TOPIC, [message])).status.code == Code.OK


async def test_another_groups_message_is_not_acknowledged(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)
        handle = message.system_properties.receipt_handle

        async def hostility() -> None:
            await is_refused(client, handle, group=OTHER_GROUP)
            await is_refused(client, handle, topic=NORMAL_TOPIC)

        await endured(server, hostility)
        assert (await client.ack(GROUP, TOPIC, [message])).status.code == Code.OK
        (same,) = await client.receive_all(OTHER_GROUP, TOPIC, 1, invisible_s=HOUR_S)
        assert (await client.ack(OTHER_GROUP, TOPIC, [same])).status.code == Code.OK


async def test_a_foreign_servers_handle(server: StandaloneProcess, tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "foreign") as foreign:
        async with MessagingClient(foreign.grpc_address) as client:
            handle = (await held(client)).system_properties.receipt_handle
    async with nothing_changes(server), MessagingClient(server.grpc_address) as client:
        await is_refused(client, handle)


async def test_stale_handles(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)
        before_change = message.system_properties.receipt_handle
        assert (await client.change_invisible(GROUP, TOPIC, message, HOUR_S)).status.code == Code.OK

        async def hostility() -> None:
            await is_refused(client, before_change)

        await endured(server, hostility)

        assert (await client.change_invisible(GROUP, TOPIC, message, 0.5)).status.code == Code.OK
        too_late = message.system_properties.receipt_handle
        (again,) = await client.receive_all(GROUP, TOPIC, 1, invisible_s=HOUR_S)
        assert again.system_properties.delivery_attempt == 2
        async with nothing_changes(server):
            await is_refused(client, too_late)
        assert (await client.ack(GROUP, TOPIC, [again])).status.code == Code.OK


async def test_good_and_bad_handles_in_one_request(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)
        bad = d.Message(system_properties=d.SystemProperties(receipt_handle="forged", message_id="x"))
        answer = await client.ack(GROUP, TOPIC, [bad, message, bad])
        assert answer.status.code == Code.MULTIPLE_RESULTS
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.INVALID_RECEIPT_HANDLE, Code.OK, Code.INVALID_RECEIPT_HANDLE]
