"""What is seen of the services from within, with no part in it: when messages could be had, who knew of whom."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest.mock import patch

from popwheel_broker.app import BrokerApp
from popwheel_broker.calls.server import BrokerServer
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_common.contract import names
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendMessageRequest
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_proxy.app import ProxyApp
from popwheel_proxy.protocol.client_methods import SEND_MESSAGE
from popwheel_rpc.service import Call
from tests.sim.history import Handle
from tests.sim.loop import SimLoop
from tests.sim.swarm import ORDERED_TOPIC


class Entry(NamedTuple):
    """One entry of a queue.

    Args:
        broker: where.
        topic, queue_id, offset: the place there.
    """

    broker: str
    topic: str
    queue_id: int
    offset: int


class Arrival(NamedTuple):
    """A message that became readable.

    Args:
        time_s: when.
        tag_hash: of its tag.
    """

    time_s: float
    tag_hash: int


@dataclass(slots=True)
class Span:
    """From when to when something was so."""

    began_s: float
    ended_s: float = float("inf")


@dataclass(slots=True)
class Sightings:
    """All of it.

    Args:
        loop: whose time it is.
        arrivals: messages that became readable.
        given: when each was first delivered, by the group and the entry.
        knowing: by proxy and broker, when the proxy knew of the broker.
        ready: by broker, when it had learned of the cluster's topics.
        taken: by a proxy's life, ids of messages with message groups in the order in which they came there.
    """

    loop: SimLoop
    arrivals: dict[Entry, Arrival] = field(default_factory=dict)
    given: dict[tuple[str, Entry], float] = field(default_factory=dict)
    knowing: dict[tuple[str, str], list[Span]] = field(default_factory=dict)
    ready: dict[str, list[Span]] = field(default_factory=dict)
    taken: dict[str, list[str]] = field(default_factory=dict)

    def watch_broker(self, name: str) -> Callable[[BrokerApp], None]:
        """What looks at a broker before it starts."""

        def watch(broker: BrokerApp) -> None:
            self._watch_arrivals(name, broker)
            spans = self.ready.setdefault(name, [])

            def learned(_: ClusterUpdate) -> None:
                if not spans or spans[-1].ended_s != float("inf"):
                    spans.append(Span(self.loop.time()))

            broker.view.subscribe(learned)

        return watch

    def watch_proxy(self, name: str) -> Callable[[ProxyApp], None]:
        """What looks at a proxy before it starts."""

        def watch(proxy: ProxyApp) -> None:
            def learned(_: ClusterUpdate) -> None:
                for broker in proxy.view.brokers.keys() | {broker for at, broker in self.knowing if at == name}:
                    spans = self.knowing.setdefault((name, broker), [])
                    knew = bool(spans) and spans[-1].ended_s == float("inf")
                    if broker in proxy.view.brokers and not knew:
                        spans.append(Span(self.loop.time()))
                    elif broker not in proxy.view.brokers and knew:
                        spans[-1].ended_s = self.loop.time()

            proxy.view.subscribe(learned)
            watch_sends(self.taken.setdefault(f"{name} at {self.loop.time():.6f}", []), proxy)

        return watch

    def arrivals_for(self, group: str, topic: str) -> int:
        """How many messages came that a group may have been told of."""
        return sum(entry.topic in (topic, names.retry_topic(group, topic)) for entry in self.arrivals)

    def waiting(self, group: str, topic: str, wanted: frozenset[int] | None) -> list[tuple[Entry, float]]:
        """What was never given to a group that it wants, and since when it is there.

        Args:
            group, topic: who reads what.
            wanted: hashes of the tags that it wants; None for all.
        """
        retry = names.retry_topic(group, topic)
        return [
            (entry, arrival.time_s)
            for entry, arrival in self.arrivals.items()
            if (group, entry) not in self.given
            and (entry.topic == retry or (entry.topic == topic and (wanted is None or arrival.tag_hash in wanted)))
        ]

    def ended(self, name: str) -> None:
        """A process is no more."""
        over = [spans for (proxy, _), spans in self.knowing.items() if proxy == name]
        for spans in (*over, self.ready.get(name, [])):
            if spans and spans[-1].ended_s == float("inf"):
                spans[-1].ended_s = self.loop.time()

    def _watch_arrivals(self, name: str, broker: BrokerApp) -> None:
        store = broker.core.store
        reported = store._on_arrival

        def arrived(queue: ConsumeQueue, tag_hashes: Sequence[int]) -> None:
            first = queue.max_offset - len(tag_hashes)
            for number, tag_hash in enumerate(tag_hashes):
                entry = Entry(name, queue.topic, queue.queue_id, first + number)
                self.arrivals.setdefault(entry, Arrival(self.loop.time(), tag_hash))
            reported(queue, tag_hashes)

        store._on_arrival = arrived

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch the pops of all brokers while the run lasts."""
        pop = BrokerServer._pop_once

        def popped(server: BrokerServer, request: PopRequest, turn: int) -> PopAnswer:
            answer = pop(server, request, turn)
            name = server._options.name
            for receipt in answer.handles:
                handle = Handle.read(receipt)
                topic = names.retry_topic(request.group, request.topic) if handle.from_retry else request.topic
                entry = Entry(name, topic, handle.queue_id, handle.offset)
                self.given.setdefault((request.group, entry), self.loop.time())
            return answer

        with patch.object(BrokerServer, "_pop_once", popped):
            yield


def watch_sends(taken: list[str], proxy: ProxyApp) -> None:
    """Note which messages with message groups come to a proxy, in their order."""
    handlers = proxy.service.unary_handlers
    method, handle = handlers[SEND_MESSAGE.path]

    async def noted(call: Call, request: bytes) -> object:
        if ORDERED_TOPIC.encode() in request:
            taken.extend(each.system_properties.message_id for each in SendMessageRequest.FromString(request).messages)
        return await handle(call, request)

    handlers[SEND_MESSAGE.path] = method, noted
