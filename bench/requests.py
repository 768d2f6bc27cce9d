"""The requests of the load as bytes, made once and filled in per call; and what is read out of the answers."""

import itertools
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.http2.grpc_messages import PREFIX_BYTES, frame_message

_SERVICE = b"/apache.rocketmq.v2.MessagingService/"
SEND = _SERVICE + b"SendMessage"
RECEIVE = _SERVICE + b"ReceiveMessage"
ACK = _SERVICE + b"AckMessage"
ROUTE = _SERVICE + b"QueryRoute"
HEARTBEAT = _SERVICE + b"Heartbeat"
TELEMETRY = _SERVICE + b"Telemetry"

_ID_END = 8
_ID_PREFIX_CHARACTERS = 26
_INVISIBLE_S = 60
_VARINT_BYTES = 5
_VARINT_MAX = 2**35 - 1
SEQUENCE_DIGITS = 16
"""Decimal digits of the message's number at the beginning of each body."""


class Template(Protocol):
    """Makes the requests of a load."""

    def make(self) -> bytes:
        """The next request."""


class SendTemplate:
    """SendMessage requests that differ only in their message ids, which never come again.

    Args:
        topic: where to.
        size: bytes of each body, at least 16.
        batch: messages in one request.
        message_group: of all of them, if they have one.
        born_ms: when all of them were made; 0: they do not say.
    """

    def __init__(self, topic: str, size: int, batch: int = 1, message_group: str = "", born_ms: int = 0) -> None:
        self._count = 0
        self._prefix = uuid.uuid4().hex[:_ID_PREFIX_CHARACTERS].upper()
        marks = [f"{self._prefix}#{index:07d}" for index in range(batch)]
        body = _body(size)
        messages = [_message(topic, mark, body) for mark in marks]
        for index, message in enumerate(messages):
            message.user_properties.update(self.properties_of(index))
            if born_ms:
                message.system_properties.born_timestamp.FromMilliseconds(born_ms)
            if message_group:
                message.system_properties.message_type = definition.FIFO
                message.system_properties.message_group = message_group
        data = frame_message(service.SendMessageRequest(messages=messages).SerializeToString())
        self._data = data
        self._at = [data.index(mark.encode()) + _ID_PREFIX_CHARACTERS for mark in marks]
        self._head = data[: self._at[0]]
        self._tail = data[self._at[0] + _ID_END :]
        self._single = batch == 1

    def properties_of(self, index: int) -> Mapping[str, str]:
        """The user's properties of a message of each request."""
        return {}

    def make(self) -> bytes:
        """The next request."""
        if self._single:
            self._count += 1
            return b"%b%08X%b" % (self._head, self._count, self._tail)
        data = bytearray(self._data)
        count = self._count
        for at in self._at:
            count += 1
            data[at : at + _ID_END] = b"%08X" % count
        self._count = count
        return bytes(data)


class DescribedTemplate(SendTemplate):
    """`SendTemplate` whose messages have three properties; a quarter of them does not pass `CONDITION`."""

    CONDITION = "number >= 8 AND region IN ('EU', 'UK') AND cancelled IS NULL"

    @staticmethod
    def passing(batch: int) -> int:
        """Return the number of messages of a request that pass."""
        return max(0, batch - 8)

    def properties_of(self, index: int) -> Mapping[str, str]:
        """A number, and two that are alike."""
        return {"number": str(index), "region": "EU", "sender": "bench"}


class OrderedTemplate(SendTemplate):
    """`SendTemplate`, each request with messages of one message group.

    Args:
        topic: where to.
        size: bytes of each body, at least 16.
        batch: messages in one request.
        names: the message group of each request in turn; all have the same length.
    """

    def __init__(self, topic: str, size: int, batch: int, *, names: Iterator[str]) -> None:
        first = next(names)
        super().__init__(topic, size, batch, first)
        self._names = itertools.chain([first], names)
        self._lines = [match.start() for match in re.finditer(re.escape(first.encode()), self._data)]

    def make(self) -> bytes:
        """The next request."""
        data = bytearray(super().make())
        line = next(self._names).encode()
        for at in self._lines:
            data[at : at + len(line)] = line
        return bytes(data)


class RandomTemplate(SendTemplate):
    """`SendTemplate` without two bodies that are alike: all bytes are random.

    Args:
        topic: where to.
        size: bytes of each body, at least 16.
        batch: messages in one request, more than one.
    """

    def __init__(self, topic: str, size: int, batch: int) -> None:
        super().__init__(topic, size, batch)
        body = _body(size)
        self._bodies = [self._data.index(body, at) for at in self._at]
        self._size = size

    def make(self) -> bytes:
        """The next request."""
        data = bytearray(super().make())
        for at in self._bodies:
            data[at : at + self._size] = os.urandom(self._size)
        return bytes(data)


class DelayedTemplate:
    """SendMessage requests of delayed messages; the body of each begins with its number.

    Args:
        topic: where to.
        size: bytes of each body, at least 16.
        due_ms: returns for the number of a message when it is due, milliseconds since 1970.
        first: number of the first message.
        batch: messages in one request.
    """

    def __init__(self, topic: str, size: int, due_ms: Callable[[int], int], first: int, batch: int = 1) -> None:
        self._next = first
        self._due_ms = due_ms
        prefix = uuid.uuid4().hex[:_ID_PREFIX_CHARACTERS].upper()
        marks = [f"{prefix}#{index:07d}" for index in range(batch)]
        body = _body(size)
        messages = [_message(topic, mark, body) for mark in marks]
        some_time = Timestamp(seconds=_VARINT_MAX, nanos=999_999_999)
        for message in messages:
            message.system_properties.message_type = definition.DELAY
            message.system_properties.delivery_timestamp.CopyFrom(some_time)
        self._data = frame_message(service.SendMessageRequest(messages=messages).SerializeToString())
        self._at: list[tuple[int, int, int]] = []
        for mark in marks:
            at = self._data.index(mark.encode())
            due_at = self._data.index(some_time.SerializeToString(), at)
            body_at = self._data.index(body, at)
            self._at.append((at + _ID_PREFIX_CHARACTERS, due_at, body_at))

    def make(self) -> bytes:
        """The next request."""
        data = bytearray(self._data)
        number = self._next
        for id_at, due_at, body_at in self._at:
            due_ms = self._due_ms(number)
            data[id_at : id_at + _ID_END] = b"%08X" % (number & 0xFFFFFFFF)
            data[due_at + 1 : due_at + 1 + _VARINT_BYTES] = _varint(due_ms // 1000)
            data[due_at + 2 + _VARINT_BYTES : due_at + 2 + 2 * _VARINT_BYTES] = _varint(due_ms % 1000 * 1_000_000)
            data[body_at : body_at + SEQUENCE_DIGITS] = b"%016d" % number
            number += 1
        self._next = number
        return bytes(data)


def _body(size: int) -> bytes:
    return b"0" * SEQUENCE_DIGITS + bytes(97 + index % 26 for index in range(size - SEQUENCE_DIGITS))


def _varint(value: int) -> bytes:
    """A number below 2^35 in five bytes, whatever it is: protobuf reads those that are longer than need be."""
    return bytes(
        (
            value & 0x7F | 0x80,
            value >> 7 & 0x7F | 0x80,
            value >> 14 & 0x7F | 0x80,
            value >> 21 & 0x7F | 0x80,
            value >> 28,
        )
    )


def numbered_send(topic: str, size: int, number: int) -> bytes:
    """A SendMessage request whose body says which it is."""
    body = f"{number:0{SEQUENCE_DIGITS}d}".encode().ljust(size, b"x")
    message = _message(topic, uuid.uuid4().hex.upper() + "00", body)
    return frame_message(service.SendMessageRequest(messages=[message]).SerializeToString())


def fresh_line(topic: str, size: int, number: int) -> bytes:
    """Return a request like `numbered_send`, of a message group that has no other message."""
    body = f"{number:0{SEQUENCE_DIGITS}d}".encode().ljust(size, b"x")
    message = _message(topic, uuid.uuid4().hex.upper() + "00", body)
    message.system_properties.message_type = definition.FIFO
    message.system_properties.message_group = f"fresh-{number}"
    return frame_message(service.SendMessageRequest(messages=[message]).SerializeToString())


def _message(topic: str, message_id: str, body: bytes) -> definition.Message:
    message = definition.Message(topic=definition.Resource(name=topic), body=body)
    properties = message.system_properties
    properties.message_id = message_id
    properties.body_encoding = definition.IDENTITY
    properties.message_type = definition.NORMAL
    properties.born_timestamp.GetCurrentTime()
    properties.born_host = "127.0.0.1"
    return message


def route(topic: str, address: str) -> bytes:
    """QueryRoute."""
    request = service.QueryRouteRequest(topic=definition.Resource(name=topic), endpoints=_endpoints(address))
    return frame_message(request.SerializeToString())


def receive(
    topic: str,
    group: str,
    queue: definition.MessageQueue,
    count: int,
    poll_s: float,
    invisible_s: float = _INVISIBLE_S,
    condition: str = "",
) -> bytes:
    """ReceiveMessage, for at most `count` messages, waiting `poll_s` seconds; by an SQL92 filter if there is one."""
    wanted = definition.FilterExpression(type=definition.TAG, expression="*")
    if condition:
        wanted = definition.FilterExpression(type=definition.SQL, expression=condition)
    request = service.ReceiveMessageRequest(
        group=definition.Resource(name=group),
        message_queue=queue,
        filter_expression=wanted,
        batch_size=count,
        invisible_duration=Duration(nanos=int(invisible_s % 1 * 1e9), seconds=int(invisible_s)),
        long_polling_timeout=Duration(nanos=int(poll_s % 1 * 1e9), seconds=int(poll_s)),
    )
    return frame_message(request.SerializeToString())


def ack(topic: str, group: str, messages: Sequence[definition.Message]) -> bytes:
    """AckMessage for all of these."""
    entries = []
    for message in messages:
        properties = message.system_properties
        entries.append(
            service.AckMessageEntry(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
        )
    request = service.AckMessageRequest(
        group=definition.Resource(name=group), topic=definition.Resource(name=topic), entries=entries
    )
    return frame_message(request.SerializeToString())


def settings(topic: str, group: str, address: str) -> bytes:
    """Return what a client says of itself on its Telemetry stream; a producer if it has no group."""
    ours = definition.Settings(access_point=_endpoints(address), request_timeout=Duration(seconds=5))
    ours.user_agent.language = definition.PYTHON
    ours.user_agent.version = "5.1.2"
    if group:
        ours.client_type = definition.SIMPLE_CONSUMER
        ours.subscription.group.name = group
        ours.subscription.long_polling_timeout.seconds = 20
        entry = ours.subscription.subscriptions.add()
        entry.topic.name = topic
        entry.expression.type = definition.TAG
        entry.expression.expression = "*"
    else:
        ours.client_type = definition.PRODUCER
        ours.backoff_policy.max_attempts = 1
        ours.backoff_policy.exponential_backoff.multiplier = 1
        ours.publishing.topics.add().name = topic
    return frame_message(service.TelemetryCommand(settings=ours).SerializeToString())


def heartbeat(group: str) -> bytes:
    """Heartbeat of a client; a producer if it has no group."""
    request = service.HeartbeatRequest(client_type=definition.SIMPLE_CONSUMER if group else definition.PRODUCER)
    if group:
        request.group.name = group
    return frame_message(request.SerializeToString())


def _endpoints(address: str) -> definition.Endpoints:
    host, _, port = address.rpartition(":")
    return definition.Endpoints(scheme=definition.IPv4, addresses=[definition.Address(host=host, port=int(port))])


def split(parts: Sequence[bytes]) -> Iterator[bytes]:
    """The messages of an answer."""
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    at = 0
    while at < len(data):
        after = at + PREFIX_BYTES + int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
        yield data[at + PREFIX_BYTES : after]
        at = after


def refusal(answer: type[service.SendMessageResponse] | type[service.AckMessageResponse], parts: list[bytes]) -> str:
    """Return what a unary answer refuses; "" if it is all well.

    Its status on top is OK only if that of each entry is.
    """
    for data in split(parts):
        decoded = answer.FromString(data)
        if decoded.status.code == Code.OK:
            return ""
        for status in (*(entry.status for entry in decoded.entries), decoded.status):
            if status.code != Code.OK:
                return f"{Code.Name(status.code)}: {status.message}"
    return "an empty answer"


def received(parts: list[bytes]) -> tuple[list[definition.Message], str]:
    """The messages of a ReceiveMessage answer, and why there are none if that is an error."""
    messages = []
    error = ""
    for data in split(parts):
        part = service.ReceiveMessageResponse.FromString(data)
        if part.HasField("message"):
            messages.append(part.message)
        elif part.HasField("status") and part.status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND):
            error = f"{Code.Name(part.status.code)}: {part.status.message}"
    return messages, "" if messages else error
