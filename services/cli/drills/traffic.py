"""The traffic of a drill: sends, delayed sends, receives and acks through a proxy, as clients make them."""

import asyncio
import itertools
from collections.abc import Mapping

from services.cli.drills.account import Account, Delivery, place_of
from services.common.clock import Clock
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from services.common.pb.apache.rocketmq.v2 import service_pb2 as service
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.proxy import protocol
from services.rpc.service import Channel, StreamClosedError
from services.rpc.status import RpcError

TOPIC = "popwheel-drill"
DELAYED_TOPIC = "popwheel-drill-delayed"
CONSUMER_GROUP = "popwheel-drill"

CALL_S_MAX = 10.0
"""How long a caller waits: longer than a failover takes, as those who hold calls do so within it."""
INVISIBLE_S = 15
"""What was given out by a master whose answer got lost comes after this."""

_SENDERS = 2
_POLLERS = 2
_SEND_EVERY_S = 0.01
_SEND_DELAYED_EVERY_S = 0.03
_DELAYS_MS = (200, 4200)
_POLL_S = 6.0
"""More than `proxy.grpc_client_consumer_min_long_polling_timeout_ms`: polls that ask for less do not wait at all, and
would keep the proxy busy with nothing."""
_BATCH = 16
_PAUSE_S = 0.02


class Traffic:
    """Clients at work from `start` until `stop`.

    Args:
        proxy: to one.
        account: where it is written down.
        run: begins the body of each message, so that those of earlier drills are known as such.
        clock: the time.
    """

    def __init__(self, proxy: Channel, account: Account, run: str, clock: Clock) -> None:
        self._proxy = proxy
        self._account = account
        self._run = run
        self._clock = clock
        self._client = {
            "x-mq-client-id": f"drill@{run}",
            "x-mq-client-version": "5.1.2",
            "x-mq-language": "PYTHON",
            "x-mq-protocol": "v2",
        }
        self._sending: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []
        self._ids = itertools.count(1)
        self.last_due_ms = 0
        """When the last delayed message is due."""

    async def start(self) -> None:
        """Begin."""
        self._sending = [asyncio.create_task(self._send(f"{self._run}.{number}")) for number in range(_SENDERS)]
        self._sending.append(asyncio.create_task(self._send_delayed(f"{self._run}.delayed")))
        self._receiving = [
            asyncio.create_task(self._receive(topic)) for topic in (TOPIC, DELAYED_TOPIC) for _ in range(_POLLERS)
        ]

    async def stop_sending(self) -> None:
        """Send no more; sends under way are given up, and so in doubt."""
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
        """One message after the other."""
        for number in itertools.count():
            await self._send_one(TOPIC, f"{sender}-{number}", sender, number)
            await asyncio.sleep(_SEND_EVERY_S)

    async def _send_delayed(self, sender: str) -> None:
        """The same, each due at another time soon."""
        first_ms, last_ms = _DELAYS_MS
        for number in itertools.count():
            due_ms = self._clock.wall_ms() + first_ms + number * 977 % (last_ms - first_ms)
            self.last_due_ms = max(self.last_due_ms, due_ms)
            await self._send_one(DELAYED_TOPIC, f"{sender}-{number}", sender, number, due_ms)
            await asyncio.sleep(_SEND_DELAYED_EVERY_S)

    async def _send_one(self, topic: str, body: str, sender: str, number: int, due_ms: int | None = None) -> None:
        message = definition.Message(topic=definition.Resource(name=topic), body=body.encode())
        properties = message.system_properties
        properties.message_id = f"01{self._run}{next(self._ids):012X}".ljust(34, "0")[:34].upper()
        properties.body_encoding = definition.IDENTITY
        properties.message_type = definition.NORMAL if due_ms is None else definition.DELAY
        properties.born_host = "drill"
        properties.born_timestamp.FromMilliseconds(self._clock.wall_ms())
        if due_ms is not None:
            properties.delivery_timestamp.FromMilliseconds(due_ms)
        request = service.SendMessageRequest(messages=[message]).SerializeToString()
        self._account.trying(body, sender, number, due_ms)
        try:
            answer = await self._proxy.call(protocol.SEND_MESSAGE, request, timeout_s=CALL_S_MAX, metadata=self._client)
        except (RpcError, StatusError) as error:
            self._account.failed(f"send: {error}")
            return
        if answer.status.code == Code.OK:
            self._account.sent(body, self._clock.monotonic())
        else:
            self._account.failed(f"send: {answer.status.message}")

    async def _receive(self, topic: str) -> None:
        """Receive and ack, broker after broker."""
        queues: list[definition.MessageQueue] = []
        for turn in itertools.count():
            try:
                if turn % 10 == 0 or not queues:
                    queues = await self._queues(topic)
                messages = await self._poll(queues[turn % len(queues)])
            except (RpcError, StatusError, StreamClosedError, TimeoutError) as error:
                self._account.failed(f"receive: {error}")
                await asyncio.sleep(_PAUSE_S)
                continue
            if messages:
                await self._ack(topic, messages)

    async def _queues(self, topic: str) -> list[definition.MessageQueue]:
        """A queue of each broker: a poll for it is one for all of them."""
        request = service.QueryRouteRequest(topic=definition.Resource(name=topic))
        answer = await self._proxy.call(protocol.QUERY_ROUTE, request, timeout_s=CALL_S_MAX, metadata=self._client)
        if not answer.message_queues:
            raise StatusError(answer.status.code or Code.TOPIC_NOT_FOUND, answer.status.message)
        return list({queue.broker.name: queue for queue in answer.message_queues}.values())

    async def _poll(self, queue: definition.MessageQueue) -> list[definition.Message]:
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=CONSUMER_GROUP),
            message_queue=queue,
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=_BATCH,
        )
        request.invisible_duration.FromSeconds(INVISIBLE_S)
        request.long_polling_timeout.FromMilliseconds(int(_POLL_S * 1000))
        metadata: Mapping[str, str] = {**self._client, "grpc-timeout": f"{int(_POLL_S + CALL_S_MAX)}S"}
        stream = self._proxy.open(protocol.RECEIVE_MESSAGE, metadata=metadata)
        messages = []
        try:
            async with asyncio.timeout(_POLL_S + CALL_S_MAX):
                await stream.send([request])
                await stream.end()
                while (data := await stream.receive()) is not None:
                    part = service.ReceiveMessageResponse.FromString(data)
                    if part.HasField("message"):
                        messages.append(part.message)
                        self._take_down(part.message)
                    elif part.status.code not in (0, Code.OK, Code.MESSAGE_NOT_FOUND):
                        self._account.failed(f"receive: {part.status.message}")
        finally:
            stream.cancel()
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
        request = service.AckMessageRequest(
            group=definition.Resource(name=CONSUMER_GROUP),
            topic=definition.Resource(name=topic),
            entries=[
                service.AckMessageEntry(
                    message_id=message.system_properties.message_id,
                    receipt_handle=message.system_properties.receipt_handle,
                )
                for message in messages
            ],
        )
        try:
            answer = await self._proxy.call(protocol.ACK_MESSAGE, request, timeout_s=CALL_S_MAX, metadata=self._client)
        except (RpcError, StatusError) as error:
            self._account.failed(f"ack: {error}")
            return
        for body, entry in zip(bodies, answer.entries, strict=False):
            if entry.status.code == Code.OK:
                self._account.acked(body)
            else:  # in doubt still: an earlier try of the proxy's own may have counted
                self._account.failed(f"ack: {entry.status.message}")
