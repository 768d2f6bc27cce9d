"""HTTP/2 connection without its socket (RFC 9113): bytes in, events out; output bytes wait to be taken.

The class serves both sides. It knows streams, windows, settings, pings and headers; the content of a stream is
its owner's business (`popwheel_rpc.http2.grpc_messages`). It is passed the time and never waits.
"""

from popwheel_rpc.http2 import frames, hpack
from popwheel_rpc.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    GoingAway,
    PingAcknowledged,
    RequestReceived,
    RequestTooLarge,
    ResponseReceived,
    SettingsChanged,
    StreamEnded,
    StreamFlushed,
    StreamRefused,
    StreamReset,
)
from popwheel_rpc.http2.frame_reader import SELF_DEPENDENT, FrameReader, without_padding
from popwheel_rpc.http2.frames import ErrorCode, ProtocolError, StreamError
from popwheel_rpc.http2.head_reader import HeadReader
from popwheel_rpc.http2.headers import HeaderField, MalformedHeadersError, RequestHead, check_trailers, read_response
from popwheel_rpc.http2.sender import GOING_AWAY_PING, Sender
from popwheel_rpc.http2.streams import Closure, Stream
from popwheel_rpc.limits import WINDOW_MAX, FloodCounter, Limits

_TABLE_CHANGES_MAX = 8
"""Changes of HPACK's table after which a client is asked to do without one."""


class Connection(Sender):
    """Either side of a connection.

    `receive` never raises: violations of the other side become `StreamReset` or `ConnectionFailed`. The owner's
    commands are in `Sender`.

    Args:
        limits: what the other side may do.
        client: whether this side opens the streams.
    """

    def __init__(self, limits: Limits, *, client: bool) -> None:
        super().__init__(limits, client=client)
        self.lingering = 0
        """Calls whose stream is over and whose handler is not; the owner counts them here against the streams."""
        self._reader = FrameReader(limits, self._on_frame, preface=not client)
        self._heads = HeadReader(limits.header_list_bytes_max)
        self._acknowledged = 0
        self._asks_for_no_table = False
        self._events: list[Event] = []
        self._now = 0.0
        window_s = limits.flood_window_s
        self._resets = FloodCounter(limits.resets_max, window_s)
        self._pings = FloodCounter(limits.pings_max, window_s)
        self._settings = FloodCounter(limits.settings_max, window_s)
        self._priorities = FloodCounter(limits.priorities_max, window_s)
        self._window_updates = FloodCounter(limits.window_updates_max, window_s)
        self._empty_frames = FloodCounter(limits.empty_frames_max, window_s)
        self._handlers = (
            self._on_data,
            self._on_block,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
        )

    @property
    def unfinished_bytes(self) -> int:
        """Buffered bytes of an incomplete frame or header block."""
        reader = self._reader
        return len(reader.rest) + reader.block_bytes

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Process received bytes.

        Args:
            data: as they came from the socket.
            now: seconds of the monotonic clock.
        """
        if self.failed:
            return []
        self._now = now
        events = self._events = []
        try:
            self._reader.receive(data)
        except ProtocolError as error:
            self._fail(error)
        return events

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind >= len(self._handlers):
            self._count(self._priorities, "priorities_max")
            return
        try:
            self._handlers[kind](flags, stream_id, payload)
        except StreamError as error:
            self._fail_stream(error)

    def _fail(self, error: ProtocolError) -> None:
        self.failed = True
        self.outbox.control(frames.goaway(0 if self._client else self._last_stream_id, error.code, error.message))
        self._events.append(ConnectionFailed(error.code, error.message, error.limit))

    def _fail_stream(self, error: StreamError) -> None:
        self.outbox.control(frames.rst_stream(error.stream_id, error.code))
        stream = self.streams.get(error.stream_id)
        if stream is not None:
            self._close(stream, Closure.RESET_HERE)
            self._events.append(StreamReset(error.stream_id, error.code, error.message))
        else:
            self._closed.add(error.stream_id, Closure.RESET_HERE)
        self._count(self._resets, "resets_max")

    def _count(self, counter: FloodCounter, limit: str) -> None:
        if counter.hit(self._now):
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, f"too many frames ({limit})", limit)

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_stream_id or not stream_id & 1

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        if not self._window.take(size):
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_ended:
            self._window.buffered -= size
            self._open_connection_window()
            self._on_late_data(stream_id, stream)
            return
        if flags & frames.PADDED:
            payload = without_padding(payload)
            self._window.buffered -= size - len(payload)
        within = stream.receiving.take(size)
        if size != len(payload):
            stream.receiving.buffered -= size - len(payload)
        stream.received_bytes += len(payload)
        ended = flags & frames.END_STREAM != 0
        wanted = stream.content_length
        fault = None
        if not within:
            fault = ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window allows"
        elif self._client and not stream.headers_received:
            fault = ErrorCode.PROTOCOL_ERROR, "data before the headers of the answer"
        elif wanted is not None and (stream.received_bytes > wanted or (ended and stream.received_bytes != wanted)):
            fault = ErrorCode.PROTOCOL_ERROR, "the data is not as long as content-length says"
        if fault:
            self._window.buffered -= len(payload)
            raise StreamError(stream_id, *fault)
        if not payload and not ended:
            self._count(self._empty_frames, "empty_frames_max")
            return
        # At once: one slow stream must not block the others (within receive_buffer_bytes_max).
        self._open_connection_window()
        self._events.append(DataReceived(stream_id, payload, ended))
        if ended:
            stream.remote_ended = True
            self._remote_ended(stream)

    def _on_late_data(self, stream_id: int, stream: Stream | None) -> None:
        if stream is not None:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, "data on a stream whose end was sent")
        if self._is_idle(stream_id):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "data on a stream that is not open")
        closure = self._closed.get(stream_id)
        if closure is Closure.ENDED:
            raise ProtocolError(ErrorCode.STREAM_CLOSED, "data on a stream that has ended")
        if closure is not Closure.RESET_HERE:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, "data on a closed stream")

    def _remote_ended(self, stream: Stream) -> None:
        if stream.local_ended:
            self._close(stream, Closure.ENDED)
        elif self._client:
            # The answer is complete, so our remaining output is of no use.
            self.reset(stream.stream_id, ErrorCode.NO_ERROR)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        ended = flags & frames.END_STREAM != 0
        stream = self.streams.get(stream_id)
        if stream is None and not self._client and stream_id & 1 and stream_id > self._last_stream_id:
            self._last_stream_id = stream_id
            self._on_request(stream_id, block, ended=ended, self_dependent=flags & SELF_DEPENDENT != 0)
            return
        try:
            fields = self._heads.fields(block)
        except hpack.HeaderListTooLargeError as error:
            raise StreamError(stream_id, ErrorCode.ENHANCE_YOUR_CALM, str(error)) from None
        if stream is None:
            self._on_late_headers(stream_id)
        elif stream.remote_ended:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, "headers on a stream whose end was sent")
        elif self._client:
            self._on_response(stream, fields, ended)
        else:
            self._on_request_trailers(stream, fields, ended)

    def _on_late_headers(self, stream_id: int) -> None:
        closure = None if self._is_idle(stream_id) else self._closed.get(stream_id)
        if closure is None:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"headers on stream {stream_id}, which cannot be opened")
        if closure is Closure.ENDED:
            raise ProtocolError(ErrorCode.STREAM_CLOSED, "headers on a stream that has ended")
        if closure is Closure.RESET_THERE:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, "headers on a closed stream")

    def _on_request(self, stream_id: int, block: bytes, *, ended: bool, self_dependent: bool) -> None:
        head: RequestHead | None = None
        try:
            head = self._heads.request(block)
        except hpack.HeaderListTooLargeError:
            pass  # the owner answers it, if the stream can be opened
        except MalformedHeadersError as error:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from None
        if self._heads.table_changes > _TABLE_CHANGES_MAX and not self._asks_for_no_table:
            self._asks_for_no_table = True
            self.outbox.control(frames.settings({frames.SETTING_HEADER_TABLE_SIZE: 0}))
        if self_dependent:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
        if stream_id > self._goaway_last_id:
            raise StreamError(stream_id, ErrorCode.REFUSED_STREAM, "this connection takes no more streams")
        if len(self.streams) + self.lingering >= self._limits.concurrent_streams_max:
            self._events.append(StreamRefused("concurrent_streams_max"))
            raise StreamError(stream_id, ErrorCode.REFUSED_STREAM, "too many streams at a time")
        if head is not None and ended and head.content_length:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length of a request without data")
        stream = Stream(stream_id, self.outbox.initial_window, self._limits.stream_window_bytes)
        stream.remote_ended = ended
        self.streams[stream_id] = stream
        if head is None:
            self._events.append(RequestTooLarge(stream_id))
        else:
            stream.content_length = head.content_length
            self._events.append(RequestReceived(stream_id, head, ended))

    def _on_request_trailers(self, stream: Stream, fields: list[HeaderField], ended: bool) -> None:
        if not ended:
            raise StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR, "trailers that do not end the stream")
        try:
            check_trailers(fields)
        except MalformedHeadersError as error:
            raise StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from None
        if stream.content_length is not None and stream.received_bytes != stream.content_length:
            raise StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR, "less data than content-length says")
        stream.remote_ended = True
        self._events.append(StreamEnded(stream.stream_id))
        self._remote_ended(stream)

    def _on_response(self, stream: Stream, fields: list[HeaderField], ended: bool) -> None:
        trailers = stream.headers_received
        try:
            head = read_response(fields, trailers=trailers)
        except MalformedHeadersError as error:
            raise StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from None
        if trailers and not ended:
            raise StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR, "trailers that do not end the stream")
        if 100 <= head.status < 200:
            if ended:
                raise StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR, "an interim answer ends the stream")
            self._count(self._empty_frames, "empty_frames_max")
            return
        stream.headers_received = True
        self._events.append(ResponseReceived(stream.stream_id, head, ended))
        if ended:
            stream.remote_ended = True
            self._remote_ended(stream)

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._count(self._priorities, "priorities_max")
        if not stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a priority for stream 0")
        if len(payload) != 5:
            raise StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY frame is five bytes")
        if int.from_bytes(payload[:4], "big") & frames.STREAM_ID_MAX == stream_id:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "an RST_STREAM frame is four bytes")
        if self._is_idle(stream_id):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a reset of a stream that is not open")
        self._count(self._resets, "resets_max")
        stream = self.streams.get(stream_id)
        if stream is not None:
            code = _error_code(payload)
            self._close(stream, Closure.RESET_THERE)
            self._events.append(StreamReset(stream_id, code, f"reset by the other side ({code.name})"))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "settings on a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise ProtocolError(
                ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame is a multiple of six bytes, its ack empty"
            )
        self._count(self._settings, "settings_max")
        if flags & frames.ACK:
            self._acknowledged += 1
            if self._asks_for_no_table and self._acknowledged > 1:  # the first settings are those of the start
                self._heads.forbid_table()
            return
        # Before what the new settings let go: a client may hold us to its old window until it has seen the ack
        # (grpcio does, and takes DATA beyond it for an error).
        self.outbox.control(frames.SETTINGS_ACK)
        # Of several values of one setting only the last is applied: a frame has room for 2730 initial windows, and
        # each of them would be work for every stream.
        last: dict[int, int] = {}
        for key, value in frames.read_settings(payload):
            self._check_setting(key, value)
            last[key] = value
        for key, value in last.items():
            self._apply_setting(key, value)
        self._events.append(SettingsChanged())

    def _check_setting(self, key: int, value: int) -> None:
        if key == frames.SETTING_INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "an initial window beyond 2^31 - 1")
        if key == frames.SETTING_MAX_FRAME_SIZE and not frames.FRAME_BYTES_DEFAULT <= value <= frames.FRAME_BYTES_MAX:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a frame size outside 2^14 to 2^24 - 1")
        if key == frames.SETTING_ENABLE_PUSH and (value > 1 or (self._client and value)):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a forbidden value of ENABLE_PUSH")

    def _apply_setting(self, key: int, value: int) -> None:
        if key == frames.SETTING_INITIAL_WINDOW_SIZE:
            change = value - self.outbox.initial_window
            self.outbox.initial_window = value
            for stream in list(self.streams.values()):
                try:
                    flushed = self.outbox.open_stream_window(stream, change)
                except StreamError as error:
                    raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, error.message) from None
                if flushed:
                    self._flushed(stream)
        elif key == frames.SETTING_MAX_FRAME_SIZE:
            self.outbox.frame_bytes_max = min(value, frames.FRAME_BYTES_OF_ANSWERS)
        elif key == frames.SETTING_MAX_CONCURRENT_STREAMS:
            self.remote_streams_max = value

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "nobody may push here")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a ping on a stream")
        if len(payload) != 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "a PING frame is eight bytes")
        self._count(self._pings, "pings_max")
        if not flags & frames.ACK:
            # Go clients ping after each answer or so, to learn how fast the network is: the next answer takes it along.
            self.outbox.patient(frames.ping(payload, ack=True))
        elif payload == GOING_AWAY_PING and self.going_away:
            self.refuse_streams()
        else:
            self._events.append(PingAcknowledged(payload))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY frame is at least eight bytes")
        self._count(self._settings, "settings_max")
        if self._client:
            self.going_away = True
        last = int.from_bytes(payload[:4], "big") & frames.STREAM_ID_MAX
        message = payload[8:264].decode("utf-8", "replace")
        self._events.append(GoingAway(last, _error_code(payload[4:8]), message))

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE frame is four bytes")
        self._count(self._window_updates, "window_updates_max")
        increment = int.from_bytes(payload, "big") & WINDOW_MAX
        if not stream_id:
            if not increment:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "the connection's window is opened by 0")
            for stream in self.outbox.open_connection_window(increment):
                self._flushed(stream)
            return
        stream_or_none = self.streams.get(stream_id)
        if stream_or_none is None:
            if self._is_idle(stream_id):
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a window of a stream that is not open")
            return
        if not increment:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream's window is opened by 0")
        if self.outbox.open_stream_window(stream_or_none, increment):
            self._flushed(stream_or_none)

    def _flushed(self, stream: Stream) -> None:
        self._events.append(StreamFlushed(stream.stream_id))
        if stream.local_ended:
            self._finish(stream)


def _error_code(payload: bytes) -> ErrorCode:
    number = int.from_bytes(payload, "big")
    try:
        return ErrorCode(number)
    except ValueError:
        # An unknown code means nothing more than INTERNAL_ERROR (RFC 9113, 7).
        return ErrorCode.INTERNAL_ERROR
