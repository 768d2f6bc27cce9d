"""Methods of apache.rocketmq.v2.MessagingService as this proxy serves them, and one of its own.

Requests are small but for those that carry messages. Larger ones of many parts are not read: small parts by the million
keep the loop busy for the better part of a second, and nobody has asked yet how many there are. One long text is read,
as it takes no time, and refused by its own rule.
"""

from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.protocol.errors import LimitError
from popwheel_rpc.service import RAW, Codec, Method, protobuf

REQUEST_BYTES_MAX: Final = 256 * 1024
"""Limit of a request that carries no message. Fixed: every request that handlers accept fits."""

SERVICE = "apache.rocketmq.v2.MessagingService"

Request = TypeVar("Request", bound=Message)
Asked = TypeVar("Asked")
Response = TypeVar("Response", bound=Message)


_PARTS_MAX: Final = 2_000
"""Fields that a larger request may have in all; counting them takes 2 ms."""


class TooLarge:
    """Placeholder for a request that was not read, as it has too many bytes.

    Args:
        refusal: the answer to its sender.
    """

    __slots__ = ("refusal",)

    def __init__(self, refusal: LimitError) -> None:
        self.refusal = refusal


def bounded(message_type: type[Request], bytes_max: int, *, is_streamed: bool = False) -> Codec[Request]:
    """Return the codec of requests of at most `bytes_max` bytes.

    What is larger is `TooLarge`, whatever its type says, as a call without a handler can't answer; where handlers read
    a stream they get the refusal as a `LimitError` instead.
    """
    read = message_type.FromString
    code = Code.INVALID_CLIENT_PROPERTIES if message_type is pb.TelemetryCommand else Code.PAYLOAD_TOO_LARGE

    def decode(data: bytes) -> Request:
        if len(data) <= bytes_max or not _has_many_parts(data, message_type.DESCRIPTOR):
            return read(data)
        refusal = LimitError(
            code,
            f"the request has {len(data)} bytes in many parts, at most {bytes_max} are taken where it carries no "
            "messages; ask for less at a time",
            "settings_bytes_max" if message_type is pb.TelemetryCommand else "plain_request_bytes_max",
        )
        if is_streamed:
            raise refusal
        return TooLarge(refusal)  # type: ignore[return-value]

    return Codec(encode=message_type.SerializeToString, decode=decode)


def _has_many_parts(data: bytes, descriptor: Any) -> bool:
    """Check for more than `_PARTS_MAX` fields in a message, those of messages inside included; true if it is broken."""
    rest: list[tuple[int, int, Any]] = [(0, len(data), descriptor)]
    parts = 0
    while rest:
        at, end, kind = rest.pop()
        while at < end:
            parts += 1
            tag, at = _varint(data, at)
            wire_type = tag & 7
            if parts > _PARTS_MAX or wire_type not in (0, 1, 2, 5):
                return True
            if wire_type != 2:
                at = _varint(data, at)[1] if not wire_type else at + (8 if wire_type == 1 else 4)
                continue
            length, at = _varint(data, at)
            inside = kind.fields_by_number.get(tag >> 3)
            if inside is not None and inside.message_type is not None:
                rest.append((at, min(at + length, len(data)), inside.message_type))
            at += length
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends; 0 behind the end of the data."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return 0, at + 1
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return number, at


def _method(
    name: str, request: type[Request], response: type[Response], bytes_max: int = REQUEST_BYTES_MAX
) -> Method[Request, Response]:
    return Method(SERVICE, name, bounded(request, bytes_max), protobuf(response))


def _raw_answer(name: str, request: Codec[Asked]) -> Method[Asked, bytes]:
    return Method(SERVICE, name, request, RAW)


QUERY_ROUTE = _method("QueryRoute", pb.QueryRouteRequest, pb.QueryRouteResponse)
HEARTBEAT = _method("Heartbeat", pb.HeartbeatRequest, pb.HeartbeatResponse)
SEND_MESSAGE = _raw_answer("SendMessage", RAW)
"""Takes the bytes of a SendMessageRequest: the messages in it go to the broker as they are. Answers bytes of
SendMessageResponse.
"""
QUERY_ASSIGNMENT = _method("QueryAssignment", pb.QueryAssignmentRequest, pb.QueryAssignmentResponse)
RECEIVE_MESSAGE = _raw_answer("ReceiveMessage", bounded(pb.ReceiveMessageRequest, REQUEST_BYTES_MAX, is_streamed=True))
"""Answers bytes of ReceiveMessageResponse: the messages in it come from the broker as they are."""
ACK_MESSAGE = _method("AckMessage", pb.AckMessageRequest, pb.AckMessageResponse)
FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE = _method(
    "ForwardMessageToDeadLetterQueue",
    pb.ForwardMessageToDeadLetterQueueRequest,
    pb.ForwardMessageToDeadLetterQueueResponse,
)
PULL_MESSAGE = _raw_answer("PullMessage", bounded(pb.PullMessageRequest, REQUEST_BYTES_MAX, is_streamed=True))
"""Answers bytes of PullMessageResponse."""
PULL_RECORDS: Method[pb.PullMessageRequest, bytes] = Method(
    "popwheel.v1.Proxy", "PullRecords", bounded(pb.PullMessageRequest, REQUEST_BYTES_MAX), RAW
)
"""Answers bytes of PullRecordsResponse; of all methods here the one that is not of the official protocol."""
UPDATE_OFFSET = _method("UpdateOffset", pb.UpdateOffsetRequest, pb.UpdateOffsetResponse)
GET_OFFSET = _method("GetOffset", pb.GetOffsetRequest, pb.GetOffsetResponse)
QUERY_OFFSET = _method("QueryOffset", pb.QueryOffsetRequest, pb.QueryOffsetResponse)
END_TRANSACTION = _method("EndTransaction", pb.EndTransactionRequest, pb.EndTransactionResponse)
TELEMETRY = Method(
    SERVICE,
    "Telemetry",
    bounded(pb.TelemetryCommand, REQUEST_BYTES_MAX, is_streamed=True),
    protobuf(pb.TelemetryCommand),
)
NOTIFY_CLIENT_TERMINATION = _method(
    "NotifyClientTermination", pb.NotifyClientTerminationRequest, pb.NotifyClientTerminationResponse
)
CHANGE_INVISIBLE_DURATION = _method(
    "ChangeInvisibleDuration", pb.ChangeInvisibleDurationRequest, pb.ChangeInvisibleDurationResponse
)
RECALL_MESSAGE = _method("RecallMessage", pb.RecallMessageRequest, pb.RecallMessageResponse)
SYNC_LITE_SUBSCRIPTION = _method(
    "SyncLiteSubscription", pb.SyncLiteSubscriptionRequest, pb.SyncLiteSubscriptionResponse
)
