"""The network: named machines, addresses at which processes listen, channels to them, and what is wrong with the ways.

A `SimChannel` behaves as `SocketChannel` does: one connection, made when first needed and again
when lost, with its back-off; a way that is cut holds packets back, and either end gives a silent connection up when its
keep-alive says so.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from popwheel_rpc.service import ClientStream as StreamProtocol
from popwheel_rpc.service import Method, Service, routes_of
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError
from tests.sim.cluster.connection import Connection, ServerEnd
from tests.sim.cluster.stream import ClientStream
from tests.sim.cluster.way import Way
from tests.sim.loop import SimLoop
from tests.sim.process import Process

Request = TypeVar("Request")
Response = TypeVar("Response")

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 10.0
"""After so much silence a connection between our own services is given up (`INTERNAL_LIMITS`)."""
CONTROLLER_KEEPALIVE_S = 2.5
"""The same where the controller listens (`CONTROLLER_LIMITS`)."""
PROXY_KEEPALIVE_S = 80.0
"""The same where a proxy listens for clients."""

_BACK_OFF_FIRST_S = 0.05
_BACK_OFF_MAX_S = 5.0
_BACK_OFF_FACTOR = 1.6
_ATTEMPTS_MAX = 3
_LAST_CALLS_S = 1.0

Tamper = Callable[[str, bytes], Iterable[tuple[bytes, float]]]
"""Given a method's path and a message of its answering stream: what is sent instead, each so much later than usual."""


class Listener:
    """A process that listens at an address.

    Args:
        process: the process.
        services: what it answers.
        keepalive_s: after so much silence it gives a connection up.
        tamper: what becomes of messages that it streams.
    """

    def __init__(
        self, process: Process, services: Service | Sequence[Service], keepalive_s: float, tamper: Tamper
    ) -> None:
        self.process = process
        self.routes = routes_of(services)
        self.keepalive_s = keepalive_s
        self.tamper = tamper
        self.is_open = True
        self.connections: dict[Connection, None] = {}

    async def stop(self, grace_s: float) -> None:
        """Take no more connections and calls, wait for those under way, end the rest (as `Server` does)."""
        self.is_open = False
        for end in self._ends():
            end.close()
        await self._wait_until_quiet(grace_s)
        for end in self._ends():
            end.end_calls()
        await self._wait_until_quiet(_LAST_CALLS_S)
        for connection in list(self.connections):
            end = _server_end(connection)
            end.lose(RpcError(GrpcStatus.UNAVAILABLE, "the server was shut down"))
            connection.hang_up(end, "the server was shut down")

    async def _wait_until_quiet(self, timeout_s: float) -> None:
        until = self.process.clock.monotonic() + timeout_s
        while any(not end.is_quiet for end in self._ends()) and self.process.clock.monotonic() < until:
            await asyncio.sleep(0.01)

    def _ends(self) -> list[ServerEnd]:
        return [_server_end(connection) for connection in self.connections]


class Network:
    """All ways, listeners and connections.

    Args:
        loop: the loop.
        chance: delays and breaks.
        delay_s: the shortest and the longest time of a way that nothing is wrong with.
    """

    def __init__(self, loop: SimLoop, chance: random.Random, delay_s: tuple[float, float] = (0.0001, 0.001)) -> None:
        self.loop = loop
        self.chance = chance
        self.delay_s = delay_s
        self.calls: Callable[[str, str, str], None] = _nobody_counts
        """Told of each call: who, whom, which method."""
        self.half_open_until_s = 0.0
        """Until then, by the loop's time, somebody may count on a connection that the other end has lost."""
        self._ways: dict[tuple[str, str], Way] = {}
        self._listeners: dict[str, Listener] = {}
        self._connections: dict[Process, dict[Connection, None]] = {}

    def way(self, source: str, target: str) -> Way:
        """The way from one machine to another."""
        way = self._ways.get((source, target))
        if way is None:
            way = self._ways[source, target] = Way(source, target, self.delay_s)
        return way

    def listen(
        self,
        process: Process,
        address: str,
        services: Service | Sequence[Service],
        keepalive_s: float = KEEPALIVE_S,
        tamper: Tamper | None = None,
    ) -> Listener:
        """Take connections at an address, `machine:port`."""
        listener = self._listeners[address] = Listener(process, services, keepalive_s, tamper or _as_it_is)
        return listener

    def channel(self, process: Process, address: str, keepalive_s: float = KEEPALIVE_S) -> "SimChannel":
        """A process's channel to whoever listens at an address; connects with the first call."""
        return SimChannel(self, process, address, keepalive_s)

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from one machine to another; the other direction is as it was."""
        way = self.way(source, target)
        if way.cut_since is None:
            way.cut_since = self.loop.time()
            for connection in self._all():
                if way in connection.ways:
                    connection.watch()

    def mend(self, source: str, target: str) -> None:
        """Let all through again, also what was sent meanwhile and not given up."""
        way = self.way(source, target)
        way.cut_since = None
        held, way.held = way.held, {}
        for direction in held:
            direction.flush()

    def mend_all(self) -> None:
        """Make all ways good."""
        for source, target in list(self._ways):
            self.mend(source, target)
            way = self._ways[source, target]
            way.delay_s, way.broken_share = self.delay_s, 0.0

    def break_connections(self, first: str, second: str) -> None:
        """Reset all connections between two machines."""
        for connection in self._all():
            if {way.source for way in connection.ways} == {first, second}:
                connection.reset()

    def lose_ends(self, name: str, other: str) -> None:
        """Leave all connections between two machines half open: one machine has lost its ends of them."""
        for connection in self._all():
            if {way.source for way in connection.ways} == {name, other}:
                connection.lose_end_of(name)
                for end in connection.ends():
                    self.half_open_until_s = max(self.half_open_until_s, self.loop.time() + end.keepalive_s)

    def are_whole(self) -> bool:
        """Whether no way is cut, and none breaks what goes along it."""
        return all(way.cut_since is None and not way.broken_share for way in self._ways.values())

    def paused(self, process: Process) -> None:
        """A process stands still: its peers will notice."""
        for connection in self._connections.get(process, ()):
            connection.watch()

    def died(self, process: Process) -> None:
        """A process is no more: its machine closes its connections."""
        for address in [address for address, listener in self._listeners.items() if listener.process is process]:
            del self._listeners[address]
        for connection in self._connections.pop(process, {}):
            for end in connection.ends():
                if end.process is process:
                    connection.hang_up(end, f"{process.name} has died")

    def connect(self, channel: "SimChannel") -> Connection:
        """Begin to make a connection."""
        here, there = channel.process.name, channel.address.rpartition(":")[0]
        connection = Connection(self.loop, self.chance, channel, self.way(here, there), self.way(there, here))
        self._connections.setdefault(channel.process, {})[connection] = None
        self._watch_bad(connection)
        connection.to_server.send(0, self._arrived, connection)
        return connection

    def _arrived(self, connection: Connection) -> None:
        listener = self._listeners.get(connection.channel.address)
        if listener is None:
            connection.refuse(f"nobody listens at {connection.channel.address}")
            return
        self.loop.call_soon(self._accept, connection, listener, context=listener.process.context)

    def _accept(self, connection: Connection, listener: Listener) -> None:
        if connection.client.is_lost:
            return
        if listener.is_open:
            connection.accept(listener)
            self._connections.setdefault(listener.process, {})[connection] = None
            self._watch_bad(connection)
        else:
            connection.refuse(f"nobody listens at {connection.channel.address}")

    def _watch_bad(self, connection: Connection) -> None:
        """A new connection may be on ways that were cut before."""
        if any(way.cut_since is not None for way in connection.ways):
            connection.watch()

    def forget(self, connection: Connection) -> None:
        """Both ends are gone."""
        for end in connection.ends():
            connections = self._connections.get(end.process)
            if connections is not None:
                connections.pop(connection, None)

    def _all(self) -> list[Connection]:
        return list(dict.fromkeys(each for connections in self._connections.values() for each in connections))


class SimChannel:
    """A `popwheel_rpc.service.Channel` between simulated processes.

    Args:
        network: joins them.
        process: who calls.
        address: whom.
        keepalive_s: after so much silence the connection is given up.
    """

    def __init__(self, network: Network, process: Process, address: str, keepalive_s: float) -> None:
        self.process = process
        self.address = address
        self.keepalive_s = keepalive_s
        self.network = network
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connections: dict[Connection, None] = {}
        self._next_attempt_s = 0.0
        self._back_off_s = _BACK_OFF_FIRST_S
        self._last_failure = ""
        self._streams: dict[ClientStream[Any, Any], None] = {}
        self._closed = False

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        """Call a unary method (see `popwheel_rpc.service.Channel`)."""
        loop = self.network.loop
        data = method.request.encode(request)
        deadline = None if timeout_s is None else loop.time() + timeout_s
        self.network.calls(self.process.name, self.address, method.name)
        patience = asyncio.timeout_at(deadline)
        is_sent = False
        try:
            async with patience:
                for attempt in range(1, _ATTEMPTS_MAX + 1):
                    connection = await self._ready()
                    is_sent = True
                    left_s = None if deadline is None else deadline - loop.time()
                    try:
                        return method.response.decode(
                            await connection.client.ask(method.path, data, metadata or {}, left_s)
                        )
                    except NotProcessedError:
                        if attempt == _ATTEMPTS_MAX:
                            raise
                raise AssertionError("the last attempt returns or raises")
        except TimeoutError:
            if not is_sent:
                raise NotProcessedError(
                    f"no connection to {self.address} in time", GrpcStatus.DEADLINE_EXCEEDED
                ) from None
            raise RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed") from None

    def open(
        self,
        method: Method[Request, Response],
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> StreamProtocol[Response, Request]:
        """Begin a streaming call."""
        if self._closed:
            raise NotProcessedError("the channel is closed")
        self.network.calls(self.process.name, self.address, method.name)
        stream = ClientStream(method)
        stream.opening = self.network.loop.create_task(self._open(stream, metadata or {}, timeout_s))
        return stream

    async def close(self) -> None:
        """End the connections and every call on them."""
        self._closed = True
        failure = RpcError(GrpcStatus.UNAVAILABLE, "the channel was closed")
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._connections):
            if not connection.client.is_lost:
                connection.client.lose(failure)
                connection.hang_up(connection.client, "the caller has closed the channel")

    def let_go(self, connection: Connection) -> None:
        """A connection takes no more calls."""
        if self._connection is connection:
            self._connection = None
        if connection.client.is_lost:
            self._connections.pop(connection, None)

    async def _open(self, stream: ClientStream[Any, Any], metadata: Mapping[str, str], timeout_s: float | None) -> None:
        try:
            connection = await self._ready()
        except RpcError as error:
            stream.over(error)
        else:
            connection.client.open(stream, metadata, timeout_s)

    async def _ready(self) -> Connection:
        """A connection on which a call can be made now."""
        while True:
            if self._closed:
                raise NotProcessedError("the channel is closed")
            if self._connection is not None:
                return self._connection
            if self._connecting is None:
                if self.network.loop.time() < self._next_attempt_s:
                    raise NotProcessedError(f"no connection to {self.address}: {self._last_failure}")
                self._connecting = self.network.loop.create_task(self._attempt())
            await asyncio.wait((self._connecting,))

    async def _attempt(self) -> None:
        connection = self.network.connect(self)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.opened
            if connection.client.is_lost:  # lost in the moment it was made
                raise RpcError(GrpcStatus.UNAVAILABLE, "the connection was lost as it was made")
        except (RpcError, TimeoutError) as error:
            self._last_failure = "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
            self._next_attempt_s = self.network.loop.time() + self._back_off_s
            self._back_off_s = min(_BACK_OFF_MAX_S, self._back_off_s * _BACK_OFF_FACTOR)
        else:
            self._connection = connection
            self._connections[connection] = None
            self._back_off_s = _BACK_OFF_FIRST_S
        finally:
            self._connecting = None
            if self._connection is not connection:
                connection.client.lose(RpcError(GrpcStatus.UNAVAILABLE, "the connection was not made"))
                connection.hang_up(connection.client, "the caller has given up")


def _server_end(connection: Connection) -> ServerEnd:
    assert connection.server is not None
    return connection.server


def _as_it_is(_: str, message: bytes) -> Iterable[tuple[bytes, float]]:
    return ((message, 0.0),)


def _nobody_counts(_: str, __: str, ___: str) -> None:
    """Calls are not counted."""
