"""A thin client of the protocol over grpcio, with our own generated code: it hides nothing and retries nothing."""

import hmac
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.timestamp_pb2 import Timestamp

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

SERVICE = "apache.rocketmq.v2.MessagingService"
REQUEST_TIMEOUT_S = 5.0
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

Answer = TypeVar("Answer", bound=ProtobufMessage)


@dataclass(frozen=True)
class Received:
    """How a receive ended.

    Args:
        code: of its status.
        text: of its status.
        messages: in the order they came.
    """

    code: int
    text: str
    messages: list[definition.Message]


class MessagingClient:
    """One connection, one client id. Use as an async context manager.

    Args:
        address: `host:port`.
        client_id: as other clients make them, if not given.
        certificate: PEM of the server's certificate: then TLS is spoken, and the server is to call itself localhost.
        own: certificate and key, in PEM, that are shown to the server.
        credentials: access key and secret.
    """

    def __init__(
        self,
        address: str,
        *,
        client_id: str = "",
        certificate: bytes | None = None,
        own: tuple[bytes, bytes] | None = None,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        self.client_id = client_id or f"test@{uuid.uuid4()}"
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if certificate is None:
            self._channel = grpc.aio.insecure_channel(address, options)
        else:
            self._channel = grpc.aio.secure_channel(
                address,
                grpc.ssl_channel_credentials(certificate, *((own[1], own[0]) if own else ())),
                [*options, ("grpc.ssl_target_name_override", "localhost")],
            )
        self._credentials = credentials
        self.metadata: tuple[tuple[str, str], ...] = (
            ("x-mq-client-id", self.client_id),
            ("x-mq-client-version", "5.1.2"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "v2"),
        )
        self._queues: dict[str, definition.MessageQueue] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers of the next call."""
        if self._credentials is None:
            return self.metadata
        date_time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        access_key, secret = self._credentials
        signature = hmac.new(secret.encode(), date_time.encode(), "sha1").hexdigest()
        claim = f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
        return (*self.metadata, ("x-mq-date-time", date_time), ("authorization", claim))

    async def close(self) -> None:
        """Close the connection at once."""
        await self._channel.close()

    async def call(
        self, method: str, request: ProtobufMessage, answer: type[Answer], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Answer:
        """Call a unary method.

        Raises:
            grpc.aio.AioRpcError: the call itself failed.
        """
        callable_ = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        result: Answer = await callable_(request, timeout=timeout_s, metadata=self.headers)
        return result

    async def route(self, topic: str) -> service.QueryRouteResponse:
        """The queues of a topic."""
        request = service.QueryRouteRequest(topic=definition.Resource(name=topic), endpoints=self._endpoints())
        return await self.call("QueryRoute", request, service.QueryRouteResponse)

    async def send(
        self, topic: str, *bodies: bytes, tag: str = "", timeout_s: float = REQUEST_TIMEOUT_S
    ) -> service.SendMessageResponse:
        """Send plain messages in one request."""
        messages = [make_message(topic, body, tag=tag) for body in bodies]
        return await self.send_messages(*messages, timeout_s=timeout_s)

    async def send_messages(
        self, *messages: definition.Message, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> service.SendMessageResponse:
        """Send messages in one request."""
        request = service.SendMessageRequest(messages=messages)
        return await self.call("SendMessage", request, service.SendMessageResponse, timeout_s=timeout_s)

    async def recall(self, topic: str, handle: str) -> service.RecallMessageResponse:
        """Take a delayed message back."""
        request = service.RecallMessageRequest(topic=definition.Resource(name=topic), recall_handle=handle)
        return await self.call("RecallMessage", request, service.RecallMessageResponse)

    async def end_transaction(
        self,
        topic: str,
        transaction_id: str,
        resolution: definition.TransactionResolution.ValueType,
        message_id: str = "",
        source: definition.TransactionSource.ValueType = definition.SOURCE_CLIENT,
    ) -> definition.Status:
        """Commit a half message, or roll it back."""
        request = service.EndTransactionRequest(
            topic=definition.Resource(name=topic),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=resolution,
            source=source,
        )
        return (await self.call("EndTransaction", request, service.EndTransactionResponse)).status

    async def checks(self, *topics: str) -> AsyncGenerator[service.RecoverOrphanedTransactionCommand, None]:
        """Say that this client sends to topics; what it is asked about its transactions, until the caller ends."""
        publishing = definition.Publishing(topics=[definition.Resource(name=topic) for topic in topics])
        settings = definition.Settings(client_type=definition.PRODUCER, publishing=publishing)
        async with aclosing(self.commands(settings)) as commands:
            async for command in commands:
                if command.HasField("recover_orphaned_transaction_command"):
                    yield command.recover_orphaned_transaction_command

    async def commands(self, settings: definition.Settings) -> AsyncGenerator[service.TelemetryCommand, None]:
        """Open a Telemetry stream and say these settings; what the server says there, until the caller ends."""
        stream = self._channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=service.TelemetryCommand.SerializeToString,
            response_deserializer=service.TelemetryCommand.FromString,
        )(metadata=self.headers)
        await stream.write(service.TelemetryCommand(settings=settings))
        try:
            async for command in stream:
                yield command
        finally:
            stream.cancel()

    async def sync_lite(
        self,
        group: str,
        topic: str,
        *lite_topics: str,
        action: definition.LiteSubscriptionAction.ValueType = definition.PARTIAL_ADD,
        option: definition.OffsetOption | None = None,
    ) -> definition.Status:
        """Say which lite topics of a topic this client reads."""
        request = service.SyncLiteSubscriptionRequest(
            action=action,
            topic=definition.Resource(name=topic),
            group=definition.Resource(name=group),
            lite_topic_set=lite_topics,
            offset_option=option,
        )
        return (await self.call("SyncLiteSubscription", request, service.SyncLiteSubscriptionResponse)).status

    async def receive(
        self,
        group: str,
        topic: str,
        *,
        count: int = 32,
        invisible_s: float = 30.0,
        poll_s: float = 0.0,
        expression: str = "*",
        auto_renew: bool = False,
        kind: definition.FilterType.ValueType = definition.TAG,
        attempt_id: str = "",
    ) -> Received:
        """Receive once, over all queues of the topic's first broker, what an expression of a kind wants."""
        stream = await self.begin_receive(
            group,
            topic,
            count=count,
            invisible_s=invisible_s,
            poll_s=poll_s,
            expression=expression,
            auto_renew=auto_renew,
            kind=kind,
            attempt_id=attempt_id,
        )
        status = definition.Status()
        messages: list[definition.Message] = []
        async for part in stream:
            match part.WhichOneof("content"):
                case "status":
                    status = part.status
                case "message":
                    messages.append(part.message)
        return Received(status.code, status.message, messages)

    async def begin_receive(
        self,
        group: str,
        topic: str,
        *,
        count: int = 32,
        invisible_s: float = 30.0,
        poll_s: float = 0.0,
        expression: str = "*",
        auto_renew: bool = False,
        kind: definition.FilterType.ValueType = definition.TAG,
        attempt_id: str = "",
    ) -> Any:
        """Ask as `receive` does; the answer as a stream, of which nothing was read."""
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=group),
            message_queue=await self._queue(topic),
            filter_expression=definition.FilterExpression(type=kind, expression=expression),
            batch_size=count,
            long_polling_timeout=duration(poll_s),
            auto_renew=auto_renew,
        )
        if attempt_id:
            request.attempt_id = attempt_id
        if not auto_renew:
            request.invisible_duration.CopyFrom(duration(invisible_s))
        return self._channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=service.ReceiveMessageRequest.SerializeToString,
            response_deserializer=service.ReceiveMessageResponse.FromString,
        )(request, timeout=poll_s + REQUEST_TIMEOUT_S, metadata=self.headers)

    async def receive_all(
        self, group: str, topic: str, count: int, *, invisible_s: float = 30.0, patience_s: float = 15.0
    ) -> list[definition.Message]:
        """Receive until there are `count` messages, or patience ends; they are not acked."""
        messages: list[definition.Message] = []
        until = time.monotonic() + patience_s
        while len(messages) < count and (left_s := until - time.monotonic()) > 0:
            want = min(32, count - len(messages))
            poll_s = min(5.0, left_s)
            received = await self.receive(group, topic, count=want, invisible_s=invisible_s, poll_s=poll_s)
            messages += received.messages
        return messages

    async def pull(self, group: str, queue: definition.MessageQueue, offset: int) -> list[definition.Message]:
        """What a queue holds from an offset on, some of it, without waiting."""
        request = service.PullMessageRequest(
            group=definition.Resource(name=group),
            message_queue=queue,
            offset=offset,
            batch_size=32,
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            long_polling_timeout=duration(0),
        )
        stream = self._channel.unary_stream(
            f"/{SERVICE}/PullMessage",
            request_serializer=service.PullMessageRequest.SerializeToString,
            response_deserializer=service.PullMessageResponse.FromString,
        )(request, timeout=REQUEST_TIMEOUT_S, metadata=self.headers)
        return [part.message async for part in stream if part.WhichOneof("content") == "message"]

    async def ack(
        self, group: str, topic: str, messages: Iterable[definition.Message], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> service.AckMessageResponse:
        """Ack messages in one request."""
        entries = [
            service.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ]
        request = service.AckMessageRequest(
            group=definition.Resource(name=group), topic=definition.Resource(name=topic), entries=entries
        )
        return await self.call("AckMessage", request, service.AckMessageResponse, timeout_s=timeout_s)

    async def say_goodbye(self, group: str) -> definition.Status:
        """Say that this client stops, as a consumer of a group."""
        request = service.NotifyClientTerminationRequest(group=definition.Resource(name=group))
        return (await self.call("NotifyClientTermination", request, service.NotifyClientTerminationResponse)).status

    async def change_invisible(
        self, group: str, topic: str, message: definition.Message, invisible_s: float | None, *, suspend: bool = False
    ) -> service.ChangeInvisibleDurationResponse:
        """Change the invisible duration, to what the group's back-off says for None; on success the message bears the
        new receipt handle.
        """
        request = service.ChangeInvisibleDurationRequest(
            group=definition.Resource(name=group),
            topic=definition.Resource(name=topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            invisible_duration=None if invisible_s is None else duration(invisible_s),
            suspend=suspend,
        )
        answer = await self.call("ChangeInvisibleDuration", request, service.ChangeInvisibleDurationResponse)
        if answer.status.code == Code.OK:
            message.system_properties.receipt_handle = answer.receipt_handle
        return answer

    async def forward_to_dead_letters(self, group: str, topic: str, message: definition.Message) -> definition.Status:
        """Ask for a message to be moved to the dead letter queue."""
        request = service.ForwardMessageToDeadLetterQueueRequest(
            group=definition.Resource(name=group),
            topic=definition.Resource(name=topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            delivery_attempt=message.system_properties.delivery_attempt,
            max_delivery_attempts=16,
        )
        answer = await self.call(
            "ForwardMessageToDeadLetterQueue", request, service.ForwardMessageToDeadLetterQueueResponse
        )
        return answer.status

    async def update_offset(self, group: str, queue: definition.MessageQueue, offset: int) -> definition.Status:
        """Save an offset for a queue."""
        request = service.UpdateOffsetRequest(group=definition.Resource(name=group), message_queue=queue, offset=offset)
        return (await self.call("UpdateOffset", request, service.UpdateOffsetResponse)).status

    async def get_offset(self, group: str, queue: definition.MessageQueue) -> service.GetOffsetResponse:
        """The saved offset of a queue."""
        request = service.GetOffsetRequest(group=definition.Resource(name=group), message_queue=queue)
        return await self.call("GetOffset", request, service.GetOffsetResponse)

    async def heartbeat(self, group: str) -> definition.Status:
        """Say that this client lives."""
        request = service.HeartbeatRequest(group=definition.Resource(name=group), client_type=definition.PUSH_CONSUMER)
        return (await self.call("Heartbeat", request, service.HeartbeatResponse)).status

    async def agree_on_settings(self, settings: definition.Settings) -> definition.Settings:
        """Open a Telemetry stream, say these settings, and give the server's; the stream is then closed."""
        stream = self._channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=service.TelemetryCommand.SerializeToString,
            response_deserializer=service.TelemetryCommand.FromString,
        )(metadata=self.headers)
        await stream.write(service.TelemetryCommand(settings=settings))
        answer = await stream.read()
        stream.cancel()
        assert isinstance(answer, service.TelemetryCommand)
        assert answer.status.code == Code.OK, answer.status
        return answer.settings

    async def _queue(self, topic: str) -> definition.MessageQueue:
        if topic not in self._queues:
            route = await self.route(topic)
            assert route.status.code == Code.OK, route.status
            self._queues[topic] = route.message_queues[0]
        return self._queues[topic]

    def _endpoints(self) -> definition.Endpoints:
        return definition.Endpoints(scheme=definition.IPv4, addresses=[definition.Address(host="127.0.0.1", port=8081)])


def make_message(topic: str, body: bytes, *, tag: str = "") -> definition.Message:
    """A plain message with an id such as clients make."""
    properties = definition.SystemProperties(
        message_id=f"01{uuid.uuid4().hex}".upper(),
        message_type=definition.NORMAL,
        body_encoding=definition.IDENTITY,
        born_host="test",
        born_timestamp=Timestamp(seconds=int(time.time())),
    )
    if tag:
        properties.tag = tag
    return definition.Message(topic=definition.Resource(name=topic), system_properties=properties, body=body)


def delayed_message(topic: str, body: bytes, due_ms: int) -> definition.Message:
    """A message that is to be delivered at a time in milliseconds since 1970."""
    message = make_message(topic, body)
    message.system_properties.message_type = definition.DELAY
    message.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    return message


def half_message(topic: str, body: bytes) -> definition.Message:
    """A message that is to be delivered once its transaction is committed."""
    message = make_message(topic, body)
    message.system_properties.message_type = definition.TRANSACTION
    return message


def urgent_message(topic: str, body: bytes, priority: int) -> definition.Message:
    """A message that comes before those of lower priorities."""
    message = make_message(topic, body)
    message.system_properties.message_type = definition.PRIORITY
    message.system_properties.priority = priority
    return message


def ordered_message(topic: str, body: bytes, message_group: str) -> definition.Message:
    """A message that keeps its order among those of its message group."""
    message = make_message(topic, body)
    message.system_properties.message_type = definition.FIFO
    message.system_properties.message_group = message_group
    return message


def lite_message(topic: str, body: bytes, lite_topic: str) -> definition.Message:
    """A message for a lite topic of a topic."""
    message = make_message(topic, body)
    message.system_properties.message_type = definition.LITE
    message.system_properties.lite_topic = lite_topic
    return message


def duration(seconds: float) -> Duration:
    """Seconds as the protocol has them."""
    result = Duration()
    result.FromMilliseconds(round(seconds * 1000))
    return result


def bodies(messages: Sequence[definition.Message]) -> list[bytes]:
    """The bodies of messages, in order of their bytes."""
    return sorted(message.body for message in messages)
