"""Output of one connection: frames that are ready, and data that waits for the other side's windows."""

from collections import deque

from popwheel_rpc.http2 import frames
from popwheel_rpc.http2.frames import END_HEADERS, END_STREAM, FRAME_HEADER, ErrorCode, ProtocolError, StreamError
from popwheel_rpc.http2.streams import Stream
from popwheel_rpc.limits import WINDOW_DEFAULT, WINDOW_MAX


class Outbox:
    """Output frames in their order. Data obeys the windows; other frames go ahead of waiting data.

    `queued_bytes` wait for a window; `frame_bytes_max` and `initial_window` are the other side's settings.
    """

    def __init__(self) -> None:
        self.window = WINDOW_DEFAULT
        self.initial_window = WINDOW_DEFAULT
        self.frame_bytes_max = frames.FRAME_BYTES_DEFAULT
        self.queued_bytes = 0
        self._patient = 0
        self._ready: list[bytes | memoryview] = []
        # Streams whose own window is open and which wait for the connection's, longest waiting first.
        self._waiting: dict[int, Stream] = {}

    def __bool__(self) -> bool:
        return bool(self._ready)

    @property
    def is_urgent(self) -> bool:
        """True if ready output should not wait."""
        return len(self._ready) > self._patient

    def take(self) -> bytes:
        """Take all ready frames, in one run of bytes, for the caller to send."""
        ready = self._ready
        self._patient = 0
        if len(ready) == 1:
            return bytes(ready.pop())
        data = b"".join(ready)
        ready.clear()
        return data

    def control(self, frame: bytes) -> None:
        """Queue a whole frame that needs no window."""
        self._ready.append(frame)

    def patient(self, frame: bytes) -> None:
        """Queue a whole frame that needs no window and that can wait a moment."""
        self._ready.append(frame)
        self._patient += 1

    def headers(self, stream: Stream, block: bytes, *, end: bool) -> None:
        """Queue HEADERS; no data may wait on this stream."""
        assert not stream.local_ended, "headers behind the end of a stream"
        flags = END_STREAM if end else 0
        size = len(block)
        if size <= self.frame_bytes_max:
            self._ready.append(FRAME_HEADER.pack(size << 8 | 1, flags | END_HEADERS, stream.stream_id) + block)
        else:
            self._ready.append(frames.headers(stream.stream_id, block, flags, self.frame_bytes_max))
        if end:
            stream.local_ended = True

    def data(self, stream: Stream, data: bytes, *, end: bool = False, trailers: bytes | None = None) -> bool:
        """Queue data, and then perhaps the end or trailers, which are sent as soon as the windows allow.

        Returns:
            Whether all of it is ready to leave; if not, `write` will say when it is.
        """
        assert not stream.local_ended, "data behind the end of a stream"
        size = len(data)
        if stream.queue is None and size <= stream.send_window and size <= self.window:
            stream.send_window -= size
            self.window -= size
            self._frames(stream, data, end=end)
            if trailers is not None:
                self.headers(stream, trailers, end=True)
            elif end:
                stream.local_ended = True
            return True
        if stream.queue is None:
            stream.queue = deque()
        if size:
            stream.queue.append(memoryview(data))
            self.queued_bytes += size
        stream.queued_trailers = trailers
        stream.queued_end = end
        return self.write(stream)

    def _frames(self, stream: Stream, data: bytes, *, end: bool) -> None:
        size = len(data)
        most = self.frame_bytes_max
        ready = self._ready
        at = 0
        if size > most:
            view = memoryview(data)  # its parts are copied once, when they are taken
            while size - at > most:
                ready.append(FRAME_HEADER.pack(most << 8, 0, stream.stream_id))
                ready.append(view[at : at + most])
                at += most
        if size - at or end:
            ready.append(FRAME_HEADER.pack((size - at) << 8, END_STREAM if end else 0, stream.stream_id))
            ready.append(data[at:] if at else data)

    def write(self, stream: Stream) -> bool:
        """Send as much waiting data of a stream as its windows allow.

        Returns:
            Whether all of it was sent.
        """
        queue = stream.queue
        if queue is None:
            return True
        while queue:
            room = min(stream.send_window, self.window, self.frame_bytes_max)
            if room <= 0:
                if stream.send_window > 0:
                    self._waiting[stream.stream_id] = stream
                return False
            piece = queue[0]
            if len(piece) <= room:
                queue.popleft()
            else:
                queue[0] = piece[room:]
                piece = piece[:room]
            size = len(piece)
            stream.send_window -= size
            self.window -= size
            self.queued_bytes -= size
            assert size and self.queued_bytes >= 0, "more bytes leave than were queued (M1)"
            last = stream.queued_end and not queue
            self._ready.append(FRAME_HEADER.pack(size << 8, END_STREAM if last else 0, stream.stream_id))
            self._ready.append(piece)
            if last:
                stream.local_ended = True
        stream.queue = None
        if stream.queued_trailers is not None:
            self.headers(stream, stream.queued_trailers, end=True)
        elif stream.queued_end and not stream.local_ended:
            self._ready.append(FRAME_HEADER.pack(0, END_STREAM, stream.stream_id))
            stream.local_ended = True
        return True

    def forget(self, stream: Stream) -> None:
        """Drop the waiting data of a stream that is over."""
        if stream.queue is not None:
            self.queued_bytes -= sum(map(len, stream.queue))
            assert self.queued_bytes >= 0, "more bytes are dropped than were queued (M1)"
            stream.queue = None
        self._waiting.pop(stream.stream_id, None)

    def open_connection_window(self, increment: int) -> list[Stream]:
        """Open the connection's window; return the streams whose data was all sent.

        Raises:
            ProtocolError: FLOW_CONTROL_ERROR if it is too wide now.
        """
        self.window += increment
        if self.window > WINDOW_MAX:
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is opened beyond 2^31 - 1")
        flushed = []
        while self._waiting and self.window > 0:
            stream = self._waiting.pop(next(iter(self._waiting)))
            if self.write(stream):
                flushed.append(stream)
        return flushed

    def open_stream_window(self, stream: Stream, increment: int) -> bool:
        """Open a stream's window; return whether data waited on it and was all sent.

        Raises:
            StreamError: FLOW_CONTROL_ERROR if it is too wide now.
        """
        stream.send_window += increment
        if stream.send_window > WINDOW_MAX:
            raise StreamError(
                stream.stream_id, ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is opened beyond 2^31 - 1"
            )
        return stream.queue is not None and self.write(stream)
