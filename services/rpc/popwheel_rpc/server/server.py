"""The gRPC server: listens, and passes calls to the handlers of its services; plain or TLS on the same port."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from popwheel_common.clock import Clock
from popwheel_rpc.limits import Limits
from popwheel_rpc.server.host import Host
from popwheel_rpc.server.observer import RpcObserver
from popwheel_rpc.server.server_connection import ServerConnection
from popwheel_rpc.service import Service
from popwheel_rpc.status import GrpcStatus, RpcError

_CHECK_S_MIN = 0.25
_CHECK_S_MAX = 1.0
_LAST_STREAMS_S = 1.0
_BACKLOG = 1024


class Server(Host):
    """Serves methods over HTTP/2 on one port, in the loop's own thread (DESIGN 4, "What carries the calls").

    A handler starts within the callback that received its request and runs there until it first suspends;
    see `popwheel_rpc.server.light_task.LightTask` for its further steps. It is cancelled when its caller cancels,
    goes away, or its deadline passes.

    Args:
        services: one service or several; no method may be in two of them.
        limits: what clients may do.
        tls: gives the context of the next connection that speaks TLS; None: a certificate is made when the first comes.
        plain: whether callers without TLS are served.
        observer: notified of connections, calls and limits.
        clock: the machine's if not given.
        authority: `host:port` by which all callers know this server; calls that name another one are refused.
            Empty: all are served.

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
        super().__init__(services, limits, tls=tls, plain=plain, observer=observer, clock=clock, authority=authority)
        self.port = 0
        self._listener: asyncio.Server | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        interval_s = self.limits.keepalive_interval_s / 2 or _CHECK_S_MAX
        self._check_every_s = min(_CHECK_S_MAX, max(_CHECK_S_MIN, interval_s))

    async def start(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen.

        Args:
            host: name or address to listen on.
            port: 0 for any that is free; `self.port` has it.
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
            backlog=_BACKLOG,
            reuse_port=shared or None,
        )
        listener: Any = self._listener  # its sockets are a tuple or a list, as the loop has it
        self.port = listener.sockets[0].getsockname()[1]
        self._check_timer = loop.call_later(self._check_every_s, self._check)

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections or calls, and give calls in flight `grace_s` seconds to end; then end them.

        Clients are notified with GOAWAY, in two steps, so that calls on their way here are still taken. Calls that do
        not end in time end with UNAVAILABLE.
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

    def _check(self) -> None:
        now = self.clock.monotonic()
        for connection in list(self._connections):
            connection.check(now)
        self._check_timer = asyncio.get_running_loop().call_later(self._check_every_s, self._check)
