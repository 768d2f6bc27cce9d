"""100 proxies and 200 brokers: the calls, streams and registrations of docs/internals/performance.md."""

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from popwheel_cli.options import StandaloneOptions
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.popwheel.v1.broker_pb2 import NotifyEvents
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.methods import NOTIFY, SAMPLE_ACTIVITY
from tests.sim.admin import Admin
from tests.sim.captured_log import CapturedLog
from tests.sim.cluster.clients import ClientNetwork
from tests.sim.cluster.swarm import SMALL_TIMER
from tests.sim.cluster.world import ClusterWorld
from tests.sim.history import History
from tests.sim.loop import SimLoop
from tests.sim.producers import Producer
from tests.sim.tools import LogEnd, Tools, headers
from tests.sim.trace import Trace
from tests.sim.workload import OwnTopic

PROXIES, BROKERS = 100, 200
FEW = 4
"""Number of proxies with polls of the group that is polled at few of them."""
MESSAGES = 20
WAIT_S = 8.0


class Cluster:
    """The cluster, its clients, and the calls that were counted."""

    def __init__(self) -> None:
        self.loop = SimLoop(steps_max=50_000_000)
        self.trace = Trace(self.loop)
        options = StandaloneOptions.model_validate(
            {
                "broker": {"timer": SMALL_TIMER, "checkpoint_interval_ms": 600_000, "flush": "async"},
                "proxy": {"poll_mode": "notify"},
            }
        )
        self.world = ClusterWorld(
            self.loop, self.trace, lambda purpose: random.Random(f"scale/{purpose}"), options, tamper=self._count_events
        )
        self.history = History()
        self.calls: Counter[str] = Counter()
        self.samples = 0
        """Calls that the controller makes every ten seconds, whatever else there is."""
        self.world.network.calls = self._count
        self.events = 0
        self.polls = 0
        self._got: dict[str, set[str]] = {}
        self._polling: list[asyncio.Task[None]] = []
        self._stopping = False

    def _count(self, caller: str, address: str, method: str) -> None:
        if method == SAMPLE_ACTIVITY.name:
            self.samples += 1
        elif address.startswith(("broker-", "controller")):
            self.calls[method] += 1

    def _count_events(self, path: str, message: bytes) -> Iterable[tuple[bytes, float]]:
        if path == NOTIFY.path:
            self.events += len(NotifyEvents.FromString(message).events)
        return ((message, 0.0),)

    async def begin(self) -> None:
        """Start everything."""
        world = self.world
        await world.controller.boot()
        admin = Admin(lambda: world.leader, world.options.controller)
        for name in ("few", "all"):
            await admin.make_topic(name, OwnTopic(TopicType.NORMAL, 8))
            await admin.make_group(name, 16)
        for _ in range(BROKERS):
            await world.add_broker().boot()
        for _ in range(PROXIES):
            await world.add_proxy().boot()
        await asyncio.sleep(5)

    async def poll(self, group: str, proxies: int) -> None:
        """Let one consumer poll at each of some proxies, and acknowledge at once what it gets."""
        self._stopping = False

        async def consume(number: int) -> None:
            name = f"{group}-{number}"
            network = self.world.client(name, 1.0, f"proxy-{number}")
            while not self._stopping:
                await self.poll_once(network, name, group, WAIT_S)

        self._polling += [self.loop.create_task(consume(number)) for number in range(proxies)]
        await asyncio.sleep(2)

    async def poll_once(self, network: ClientNetwork, name: str, group: str, wait_s: float) -> None:
        """One poll, and the ack of what it finds."""
        self.polls += 1
        of, topic = d.Resource(name=group), d.Resource(name=group)
        request = pb.ReceiveMessageRequest(group=of, message_queue=d.MessageQueue(topic=topic, id=-1), batch_size=1)
        request.invisible_duration.FromSeconds(60)
        request.long_polling_timeout.FromSeconds(int(wait_s))
        parts: list[pb.ReceiveMessageResponse] = []
        await network.receive(request, headers(name), wait_s + 3, parts.append, None)
        for part in parts:
            if part.HasField("message"):
                properties = part.message.system_properties
                self._got.setdefault(group, set()).add(properties.message_id)
                ack = pb.AckMessageRequest(group=of, topic=topic)
                ack.entries.add(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
                answer = await network.call(protocol.ACK_MESSAGE, ack, headers(name), 3.0)
                assert answer.status.code == d.Code.OK

    async def stop_polling(self) -> None:
        """Let all polls end and begin no new ones."""
        self._stopping = True
        await asyncio.gather(*self._polling)
        self._polling = []

    async def send(self, topic: str, count: int, pause_s: float) -> None:
        """Send messages one after the other."""
        name = f"p{len(self.history.sent)}"
        tools = Tools(self.world.client(name, 1.0, "proxy-0"), self.history, self.trace, self.loop, LogEnd())
        producer = Producer(name, tools, random.Random(1), [topic], [], 1.0, 1, 100)
        for _ in range(count):
            await producer.send([producer.message(topic)])
            await asyncio.sleep(pause_s)

    def got(self, group: str) -> int:
        """How many messages the group has."""
        return len(self._got.get(group, ()))

    def counted(self) -> Counter[str]:
        """The calls so far, and the events that were told."""
        return self.calls + Counter(events=self.events)

    def since(self, before: Counter[str]) -> Counter[str]:
        """The calls that were made since."""
        return self.calls - before

    def connections(self) -> int:
        """How many there are between proxies and brokers."""
        there = [connection.ways[0] for connection in self.world.network._all()]
        return sum("proxy-" in way.source and "broker-" in way.target for way in there)

    def registrations(self) -> set[int]:
        """How many interests a broker holds, each number once."""
        programs = [machine.program for machine in self.world.brokers.values()]
        return {len(program.app.core.interests) for program in programs if program is not None}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster whose loop is the current one."""
    collecting = gc.isenabled()
    gc.disable()
    made = Cluster()
    asyncio.set_event_loop(made.loop)
    try:
        with CapturedLog(made.trace, made.world.findings.append) as log:
            yield made
            log.muted = True
            for machine in made.world.machines():
                machine.kill()
        assert not made.world.findings and not made.loop.failures
    finally:
        asyncio.set_event_loop(None)
        made.loop.bury()
        if collecting:
            gc.enable()


@pytest.mark.timeout(600)
def test_calls_streams_and_registrations_are_as_many_as_on_paper(cluster: Cluster) -> None:
    cluster.loop.run_until_complete(check(cluster))


async def check(cluster: Cluster) -> None:
    """What docs/internals/performance.md says, line by line."""
    await cluster.begin()
    assert cluster.calls == {"Watch": PROXIES + BROKERS, "RegisterBroker": BROKERS, "Notify": PROXIES * BROKERS}
    assert cluster.connections() == PROXIES * BROKERS

    for group, proxies, registered in (("few", FEW, FEW), ("all", PROXIES, FEW + PROXIES)):
        before = cluster.counted()
        await cluster.poll(group, proxies)
        assert cluster.since(before) == {"Pop": proxies}
        assert cluster.registrations() == {registered}
        assert cluster.events - before["events"] == proxies * BROKERS

        before = cluster.counted()
        await cluster.send(group, MESSAGES, 0.5)
        assert cluster.got(group) == MESSAGES
        assert cluster.since(before) == {"Put": MESSAGES, "Pop": MESSAGES, "Ack": MESSAGES}
        assert cluster.events - before["events"] == MESSAGES

    before, polls = cluster.counted(), cluster.polls
    await asyncio.sleep(WAIT_S + 1)
    assert cluster.polls - polls >= FEW + PROXIES
    assert cluster.since(before) == {}

    await cluster.stop_polling()
    before = cluster.counted()
    await cluster.poll("all", FEW)
    await cluster.send("all", MESSAGES, 0.3)
    assert cluster.got("all") == 2 * MESSAGES
    calls = cluster.since(before)
    assert calls["Ack"] == calls["Put"] == MESSAGES
    assert calls["Pop"] <= (FEW + 1) * MESSAGES
    print("polls moved from all proxies to a few:", dict(calls), "events:", cluster.events - before["events"])

    await cluster.stop_polling()
    before = cluster.counted()
    await cluster.poll_once(cluster.world.client("once", 1.0, "proxy-0"), "once", "few", 0.0)
    assert cluster.since(before)["Pop"] <= BROKERS
    print("a short poll:", dict(cluster.since(before)))
    assert cluster.samples <= BROKERS * (cluster.loop.time() / 10 + 1)
