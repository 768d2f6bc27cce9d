"""Common part of a socket's two ends: TLS, one write for each turn of the loop, slow readers."""

import asyncio
from typing import cast

from popwheel_common.clock import Clock
from popwheel_rpc.http2.connection import Connection
from popwheel_rpc.limits import Limits
from popwheel_rpc.socket.tls import TlsSession

_WRITE_BUFFER_HIGH_BYTES = 256 * 1024
_PATIENCE_S = 0.001


class Endpoint(asyncio.Protocol):
    """A socket with an HTTP/2 connection on it.

    Args:
        limits: what the other side may do.
        clock: the time.
        client: which side this is.
    """

    def __init__(self, limits: Limits, clock: Clock, *, client: bool) -> None:
        self.limits = limits
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.http2 = Connection(limits, client=client)
        self.now = clock.monotonic()
        self.paused = False
        self.peer = ""
        self.sent_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._tls: TlsSession | None = None
        self._flush_planned = False
        self._flushed_first = False
        self._patience: asyncio.TimerHandle | None = None
        self._receiving = False

    @property
    def lost(self) -> bool:
        """True if the socket is closed, or not open yet."""
        return self._transport is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_WRITE_BUFFER_HIGH_BYTES)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"

    def pause_writing(self) -> None:
        self.paused = True

    def flush_soon(self) -> None:
        """Write queued frames at the end of this turn of the loop."""
        if not self._flush_planned and not self._receiving:
            self._flush_planned = True
            self.loop.call_soon(self._planned_flush)

    def flush_first(self) -> None:
        """Write queued frames now, if they are the first urgent ones in this turn of the loop; else at its end,
        with all others.
        """
        self.flush_soon()
        if not (self._flushed_first or self._receiving):
            self._flushed_first = True
            self.flush()

    def _planned_flush(self) -> None:
        self._flush_planned = self._flushed_first = False
        self.flush()

    def _flush_received(self) -> None:
        """Write queued frames after bytes were received; in a moment, if none is urgent."""
        if self.http2.outbox.is_urgent or self._tls is not None:
            self.flush()
        elif self.http2.outbox and self._patience is None:
            self._patience = self.loop.call_later(_PATIENCE_S, self.flush)

    def flush(self) -> None:
        """Write queued frames now."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        transport = self._transport
        if transport is None:
            return
        outbox = self.http2.outbox
        if self._tls is not None:
            if outbox:
                self._tls.send(outbox.take())
            data = self._tls.take()
        elif outbox:
            data = outbox.take()
        else:
            return
        if data:
            self.sent_bytes += len(data)
            transport.write(data)

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()
