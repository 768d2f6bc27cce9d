"""Methods of proxies that Spark calls."""

from typing import TypeVar

from google.protobuf.message import Message

from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_rpc.service import RAW, Method, protobuf

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_SERVICE = "apache.rocketmq.v2.MessagingService"


def _method(name: str, request: type[Request], response: type[Response]) -> Method[Request, Response]:
    return Method(_SERVICE, name, protobuf(request), protobuf(response))


ROUTE = _method("QueryRoute", service.QueryRouteRequest, service.QueryRouteResponse)
OFFSET = _method("QueryOffset", service.QueryOffsetRequest, service.QueryOffsetResponse)
COMMIT = _method("UpdateOffset", service.UpdateOffsetRequest, service.UpdateOffsetResponse)
SEND: Method[bytes, service.SendMessageResponse] = Method(
    _SERVICE, "SendMessage", RAW, protobuf(service.SendMessageResponse)
)
PULL: Method[service.PullMessageRequest, bytes] = Method(
    "popwheel.v1.Proxy", "PullRecords", protobuf(service.PullMessageRequest), RAW
)
"""Answers bytes of PullRecordsResponse (`popwheel_common.contract.record_block`)."""
