"""Client of one proxy for the message verbs: sends, receives and acknowledges, reads queues by offset."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from popwheel_cli.errors import CommandError, WrongUseError
from popwheel_common.clock import Clock
from popwheel_common.contract.credentials import Credentials, signed_headers
from popwheel_common.contract.names import TOOLS_GROUP
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, FilterExpression, Message, MessageQueue
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.limits import MIB, Limits
from popwheel_rpc.service import Channel, Method

Request = TypeVar("Request")
Response = TypeVar("Response")

CALL_S_MAX = 15.0
"""Time that one call may take: proxies park calls for up to 10 s while a broker group changes its master."""
PULL_MESSAGES_MAX = 32
_LIMITS = Limits(message_bytes_max=64 * MIB)


class Pulled(NamedTuple):
    """Result of a read from a queue: messages, and the offset behind all that was scanned."""

    messages: list[Message]
    next_offset: int


@asynccontextmanager
async def connected(address: str, *, tls: bool, authority: Path | None) -> AsyncIterator[Channel]:
    """Open a channel to a proxy for the `with` block.

    Args:
        address: `host:port`.
        tls: whether it is spoken to over TLS.
        authority: file of the certificates that vouch for it; None: those of the system.

    Raises:
        CommandError: the address is not of that form, or the certificates cannot be read.
    """
    context = _tls_context(authority) if tls else None
    try:
        channel = connect(address, tls=None if context is None else lambda: context, limits=_LIMITS)
    except ValueError as error:
        raise WrongUseError(f"--proxy must be host:port, not {address[:80]!r}") from error
    try:
        yield channel
    finally:
        await channel.close()


def _tls_context(authority: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise WrongUseError(f"--tls-ca: {authority} holds no certificates that can be read") from error
    context.set_alpn_protocols(["h2"])
    return context


class MessageClient:
    """Client with the protocol of the official clients. Refused calls raise StatusError, failed ones RpcError.

    Args:
        proxy: to one.
        name: of this client, among all of them.
        clock: the time.
        credentials: by which it shows who it is.
    """

    def __init__(self, proxy: Channel, name: str, clock: Clock, credentials: Credentials) -> None:
        self._proxy = proxy
        self._clock = clock
        self._credentials = credentials
        self._headers = {
            "x-mq-client-id": f"popwheel@{name}",
            "x-mq-client-version": "5.1.2",
            "x-mq-language": "PYTHON",
            "x-mq-protocol": "v2",
        }

    @property
    def _metadata(self) -> dict[str, str]:
        """Return the headers of the next call."""
        return self._headers | signed_headers(self._credentials, self._clock.wall_ms())

    async def send(self, messages: Sequence[Message]) -> list[service.SendResultEntry]:
        """Send messages of one topic; return the outcome of each."""
        request = service.SendMessageRequest(messages=messages).SerializeToString()
        answer = service.SendMessageResponse.FromString(
            await self._proxy.call(protocol.SEND_MESSAGE, request, timeout_s=CALL_S_MAX, metadata=self._metadata)
        )
        if not answer.entries:
            _check(answer.status)
        return list(answer.entries)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, without creating it.

        Raises:
            StatusError: TOPIC_NOT_FOUND, or why not.
        """
        # Asking for a route makes the topic where topics are made on first use; asking for an offset does not.
        probe = service.QueryOffsetRequest(message_queue=MessageQueue(topic=definition.Resource(name=topic), id=-1))
        known = await self._call(protocol.QUERY_OFFSET, probe)
        if known.status.code != Code.BAD_REQUEST:  # there is no queue -1
            _check(known.status)
        answer = await self._call(
            protocol.QUERY_ROUTE, service.QueryRouteRequest(topic=definition.Resource(name=topic))
        )
        _check(answer.status)
        return list(answer.message_queues)

    async def offset(
        self, queue: MessageQueue, policy: definition.QueryOffsetPolicy.ValueType, time_ms: int = 0
    ) -> int:
        """Return the first or last offset of a queue, or that of the first message stored at a time or later."""
        request = service.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
        if policy == definition.TIMESTAMP:
            request.timestamp.FromMilliseconds(time_ms)
        answer = await self._call(protocol.QUERY_OFFSET, request)
        _check(answer.status)
        return answer.offset

    async def pull(self, queue: MessageQueue, offset: int, tags: str, wait_s: float) -> Pulled:
        """Read from an offset on, without a group.

        Args:
            queue: is read.
            offset: of the first message.
            tags: what the broker filters by, `a || b` or `*`.
            wait_s: how long it may wait for a first message.
        """
        request = service.PullMessageRequest(
            group=definition.Resource(name=TOOLS_GROUP),
            message_queue=queue,
            offset=offset,
            batch_size=PULL_MESSAGES_MAX,
            filter_expression=FilterExpression(type=definition.TAG, expression=tags),
        )
        request.long_polling_timeout.FromMilliseconds(round(wait_s * 1000))
        messages: list[Message] = []
        next_offset = offset
        async with aclosing(self._stream(protocol.PULL_MESSAGE, request, wait_s)) as parts:
            async for data in parts:
                part = service.PullMessageResponse.FromString(data)
                match part.WhichOneof("content"):
                    case "message":
                        messages.append(part.message)
                    case "next_offset":
                        next_offset = part.next_offset
                    case "status":
                        _check_found(part.status)
        return Pulled(messages, next_offset)

    async def receive(
        self,
        group: str,
        queue: MessageQueue,
        wanted: FilterExpression,
        count: int,
        invisible_ms: int,
        wait_s: float,
    ) -> list[Message]:
        """Poll one broker for messages, which are invisible to the rest of the group for a time.

        Args:
            group: receives them.
            queue: any of the broker's.
            wanted: the filter.
            count: at most this many.
            invisible_ms: how long they are hidden.
            wait_s: how long the poll may wait for a first one.
        """
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=group), message_queue=queue, filter_expression=wanted, batch_size=count
        )
        request.invisible_duration.FromMilliseconds(invisible_ms)
        request.long_polling_timeout.FromMilliseconds(round(wait_s * 1000))
        messages: list[Message] = []
        async with aclosing(self._stream(protocol.RECEIVE_MESSAGE, request, wait_s)) as parts:
            async for data in parts:
                part = service.ReceiveMessageResponse.FromString(data)
                if part.HasField("message"):
                    messages.append(part.message)
                elif part.HasField("status"):
                    _check_found(part.status)
        return messages

    async def acknowledge(self, group: str, topic: str, messages: Sequence[Message]) -> None:
        """Acknowledge messages.

        Raises:
            StatusError: not all of them were.
        """
        request = service.AckMessageRequest(
            group=definition.Resource(name=group),
            topic=definition.Resource(name=topic),
            entries=[
                service.AckMessageEntry(
                    message_id=message.system_properties.message_id,
                    receipt_handle=message.system_properties.receipt_handle,
                )
                for message in messages
            ],
        )
        answer = await self._call(protocol.ACK_MESSAGE, request)
        for entry in answer.entries:
            _check(entry.status)
        if not answer.entries:
            _check(answer.status)

    async def _call(self, method: Method[Request, Response], request: Request) -> Response:
        return await self._proxy.call(method, request, timeout_s=CALL_S_MAX, metadata=self._metadata)

    async def _stream(
        self, method: Method[Request, bytes], request: Request, wait_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the parts of an answer.

        Raises:
            CommandError: it did not end in time.
        """
        within_s = wait_s + CALL_S_MAX
        stream = self._proxy.open(method, metadata={**self._metadata, "grpc-timeout": f"{int(within_s)}S"})
        try:
            async with asyncio.timeout(within_s):
                await stream.send([request])
                await stream.end()
                while (data := await stream.receive()) is not None:
                    yield data
        except TimeoutError as error:
            raise CommandError(f"the proxy did not answer within {within_s:.0f} s; try again") from error
        finally:
            stream.cancel()


def _check(status: definition.Status) -> None:
    """Raise the status of an answer, if it is not OK."""
    if status.code != Code.OK:
        raise StatusError(status.code, status.message)


def _check_found(status: definition.Status) -> None:
    """Raise the status of an answer, unless it is OK or says that nothing was found."""
    if status.code not in (Code.CODE_UNSPECIFIED, Code.MESSAGE_NOT_FOUND):
        _check(status)
