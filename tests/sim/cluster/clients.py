"""The clients' way to the proxies: any proxy for any call, as a load balancer would have it."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import (
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    TelemetryCommand,
)
from popwheel_proxy.protocol.client_methods import RECEIVE_MESSAGE, TELEMETRY
from popwheel_rpc.service import Method, StreamClosedError
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.sim.cluster.network import Network, SimChannel
from tests.sim.process import MachineClock, Process

Request = TypeVar("Request")
Response = TypeVar("Response")

_KEEPALIVE_S = 10.0


@dataclass(slots=True)
class Failed:
    """A call that had no answer.

    Args:
        client, proxy: whose, at whom.
        method: which.
        began_s, ended_s: when.
        status: how it ended.
    """

    client: str
    proxy: str
    method: str
    began_s: float
    ended_s: float
    status: GrpcStatus


@dataclass(slots=True)
class Served:
    """A poll at a proxy.

    Args:
        client, proxy: whose, at whom.
        group, topic: for what.
        filter: of which messages, as the client wrote it.
        wait_s: how long it asked to wait.
        began_s, ended_s: when it was sent off, and when its end was known.
    """

    client: str
    proxy: str
    group: str
    topic: str
    filter: str
    wait_s: float
    began_s: float
    ended_s: float = -1.0


@dataclass(slots=True)
class Log:
    """What is known of calls, whoever made them."""

    failed: list[Failed] = field(default_factory=list)
    polls: list[Served] = field(default_factory=list)


class ClientNetwork:
    """One client's way to the proxies (`tests.sim.network.Network` for clients of a cluster).

    Args:
        name: the client's machine.
        network: where it is.
        chance: which proxy is next.
        proxies: names of those that clients know of.
        log: notes what becomes of calls.
        loyal: how often a call goes to the same proxy as the one before.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        chance: random.Random,
        proxies: Callable[[], list[str]],
        log: Log,
        loyal: float,
    ) -> None:
        self._network = network
        self._chance = chance
        self._proxies = proxies
        self._log = log
        self._loyal = loyal
        self._process = Process(network.loop, 1, MachineClock(network.loop), name)
        self._channels: dict[str, SimChannel] = {}
        self._last = ""
        self._only = ""

    def to_one_proxy(self, chance: random.Random) -> None:
        """From now on all calls go to one proxy, also if it is away."""
        self._only = chance.choice(self._proxies())

    async def call(
        self, method: Method[Request, Response], request: Request, metadata: Mapping[str, str], timeout_s: float
    ) -> Response:
        """Call a unary method of some proxy; see `tests.sim.network.Network.call`."""
        proxy, began_s = self._choose(), self._network.loop.time()
        try:
            return await self._channel(proxy).call(method, request, timeout_s=timeout_s, metadata=metadata)
        except RpcError as error:
            self._failed(proxy, method.name, began_s, error)
            raise

    async def telemetry(
        self, command: TelemetryCommand, metadata: Mapping[str, str], taken: Callable[[TelemetryCommand], None]
    ) -> None:
        """Open a Telemetry stream to some proxy; see `tests.sim.network.Network.telemetry`."""
        proxy = self._choose()
        stream = self._channel(proxy).open(TELEMETRY, metadata=metadata)
        try:
            await stream.send([command])
            while (reported := await stream.receive()) is not None:
                taken(reported)
        except StreamClosedError as error:
            raise RpcError(GrpcStatus.UNAVAILABLE, str(error)) from None
        finally:
            stream.cancel()

    async def receive(
        self,
        request: ReceiveMessageRequest,
        metadata: Mapping[str, str],
        timeout_s: float,
        taken: Callable[[ReceiveMessageResponse], None],
        vanish_after_s: float | None,
    ) -> bool:
        """Call ReceiveMessage of some proxy; see `tests.sim.network.Network.receive`."""
        proxy, began_s = self._choose(), self._network.loop.time()
        poll = Served(
            self._process.name,
            proxy,
            request.group.name,
            request.message_queue.topic.name,
            request.filter_expression.expression,
            request.long_polling_timeout.ToMilliseconds() / 1000,
            began_s,
        )
        self._log.polls.append(poll)
        patience_s = timeout_s if vanish_after_s is None else min(vanish_after_s, timeout_s)
        stream = self._channel(proxy).open(RECEIVE_MESSAGE, metadata=metadata, timeout_s=timeout_s)
        try:
            async with asyncio.timeout(patience_s):
                with contextlib.suppress(StreamClosedError):  # what it ended with is read below
                    await stream.send([request])
                await stream.end()
                while (part := await stream.receive()) is not None:
                    taken(ReceiveMessageResponse.FromString(part))
            return True
        except TimeoutError:
            if vanish_after_s is not None:
                return False
            error = RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed")
            self._failed(proxy, RECEIVE_MESSAGE.name, began_s, error)
            raise error from None
        except RpcError as error:
            self._failed(proxy, RECEIVE_MESSAGE.name, began_s, error)
            raise
        finally:
            poll.ended_s = self._network.loop.time()
            stream.cancel()

    def _choose(self) -> str:
        if self._only:
            return self._only
        proxies = self._proxies()
        if self._last not in proxies or self._chance.random() >= self._loyal:
            self._last = self._chance.choice(proxies)
        return self._last

    def _channel(self, proxy: str) -> SimChannel:
        channel = self._channels.get(proxy)
        if channel is None:
            channel = self._network.channel(self._process, f"{proxy}:0", _KEEPALIVE_S)
            self._channels[proxy] = channel
        return channel

    def _failed(self, proxy: str, method: str, began_s: float, error: RpcError) -> None:
        self._last = ""
        name = self._process.name
        self._log.failed.append(Failed(name, proxy, method, began_s, self._network.loop.time(), error.status))
