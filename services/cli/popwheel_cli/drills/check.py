"""Check of a cluster: a message and a delayed message, sent and received through a proxy."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from popwheel_cli.drills.client import Client
from popwheel_cli.errors import CommandError
from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_rpc.service import StreamClosedError
from popwheel_rpc.status import RpcError

Outcome = TypeVar("Outcome")

_PAUSE_S = 0.1
_DELAY_MS = 2000
_BODY = "popwheel admin check"


class Check:
    """Check of a cluster, step by step.

    Args:
        client: of the proxy, in a group of its own.
        topic: takes messages of any type, and is used by this check only.
        clock: the time.
        step_s: how long a failed step is retried: a proxy knows a new topic after a moment.
    """

    def __init__(self, client: Client, topic: str, clock: Clock, step_s: float) -> None:
        self._client = client
        self._topic = topic
        self._clock = clock
        self._step_s = step_s
        self._took: dict[str, float] = {}

    async def run(self) -> dict[str, float]:
        """Run the check; return how many seconds each step took.

        Raises:
            CommandError: a step failed: which, and why.
        """
        await self._step("send", lambda: self._client.send(self._topic, _BODY))
        message = await self._step("receive", self._receive)
        await self._step("acknowledge", lambda: self._acknowledge(message))
        due_ms = self._clock.wall_ms() + _DELAY_MS
        await self._step("send with a delay", lambda: self._client.send(self._topic, _BODY, due_ms))
        message = await self._step("receive when due", self._receive)
        if (early_ms := due_ms - self._clock.wall_ms()) > 0:
            raise CommandError(f"receive when due: the message came {early_ms} ms before its time")
        await self._step("acknowledge that", lambda: self._acknowledge(message))
        return self._took

    async def _step(self, name: str, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        began = self._clock.monotonic()
        while True:
            try:
                outcome = await call()
            except (StatusError, RpcError, StreamClosedError, TimeoutError) as error:
                if self._clock.monotonic() - began > self._step_s:
                    raise CommandError(f"{name}: not in {self._step_s:.0f} s: {error}") from error
                await asyncio.sleep(_PAUSE_S)
            else:
                self._took[name] = self._clock.monotonic() - began
                return outcome

    async def _receive(self) -> Message:
        """Ask one broker after the other, without waiting there: how polls wait for all of them can be set."""
        for queue in await self._client.queues(self._topic):
            async with aclosing(self._client.receive(queue, wait_s=0)) as coming:
                async for message in coming:
                    return message
        raise StatusError(Code.MESSAGE_NOT_FOUND, "the message that was sent is not there")

    async def _acknowledge(self, message: Message) -> None:
        (entry,) = await self._client.ack(self._topic, [message])
        if entry.status.code != Code.OK:
            raise StatusError(entry.status.code, entry.status.message)
