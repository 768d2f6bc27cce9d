"""A proxy among fakes, and a client that talks to it; all in one process, without a socket."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from prometheus_client import CollectorRegistry

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_common.runtime import Runtime
from popwheel_common.settings.access_options import AccessOptions
from popwheel_common.settings.otel_options import OtelOptions
from popwheel_proxy.app import ProxyApp, ProxyChannels
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.receive.shared_count import CountStore
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.service import Channel, ClientStream
from tests.harness.shifted_clock import ShiftedClock
from tests.unit.proxy.fake_broker import FakeBroker
from tests.unit.proxy.fake_controller import FakeController

CLIENT = {"x-mq-client-id": "client-1", "x-mq-client-version": "5.1.2"}
BATCH = 32


def message(
    topic: str = "orders", body: bytes = b"body", message_id: str = "01" + "A" * 32, **more: object
) -> d.Message:
    """A message as a producer sends it; `more` are system properties."""
    properties = {
        "message_id": message_id,
        "message_type": d.MessageType.NORMAL,
        "body_encoding": d.Encoding.IDENTITY,
        "born_host": "here",
        **more,
    }
    return d.Message(
        topic=d.Resource(name=topic),
        body=body,
        system_properties=d.SystemProperties(**properties),  # type: ignore[arg-type]
    )


@dataclass(slots=True)
class Received:
    """What a poll was answered."""

    status: d.Status
    messages: list[d.Message]
    kinds: list[str]

    @property
    def code(self) -> int:
        """The status' code."""
        return self.status.code

    @property
    def bodies(self) -> list[bytes]:
        """The messages' bodies."""
        return [one.body for one in self.messages]

    @property
    def handles(self) -> list[str]:
        """The messages' receipt handles."""
        return [one.system_properties.receipt_handle for one in self.messages]


class World:
    """A proxy with its fakes."""

    def __init__(
        self,
        options: ProxyOptions,
        *brokers: str,
        clock: ShiftedClock | None = None,
        count_store: CountStore | None = None,
        access: AccessOptions | None = None,
        otel: OtelOptions | None = None,
    ) -> None:
        self.clock = clock or ShiftedClock()
        self.controller = FakeController(*brokers)
        self.brokers = {name: FakeBroker(name) for name in brokers}
        self.registry = CollectorRegistry()
        self.app = ProxyApp(
            Runtime(self.clock, random.Random(1), self.registry),
            options,
            ProxyChannels(LocalChannel(self.controller.service, clock=self.clock), self._connect),
            count_store=count_store,
            access=access or AccessOptions(),
            otel=otel or OtelOptions(),
        )
        self.polls: list[asyncio.Task[Received]] = []
        self.channel: Channel = LocalChannel(self.app.service, clock=self.clock)

    def _connect(self, info: BrokerInfo) -> Channel:
        return LocalChannel(self.brokers.setdefault(info.name, FakeBroker(info.name)).service)

    @property
    def broker(self) -> FakeBroker:
        """The only broker."""
        (broker,) = self.brokers.values()
        return broker

    def metric(self, name: str, labels: dict[str, str] | None = None) -> float:
        """The value of a metric."""
        return self.registry.get_sample_value(name, labels or {}) or 0.0

    async def send(self, *messages: d.Message, metadata: dict[str, str] = CLIENT) -> pb.SendMessageResponse:
        """Send messages in one request."""
        request = pb.SendMessageRequest(messages=messages).SerializeToString()
        answer = await self.channel.call(protocol.SEND_MESSAGE, request, metadata=metadata)
        return pb.SendMessageResponse.FromString(answer)

    def open_receive(
        self, request: pb.ReceiveMessageRequest, metadata: dict[str, str] = CLIENT
    ) -> ClientStream[bytes, pb.ReceiveMessageRequest]:
        """Begin a poll."""
        return self.channel.open(protocol.RECEIVE_MESSAGE, metadata=metadata)

    async def receive(self, request: pb.ReceiveMessageRequest, metadata: dict[str, str] = CLIENT) -> Received:
        """Poll, and read the whole answer."""
        stream = self.open_receive(request, metadata)
        await stream.send((request,))
        await stream.end()
        received = Received(d.Status(), [], [])
        while (part := await stream.receive()) is not None:
            response = pb.ReceiveMessageResponse.FromString(part)
            kind = response.WhichOneof("content")
            assert kind is not None
            received.kinds.append(kind)
            if kind == "status":
                received.status = response.status
            elif kind == "message":
                received.messages.append(response.message)
        return received

    def poll(self, request: pb.ReceiveMessageRequest, metadata: dict[str, str] = CLIENT) -> "asyncio.Task[Received]":
        """Poll in a task of its own."""
        task = asyncio.create_task(self.receive(request, metadata))
        self.polls.append(task)
        return task

    async def ack(self, *handles: str, metadata: dict[str, str] = CLIENT) -> pb.AckMessageResponse:
        """Acknowledge messages."""
        request = pb.AckMessageRequest(
            group=d.Resource(name="group"),
            topic=d.Resource(name="orders"),
            entries=[
                pb.AckMessageEntry(message_id=str(index), receipt_handle=one) for index, one in enumerate(handles)
            ],
        )
        return await self.channel.call(protocol.ACK_MESSAGE, request, metadata=metadata)


def poll_request(
    wait_s: float = 20.0, invisible_s: float = 30.0, batch: int = BATCH, broker: str = "b1", **more: object
) -> pb.ReceiveMessageRequest:
    """A poll as a simple consumer sends it."""
    request = pb.ReceiveMessageRequest(
        group=d.Resource(name="group"),
        message_queue=d.MessageQueue(topic=d.Resource(name="orders"), broker=d.Broker(name=broker)),
        filter_expression=d.FilterExpression(type=d.FilterType.TAG, expression="*"),
        batch_size=batch,
        long_polling_timeout=_duration(wait_s),
        invisible_duration=_duration(invisible_s),
    )
    for name, value in more.items():
        if isinstance(value, bool | int | str):
            setattr(request, name, value)
        else:
            getattr(request, name).CopyFrom(value)
    return request


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(int(seconds * 1000))
    return duration


@asynccontextmanager
async def world(
    *brokers: str,
    clock: ShiftedClock | None = None,
    count_store: CountStore | None = None,
    access: AccessOptions | None = None,
    otel: OtelOptions | None = None,
    **options: object,
) -> AsyncIterator[World]:
    """A proxy that serves, with the topic `orders` and the group `group`."""
    made = World(
        ProxyOptions.model_validate(options),
        *(brokers or ("b1",)),
        clock=clock,
        count_store=count_store,
        access=access,
        otel=otel,
    )
    made.controller.add_topic("orders")
    made.controller.add_group("group")
    await made.app.start()
    await until(lambda: made.app.ready)
    try:
        yield made
    finally:
        for poll in made.polls:
            poll.cancel()
        await asyncio.gather(*made.polls, return_exceptions=True)
        await made.channel.close()
        await made.app.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def turns(count: int = 20) -> None:
    """Let the loop turn a few times."""
    for _ in range(count):
        await asyncio.sleep(0)
