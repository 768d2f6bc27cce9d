"""Accepted socket: bytes to the HTTP/2 connection, its events to calls, its frames back to the socket."""

import asyncio
import ssl
from typing import cast

import structlog

from popwheel_rpc.http2 import grpc_messages, hpack
from popwheel_rpc.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    PingAcknowledged,
    RequestReceived,
    RequestTooLarge,
    StreamEnded,
    StreamFlushed,
    StreamRefused,
    StreamReset,
)
from popwheel_rpc.server.delayed_end import DELAYED_ENDS_MAX, PATIENCE_S, DelayedEnd, send_end
from popwheel_rpc.server.host import Carrier, Host
from popwheel_rpc.server.not_grpc import NotGrpc
from popwheel_rpc.server.server_call import ServerCall, StreamCall, UnaryCall
from popwheel_rpc.server.totals import RECEIVED
from popwheel_rpc.socket.tls import TlsSession, reason_of
from popwheel_rpc.status import GrpcStatus, RpcError

log = structlog.get_logger()

_TLS_HANDSHAKE = 0x16
_CONTENT_TYPE = grpc_messages.CONTENT_TYPE.decode()
_KEEPALIVE_PING = b"stillher"
_CLOSING_TIMEOUT_S = 5.0
_STALLED_S = 3.0


class ServerConnection(Carrier):
    """A client's connection to a `Server`.

    Data received in one turn of the loop is answered by one write: handlers that do not suspend have answered by
    the end of `data_received`, all others join the write of the turn in which they end. The last answer that is due
    is written at once. Handlers of streams start at the end of `data_received`: as a rule they need not wait for their
    first message then.

    Args:
        server: what it belongs to.
    """

    def __init__(self, server: Host) -> None:
        super().__init__(server)
        self._detected = False
        self._ready = False
        self._calls: dict[int, ServerCall | NotGrpc | DelayedEnd] = {}
        self._opened: list[StreamCall] = []
        """Calls whose handlers start when the data received with their headers has been processed."""
        self._unary_calls = 0
        self._lingering: set[object] = set()
        self._opened_at = self._last_received_at = self._last_call_at = self._taken_at = self.now
        self._closing_at: float | None = None
        self._pinged_at: float | None = None
        self._taken_bytes = 0
        # The share of this connection in the server's totals, as last reported.
        self._received_reported = 0
        self._unsent_reported = 0
        self._is_closed_down = False

    # Callbacks of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.server.admit(self):
            self.abort()
            self._transport = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        for call in list(self._calls.values()):
            call.abandon()
        totals = self.server.totals
        totals.received_bytes -= self._received_reported
        totals.unsent_bytes -= self._unsent_reported
        self._received_reported = self._unsent_reported = 0
        self.server.dismiss(self)

    def resume_writing(self) -> None:
        self.paused = False
        for call in list(self._calls.values()):
            call.resumed()

    def data_received(self, data: bytes) -> None:
        self.now = self._last_received_at = self.clock.monotonic()
        if not self._detected and not self._detect(data[0]):
            return
        self._receiving = True
        try:
            if self._tls is not None:
                data = self._tls.receive(data)
            if data:
                for event in self.http2.receive(data, self.now):
                    self._dispatch(event)
                if self._opened:
                    self._begin_opened()
        except ssl.SSLError as error:
            log.info("tls handshake failed", peer=self.peer, reason=reason_of(error))
            self._close()
        finally:
            self._receiving = False
        buffered = self.received_bytes + self.http2.unfinished_bytes
        if buffered != self._received_reported or self._tls is not None:
            self._report_received()
        self._flush_received()
        if not self._calls and self.http2.refusing:
            self._close_if_idle()

    def _detect(self, first_byte: int) -> bool:
        """Distinguish TLS, which begins with a handshake record, from plain HTTP/2 by the first byte.

        Returns:
            Whether the caller is served; else the connection is closed.
        """
        self._detected = True
        if first_byte == _TLS_HANDSHAKE:
            self._tls = TlsSession(self.server.tls_context())
        elif not self.server.plain:
            log.info("a caller without TLS was refused", peer=self.peer)
            self.abort()
            return False
        self.http2.start()
        return True

    # Received events

    def _dispatch(self, event: Event) -> None:
        kind = event.__class__
        if kind is DataReceived:
            data = cast(DataReceived, event)
            call = self._calls.get(data.stream_id)
            if call is not None:
                call.data(data)
            else:
                self.http2.release(data.stream_id, len(data.data))
        elif kind is RequestReceived:
            self._on_request(cast(RequestReceived, event))
        else:
            self._dispatch_rare(event)

    def _dispatch_rare(self, event: Event) -> None:
        match event:
            case StreamReset(stream_id):
                call = self._calls.get(stream_id)
                if call is not None:
                    call.abandon()
            case StreamFlushed(stream_id):
                call = self._calls.get(stream_id)
                if call is not None:
                    call.flushed()
            case StreamEnded(stream_id):
                call = self._calls.get(stream_id)
                if call is not None:
                    call.ended()
            case RequestTooLarge(stream_id):
                self.server.observer.limit_hit("header_list_bytes_max")
                error = RpcError(
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"the headers are longer than the {self.limits.header_list_bytes_max} bytes allowed",
                )
                send_end(self, stream_id, _refusal(error))
            case StreamRefused(limit):
                self.server.observer.limit_hit(limit)
            case PingAcknowledged(opaque):
                if opaque == _KEEPALIVE_PING:
                    self._pinged_at = None
            case ConnectionFailed(code, message, limit):
                if limit is not None:
                    self.server.observer.limit_hit(limit)
                log.info("connection failed", peer=self.peer, code=code.name, reason=message)
                self._close()
            case _:
                self._ready = True

    def _on_request(self, event: RequestReceived) -> None:
        head = event.head
        if head.method != "POST" or not head.content_type.startswith(_CONTENT_TYPE):
            call = self._calls[event.stream_id] = NotGrpc(self, event.stream_id, head)
            if event.ended:
                call.ended()
            return
        if self.server.authority and head.authority != self.server.authority:
            self._refuse(event, RpcError(GrpcStatus.UNAVAILABLE, f"this is {self.server.authority}"))
            self.go_away()  # so that the caller resolves the name anew
            return
        route = self.server.routes.get(head.path)
        if route is None:
            self._refuse(event, RpcError(GrpcStatus.UNIMPLEMENTED, f"there is no method {head.path[:256]} here"))
            return
        try:
            timeout_s = grpc_messages.parse_timeout(head.timeout)
        except RpcError as error:
            self._refuse(event, error)
            return
        deadline = None if timeout_s is None else self.now + timeout_s
        method, handler, streaming = route
        if streaming:
            stream = StreamCall(self, event.stream_id, head, method, handler, deadline)
            self._calls[event.stream_id] = stream
            if event.ended:
                stream.ended()
            self._opened.append(stream)
            return
        unary = UnaryCall(self, event.stream_id, head, method, handler, deadline)
        self._calls[event.stream_id] = unary
        self._unary_calls += 1
        if event.ended:
            unary.ended()

    def _begin_opened(self) -> None:
        """Start the handlers of streams; as a rule their first message has arrived by now."""
        opened, self._opened = self._opened, []
        for stream in opened:
            if self._transport is not None and not self._transport.is_closing():  # else the call would get no answer
                stream.begin()

    def _refuse(self, event: RequestReceived, error: RpcError) -> None:
        if event.ended:
            send_end(self, event.stream_id, _refusal(error))
        else:
            self.end_later(event.stream_id, _refusal(error), self.now)

    # Reports of calls

    def answered(self) -> None:
        if self._unary_calls > 1:
            self.flush_soon()
        elif not self._receiving:
            self.flush()

    def call_ended(self, stream_id: int) -> None:
        if self._calls.pop(stream_id, None).__class__ is UnaryCall:
            self._unary_calls -= 1
            assert self._unary_calls >= 0, "a call has ended twice"
        if not self._calls:
            self._last_call_at = self.clock.monotonic()
            if self.http2.refusing:
                self.loop.call_soon(self._close_if_idle)

    def end_later(self, stream_id: int, end: bytes, since: float, begun: bytes = b"") -> None:
        deadline = since + PATIENCE_S
        if self.server.delayed_ends < DELAYED_ENDS_MAX and self.clock.monotonic() < deadline:
            self._calls[stream_id] = DelayedEnd(self, stream_id, end, deadline, begun)
        else:
            send_end(self, stream_id, end)

    def lingering_began(self, call: object) -> None:
        self._lingering.add(call)
        self.http2.lingering = len(self._lingering)

    def lingering_ended(self, call: object) -> None:
        self._lingering.discard(call)
        self.http2.lingering = len(self._lingering)
        self.server.handler_ended(self)

    def flush(self) -> None:
        """Write the queued frames now; close the connection if too much waits for its client."""
        super().flush()
        if self._transport is not None:
            unsent = self.http2.outbox.queued_bytes + self._transport.get_write_buffer_size()
            if unsent != self._unsent_reported:
                self._report_unsent()
                if unsent > self.limits.backlog_bytes_max:
                    self.abort_for("send_buffer_bytes_max")

    # Its share of the server's memory

    @property
    def received_total(self) -> int:
        if self._transport is None or self._is_closed_down:
            self._received_reported = 0
        else:
            encrypted = 0 if self._tls is None else self._tls.unfinished_bytes
            self._received_reported = self.received_bytes + self.http2.unfinished_bytes + encrypted
        return self._received_reported

    @property
    def unsent_total(self) -> int:
        if self._transport is None or self._is_closed_down:
            self._unsent_reported = 0
        else:
            self._unsent_reported = self.http2.outbox.queued_bytes + self._transport.get_write_buffer_size()
        return self._unsent_reported

    @property
    def stalled(self) -> bool:
        """True if the client has read nothing for a while, though data waits for it."""
        return self.clock.monotonic() - self._taken_at > _STALLED_S

    def _report_received(self) -> None:
        totals = self.server.totals
        before = self._received_reported
        totals.received_bytes += self.received_total - before
        if totals.received_bytes > totals.received_bytes_max:
            totals.relieve_received()

    def _report_unsent(self) -> None:
        totals = self.server.totals
        before = self._unsent_reported
        totals.unsent_bytes += self.unsent_total - before
        if totals.unsent_bytes > totals.unsent_bytes_max:
            totals.relieve_unsent()

    def shed(self, count: int) -> int:
        """Cancel unfinished calls, the largest first, until `count` bytes are free.

        Without such calls the connection is closed for the frames that it has not finished.

        Returns:
            How many bytes are free now.
        """
        before = self.received_total
        if not self.received_bytes:
            if before:
                self.abort_for(RECEIVED)
            return before
        for call in sorted(self._calls.values(), key=_counted_bytes, reverse=True):
            if before - self.received_bytes >= count or not call.counted_bytes:
                break
            self.server.observer.limit_hit(RECEIVED)
            call.refuse(RpcError(GrpcStatus.UNAVAILABLE, "too many unfinished requests at this server; try again"))
        self.flush_soon()
        return before - self.received_total

    # Its end

    @property
    def busy(self) -> bool:
        return bool(self._calls or self._lingering)

    def go_away(self) -> None:
        self.http2.go_away()
        self.flush()

    def refuse_streams(self) -> None:
        self.http2.refuse_streams()
        self.flush()
        self._close_if_idle()

    def end_calls(self, error: RpcError) -> None:
        for call in list(self._calls.values()):
            call.refuse(error)
        self.refuse_streams()
        self._close()

    def _close_if_idle(self) -> None:
        if not self._calls and not self.http2.streams:
            self._close()

    def _close(self) -> None:
        if self._transport is not None and self._closing_at is None:
            self.flush()
            self._closing_at = self.now
            self._transport.close()

    def abort_for(self, limit: str) -> None:
        self._is_closed_down = True
        self.server.observer.limit_hit(limit)
        log.info("connection closed", peer=self.peer, limit=limit)
        self.abort()

    def check(self, now: float) -> None:
        if self._transport is None:
            return
        limits = self.limits
        if self._closing_at is not None:
            if now - self._closing_at > _CLOSING_TIMEOUT_S:
                self.abort()
            return
        if not self._ready:
            if now - self._opened_at > limits.preface_timeout_s:
                self.abort_for("preface_timeout_s")
            return
        unread = self._transport.get_write_buffer_size()
        taken = self.sent_bytes - unread
        self._report_received()  # handlers have taken messages since
        unsent = unread + self.http2.outbox.queued_bytes
        if unsent != self._unsent_reported:
            self._report_unsent()
        if taken != self._taken_bytes or not unsent:
            self._taken_bytes = taken
            self._taken_at = now
        elif now - self._taken_at > limits.stalled_timeout_s:
            self.abort_for("stalled_timeout_s")
            return
        self._check_life(now)

    def _check_life(self, now: float) -> None:
        limits = self.limits
        if self._pinged_at is not None:
            if now - self._pinged_at > limits.keepalive_timeout_s:
                self.abort_for("keepalive_timeout_s")
        elif limits.keepalive_interval_s and now - self._last_received_at > limits.keepalive_interval_s:
            self._pinged_at = now
            self.http2.ping(_KEEPALIVE_PING)
            self.flush()
        if limits.idle_timeout_s and not self.busy and now - self._last_call_at > limits.idle_timeout_s:
            self.refuse_streams()


def _counted_bytes(call: ServerCall | NotGrpc | DelayedEnd) -> int:
    return call.counted_bytes


def _refusal(error: RpcError) -> bytes:
    """Return the headers of an answer that is only an error."""
    fields = [(b":status", b"200"), (b"content-type", grpc_messages.CONTENT_TYPE)]
    return hpack.encode([*fields, *grpc_messages.trailers_of_error(error)])
