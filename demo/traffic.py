"""Orders and reminders through a cluster, and a group that fails on some of them: what `make pipeline` reports on."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from tests.harness.client import MessagingClient, delayed_message, make_message

ORDERS, REMINDERS, GROUP = "Orders", "Reminders", "billing"
ATTEMPTS_MAX = 2
"""Of the group: what it fails on twice is a dead letter."""

_BATCH = 64
_BODY = b"x" * 1_000
_REMINDER_S = 3.0
_INVISIBLE_S = 30.0
_AGAIN_S = 1.0
_POLL_S = 2.0
_PATIENCE_S = 180.0


class Traffic:
    """Sends, receives, and notes both.

    Args:
        addresses: of the proxies; each has a consumer.
        orders: how many are sent. One in 100 fails at its first attempt, one in 1,000 always.
        reminders: how many are sent ahead of their time.
    """

    def __init__(self, addresses: Sequence[str], orders: int, reminders: int) -> None:
        self._addresses = addresses
        self._orders = orders
        self._reminders = reminders
        self._left: set[str] = set()
        self._fails_once: set[str] = set()
        self._fails: set[str] = set()
        self._deliveries: list[dict[str, Any]] = []
        self.sent: set[str] = set()

    async def run(self) -> None:
        """Send all, and receive until each is acknowledged, or has failed as often as it may.

        Raises:
            TimeoutError: that takes too long.
        """
        async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(self._send())
            for address in self._addresses:
                for topic in (ORDERS, REMINDERS):
                    tasks.create_task(self._receive(address, topic, sending.done))

    def write(self, file: Path) -> None:
        """Write the record of all deliveries as JSON lines."""
        file.write_text("".join(f"{json.dumps(delivery)}\n" for delivery in self._deliveries))

    async def _send(self) -> None:
        async with MessagingClient(self._addresses[0]) as client:
            due_ms = int((time.time() + _REMINDER_S) * 1000)
            reminders = [delayed_message(REMINDERS, b"it is time", due_ms + 10 * n) for n in range(self._reminders)]
            await self._send_all(client, reminders)
            for begin in range(0, self._orders, _BATCH):
                numbers = range(begin, min(begin + _BATCH, self._orders))
                messages = [make_message(ORDERS, _BODY, tag="paid") for _ in numbers]
                for number, message in zip(numbers, messages, strict=True):
                    message_id = message.system_properties.message_id
                    if number % 1_000 == 0:
                        self._fails.add(message_id)
                    elif number % 100 == 0:
                        self._fails_once.add(message_id)
                await self._send_all(client, messages)

    async def _send_all(self, client: MessagingClient, messages: Sequence[Message]) -> None:
        for begin in range(0, len(messages), _BATCH):
            batch = messages[begin : begin + _BATCH]
            ids = {message.system_properties.message_id for message in batch}
            for message in batch:
                message.system_properties.born_timestamp.FromMilliseconds(int(time.time() * 1000))
            self._left |= ids
            answer = await client.send_messages(*batch, timeout_s=30)
            assert answer.status.code == Code.OK, answer.status
            self.sent |= ids

    async def _receive(self, address: str, topic: str, all_sent: Callable[[], bool]) -> None:
        async with MessagingClient(address) as client:
            while self._left or not all_sent():
                received = await client.receive(GROUP, topic, invisible_s=_INVISIBLE_S, poll_s=_POLL_S)
                if received.messages:
                    await self._handle(client, topic, received.messages)

    async def _handle(self, client: MessagingClient, topic: str, messages: Sequence[Message]) -> None:
        """Acknowledge what does not fail, and note all."""
        delivered = _now()
        done: list[Message] = []
        for message in messages:
            properties = message.system_properties
            first = properties.delivery_attempt == 1
            if properties.message_id in self._fails or (first and properties.message_id in self._fails_once):
                await client.change_invisible(GROUP, topic, message, _AGAIN_S)
            else:
                done.append(message)
        if done:
            answer = await client.ack(GROUP, topic, done, timeout_s=30)
            assert answer.status.code == Code.OK, answer.status
        acked = {message.system_properties.message_id for message in done}
        self._left -= acked
        self._left -= {
            message.system_properties.message_id
            for message in messages
            if message.system_properties.delivery_attempt == ATTEMPTS_MAX
        }
        for message in messages:
            message_id = message.system_properties.message_id
            self._deliveries.append(
                {
                    "group": GROUP,
                    "messageId": message_id,
                    "attempt": message.system_properties.delivery_attempt,
                    "deliveredTimestamp": delivered,
                    "ackedTimestamp": _now() if message_id in acked else None,
                }
            )


def _now() -> str:
    return datetime.now(UTC).isoformat()
