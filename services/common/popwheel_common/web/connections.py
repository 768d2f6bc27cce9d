"""The HTTP connections of a process: how many there may be, and for how long one may keep it waiting.

A client that opens connections and says nothing would take all the files that the process may have open, and nobody
would be asked for health any more. So there are few, and the one that has waited for its client for longest makes room.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import h11
from prometheus_client import CollectorRegistry, Counter, Gauge
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from popwheel_common.clock import Clock
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.web.refusals import refusal
from popwheel_common.web.security_headers import REFUSAL_HEADERS

HEAD_BYTES_MAX: Final = 16 * 1024
"""The limit of a request's first line and headers."""
READ_S_MAX: Final = 10
"""The longest time that a request may take to come in, or a connection may stay silent."""
TAKE_S_MAX: Final = 30
"""The longest time that a client may take for an answer."""

_POLL_S = 1.0
_PIECE_BYTES = 4 * 1024
_SHARE_OF_FILES = 8
_TOO_SLOW = f"the request did not come in within {READ_S_MAX} s: send it faster"
_TOO_LONG = f"the request's head has more than {HEAD_BYTES_MAX} bytes: send fewer or shorter headers"
_NO_REQUEST = "what came in is no request in HTTP/1.1: see that the port is the right one"
_TWO_LENGTHS = "the request has both content-length and transfer-encoding: send one of them"


def connections_within(connections_max: int) -> int:
    """Return the limit of connections: at most an eighth of the files that may be open."""
    import resource  # Windows has none

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections_max if soft == resource.RLIM_INFINITY else max(1, min(connections_max, soft // _SHARE_OF_FILES))


class Connections:
    """Connections of a server. What comes in is read in pieces, one piece of one of them in a turn of the loop.

    Args:
        most: as many at the same time.
        registry: where they are shown.
        clock: the time.
    """

    def __init__(self, most: int, registry: CollectorRegistry, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        self._open: dict[Connection, float] = {}
        """Open connections, with since when each waits for its next event; the longest first."""
        self._to_read: OrderedDict[Connection, None] = OrderedDict()
        """Connections with unread input; the next one first."""
        self._reads_soon = False
        self._timer: asyncio.TimerHandle | None = None
        Gauge("popwheel_http_connections", "HTTP connections that are open", registry=registry).set_function(
            lambda: len(self._open)
        )
        self._ended = Counter(
            "popwheel_http_connections_ended",
            "HTTP connections that were ended from here: silent or slow for too long, or one too many",
            ("reason",),
            registry=registry,
        )
        for reason in ("slow", "full"):
            self._ended.labels(reason)

    def __call__(self, **wiring: Any) -> "Connection":
        """Make a connection, as uvicorn asks for it."""
        return Connection(self, **wiring)

    def opened(self, connection: "Connection") -> bool:
        """Take a connection up; False if there is no room for it."""
        if len(self._open) >= self._most:
            self._ended.labels("full").inc()
            longest = next((each for each in self._open if each.waits_s_max is not None), None)
            if longest is None:
                return False
            self.closed(longest)
            longest.transport.abort()
        self.moved(connection)
        if self._timer is None:
            self._end_idle_often()
        return True

    def moved(self, connection: "Connection") -> None:
        """Record a connection that is new, or has completed a request."""
        self._open.pop(connection, None)
        self._open[connection] = self._clock.monotonic()

    def closed(self, connection: "Connection") -> None:
        """Remove a closed connection."""
        self._open.pop(connection, None)
        self._to_read.pop(connection, None)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def read_soon(self, connection: "Connection") -> None:
        """Queue a piece of a connection to be read, after those of all that wait for the same."""
        self._to_read[connection] = None
        if not self._reads_soon:
            self._reads_soon = True
            asyncio.get_running_loop().call_soon(self._read_one)

    def end_idle(self) -> None:
        """End connections that have waited for their clients for too long."""
        now_s = self._clock.monotonic()
        for connection, since_s in list(self._open.items()):
            waits_s_max = connection.waits_s_max
            if waits_s_max is None:  # it is our turn
                self.moved(connection)
            elif now_s - since_s > waits_s_max:
                self._ended.labels("slow").inc()
                connection.end()

    def _read_one(self) -> None:
        self._reads_soon = False
        if self._to_read:
            connection, _ = self._to_read.popitem(last=False)
            if self._to_read:  # what is called soon from here is called in the next turn
                self.read_soon(next(iter(self._to_read)))
            connection.read()

    def _end_idle_often(self) -> None:
        self.end_idle()
        self._timer = asyncio.get_running_loop().call_later(_POLL_S, self._end_idle_often) if self._open else None


class _Flow(FlowControl):
    """uvicorn's own, but reading continues only when the connection allows it.

    Args:
        transport: of the connection.
        resumed: is called when uvicorn can take more.
    """

    def __init__(self, transport: asyncio.Transport, resumed: Callable[[], None]) -> None:
        super().__init__(transport)
        self._resumed = resumed

    def resume_reading(self) -> None:
        """Take more."""
        if self.read_paused:
            self.read_paused = False
            self._resumed()


class Connection(H11Protocol):
    """A connection. A request is read in pieces, as heads and chunks cost much per byte.

    Args:
        connections: all of them.
        wiring: as uvicorn gives it.
    """

    def __init__(self, connections: Connections, **wiring: Any) -> None:
        super().__init__(**wiring)
        self._all = connections
        self._rest = bytearray()
        """Bytes that came in and are not read yet; nothing more comes in while there is any."""
        self._body_left = 0
        """Bytes left of a body whose length is known; that is cheap to read, also to throw it away."""
        self._is_reading = False
        self._is_behind = False
        """A request came in behind another, is with h11 already, and not looked at yet."""
        self._is_refused = False

    @property
    def waits_s_max(self) -> int | None:
        """Seconds that it may wait for its client; None while the client waits for it."""
        if self.transport.get_write_buffer_size():
            return TAKE_S_MAX
        cycle = self.cycle
        if self._is_refused or cycle is None or cycle.response_complete or cycle.more_body:
            return READ_S_MAX
        return None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it up, if there is room."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self._read_on)
        if not self._all.opened(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._all.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Keep the data until its turn comes."""
        if not self._is_refused:
            self._rest += data
            self._read_on()

    def handle_events(self) -> None:
        """Process h11's events in turn: uvicorn would do it as soon as a request is answered, for all in one turn."""
        if self._is_reading:
            super().handle_events()
        else:
            self._is_behind = True
            self._read_on()

    def read(self) -> None:
        """Read a piece: the turn of this connection has come."""
        if self.transport.is_closing():
            return
        if not self._is_refused:
            self._is_reading = True
            try:
                self._read()
            finally:
                self._is_reading = False
        self._read_on()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._all.moved(self)
        super().on_response_complete()

    def end(self) -> None:
        """Close it, with a sentence where the client may still read one."""
        has_begun = self.conn.trailing_data[0] or (self.cycle is not None and self.cycle.more_body)
        if self._is_refused or not has_begun or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        self._refuse(408, Code.REQUEST_TIMEOUT, _TOO_SLOW)

    def shutdown(self) -> None:
        """Close it when it has done with its request, as uvicorn wants it done."""
        if self._is_refused:
            self.transport.abort()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, by uvicorn's interface."""
        if len(self.conn.trailing_data[0]) > HEAD_BYTES_MAX:
            self._refuse(431, Code.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_LONG)
        else:
            self._refuse(400, Code.BAD_REQUEST, _NO_REQUEST)

    def _refuse(self, status: int, code: int, sentence: str) -> None:
        """Answer without the application. What still comes in is thrown away: a socket that is closed with something
        unread may take the answer from the client.
        """
        self._is_refused = True
        cycle = self.cycle
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state not in (
            h11.IDLE,
            h11.SEND_RESPONSE,
        ):  # another answer is on its way, or was the last one
            self.transport.abort()
            return
        answer = refusal(status, code, sentence, {"connection": "close", **REFUSAL_HEADERS})
        for event in (
            h11.Response(status_code=status, headers=answer.raw_headers, reason=STATUS_PHRASES[status]),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.write_eof()
        self._all.moved(self)

    def _read(self) -> None:
        before = self.cycle
        if self._is_behind:
            self._is_behind = False
            self.handle_events()
        elif self._rest:
            data = bytes(memoryview(self._rest)[: max(_PIECE_BYTES, self._body_left)])
            del self._rest[: len(data)]
            self._body_left = max(0, self._body_left - len(data))
            super().data_received(data)
        if self.cycle is not before and not self._is_refused:
            lengths = [value for name, value in self.headers if name == b"content-length"]
            self._body_left = int(lengths[0]) if lengths else 0
            if lengths and any(name == b"transfer-encoding" for name, _ in self.headers):
                self._refuse(400, Code.BAD_REQUEST, _TWO_LENGTHS)

    def _read_on(self) -> None:
        """Ask for the next piece to be read, if uvicorn can take it; let more come in when nothing is there."""
        if self.transport.is_closing():
            return
        if self._is_refused:
            self._rest.clear()
            self.transport.resume_reading()
        elif self.flow.read_paused and not self._is_behind:
            pass  # nothing comes in
        elif self._rest or self._is_behind:
            self.transport.pause_reading()
            self._all.read_soon(self)
        else:
            self.transport.resume_reading()
