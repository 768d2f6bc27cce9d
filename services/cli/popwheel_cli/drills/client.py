"""Client of a proxy for drills and checks: sends, receives and acknowledges, one call at a time."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence

from popwheel_common.clock import Clock
from popwheel_common.contract.credentials import Credentials, signed_headers
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.service import Channel

CALL_S_MAX = 10.0
"""Time that a caller waits: longer than a failover takes, as proxies park calls during it."""
INVISIBLE_S = 15
"""Invisible duration: a message whose delivery got lost with a master's answer arrives after it."""

_BATCH = 16
_NOBODY = Credentials("", "")


class Client:
    """Client with the protocol of the official clients. Failed calls raise RpcError or StatusError.

    Args:
        proxy: to one.
        group: the consumer group in which it receives.
        run: names it, in eight characters; part of its client id and of message ids.
        clock: the time.
        credentials: by which it shows who it is.
    """

    def __init__(self, proxy: Channel, group: str, run: str, clock: Clock, credentials: Credentials = _NOBODY) -> None:
        self._proxy = proxy
        self._group = definition.Resource(name=group)
        self._run = run
        self._clock = clock
        self._credentials = credentials
        self._headers = {
            "x-mq-client-id": f"drill@{run}",
            "x-mq-client-version": "5.1.2",
            "x-mq-language": "PYTHON",
            "x-mq-protocol": "v2",
        }
        self._ids = itertools.count(1)

    @property
    def _metadata(self) -> dict[str, str]:
        """The headers of the next call."""
        return self._headers | signed_headers(self._credentials, self._clock.wall_ms())

    async def send(self, topic: str, body: str, due_ms: int | None = None) -> None:
        """Send a message.

        Args:
            topic: where it goes.
            body: what it says.
            due_ms: its delivery time, wall clock; None: at once.

        Raises:
            StatusError: it was refused.
        """
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
        encoded = await self._proxy.call(protocol.SEND_MESSAGE, request, timeout_s=CALL_S_MAX, metadata=self._metadata)
        answer = service.SendMessageResponse.FromString(encoded)
        if answer.status.code != Code.OK:
            raise StatusError(answer.status.code, answer.status.message)

    async def queues(self, topic: str) -> list[definition.MessageQueue]:
        """Return a queue of each broker: a poll for it is one for all of the broker's queues.

        Raises:
            StatusError: the topic has no route.
        """
        request = service.QueryRouteRequest(topic=definition.Resource(name=topic))
        answer = await self._proxy.call(protocol.QUERY_ROUTE, request, timeout_s=CALL_S_MAX, metadata=self._metadata)
        if not answer.message_queues:
            raise StatusError(answer.status.code or Code.TOPIC_NOT_FOUND, answer.status.message)
        return list({queue.broker.name: queue for queue in answer.message_queues}.values())

    async def receive(self, queue: definition.MessageQueue, wait_s: float) -> AsyncGenerator[definition.Message, None]:
        """Poll a broker; yield the messages as they arrive.

        Args:
            queue: one of the broker's.
            wait_s: how long it may wait for messages.

        Raises:
            StatusError: it was refused, perhaps after some have come.
            StreamClosedError, TimeoutError: the answer broke off, or took too long.
        """
        request = service.ReceiveMessageRequest(
            group=self._group,
            message_queue=queue,
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=_BATCH,
        )
        request.invisible_duration.FromSeconds(INVISIBLE_S)
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
        metadata: Mapping[str, str] = {**self._metadata, "grpc-timeout": f"{int(wait_s + CALL_S_MAX)}S"}
        stream = self._proxy.open(protocol.RECEIVE_MESSAGE, metadata=metadata)
        try:
            async with asyncio.timeout(wait_s + CALL_S_MAX):
                await stream.send([request])
                await stream.end()
                while (data := await stream.receive()) is not None:
                    part = service.ReceiveMessageResponse.FromString(data)
                    if part.HasField("message"):
                        yield part.message
                    elif part.status.code not in (0, Code.OK, Code.MESSAGE_NOT_FOUND):
                        raise StatusError(part.status.code, part.status.message)
        finally:
            stream.cancel()

    async def ack(self, topic: str, messages: Sequence[definition.Message]) -> list[service.AckMessageResultEntry]:
        """Acknowledge messages of a topic; return the outcome of each."""
        request = service.AckMessageRequest(
            group=self._group,
            topic=definition.Resource(name=topic),
            entries=[
                service.AckMessageEntry(
                    message_id=message.system_properties.message_id,
                    receipt_handle=message.system_properties.receipt_handle,
                )
                for message in messages
            ],
        )
        answer = await self._proxy.call(protocol.ACK_MESSAGE, request, timeout_s=CALL_S_MAX, metadata=self._metadata)
        return list(answer.entries)
