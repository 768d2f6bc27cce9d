"""Interfaces between layers: `Host` is the server for its connections, `Carrier` the connection for its calls."""

import asyncio
import datetime
import ssl
from collections.abc import Callable, Sequence

import structlog

from popwheel_common.clock import Clock, SystemClock
from popwheel_rpc.deadline_timer import DeadlineTimer
from popwheel_rpc.limits import Limits
from popwheel_rpc.server.observer import RpcObserver, SilentObserver
from popwheel_rpc.server.totals import Holder, Totals
from popwheel_rpc.service import Service, routes_of
from popwheel_rpc.socket.endpoint import Endpoint
from popwheel_rpc.status import RpcError

log = structlog.get_logger()


class Host:
    """Shared state of a server's connections, and their list; see `Server` for the arguments."""

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
        self.delayed_ends = 0
        self._tls = tls
        self._self_signed: ssl.SSLContext | None = None
        self._connections: set[Carrier] = set()
        self.totals = Totals(self.limits, self._connections)
        self._quiet: asyncio.Future[None] | None = None

    def admit(self, connection: "Carrier") -> bool:
        """Return whether there is room for one more connection."""
        if len(self._connections) >= self.limits.connections_max:
            self.observer.limit_hit("connections_max")
            return False
        self._connections.add(connection)
        self.observer.connection_opened()
        return True

    def dismiss(self, connection: "Carrier") -> None:
        """Forget a connection whose socket is closed, once its last handler has ended."""
        self.observer.connection_closed()
        if not connection.busy:
            self._connections.discard(connection)
            self._notice_quiet()

    def handler_ended(self, connection: "Carrier") -> None:
        """Record the end of a handler that outlived its call."""
        if connection.lost and not connection.busy:
            self._connections.discard(connection)
            self._notice_quiet()

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context for a client."""
        if self._tls is not None:
            return self._tls()
        if self._self_signed is None:
            from popwheel_rpc.socket.certificates import self_signed_context  # imported late: rarely needed

            now = datetime.datetime.fromtimestamp(self.clock.wall_ms() / 1000, datetime.UTC)
            self._self_signed = self_signed_context(now)
            log.info("made a self-signed certificate for localhost")
        return self._self_signed

    async def _wait_until_quiet(self, timeout_s: float) -> None:
        """Return when no connection is open any more, or after `timeout_s` seconds."""
        if not self._connections:
            return
        self._quiet = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._quiet,), timeout=timeout_s)
        finally:
            self._quiet = None

    def _notice_quiet(self) -> None:
        if self._quiet is not None and not self._connections and not self._quiet.done():
            self._quiet.set_result(None)


class Carrier(Endpoint, Holder):
    """A connection that carries calls to a `Host`; `ServerConnection` is one.

    Args:
        server: what it belongs to.
    """

    def __init__(self, server: Host) -> None:
        super().__init__(server.limits, server.clock, client=False)
        self.server = server
        self.received_bytes = 0
        """Bytes received that its calls retain."""

    # Reports of calls

    def answered(self) -> None:
        """Write the answer of a unary call: now if it is the last one, else with the others of this turn."""
        raise NotImplementedError

    def call_ended(self, stream_id: int) -> None:
        """Record that a call is over for its caller."""
        raise NotImplementedError

    def end_later(self, stream_id: int, end: bytes, since: float, begun: bytes = b"") -> None:
        """End a call whose caller has not sent its first message yet (`DelayedEnd`).

        Args:
            stream_id: its stream.
            end: headers that end the answer.
            since: when the call came in, in seconds of the monotonic clock.
            begun: the received part of the first message.
        """
        raise NotImplementedError

    def lingering_began(self, call: object) -> None:
        """Record that a call is over, but its handler still runs."""
        raise NotImplementedError

    def lingering_ended(self, call: object) -> None:
        """Record that its handler has ended, too."""
        raise NotImplementedError

    # Commands of the server

    @property
    def busy(self) -> bool:
        """True while a call is in flight, or a handler still runs."""
        raise NotImplementedError

    def check(self, now: float) -> None:
        """Check for a client that is silent, half-open, idle or does not read; called every second or so."""
        raise NotImplementedError

    def go_away(self) -> None:
        """Begin a graceful close (`Connection.go_away`); the socket closes after the last call."""
        raise NotImplementedError

    def refuse_streams(self) -> None:
        """Accept no more calls; the socket closes after the last one in flight."""
        raise NotImplementedError

    def end_calls(self, error: RpcError) -> None:
        """End all calls with an error and close."""
        raise NotImplementedError
