"""A well-behaved client that goes on while somebody else does not behave."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient

TOPIC = "Others"
GROUP = "others"


class Others:
    """Sends, receives and acks, one message after the other.

    Args:
        client: its connection.
    """

    def __init__(self, client: MessagingClient) -> None:
        self._client = client
        self._served = asyncio.Condition()
        self.served = 0
        self.slowest_s = 0.0

    async def once(self) -> None:
        """One message all the way; every answer must be OK."""
        began = time.monotonic()
        sent = await self._client.send(TOPIC, b"body")
        assert sent.status.code == Code.OK, sent
        (message,) = await self._client.receive_all(GROUP, TOPIC, 1)
        acked = await self._client.ack(GROUP, TOPIC, [message])
        assert acked.status.code == Code.OK, acked
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    async def go_on(self) -> None:
        """Again and again."""
        while True:
            await self.once()
            async with self._served:
                self.served += 1
                self._served.notify_all()
            await asyncio.sleep(0.01)

    async def wait_for(self, more: int) -> None:
        """Wait until it was served a number of times more."""
        async with self._served:
            enough = self.served + more
            await self._served.wait_for(lambda: self.served >= enough)


@asynccontextmanager
async def others_are_served(address: str) -> AsyncIterator[Others]:
    """Let one go on for as long as the body runs; it must be served before, and three times more after it."""
    async with MessagingClient(address) as client:
        others = Others(client)
        going_on = asyncio.create_task(others.go_on())
        try:
            await _unless_ended(others.wait_for(1), going_on)
            yield others
            await _unless_ended(others.wait_for(3), going_on)
        finally:
            going_on.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await going_on


async def _unless_ended(wanted: Coroutine[None, None, None], going_on: "asyncio.Task[None]") -> None:
    """Wait for what is wanted; what `going_on` fails with is raised instead."""
    waiting = asyncio.ensure_future(wanted)
    try:
        async with asyncio.timeout(30):
            await asyncio.wait((waiting, going_on), return_when=asyncio.FIRST_COMPLETED)
        if going_on.done():
            going_on.result()
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
