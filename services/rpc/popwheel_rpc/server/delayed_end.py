"""Delayed end of a call whose caller has not sent a message yet.

RFC 9113, 8.1 lets a server answer before it has the whole request and then reset the stream with NO_ERROR; the servers
of grpc-core and grpc-go do that at once, as this one does once the caller has sent a message. But grpc-core's client
closes its own direction when it reads the end of the answer, reset or not, and grpcio's asyncio client takes a write
that fails after that for the outcome of the call: "Internal error from Core" in place of the status (grpc/grpc issue
36066). So a status waits for the first message, which as a rule is on its way already.
"""

from typing import Final

from popwheel_rpc.http2.events import DataReceived
from popwheel_rpc.http2.grpc_messages import PREFIX_BYTES
from popwheel_rpc.server.host import Carrier
from popwheel_rpc.status import RpcError

PATIENCE_S: Final = 0.1
"""Seconds after its headers for which a caller's first message is awaited."""

DELAYED_ENDS_MAX: Final = 1_000
"""Limit of delayed ends of one server; further ones are sent at once."""


class DelayedEnd:
    """Delays the end of a call until its caller has sent a whole message, has no more to send, or takes too long.

    Takes the place of a `ServerCall`, and discards what the caller sends.

    Args:
        connection: where the call came in.
        stream_id: its stream.
        end: headers that end the answer: trailers, or all of it.
        deadline: when it is sent in any case, in seconds of the monotonic clock.
        begun: the received part of the first message.
    """

    __slots__ = ("_connection", "_end", "_got_bytes", "_prefix", "_step", "_stream_id", "counted_bytes")

    def __init__(self, connection: Carrier, stream_id: int, end: bytes, deadline: float, begun: bytes = b"") -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._end = end
        self._prefix = begun[:PREFIX_BYTES]
        self._got_bytes = len(begun)
        self._step: int | None = connection.server.deadlines.watch(deadline, self)
        self.counted_bytes = 0
        connection.server.delayed_ends += 1

    def data(self, event: DataReceived) -> None:
        """Discard a part of the request, and send the end if it was the last of a message."""
        self._connection.http2.release(self._stream_id, len(event.data))
        self._prefix += event.data[: PREFIX_BYTES - len(self._prefix)]
        self._got_bytes += len(event.data)
        length = int.from_bytes(self._prefix[1:], "big")
        if event.ended or (len(self._prefix) == PREFIX_BYTES and self._got_bytes >= PREFIX_BYTES + length):
            self.ended()

    def ended(self) -> None:
        """Send the end now."""
        send_end(self._connection, self._stream_id, self._end)
        self.abandon()

    def abandon(self) -> None:
        """Forget the call: its caller has gone, or knows the end."""
        server = self._connection.server
        if self._step is not None:
            server.deadlines.forget(self._step, self)
            self._step = None
        server.delayed_ends -= 1
        self._connection.call_ended(self._stream_id)

    def expired(self) -> None:
        """Send the end: the caller has taken too long."""
        self._step = None
        self.ended()

    def refuse(self, error: RpcError) -> None:
        """Send the end: the server is shutting down, or is short of memory."""
        self.ended()

    def flushed(self) -> None:
        """Ignore that the handler's output was sent; nothing waits for it."""

    def resumed(self) -> None:
        """Do nothing: nothing waits for this."""


def send_end(connection: Carrier, stream_id: int, end: bytes) -> None:
    """Send the end of an answer, behind the data that waits on its stream."""
    http2 = connection.http2
    if http2.is_blocked(stream_id):
        http2.send_data(stream_id, b"", trailers=end)
    else:
        http2.send_headers(stream_id, end, end=True)
    connection.flush_soon()
