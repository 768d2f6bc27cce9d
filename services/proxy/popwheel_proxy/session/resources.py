"""Resource names of clients: name and namespace become a name of the cluster, or the call is refused.

The full name of `orders` in the namespace `shop` is `shop%orders`, as RocketMQ writes it; the system's own prefixes
stay in front. A namespace has no `%`, so it ends at the first one. Namespaces separate names, not rights: a client that
names `shop%orders` without a namespace gets the same topic.
"""

from popwheel_common.contract import names
from popwheel_common.contract.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, GroupName, NameTooLongError, TopicName, Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Resource
from popwheel_proxy.protocol.errors import LimitError

_NAMESPACE_MARK = "%"


def topic_name(resource: Resource, use: Use) -> TopicName:
    """Return the full name of a topic.

    Args:
        resource: as a client names it.
        use: the operation on the topic.

    Raises:
        StatusError: ILLEGAL_TOPIC, it is no name, or topics of its kind do not support the operation.
    """
    text = resource.name
    if resource.resource_namespace:
        text = _qualified(resource, Code.ILLEGAL_TOPIC)
    try:
        return names.topic(text, use)
    except NameTooLongError as error:
        raise LimitError(error.code, error.message, "topic_length_max") from error


def group_name(resource: Resource) -> GroupName:
    """Return the full name of a consumer group.

    Raises:
        StatusError: ILLEGAL_CONSUMER_GROUP.
    """
    text = resource.name
    if resource.resource_namespace:
        text = _qualified(resource, Code.ILLEGAL_CONSUMER_GROUP)
    try:
        return names.group(text)
    except NameTooLongError as error:
        raise LimitError(error.code, error.message, "group_length_max") from error


def check_group_if_said(resource: Resource) -> None:
    """Check a consumer group that clients may leave out, and that has no effect."""
    if resource.name or resource.resource_namespace:
        group_name(resource)


def _qualified(resource: Resource, code: Code.ValueType) -> str:
    """Return the full name in a namespace, of which only the `%` is checked."""
    namespace, name = resource.resource_namespace, resource.name
    if len(namespace) > names.TOPIC_LENGTH_MAX or _NAMESPACE_MARK in namespace:
        raise StatusError(
            code,
            f"{names.shown(namespace)} is not a namespace: letters, digits, '_' and '-', which make at most "
            f"{names.TOPIC_LENGTH_MAX} characters with '%' and the name behind them",
        )
    if not name:
        return name
    group, topic = names.group_of_retry_topic(name), names.topic_of_retry_topic(name)
    if group:
        return names.stored_retry_topic(f"{namespace}%{group}", _in_namespace(namespace, topic))
    return _in_namespace(namespace, name)


def _in_namespace(namespace: str, name: str) -> str:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return f"{prefix}{namespace}{_NAMESPACE_MARK}{name.removeprefix(prefix)}"
    return f"{namespace}{_NAMESPACE_MARK}{name}"
