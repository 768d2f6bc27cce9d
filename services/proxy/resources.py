"""The full name of a topic or group: the client's name with its namespace before it, as RocketMQ writes it."""

from services.common.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Resource


def full_name(resource: Resource) -> str:
    """`orders`, or `shop%orders` in the namespace `shop`; the system's own prefixes stay in front."""
    name = resource.name
    namespace = resource.resource_namespace
    if not namespace:
        return name
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return f"{prefix}{namespace}%{name.removeprefix(prefix)}"
    return f"{namespace}%{name}"
