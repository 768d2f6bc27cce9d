"""Topics and groups as a call needs them: found, made on first use where that is allowed, or refused."""

from services.common.contract.cluster_view import ClusterView, incarnation_of
from services.common.contract.names import (
    DEAD_LETTER_PREFIX,
    GroupName,
    Kind,
    TopicName,
    group_of_retry_topic,
    kind_of,
    topic_of_retry_topic,
)
from services.common.contract.priority import levels_of
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.controller_pb2 import (
    EnsureGroupRequest,
    EnsureTopicRequest,
    Group,
    Topic,
    TopicType,
)
from services.proxy.options import ProxyOptions
from services.proxy.statuses import of_rpc_error
from services.rpc.methods import ENSURE_GROUP, ENSURE_TOPIC
from services.rpc.service import Channel
from services.rpc.status import RpcError

_CONTROLLER_TIMEOUT_S = 3.0


class Catalog:
    """The topics and groups of the cluster. Who asks has the names from the gate (`resources.py`).

    Args:
        view: the cluster as the controller streams it.
        controller: who makes topics and groups.
        options: whether they are made on first use.
    """

    def __init__(self, view: ClusterView, controller: Channel, options: ProxyOptions) -> None:
        self._view = view
        self._controller = controller
        self._options = options

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
        """A topic that must be there.

        Raises:
            StatusError: TOPIC_NOT_FOUND, or HA_NOT_AVAILABLE before anything is known of the cluster.
        """
        topic = self.find_topic(name)
        if topic is not None:
            return topic
        self._check_ready()
        raise StatusError(Code.TOPIC_NOT_FOUND, f"the topic {name} does not exist; create it first")

    def topic_now(self, topic: Topic) -> Topic:
        """The topic that has the name of another one now; that itself if it may be younger than all that was heard of.

        Raises:
            StatusError: as `topic` does.
        """
        now = self.find_topic(topic.name)
        if now is None and (topic.id > self._view.named or incarnation_of(topic.id) != self._view.incarnation):
            return topic
        return now or self.topic(TopicName(topic.name))

    def topic_to_be(self, name: TopicName) -> Topic:
        """A topic that is there, or as `ensure_topic` would make it; nothing is made yet.

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
        """A topic that is made, of type MIXED, if it is not there and may be made on first use.

        Raises:
            StatusError: as `topic` does.
        """
        topic = self.topic_to_be(name)
        if topic.queues:
            return topic
        try:
            response = await self._controller.call(
                ENSURE_TOPIC,
                EnsureTopicRequest(name=name, type=TopicType.MIXED),
                timeout_s=_CONTROLLER_TIMEOUT_S,
            )
        except RpcError as error:
            raise of_rpc_error(error, f"the controller, which would make the topic {name},") from error
        return response.topic

    def knows(self, topic: str, group: str) -> bool:
        """Whether a topic and a consumer group are there."""
        return self.find_topic(topic) is not None and self.find_group(group) is not None

    def find_group(self, name: str) -> Group | None:
        """A consumer group that is there."""
        return self._view.groups.get(name)

    def check_group(self, name: GroupName) -> None:
        """Whether `ensure_group` would give a group; nothing is made yet.

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

    async def ensure_group(self, name: GroupName) -> Group:
        """A consumer group that is made if it is not there and may be made on first use.

        Raises:
            StatusError: CONSUMER_GROUP_NOT_FOUND, or HA_NOT_AVAILABLE before anything is known of the cluster or while
                the controller is away.
        """
        group = self._view.groups.get(name)
        if group is not None:
            return group
        self.check_group(name)
        try:
            response = await self._controller.call(
                ENSURE_GROUP, EnsureGroupRequest(name=name), timeout_s=_CONTROLLER_TIMEOUT_S
            )
        except RpcError as error:
            raise of_rpc_error(error, f"the controller, which would make the group {name},") from error
        return response.group

    def _check_ready(self) -> None:
        if not self._view.ready:
            raise StatusError(
                Code.HA_NOT_AVAILABLE, "this proxy has not heard of the cluster's topics yet; try again in a moment"
            )
