"""Demands of each call on its caller: one table; a call that is not in it is refused.

A user that may receive in a group may also read its dead letters and retries, of topics that the user may read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from popwheel_common.contract.names import (
    DEAD_LETTER_PREFIX,
    TOOLS_GROUP,
    Kind,
    Use,
    group_of_retry_topic,
    kind_of,
    topic_of_retry_topic,
)
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Resource
from popwheel_proxy.access.users import Right, Sort
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.protocol.payload import ClientMessage
from popwheel_proxy.session.resources import group_name, topic_name
from popwheel_proxy.session.telemetry import check_entries

_REMEMBERED_MAX = 4_096


class Demand(NamedTuple):
    """A right that a call needs.

    Args:
        rights: any of them suffices.
        sort: topic or group.
        name: a topic or a group.
        makes: whether it is made if it is not there, which takes ADMIN.
    """

    rights: tuple[Right, ...]
    sort: Sort
    name: str
    makes: bool


Demands = tuple[Demand, ...]

_PUBLISH = (Right.PUBLISH,)
_SUBSCRIBE = (Right.SUBSCRIBE,)
_EITHER = (Right.PUBLISH, Right.SUBSCRIBE)


@lru_cache(maxsize=_REMEMBERED_MAX)
def _topic(name: str, rights: tuple[Right, ...], makes: bool = False) -> Demands:
    """Return the demands of a topic; a system topic that stands for a group has the group's demands."""
    kind = kind_of(name)
    if kind is Kind.DEAD_LETTER:
        return _group(name.removeprefix(DEAD_LETTER_PREFIX))
    if kind is Kind.RETRY:
        return _group(group_of_retry_topic(name)) + _topic(topic_of_retry_topic(name), _SUBSCRIBE)
    return (Demand(rights, Sort.TOPIC, name, makes),)


@lru_cache(maxsize=_REMEMBERED_MAX)
def _group(name: str, makes: bool = False) -> Demands:
    return (Demand(_SUBSCRIBE, Sort.GROUP, name, makes),)


def _sends(messages: list[ClientMessage]) -> Demands:
    """Return each topic once; messages with the same head share it."""
    if len(messages) == 1:
        return _topic(topic_name(messages[0].head.topic, Use.SEND), _PUBLISH, makes=True)
    heads = {id(message.head): message.head for message in messages}
    return _all(_topic(topic_name(head.topic, Use.SEND), _PUBLISH, makes=True) for head in heads.values())


def _publishes(request: Any) -> Demands:
    return _topic(topic_name(request.topic, Use.SEND), _PUBLISH)


def _route(request: pb.QueryRouteRequest) -> Demands:
    return _topic(topic_name(request.topic, Use.QUERY), _EITHER, makes=True)


def _assignment(request: pb.QueryAssignmentRequest) -> Demands:
    topic = topic_name(request.topic, Use.RECEIVE)
    return _topic(topic, _SUBSCRIBE, makes=True) + _group(group_name(request.group), makes=True)


def _received(request: Any) -> Demands:
    """Return the demands of a call about a delivery."""
    return _topic(topic_name(request.topic, Use.RECEIVE), _SUBSCRIBE) + _group(group_name(request.group))


def _lite_sync(request: pb.SyncLiteSubscriptionRequest) -> Demands:
    return _topic(topic_name(request.topic, Use.RECEIVE), _SUBSCRIBE) + _group(group_name(request.group), makes=True)


def _queue(use: Use, *, makes: bool = False) -> Callable[[Any], Demands]:
    """Return the function from a request about a queue to its demands."""

    def demands(request: Any) -> Demands:
        topic = topic_name(request.message_queue.topic, use)
        group = group_name(request.group)
        is_made = makes and not (use is Use.PULL and group == TOOLS_GROUP)
        return _topic(topic, _SUBSCRIBE) + _group(group, is_made)

    return demands


def _query_offset(request: pb.QueryOffsetRequest) -> Demands:
    return _topic(topic_name(request.message_queue.topic, Use.QUERY), _SUBSCRIBE)


def _group_if_said(request: Any) -> Demands:
    """Return the demands of a group, if one is given: producers give none."""
    said: Resource = request.group
    return _group(group_name(said)) if said.name or said.resource_namespace else ()


def _telemetry(command: pb.TelemetryCommand) -> Demands:
    settings = command.settings
    check_entries(settings)
    kind = settings.WhichOneof("pub_sub")
    topics: list[Resource]
    if kind == "publishing":
        topics, use, rights = list(settings.publishing.topics), Use.SEND, _PUBLISH
    elif kind == "subscription":
        topics, use, rights = [each.topic for each in settings.subscription.subscriptions], Use.RECEIVE, _SUBSCRIBE
    else:
        return ()  # settings without either are refused, and other commands answer what a client was asked
    demands = _all(_topic(topic_name(topic, use), rights) for topic in topics)
    if kind == "subscription" and settings.subscription.group.name:
        demands += _group(group_name(settings.subscription.group), makes=True)
    return demands


def _all(demands: Iterable[Demands]) -> Demands:
    def combined() -> Iterator[Demand]:
        for some in demands:
            yield from some

    return tuple(dict.fromkeys(combined()))


DEMANDS: Mapping[str, Callable[[Any], Demands]] = {
    protocol.QUERY_ROUTE.name: _route,
    protocol.QUERY_ASSIGNMENT.name: _assignment,
    protocol.SEND_MESSAGE.name: _sends,
    protocol.RECALL_MESSAGE.name: _publishes,
    protocol.END_TRANSACTION.name: _publishes,
    protocol.RECEIVE_MESSAGE.name: _queue(Use.RECEIVE, makes=True),
    protocol.ACK_MESSAGE.name: _received,
    protocol.CHANGE_INVISIBLE_DURATION.name: _received,
    protocol.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE.name: _received,
    protocol.SYNC_LITE_SUBSCRIPTION.name: _lite_sync,
    protocol.PULL_MESSAGE.name: _queue(Use.PULL, makes=True),
    protocol.PULL_RECORDS.name: _queue(Use.PULL, makes=True),
    protocol.GET_OFFSET.name: _queue(Use.QUERY),
    protocol.UPDATE_OFFSET.name: _queue(Use.COMMIT, makes=True),
    protocol.QUERY_OFFSET.name: _query_offset,
    protocol.HEARTBEAT.name: _group_if_said,
    protocol.NOTIFY_CLIENT_TERMINATION.name: _group_if_said,
    protocol.TELEMETRY.name: _telemetry,
}
"""Demands by method, as a function of its request; SendMessage passes the messages cut out of it."""
