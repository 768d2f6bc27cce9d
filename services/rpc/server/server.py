"""The gRPC server: listens, and hands what comes in to the handlers of its services; plain or TLS on the same port."""

import asyncio
import datetime
import ssl
from collections.abc import Callable, Sequence

import structlog

from services.common.clock import Clock, SystemClock
from services.rpc.deadline_timer import DeadlineTimer
from services.rpc.limits import Limits
from services.rpc.server.observer import RpcObserver, SilentObserver
from services.rpc.server.server_connection import ServerConnection
from services.rpc.server.totals import Totals
from services.rpc.service import Service, routes_of
from services.rpc.socket.tls import self_signed_context
from services.rpc.status import GrpcStatus, RpcError

log = structlog.get_logger()

_CHECK_S_MIN = 0.25
_CHECK_S_MAX = 1.0
_LAST_STREAMS_S = 1.0
_BACKLOG = 1024


class Server:
    """Serves methods over HTTP/2 on one port, in the loop's own thread (DESIGN 4, "What carries the calls").

    A handler starts within the callback that brought its request and runs there until it first waits for something;
    what holds for it then, see `services.rpc.server.light_task.LightTask`. It is cancelled when its caller cancels,
    goes away, or its deadline passes.

    Args:
        services: one service or several; no method may be in two of them.
        limits: what clients may do.
        tls: gives the context of the next connection that speaks TLS; None: a certificate is made when the first comes.
        plain: whether callers without TLS are served.
        observer: told of connections, calls and limits.
        clock: the machine's if not given.
        authority: `host:port` by which all callers know this server; who means another one has come to the wrong place.
            Empty: anybody may ask.

    Raises:
        ValueError: a method is in two services.
    """

    def __init__(
        self,
        services: Service | Sequence[Service],
        limits: Limits | None = None,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        plain: bool = True,
        observer: RpcObserver | None = None,
        clock: Clock | None = None,
        authority: str = "",
    ) -> None:
        self.routes = routes_of(services)
        self.authority = authority
        self.plain = plain
        self.limits = limits or Limits()
        self.observer = observer or SilentObserver()
        self.clock = clock or SystemClock()
        self.deadlines = DeadlineTimer(self.clock)
        self.port = 0
        self.delayed_ends = 0
        self._tls = tls
        self._self_signed: ssl.SSLContext | None = None
        self._listener: asyncio.Server | None = None
        self._connections: set[ServerConnection] = set()
        self.totals = Totals(self.limits, self._connections)
        self._check_timer: asyncio.TimerHandle | None = None
        interval_s = self.limits.keepalive_interval_s / 2 or _CHECK_S_MAX
        self._check_every_s = min(_CHECK_S_MAX, max(_CHECK_S_MIN, interval_s))
        self._quiet: asyncio.Future[None] | None = None

    async def start(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen.

        Args:
            host: name or address to listen on.
            port: 0 for any that is free; `self.port` tells which.
            shared: whether other processes of the same user may listen on it as well (SO_REUSEPORT); the kernel then
                gives each connection to one of them.

        Raises:
            OSError: the address is taken or not ours.
        """
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: ServerConnection(self),
            host,
            port,
            backlog=self.limits.accepted_at_once_max,
            reuse_port=shared or None,
        )
        # To asyncio the backlog is also how many it accepts at once; what waits in the kernel costs no file.
        for listening in self._listener.sockets:
            with listening.dup() as twin:
                twin.listen(_BACKLOG)
        self.port = self._listener.sockets[0].getsockname()[1]
        self._check_timer = loop.call_later(self._check_every_s, self._check)

    async def stop(self, grace_s: float) -> None:
        """Take no more connections or calls, and give calls under way `grace_s` seconds to end; then end them.

        Clients are told with GOAWAY, in two steps, so that calls on their way here are still taken. Calls that do not
        end in time end with UNAVAILABLE.
        """
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        loop = asyncio.get_running_loop()
        for connection in list(self._connections):
            connection.go_away()
        last_streams = loop.call_later(min(_LAST_STREAMS_S, grace_s / 2), self._refuse_streams)
        await self._wait_until_quiet(grace_s)
        last_streams.cancel()
        for connection in list(self._connections):
            connection.end_calls(RpcError(GrpcStatus.UNAVAILABLE, "the server is shutting down"))
        await self._wait_until_quiet(1.0)
        for connection in list(self._connections):
            connection.abort()
        await self._wait_until_quiet(1.0)
        self.deadlines.close()
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None

    def _refuse_streams(self) -> None:
        for connection in list(self._connections):
            connection.refuse_streams()

    async def _wait_until_quiet(self, timeout_s: float) -> None:
        if not self._connections:
            return
        self._quiet = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._quiet,), timeout=timeout_s)
        finally:
            self._quiet = None

    # What connections and calls say

    def admit(self, connection: ServerConnection) -> bool:
        """Whether there is room for one more connection."""
        if len(self._connections) >= self.limits.connections_max:
            self.observer.limit_hit("connections_max")
            return False
        self._connections.add(connection)
        self.observer.connection_opened()
        return True

    def dismiss(self, connection: ServerConnection) -> None:
        """A connection's socket is closed; it is forgotten when its last handler has ended."""
        self.observer.connection_closed()
        if not connection.busy:
            self._connections.discard(connection)
            self._notice_quiet()

    def handler_ended(self, connection: ServerConnection) -> None:
        """A handler that nobody waited for any more has ended."""
        if connection.lost and not connection.busy:
            self._connections.discard(connection)
            self._notice_quiet()

    def _notice_quiet(self) -> None:
        if self._quiet is not None and not self._connections and not self._quiet.done():
            self._quiet.set_result(None)

    def tls_context(self) -> ssl.SSLContext:
        """The context for a client that speaks TLS."""
        if self._tls is not None:
            return self._tls()
        if self._self_signed is None:
            now = datetime.datetime.fromtimestamp(self.clock.wall_ms() / 1000, datetime.UTC)
            self._self_signed = self_signed_context(now)
            log.info("made a self-signed certificate for localhost")
        return self._self_signed

    def _check(self) -> None:
        now = self.clock.monotonic()
        for connection in list(self._connections):
            connection.check(now)
        self._check_timer = asyncio.get_running_loop().call_later(self._check_every_s, self._check)
