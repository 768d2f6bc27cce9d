"""A controller in memory: delivers topics, groups and brokers, and makes them when asked."""

import asyncio
from collections.abc import Callable

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import controller_pb2 as pb
from popwheel_rpc.methods import ENSURE_GROUP, ENSURE_TOPIC, WATCH
from popwheel_rpc.service import Call, Service, Stream

KEY = b"key of the tests"


class FakeController:
    """Serves Watch, EnsureTopic and EnsureGroup."""

    def __init__(self, *brokers: str) -> None:
        self.version = 1
        self.topics: dict[str, pb.Topic] = {}
        self.groups: dict[str, pb.Group] = {}
        self.brokers = {name: pb.BrokerInfo(name=name, address=f"{name}:1") for name in brokers}
        self.gone: set[str] = set()
        """Brokers that left and may come back."""
        self.away = False
        self.answers_after_s = 0.0
        """The time that it takes to make a name."""
        self.resting: set[str] = set()
        """Names that were deleted by hand, and are not made on first use."""
        self.after_refusal: Callable[[], None] = lambda: None
        """Called between a refusal and its answer."""
        self.gate = asyncio.Event()
        """Names are made while it is set."""
        self.gate.set()
        self.ensured = 0
        """The number of times that a name was asked for."""
        self._watchers: list[asyncio.Queue[pb.ClusterUpdate]] = []
        self.service = Service()
        self.service.stream(WATCH, self._watch)
        self.service.unary(ENSURE_TOPIC, self._ensure_topic)
        self.service.unary(ENSURE_GROUP, self._ensure_group)

    def add_topic(self, name: str, kind: pb.TopicType.ValueType = pb.TopicType.NORMAL, queues: int = 4) -> pb.Topic:
        """Make a topic."""
        topic = self.topics[name] = pb.Topic(name=name, type=kind, queues=queues, id=self.version + 1)
        self.publish(pb.ClusterUpdate(topics=[topic]))
        return topic

    def add_group(self, name: str, *, fifo: bool = False) -> pb.Group:
        """Make a group."""
        group = self.groups[name] = pb.Group(
            name=name, max_attempts=5, fifo=fifo, backoff_ms=[1000, 5000], id=self.version + 1
        )
        self.publish(pb.ClusterUpdate(groups=[group]))
        return group

    def delete_topic(self, name: str) -> None:
        """A topic is deleted."""
        del self.topics[name]
        self.publish(pb.ClusterUpdate(deleted_topics=[name]))

    def delete_group(self, name: str) -> None:
        """A group is deleted."""
        del self.groups[name]
        self.publish(pb.ClusterUpdate(deleted_groups=[name]))

    def add_broker(self, name: str) -> None:
        """A broker comes."""
        self.brokers[name] = pb.BrokerInfo(name=name, address=f"{name}:1")
        self.publish(pb.ClusterUpdate(brokers=[self.brokers[name]]))

    def remove_broker(self, name: str, *, is_known: bool = False) -> None:
        """A broker leaves; one that is known may come back."""
        del self.brokers[name]
        self.gone = {*self.gone, name} if is_known else self.gone - {name}
        self.publish(pb.ClusterUpdate(departed_brokers=[name], away_brokers=[name] if is_known else []))

    def publish(self, update: pb.ClusterUpdate) -> None:
        """Tell all who watch of a change."""
        self.version += 1
        update.version = self.version
        for watcher in self._watchers:
            watcher.put_nowait(update)

    async def _watch(self, call: Call, stream: Stream[pb.WatchRequest, pb.ClusterUpdate]) -> None:
        await stream.receive()
        snapshot = pb.ClusterUpdate(
            version=self.version,
            snapshot=True,
            cluster=pb.Cluster(name="test", receipt_key=KEY),
            topics=self.topics.values(),
            groups=self.groups.values(),
            brokers=self.brokers.values(),
            away_brokers=self.gone,
        )
        updates: asyncio.Queue[pb.ClusterUpdate] = asyncio.Queue()
        self._watchers.append(updates)
        await stream.send((snapshot,))
        while True:
            await stream.send((await updates.get(),))

    async def _ensure_topic(self, call: Call, request: pb.EnsureTopicRequest) -> pb.EnsureTopicResponse:
        await self._check_there()
        if request.name in self.resting:
            raise StatusError(Code.TOPIC_NOT_FOUND, f"the topic {request.name} was deleted by an operator")
        return pb.EnsureTopicResponse(topic=self.topics.get(request.name) or self.add_topic(request.name, request.type))

    async def _ensure_group(self, call: Call, request: pb.EnsureGroupRequest) -> pb.EnsureGroupResponse:
        await self._check_there()
        if self.answers_after_s:
            await asyncio.sleep(self.answers_after_s)
        if request.name in self.resting:
            self.after_refusal()
            await asyncio.sleep(0.01)
            raise StatusError(Code.CONSUMER_GROUP_NOT_FOUND, f"the group {request.name} was deleted by an operator")
        return pb.EnsureGroupResponse(group=self.groups.get(request.name) or self.add_group(request.name))

    async def _check_there(self) -> None:
        self.ensured += 1
        await self.gate.wait()
        if self.away:
            raise StatusError(Code.HA_NOT_AVAILABLE, "the controller is away")
