"""Every call that proxies answer, as the .proto files have them; what is not in here is not served."""

from dataclasses import dataclass

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from popwheel_common.pb.apache.rocketmq.v2 import service_pb2
from popwheel_common.pb.popwheel.v1 import proxy_pb2

_SERVICES = (
    service_pb2.DESCRIPTOR.services_by_name["MessagingService"],
    proxy_pb2.DESCRIPTOR.services_by_name["Proxy"],
)


@dataclass(frozen=True)
class ProxyCall:
    """One call.

    Args:
        path: `/service/name`.
        request, answer: its messages; an answer without the field `status` has its refusals in trailers.
    """

    path: str
    request: type[Message]
    answer: type[Message]

    @property
    def has_status(self) -> bool:
        """Whether its answers say how it went."""
        return "status" in self.answer.DESCRIPTOR.fields_by_name


CALLS = {
    method.name: ProxyCall(
        f"/{service.full_name}/{method.name}", GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    )
    for service in _SERVICES
    for method in service.methods
}
"""Calls by name."""
