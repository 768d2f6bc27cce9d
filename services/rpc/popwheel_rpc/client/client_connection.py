"""Connection to a server: its streams and the calls on them."""

import asyncio
import ssl

from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_rpc.deadline_timer import DeadlineTimer
from popwheel_rpc.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    GoingAway,
    PingAcknowledged,
    ResponseReceived,
    SettingsChanged,
    StreamFlushed,
    StreamReset,
)
from popwheel_rpc.http2.frames import ErrorCode
from popwheel_rpc.http2.headers import ResponseHead
from popwheel_rpc.limits import Limits
from popwheel_rpc.socket.endpoint import Endpoint
from popwheel_rpc.socket.tls import TlsSession, reason_of
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError

_KEEPALIVE_PING = b"stillher"
_LINGER_S = 1.0


_STATUS_OF_RESET = {
    ErrorCode.REFUSED_STREAM: GrpcStatus.UNAVAILABLE,
    ErrorCode.CANCEL: GrpcStatus.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: GrpcStatus.RESOURCE_EXHAUSTED,
}


def _error_of_reset(code: ErrorCode, message: str) -> RpcError:
    """Return the error of a call whose stream was reset."""
    if code is ErrorCode.REFUSED_STREAM:
        return NotProcessedError(message)
    return RpcError(_STATUS_OF_RESET.get(code, GrpcStatus.INTERNAL), message)


class ClientCall:
    """Call in flight on a stream of a connection, with the callbacks of the connection."""

    __slots__ = ()

    def response(self, head: ResponseHead, *, ended: bool) -> None:
        """Process headers or, with `ended`, trailers."""
        raise NotImplementedError

    def data(self, data: bytes, *, ended: bool) -> None:
        """Process data."""
        raise NotImplementedError

    def fail(self, error: StatusError | RpcError) -> None:
        """End the call."""
        raise NotImplementedError

    def flushed(self) -> None:
        """Continue: all data that waited for the stream's window, or for the socket, was sent."""


class ClientConnection(Endpoint):
    """Connection of a channel.

    `ready` is done when the server has sent its settings, or with an `RpcError` if that failed.

    Args:
        limits: what the server may do.
        clock: the time.
        deadlines: those of the channel.
        tls: context and the server's name, for TLS.
    """

    def __init__(
        self, limits: Limits, clock: Clock, deadlines: DeadlineTimer, tls: tuple[ssl.SSLContext, str] | None
    ) -> None:
        super().__init__(limits, clock, client=True)
        self.deadlines = deadlines
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self._tls_wanted = tls
        self._calls: dict[int, ClientCall] = {}
        self._slot_waiters: list[asyncio.Future[None]] = []
        self._last_received_at = self.now
        self._keepalive: asyncio.TimerHandle | None = None
        self._ping_waits = False
        self._error = RpcError(GrpcStatus.UNAVAILABLE, "the connection was closed")

    # Callbacks of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.http2.start()
        if self._tls_wanted is not None:
            self._tls = TlsSession(*self._tls_wanted)
            self._tls.start()
        self.flush()
        if self.limits.keepalive_interval_s:
            self._keepalive = self.loop.call_later(self.limits.keepalive_interval_s, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.http2.going_away = True
        if exc is not None:
            self._error = RpcError(GrpcStatus.UNAVAILABLE, f"the connection was lost: {exc}")
        if self._keepalive is not None:
            self._keepalive.cancel()
        if not self.ready.done():
            self.ready.set_exception(self._error)
            self.ready.exception()  # its callers may have given up already
        for call in list(self._calls.values()):
            call.fail(self._error)
        self._free_slot()

    def resume_writing(self) -> None:
        self.paused = False
        for call in list(self._calls.values()):
            call.flushed()

    def data_received(self, data: bytes) -> None:
        self.now = self._last_received_at = self.clock.monotonic()
        self._receiving = True
        try:
            if self._tls is not None:
                data = self._tls.receive(data)
            for event in self.http2.receive(data, self.now):
                self._dispatch(event)
        except ssl.SSLError as error:
            self._error = RpcError(GrpcStatus.UNAVAILABLE, f"no TLS connection: {reason_of(error)}")
            self._close()
        finally:
            self._receiving = False
        self._flush_received()

    def _dispatch(self, event: Event) -> None:
        match event:
            case DataReceived(stream_id, data, ended):
                call = self._calls.get(stream_id)
                if call is not None:
                    call.data(data, ended=ended)
                else:
                    self.http2.release(stream_id, len(data))
            case ResponseReceived(stream_id, head, ended):
                call = self._calls.get(stream_id)
                if call is not None:
                    call.response(head, ended=ended)
            case StreamReset(stream_id, code, message):
                call = self._calls.get(stream_id)
                if call is not None:
                    call.fail(_error_of_reset(code, message))
            case StreamFlushed(stream_id):
                call = self._calls.get(stream_id)
                if call is not None:
                    call.flushed()
            case SettingsChanged():
                if not self.ready.done():
                    self.ready.set_result(None)
                self._free_slot()
            case GoingAway(last_stream_id, code, message):
                self._on_going_away(last_stream_id, code, message)
            case PingAcknowledged():
                self._ping_waits = False
            case ConnectionFailed(_, message, _):
                self._error = RpcError(GrpcStatus.UNAVAILABLE, f"the server broke a rule of HTTP/2: {message}")
                self._close()
            case _:
                raise AssertionError(f"no event of a client: {event!r}")

    def _on_going_away(self, last_stream_id: int, code: ErrorCode, message: str) -> None:
        if code is not ErrorCode.NO_ERROR:
            self._error = RpcError(GrpcStatus.UNAVAILABLE, f"the server ended the connection: {code.name} {message}")
        for stream_id, call in list(self._calls.items()):
            if stream_id > last_stream_id:
                call.fail(NotProcessedError("the server is going away"))
        self._free_slot()
        self._close_if_done()

    def _check(self) -> None:
        self._keepalive = None
        if self._transport is None:
            return
        limits = self.limits
        silent_s = self.clock.monotonic() - self._last_received_at
        if self._ping_waits and silent_s >= limits.keepalive_timeout_s:
            self._error = RpcError(GrpcStatus.UNAVAILABLE, "the server does not answer pings any more")
            self.abort()
            return
        delay_s = limits.keepalive_interval_s - silent_s
        if delay_s <= 0:
            self._ping_waits = True
            self.http2.ping(_KEEPALIVE_PING)
            self.flush()
            delay_s = limits.keepalive_timeout_s
        self._keepalive = self.loop.call_later(delay_s, self._check)

    # Commands of calls and the channel

    @property
    def usable(self) -> bool:
        """True if new calls may be made here, now or after one in flight has ended."""
        http2 = self.http2
        return self._transport is not None and not (http2.going_away or http2.failed or http2.is_used_up)

    async def slot(self) -> None:
        """Wait until one more call may be made here, or none any more."""
        while self.usable and not self.http2.can_open_stream:
            waiter = self.loop.create_future()
            self._slot_waiters.append(waiter)
            await waiter

    def open_stream(self, call: ClientCall, block: bytes) -> int:
        """Begin a call whose messages follow; return its stream."""
        stream_id = self.http2.open_stream(block, end=False)
        self._calls[stream_id] = call
        self.flush_soon()
        return stream_id

    def request(self, call: ClientCall, block: bytes, data: bytes) -> int:
        """Begin a call with its one message; return its stream."""
        stream_id = self.open_stream(call, block)
        self.http2.send_data(stream_id, data, end=True)
        return stream_id

    def reset(self, stream_id: int) -> None:
        """Cancel a call."""
        self.http2.reset(stream_id, ErrorCode.CANCEL)
        self.flush_soon()

    def call_ended(self, stream_id: int) -> None:
        """Record that a call is over."""
        self._calls.pop(stream_id, None)
        if self._slot_waiters:
            self._free_slot()
        if self.http2.going_away:
            self._close_if_done()

    def _free_slot(self) -> None:
        waiters, self._slot_waiters = self._slot_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def retire(self) -> None:
        """Accept no more calls, and close after the last one in flight."""
        self.http2.going_away = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._calls and self.http2.going_away:
            self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def end(self, error: RpcError) -> None:
        """End all calls with an error and close."""
        self._error = error
        for stream_id, call in list(self._calls.items()):
            self.http2.reset(stream_id, ErrorCode.CANCEL)
            call.fail(error)
        self.http2.refuse_streams()
        self._close()
        self._free_slot()
        if self._transport is not None and self._transport.get_write_buffer_size():
            # A hanging server reads nothing more, and would keep the socket open.
            self.loop.call_later(_LINGER_S, self.abort)
