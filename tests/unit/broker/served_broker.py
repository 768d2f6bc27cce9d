"""A whole `BrokerApp` on a disk in memory, called through a local channel."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from popwheel_broker.app import BrokerApp
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.channels import BrokerChannels
from popwheel_common.contract.put import MessageRun, PutResult
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    BrokerGroup,
    Cluster,
    ClusterUpdate,
    Group,
    Topic,
    WatchRequest,
)
from popwheel_common.runtime import Runtime
from popwheel_rpc import methods
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.service import Call, Service, Stream
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.world import INVISIBLE_MS, KEY, tag_filter, wire_message, with_small_timer

FOLDER = Path("/broker")


class FakeController:
    """Streams one snapshot, and then what the test publishes."""

    def __init__(self) -> None:
        self.snapshot = ClusterUpdate(
            version=1,
            snapshot=True,
            cluster=Cluster(name="test", receipt_key=KEY),
            topics=[Topic(name="t", queues=2, id=1)],
            groups=[Group(name="g", max_attempts=2, id=1)],
        )
        self.updates: asyncio.Queue[ClusterUpdate] = asyncio.Queue()
        self.service = Service()
        self.service.stream(methods.WATCH, self._watch)

    async def _watch(self, call: Call, stream: Stream[WatchRequest, ClusterUpdate]) -> None:
        await stream.receive()
        await stream.send([self.snapshot])
        while True:
            await stream.send([await self.updates.get()])


class Broker:
    """A broker and short calls of it."""

    def __init__(self, disk: MemoryDisk, options: BrokerOptions, clock: ManualClock) -> None:
        self.disk, self.clock = disk, clock
        self.registry = CollectorRegistry()
        self.controller = FakeController()
        self.to_controller = LocalChannel(self.controller.service, clock=clock)
        self.app = BrokerApp(
            Runtime(clock, random.Random(0), self.registry),
            with_small_timer(options),
            FOLDER,
            BrokerChannels(self.to_controller),
            disk,
        )
        self.channel = LocalChannel(self.app.service, clock=clock)

    async def start(self) -> None:
        """Recover, and lead."""
        await self.app.start()
        self.learn()
        await self.app.roles.until_leads()
        await self.app.controller_watch.wait_ready()

    def learn(self) -> None:
        """The controller says that this replica leads, alone."""
        self.app.roles.group_changed(BrokerGroup(name="broker-0", version=1, epoch=1, master=0, sync_state_set=[0]))

    async def put(
        self, body: bytes, tag: str = "", queue_id: int = 0, topic: str = "t", keys: Sequence[str] = ()
    ) -> PutResult:
        payload, properties = wire_message(topic, body, tag, keys=keys)
        run = MessageRun(topic, queue_id, [payload], [properties], [tag])
        return (await self.channel.call(methods.PUT, [run]))[0]

    async def pop(
        self, max_messages: int = 32, invisible_ms: int = INVISIBLE_MS, client_id: str = "", group: str = "g"
    ) -> list[str]:
        """Handles of what was popped."""
        request = pb.PopRequest(
            group=group,
            topic="t",
            queue_id=-1,
            max_messages=max_messages,
            invisible_ms=invisible_ms,
            client_id=client_id,
        )
        return (await self.channel.call(methods.POP, request)).handles

    async def ack(self, *handles: str) -> list[int]:
        request = pb.AckRequest(group="g", topic="t", receipt_handles=handles)
        results = (await self.channel.call(methods.ACK, request)).results
        return [result.code for result in results] or [Code.OK] * len(handles)

    async def pull(
        self, offset: int, max_messages: int = 32, wait_ms: int = 0, expression: str = "*"
    ) -> tuple[list[bytes], int]:
        request = pb.PullRequest(
            group="g",
            topic="t",
            queue_id=0,
            offset=offset,
            max_messages=max_messages,
            wait_ms=wait_ms,
            filter=tag_filter(expression),
        )
        response = await self.channel.call(methods.PULL, request)
        return [Message.FromString(each).body for each in response.messages], response.next_offset

    def metrics(self) -> str:
        return generate_latest(self.registry).decode()


@asynccontextmanager
async def running(
    disk: MemoryDisk | None = None, options: BrokerOptions | None = None, clock: ManualClock | None = None
) -> AsyncIterator[Broker]:
    """A broker that leads, for as long as the `with` block takes."""
    broker = Broker(disk or MemoryDisk(random.Random(0), 1 << 30), options or BrokerOptions(), clock or ManualClock())
    await broker.start()
    await asyncio.sleep(0)
    try:
        yield broker
    finally:
        await broker.channel.close()
        await broker.app.stop()
        await broker.to_controller.close()


async def refused(work: object, code: int, sentence: str) -> None:
    """See that a call is refused with a code, and a sentence of which this is a part."""
    with pytest.raises(StatusError, match=sentence) as caught:
        await work  # type: ignore[misc]
    assert caught.value.code == code


async def events(stream: object) -> dict[int, int]:
    """The next words of a Notify stream: how many messages wait, by interest."""
    received = await stream.receive()  # type: ignore[attr-defined]
    return {event.id: event.waiting for event in received.events}
