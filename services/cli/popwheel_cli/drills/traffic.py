"""Traffic of a drill: sends, delayed sends, receives and acks through a proxy."""

import asyncio
import itertools
from contextlib import aclosing

from popwheel_cli.drills.account import Account, Delivery, place_of
from popwheel_cli.drills.client import Client
from popwheel_common.clock import Clock
from popwheel_common.contract.credentials import Credentials
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.service import Channel, StreamClosedError
from popwheel_rpc.status import RpcError

TOPIC = "popwheel-drill"
DELAYED_TOPIC = "popwheel-drill-delayed"
CONSUMER_GROUP = "popwheel-drill"

_SENDERS = 2
_POLLERS = 2
_SEND_EVERY_S = 0.01
_SEND_DELAYED_EVERY_S = 0.03
_DELAYS_MS = (200, 4200)
_POLL_S = 6.0
"""More than `proxy.grpc_client_consumer_min_long_polling_timeout_ms`: polls that ask for less do not wait at all, and
would keep the proxy busy with nothing."""
_PAUSE_S = 0.02


class Traffic:
    """Clients at work from `start` until `stop`.

    Args:
        proxy: to one.
        account: their record.
        run: begins the body of each message, so that those of earlier drills are known as such.
        clock: the time.
        credentials: of the clients.
    """

    def __init__(self, proxy: Channel, account: Account, run: str, clock: Clock, credentials: Credentials) -> None:
        self._client = Client(proxy, CONSUMER_GROUP, run, clock, credentials)
        self._account = account
        self._run = run
        self._clock = clock
        self._sending: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []
        self.last_due_ms = 0
        """Time when the last delayed message is due."""

    async def start(self) -> None:
        """Begin."""
        self._sending = [asyncio.create_task(self._send(f"{self._run}.{number}")) for number in range(_SENDERS)]
        self._sending.append(asyncio.create_task(self._send_delayed(f"{self._run}.delayed")))
        self._receiving = [
            asyncio.create_task(self._receive(topic)) for topic in (TOPIC, DELAYED_TOPIC) for _ in range(_POLLERS)
        ]

    async def stop_sending(self) -> None:
        """Stop sending; sends in flight are cancelled, with an unknown outcome."""
        await self._end(self._sending)

    async def stop(self) -> None:
        """End."""
        await self._end(self._sending)
        await self._end(self._receiving)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()
        for end in ends:
            if end is not None and not isinstance(end, asyncio.CancelledError):
                raise end  # one that has ended by itself would let messages seem lost

    async def _send(self, sender: str) -> None:
        """Send one message after the other."""
        for number in itertools.count():
            await self._send_one(TOPIC, f"{sender}-{number}", sender, number)
            await asyncio.sleep(_SEND_EVERY_S)

    async def _send_delayed(self, sender: str) -> None:
        """Send delayed messages, each due at another time soon."""
        first_ms, last_ms = _DELAYS_MS
        for number in itertools.count():
            due_ms = self._clock.wall_ms() + first_ms + number * 977 % (last_ms - first_ms)
            self.last_due_ms = max(self.last_due_ms, due_ms)
            await self._send_one(DELAYED_TOPIC, f"{sender}-{number}", sender, number, due_ms)
            await asyncio.sleep(_SEND_DELAYED_EVERY_S)

    async def _send_one(self, topic: str, body: str, sender: str, number: int, due_ms: int | None = None) -> None:
        self._account.trying(body, sender, number, due_ms)
        try:
            await self._client.send(topic, body, due_ms)
        except (RpcError, StatusError) as error:
            self._account.failed(f"send: {error}")
        else:
            self._account.sent(body, self._clock.monotonic())

    async def _receive(self, topic: str) -> None:
        """Receive and ack, broker after broker."""
        queues: list[definition.MessageQueue] = []
        for turn in itertools.count():
            try:
                if turn % 10 == 0 or not queues:
                    queues = await self._client.queues(topic)
                messages = await self._poll(queues[turn % len(queues)])
            except (RpcError, StatusError, StreamClosedError, TimeoutError) as error:
                self._account.failed(f"receive: {error}")
                await asyncio.sleep(_PAUSE_S)
                continue
            if messages:
                await self._ack(topic, messages)

    async def _poll(self, queue: definition.MessageQueue) -> list[definition.Message]:
        messages = []
        async with aclosing(self._client.receive(queue, _POLL_S)) as coming:
            try:
                async for message in coming:
                    messages.append(message)
                    self._take_down(message)
            except StatusError as error:  # what came before it counts
                self._account.failed(f"receive: {error}")
        return messages

    def _take_down(self, message: definition.Message) -> None:
        body = message.body.decode(errors="replace")
        if not body.startswith(self._run):
            return  # of an earlier drill
        properties = message.system_properties
        self._account.delivered(
            body,
            Delivery(
                self._clock.monotonic(),
                self._clock.wall_ms(),
                properties.delivery_attempt,
                place_of(message.topic.name, properties.receipt_handle),
            ),
        )

    async def _ack(self, topic: str, messages: list[definition.Message]) -> None:
        bodies = [message.body.decode(errors="replace") for message in messages]
        for body in bodies:
            self._account.ack_asked(body)
        try:
            entries = await self._client.ack(topic, messages)
        except (RpcError, StatusError) as error:
            self._account.failed(f"ack: {error}")
            return
        for body, entry in zip(bodies, entries, strict=False):
            if entry.status.code == Code.OK:
                self._account.acked(body)
            else:  # unknown still: an earlier try of the proxy's own may have counted
                self._account.failed(f"ack: {entry.status.message}")
