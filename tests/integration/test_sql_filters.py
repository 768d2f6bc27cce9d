"""SQL92 filters over the wire: a rare message in a deep backlog, one that arrives, and bad filters."""

import asyncio

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, Received, bodies, make_message

BACKLOG = 4000


async def fill(client: MessagingClient, topic: str, *numbers: int) -> None:
    for begin in range(0, len(numbers), 100):
        messages = []
        for number in numbers[begin : begin + 100]:
            message = make_message(topic, b"%d" % number)
            message.user_properties["number"] = str(number)
            messages.append(message)
        assert (await client.send_messages(*messages)).status.code == Code.OK


async def receive(client: MessagingClient, topic: str, condition: str) -> Received:
    return await client.receive("filtering", topic, poll_s=10, expression=condition, kind=definition.SQL)


async def test_one_poll_finds_a_rare_message_behind_a_deep_backlog(client: MessagingClient) -> None:
    await fill(client, "Backlog", *range(BACKLOG))
    condition = f"number >= {BACKLOG - 2} AND number < {BACKLOG}"
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < 2:
            found += bodies((await receive(client, "Backlog", condition)).messages)
    assert sorted(found) == [b"%d" % number for number in (BACKLOG - 2, BACKLOG - 1)]


async def test_a_poll_waits_for_a_message_that_passes(client: MessagingClient) -> None:
    await fill(client, "Waiting", 1)
    poll = asyncio.create_task(receive(client, "Waiting", "number > 5"))
    await asyncio.sleep(0.5)
    await fill(client, "Waiting", 2, 3, 4)
    await asyncio.sleep(0.2)
    assert not poll.done()
    await fill(client, "Waiting", 7)
    assert bodies((await poll).messages) == [b"7"]


async def test_a_bad_filter_is_refused_with_its_position(client: MessagingClient) -> None:
    await fill(client, "Refused", 1)
    answer = await receive(client, "Refused", "number > 1 AND )")
    assert answer.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert "at position 16 of the filter" in answer.text
