"""Lookup of topics and groups for calls: found, created on first use where that is allowed, or refused."""

from typing import NamedTuple, TypeVar

from popwheel_common.clock import Clock
from popwheel_common.contract.cluster_view import ClusterView, store_id_of
from popwheel_common.contract.names import (
    DEAD_LETTER_PREFIX,
    GroupName,
    Kind,
    TopicName,
    group_of_retry_topic,
    kind_of,
    topic_of_retry_topic,
)
from popwheel_common.contract.priority import levels_of
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    EnsureGroupRequest,
    EnsureTopicRequest,
    Group,
    Topic,
    TopicType,
)
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol.statuses import of_rpc_error
from popwheel_rpc.methods import ENSURE_GROUP, ENSURE_TOPIC
from popwheel_rpc.service import Channel, Method
from popwheel_rpc.status import RpcError

Asked = TypeVar("Asked")
Made = TypeVar("Made")

_CONTROLLER_TIMEOUT_S = 3.0
_REFUSAL_S = 1.0
"""Time for which a refused name is not requested again from the controller, unless names have changed."""
_REFUSALS_MAX = 1_000
"""Cached refusals, the latest."""
_MAY_LAST = (Code.TOPIC_NOT_FOUND, Code.CONSUMER_GROUP_NOT_FOUND)


class _Refusal(NamedTuple):
    """Refusal of the controller, its time, and the seen version of names at that time."""

    code: Code.ValueType
    message: str
    at_s: float
    seen_version: int


class Catalog:
    """Topics and groups of the cluster, by names that were checked (`resources.py`).

    Args:
        view: the cluster as the controller streams it.
        controller: creates topics and groups.
        options: whether they are made on first use.
        clock: the time.
    """

    def __init__(self, view: ClusterView, controller: Channel, options: ProxyOptions, clock: Clock) -> None:
        self._view = view
        self._controller = controller
        self._options = options
        self._clock = clock
        self._refusals: dict[tuple[str, str], _Refusal] = {}

    def find_topic(self, name: str) -> Topic | None:
        """A topic that is there. Retry and dead letter topics are there if what they are made of is; they have one
        queue, but for the retry topics of a topic with levels, which have as many.
        """
        topic = self._view.topics.get(name)
        if topic is not None:
            return topic
        kind = kind_of(name)
        there, queues = False, 1
        if kind is Kind.DEAD_LETTER:
            there = name.removeprefix(DEAD_LETTER_PREFIX) in self._view.groups
        elif kind is Kind.RETRY:
            of_topic = self.find_topic(topic_of_retry_topic(name))
            there = of_topic is not None and group_of_retry_topic(name) in self._view.groups
            queues = 1 if of_topic is None else levels_of(of_topic) or 1
        return Topic(name=name, type=TopicType.NORMAL, queues=queues) if there else None

    def topic(self, name: TopicName) -> Topic:
        """Return a topic that must exist.

        Raises:
            StatusError: TOPIC_NOT_FOUND, or HA_NOT_AVAILABLE before anything is known of the cluster.
        """
        topic = self.find_topic(name)
        if topic is not None:
            return topic
        self._check_ready()
        raise StatusError(Code.TOPIC_NOT_FOUND, f"the topic {name} does not exist; create it first")

    def topic_now(self, topic: Topic) -> Topic:
        """Return the topic that has the name of `topic` now; `topic` itself if it may be newer than the seen version.

        Raises:
            StatusError: as `topic` does.
        """
        now = self.find_topic(topic.name)
        if now is None and (topic.id > self._view.named or store_id_of(topic.id) != self._view.store_id):
            return topic
        return now or self.topic(TopicName(topic.name))

    def topic_to_be(self, name: TopicName) -> Topic:
        """Return a topic that exists, or as `ensure_topic` would create it; nothing is created yet.

        Raises:
            StatusError: as `topic` does.
        """
        topic = self.find_topic(name)
        if topic is not None:
            return topic
        if not self._options.auto_create_topics or kind_of(name) is not Kind.USER:
            return self.topic(name)
        return Topic(name=name, type=TopicType.MIXED)

    async def ensure_topic(self, name: TopicName) -> Topic:
        """Return a topic; create it, of type MIXED, if it does not exist and may be created on first use.

        Raises:
            StatusError: as `topic` does.
        """
        topic = self.topic_to_be(name)
        if topic.queues:
            return topic
        request = EnsureTopicRequest(name=name, type=TopicType.MIXED)
        return (await self._ensure(ENSURE_TOPIC, request, "topic", name)).topic

    def knows(self, topic: str, group: str) -> bool:
        """Return whether a topic and a consumer group exist."""
        return self.find_topic(topic) is not None and self.find_group(group) is not None

    def find_group(self, name: str) -> Group | None:
        """Return a consumer group that exists, or None."""
        return self._view.groups.get(name)

    def check_group(self, name: GroupName) -> None:
        """Check that `ensure_group` would return a group; nothing is made yet.

        Raises:
            StatusError: as `ensure_group` does.
        """
        if name in self._view.groups:
            return
        if not self._options.auto_create_groups:
            self._check_ready()
            raise StatusError(
                Code.CONSUMER_GROUP_NOT_FOUND, f"the consumer group {name} does not exist; create it first"
            )

    async def ensure_group(self, name: GroupName, within_s: float = _CONTROLLER_TIMEOUT_S) -> Group:
        """Return a consumer group; create it if it does not exist and may be created on first use.

        Args:
            name: of the group.
            within_s: how long the caller can wait for the controller, in seconds.

        Raises:
            StatusError: CONSUMER_GROUP_NOT_FOUND, or HA_NOT_AVAILABLE before anything is known of the cluster or while
                the controller is away; PROXY_TIMEOUT, it did not answer in time.
        """
        group = self._view.groups.get(name)
        if group is not None:
            return group
        self.check_group(name)
        return (await self._ensure(ENSURE_GROUP, EnsureGroupRequest(name=name), "group", name, within_s)).group

    async def _ensure(
        self,
        method: Method[Asked, Made],
        request: Asked,
        what: str,
        name: str,
        within_s: float = _CONTROLLER_TIMEOUT_S,
    ) -> Made:
        """Request a topic or group from the controller, unless it refused that a moment ago."""
        refusal = self._refusals.get((what, name))
        if refusal is not None:
            if refusal.seen_version == self._view.named and self._clock.monotonic() - refusal.at_s < _REFUSAL_S:
                raise StatusError(refusal.code, refusal.message)
            del self._refusals[what, name]
        try:
            return await self._controller.call(
                method, request, timeout_s=max(0.0, min(within_s, _CONTROLLER_TIMEOUT_S))
            )
        except RpcError as error:
            raise of_rpc_error(error, f"the controller, which would make the {what} {name},") from error
        except StatusError as refused:
            if refused.code in _MAY_LAST:
                self._refusals[what, name] = _Refusal(
                    refused.code, refused.message, self._clock.monotonic(), self._view.named
                )
                if len(self._refusals) > _REFUSALS_MAX:
                    del self._refusals[next(iter(self._refusals))]
            raise

    def _check_ready(self) -> None:
        if not self._view.ready:
            raise StatusError(
                Code.HA_NOT_AVAILABLE, "this proxy does not know the cluster's topics yet; try again in a moment"
            )
