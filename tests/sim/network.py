"""The ways between clients, proxy and broker: they take time, break with the process, and may lose an answer."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import (
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    TelemetryCommand,
)
from popwheel_proxy.protocol.client_methods import RECEIVE_MESSAGE, TELEMETRY
from popwheel_rpc.service import Call, Channel, ClientStream, Method, Service, StreamClosedError
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.sim.loop import SimLoop
from tests.sim.process import Process

Request = TypeVar("Request")
Response = TypeVar("Response")

_CONNECT_S = 0.001


@dataclass(slots=True)
class Weather:
    """How bad the ways are now.

    Args:
        delay_s_max: what one direction takes at the most, between clients and proxy.
        lost_share: share of answers that clients never see.
        inner_delay_s_max: the same between proxy and broker.
        inner_lost_share: the same between proxy and broker.
    """

    delay_s_max: float = 0.0
    lost_share: float = 0.0
    inner_delay_s_max: float = 0.0
    inner_lost_share: float = 0.0


class Network:
    """Takes clients' calls to whatever process serves now.

    Args:
        loop: the loop.
        random_source: delays and losses.
        weather: how bad it is; may change while it runs.
        serving: the process that serves and its service, None while there is none.
        passed_on: what handlers raise that their callers are to see as it is.
    """

    def __init__(
        self,
        loop: SimLoop,
        random_source: random.Random,
        weather: Weather,
        serving: Callable[[], tuple[Process, Service] | None],
        passed_on: type[Exception] | tuple[()] = (),
    ) -> None:
        self._passed_on = passed_on
        self._loop = loop
        self._random = random_source
        self._weather = weather
        self._serving = serving

    async def call(
        self, method: Method[Request, Response], request: Request, metadata: Mapping[str, str], timeout_s: float
    ) -> Response:
        """Call a unary method of the proxy.

        Raises:
            RpcError: as a client over a socket sees it; UNAVAILABLE and DEADLINE_EXCEEDED leave open what was done.
        """
        data = method.request.encode(request)
        deadline = self._loop.time() + timeout_s
        await self._travel()
        process, service = self._connect()
        handler = service.unary_handlers[method.path][1]
        call = Call(method.path, metadata, deadline, "client:1")
        answer: asyncio.Future[bytes] = self._loop.create_future()

        async def serve() -> None:
            try:
                response = await handler(call, method.request.decode(data))
            except self._passed_on as error:
                if not answer.done():
                    answer.set_exception(error)
                return
            if not answer.done():
                answer.set_result(method.response.encode(response))

        encoded = await self._await(process, process.spawn(serve(), "call"), answer, deadline)
        await self._travel()
        if self._random.random() < self._weather.lost_share:
            raise RpcError(GrpcStatus.UNAVAILABLE, "the connection broke before the answer came")
        return method.response.decode(encoded)

    async def receive(
        self,
        request: ReceiveMessageRequest,
        metadata: Mapping[str, str],
        timeout_s: float,
        taken: Callable[[ReceiveMessageResponse], None],
        vanish_after_s: float | None,
    ) -> bool:
        """Call ReceiveMessage; `taken` gets each part as it comes.

        Args:
            request: what is asked for.
            metadata: headers.
            timeout_s: the client's deadline.
            taken: called for each part.
            vanish_after_s: the client goes away after this long, whatever has come; None: it does not.

        Returns:
            Whether the answer is complete; False if the client vanished.

        Raises:
            RpcError: as in `call`.
        """
        deadline = self._loop.time() + timeout_s
        await self._travel()
        process, service = self._connect()
        handler = service.stream_handlers[RECEIVE_MESSAGE.path][1]
        call = Call(RECEIVE_MESSAGE.path, metadata, deadline, "client:1")
        decoded = RECEIVE_MESSAGE.request.decode(RECEIVE_MESSAGE.request.encode(request))
        stream = _ServerStream(decoded, taken, self._travel)
        answer: asyncio.Future[bytes] = self._loop.create_future()

        async def serve() -> None:
            await handler(call, stream)
            if not answer.done():
                answer.set_result(b"")

        task = process.spawn(serve(), "receive")
        vanishes = None if vanish_after_s is None else min(deadline, self._loop.time() + vanish_after_s)
        try:
            await self._await(process, task, answer, vanishes or deadline)
        except RpcError:
            stream.gone = True
            if vanishes is not None and self._loop.time() >= vanishes:
                return False
            raise
        return True

    async def telemetry(
        self, command: TelemetryCommand, metadata: Mapping[str, str], taken: Callable[[TelemetryCommand], None]
    ) -> None:
        """Open a Telemetry stream, as `WayToProxy.telemetry`; `taken` gets each command as it comes."""
        await self._travel()
        process, service = self._connect()
        handler = service.stream_handlers[TELEMETRY.path][1]
        call = Call(TELEMETRY.path, metadata, None, "client:1")
        stream = _OpenStream(command, taken, self._travel)
        answer: asyncio.Future[bytes] = self._loop.create_future()

        async def serve() -> None:
            await handler(call, stream)

        task = process.spawn(serve(), "telemetry")
        process.report_death(answer)
        task.add_done_callback(lambda done: _ended_badly(done, answer))
        try:
            await answer
        except ConnectionResetError as error:
            raise RpcError(GrpcStatus.UNAVAILABLE, str(error)) from None
        finally:
            stream.gone = True
            process.report_no_more(answer)
            process.run(self._loop.call_soon, task.cancel)

    def _connect(self) -> tuple[Process, Service]:
        serving = self._serving()
        if serving is None:
            raise RpcError(GrpcStatus.UNAVAILABLE, "nobody listens")
        return serving

    async def _await(
        self, process: Process, task: "asyncio.Task[None]", answer: "asyncio.Future[bytes]", deadline: float
    ) -> bytes:
        process.report_death(answer)
        task.add_done_callback(lambda done: _ended_badly(done, answer))
        try:
            async with asyncio.timeout_at(deadline):
                return await answer
        except TimeoutError:
            process.run(self._loop.call_soon, task.cancel)
            raise RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed") from None
        except ConnectionResetError as error:
            raise RpcError(GrpcStatus.UNAVAILABLE, str(error)) from None
        finally:
            process.report_no_more(answer)

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.random() * self._weather.delay_s_max)


def _ended_badly(task: "asyncio.Task[None]", answer: "asyncio.Future[bytes]") -> None:
    if not answer.done() and not task.cancelled() and (error := task.exception()) is not None:
        answer.set_exception(RpcError(GrpcStatus.INTERNAL, f"the handler failed: {error!r}"))


class _ServerStream:
    """A ReceiveMessage as its handler has it."""

    def __init__(
        self, request: ReceiveMessageRequest, taken: Callable[[ReceiveMessageResponse], None], travel: Callable[[], Any]
    ) -> None:
        self._request: ReceiveMessageRequest | None = request
        self._taken = taken
        self._travel = travel
        self.gone = False

    async def receive(self) -> ReceiveMessageRequest | None:
        request, self._request = self._request, None
        return request

    async def send(self, messages: Sequence[bytes]) -> None:
        for part in messages:
            await self._travel()
            if self.gone:
                raise StreamClosedError("the client has gone away")
            self._taken(ReceiveMessageResponse.FromString(part))


class _OpenStream:
    """A Telemetry stream as its handler has it."""

    def __init__(
        self, command: TelemetryCommand, taken: Callable[[TelemetryCommand], None], travel: Callable[[], Any]
    ) -> None:
        self._command: TelemetryCommand | None = command
        self._taken = taken
        self._travel = travel
        self.gone = False

    async def receive(self) -> TelemetryCommand | None:
        command, self._command = self._command, None
        if command is None:
            await asyncio.get_running_loop().create_future()  # the client says no more
        return command

    async def send(self, messages: Sequence[TelemetryCommand]) -> None:
        for each in messages:
            await self._travel()
            if self.gone:
                raise StreamClosedError("the client has gone away")
            self._taken(each)


class InnerChannel:
    """The way from the proxy to the broker within their process, made worse.

    Args:
        channel: the good way.
        loop: the loop.
        random_source: delays and losses.
        weather: how bad it is.
    """

    def __init__(self, channel: Channel, random_source: random.Random, weather: Weather) -> None:
        self._channel = channel
        self._random = random_source
        self._weather = weather

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        weather, chance = self._weather, self._random
        if not weather.inner_delay_s_max and not weather.inner_lost_share:
            return await self._channel.call(method, request, timeout_s=timeout_s, metadata=metadata)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(chance.random() * weather.inner_delay_s_max)
                if chance.random() < weather.inner_lost_share / 2:
                    raise RpcError(GrpcStatus.UNAVAILABLE, "the request was lost")
                response = await self._channel.call(method, request, metadata=metadata)
                await asyncio.sleep(chance.random() * weather.inner_delay_s_max)
                if chance.random() < weather.inner_lost_share:
                    if chance.random() < 0.5:
                        raise RpcError(GrpcStatus.UNAVAILABLE, "the answer was lost")
                    await asyncio.sleep(3600)
                return response
        except TimeoutError:
            raise RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed") from None

    def open(
        self, method: Method[Request, Response], *, metadata: Mapping[str, str] | None = None
    ) -> ClientStream[Response, Request]:
        return self._channel.open(method, metadata=metadata)

    async def close(self) -> None:
        await self._channel.close()
