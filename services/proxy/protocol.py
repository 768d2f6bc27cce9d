"""The methods of apache.rocketmq.v2.MessagingService as this proxy serves them, and its own."""

from typing import TypeVar

from google.protobuf.message import Message

from services.common.pb.apache.rocketmq.v2 import service_pb2 as pb
from services.rpc.service import RAW, Codec, Method, protobuf

SERVICE = "apache.rocketmq.v2.MessagingService"

Request = TypeVar("Request", bound=Message)
Asked = TypeVar("Asked")
Response = TypeVar("Response", bound=Message)


def _method(name: str, request: type[Request], response: type[Response]) -> Method[Request, Response]:
    return Method(SERVICE, name, protobuf(request), protobuf(response))


def _raw_answer(name: str, request: Codec[Asked]) -> Method[Asked, bytes]:
    return Method(SERVICE, name, request, RAW)


QUERY_ROUTE = _method("QueryRoute", pb.QueryRouteRequest, pb.QueryRouteResponse)
HEARTBEAT = _method("Heartbeat", pb.HeartbeatRequest, pb.HeartbeatResponse)
SEND_MESSAGE = _raw_answer("SendMessage", RAW)
"""Takes the bytes of a SendMessageRequest: the messages in it go to the broker as they are. Answers bytes of
SendMessageResponse.
"""
QUERY_ASSIGNMENT = _method("QueryAssignment", pb.QueryAssignmentRequest, pb.QueryAssignmentResponse)
RECEIVE_MESSAGE = _raw_answer("ReceiveMessage", protobuf(pb.ReceiveMessageRequest))
"""Answers bytes of ReceiveMessageResponse: the messages in it come from the broker as they are."""
ACK_MESSAGE = _method("AckMessage", pb.AckMessageRequest, pb.AckMessageResponse)
FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE = _method(
    "ForwardMessageToDeadLetterQueue",
    pb.ForwardMessageToDeadLetterQueueRequest,
    pb.ForwardMessageToDeadLetterQueueResponse,
)
PULL_MESSAGE = _raw_answer("PullMessage", protobuf(pb.PullMessageRequest))
"""Answers bytes of PullMessageResponse."""
PULL_RECORDS: Method[pb.PullMessageRequest, bytes] = Method(
    "popwheel.v1.Proxy", "PullRecords", protobuf(pb.PullMessageRequest), RAW
)
"""Answers bytes of PullRecordsResponse; of all methods here the one that is not of the official protocol."""
UPDATE_OFFSET = _method("UpdateOffset", pb.UpdateOffsetRequest, pb.UpdateOffsetResponse)
GET_OFFSET = _method("GetOffset", pb.GetOffsetRequest, pb.GetOffsetResponse)
QUERY_OFFSET = _method("QueryOffset", pb.QueryOffsetRequest, pb.QueryOffsetResponse)
END_TRANSACTION = _method("EndTransaction", pb.EndTransactionRequest, pb.EndTransactionResponse)
TELEMETRY = _method("Telemetry", pb.TelemetryCommand, pb.TelemetryCommand)
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
