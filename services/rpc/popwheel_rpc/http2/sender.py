"""Commands of a connection's owner: open streams, answer, reset, release data, and close gracefully."""

from typing import Final

from popwheel_rpc.http2 import frames, hpack
from popwheel_rpc.http2.frames import ErrorCode
from popwheel_rpc.http2.outbox import Outbox
from popwheel_rpc.http2.streams import ClosedStreams, Closure, ReceiveWindow, Stream
from popwheel_rpc.limits import WINDOW_DEFAULT, Limits

GOING_AWAY_PING: Final = b"goingawy"
_UNLIMITED = 2**31 - 1


class Sender:
    """Sending half of a connection; `popwheel_rpc.http2.connection.Connection` adds the receiving half.

    The methods do nothing on a stream that is over: it may have ended just before its owner's call.

    Args:
        limits: what the other side may do.
        client: whether this side opens the streams.
    """

    def __init__(self, limits: Limits, *, client: bool) -> None:
        self.outbox = Outbox()
        self.streams: dict[int, Stream] = {}
        self.remote_streams_max = _UNLIMITED
        self.going_away = False
        self.failed = False
        self._client = client
        self._limits = limits
        self._window = ReceiveWindow(limits.connection_window_bytes, limits.buffered_bytes_max)
        self._closed = ClosedStreams()
        self._last_stream_id = 0
        self._goaway_last_id = frames.STREAM_ID_MAX
        self._first_block = True

    # Life of the connection

    def start(self) -> None:
        """Queue the preface and our settings; before anything else."""
        limits = self._limits
        settings = {
            frames.SETTING_INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            frames.SETTING_MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
        }
        if self._client:
            self.outbox.control(frames.PREFACE)
            settings[frames.SETTING_ENABLE_PUSH] = 0
            settings[frames.SETTING_MAX_FRAME_SIZE] = frames.FRAME_BYTES_OF_ANSWERS
        else:
            settings[frames.SETTING_MAX_CONCURRENT_STREAMS] = limits.concurrent_streams_max
        self.outbox.control(frames.settings(settings))
        if limits.connection_window_bytes > WINDOW_DEFAULT:
            self.outbox.control(frames.window_update(0, limits.connection_window_bytes - WINDOW_DEFAULT))

    def ping(self, opaque: bytes) -> None:
        """Ask the other side for a sign of life; `PingAcknowledged` brings it. Eight bytes, not `goingawy`."""
        self.outbox.control(frames.ping(opaque, ack=False))

    def go_away(self) -> None:
        """Begin a graceful close: ask the other side to open no more streams; those in flight are still accepted.

        When it has answered a ping, or `refuse_streams` is called, later ones are refused.
        """
        if not self.going_away and not self.failed:
            self.going_away = True
            self.outbox.control(frames.goaway(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR, "shutting down"))
            self.outbox.control(frames.ping(GOING_AWAY_PING, ack=False))

    def refuse_streams(self, debug: str = "shutting down") -> None:
        """Take the second step of `go_away`: later streams are ignored."""
        if self._goaway_last_id == frames.STREAM_ID_MAX and not self.failed:
            self.going_away = True
            self._goaway_last_id = self._last_stream_id
            self.outbox.control(frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR, debug))

    @property
    def refusing(self) -> bool:
        """True once both steps of `go_away` are done."""
        return self._goaway_last_id != frames.STREAM_ID_MAX

    @property
    def buffered_bytes(self) -> int:
        """Received bytes that are not released yet."""
        return self._window.buffered

    # Sending

    def open_stream(self, block: bytes, *, end: bool) -> int:
        """Open a stream as a client.

        Args:
            block: request headers (`hpack.encode`).
            end: whether no data follows.

        Returns:
            The stream's number.
        """
        assert self._client, "only clients open streams"
        stream_id = self._last_stream_id + 2 if self._last_stream_id else 1
        self._last_stream_id = stream_id
        stream = Stream(stream_id, self.outbox.initial_window, self._limits.stream_window_bytes)
        self.streams[stream_id] = stream
        self.outbox.headers(stream, self._first(block), end=end)
        return stream_id

    @property
    def can_open_stream(self) -> bool:
        """True if the other side accepts one more stream now."""
        return (
            not self.going_away
            and not self.failed
            and len(self.streams) < self.remote_streams_max
            and not self.is_used_up
        )

    @property
    def is_used_up(self) -> bool:
        """True once a client has no stream number left: it needs another connection (RFC 9113, 5.1.1)."""
        return self._last_stream_id >= frames.STREAM_ID_MAX - 2

    def respond(self, stream_id: int, headers: bytes, data: bytes, trailers: bytes) -> None:
        """Send a whole answer with one message."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        self.outbox.headers(stream, self._first(headers), end=False)
        if self.outbox.data(stream, data, trailers=trailers):
            self._finish(stream)

    def send_headers(self, stream_id: int, block: bytes, *, end: bool = False) -> None:
        """Send headers, or trailers if no data waits before them (else see `send_data`)."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        self.outbox.headers(stream, self._first(block), end=end)
        if end:
            self._finish(stream)

    def send_data(self, stream_id: int, data: bytes, *, end: bool = False, trailers: bytes | None = None) -> bool:
        """Send data, then the end or trailers if asked.

        Returns:
            Whether all of it is ready to leave; if not, `StreamFlushed` follows when it is.
        """
        stream = self.streams.get(stream_id)
        if stream is None:
            return True
        done = self.outbox.data(stream, data, end=end, trailers=trailers)
        if done and stream.local_ended:
            self._finish(stream)
        return done

    def is_blocked(self, stream_id: int) -> bool:
        """Return whether data of a stream waits for a window."""
        stream = self.streams.get(stream_id)
        return stream is not None and stream.queue is not None

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream before its time."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.outbox.control(frames.rst_stream(stream_id, code))
            self._close(stream, Closure.RESET_HERE)

    def collect(self, stream_id: int) -> None:
        """Open a stream's window although its data is still in memory: its message is of use only when it is whole."""
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.remote_ended:
            stream.receiving.buffered = 0
            self._open_window(stream)

    def release(self, stream_id: int, count: int) -> None:
        """Release `count` bytes of a stream (over or not): the windows may open."""
        self._window.buffered -= count
        assert self._window.buffered >= 0, "more bytes are released than came in (M1)"
        self._open_connection_window()
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.remote_ended:
            stream.receiving.buffered = max(0, stream.receiving.buffered - count)
            self._open_window(stream)

    def _first(self, block: bytes) -> bytes:
        if self._first_block:
            self._first_block = False
            return hpack.NO_TABLE + block
        return block

    def _open_connection_window(self) -> None:
        if self._window.is_low:
            increment = self._window.increment()
            if increment:
                self.outbox.control(frames.window_update(0, increment))

    def _open_window(self, stream: Stream) -> None:
        increment = stream.receiving.increment()
        if increment:
            self.outbox.control(frames.window_update(stream.stream_id, increment))

    def _finish(self, stream: Stream) -> None:
        """End our direction; the stream is over if the other one has ended, or if its rest is not wanted."""
        if stream.remote_ended:
            self._close(stream, Closure.ENDED)
        elif not self._client:
            # The answer is complete and the request is not: the rest is of no use (RFC 9113, 8.1).
            self.reset(stream.stream_id, ErrorCode.NO_ERROR)

    def _close(self, stream: Stream, closure: Closure) -> None:
        del self.streams[stream.stream_id]
        self._closed.add(stream.stream_id, closure)
        if stream.queue is not None:
            self.outbox.forget(stream)
