"""Response to a request that is no gRPC call, which a browser or a probe can show."""

from popwheel_rpc.http2 import hpack
from popwheel_rpc.http2.events import DataReceived
from popwheel_rpc.http2.headers import RequestHead
from popwheel_rpc.server.host import Carrier
from popwheel_rpc.server.server_call import OPEN_CALL_BYTES
from popwheel_rpc.status import RpcError


class NotGrpc:
    """Waits for the end of the request and answers 415; takes the place of a `ServerCall`.

    Args:
        connection: where it came in.
        stream_id: its stream.
        head: its headers.
    """

    def __init__(self, connection: Carrier, stream_id: int, head: RequestHead) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._head = head
        self.counted_bytes = head.list_bytes + OPEN_CALL_BYTES
        connection.received_bytes += self.counted_bytes

    def data(self, event: DataReceived) -> None:
        """Discard the body."""
        self._connection.http2.release(self._stream_id, len(event.data))
        if event.ended:
            self.ended()

    def ended(self) -> None:
        """Answer."""
        method = self._head.method
        text = f"this port speaks gRPC: POST with content-type application/grpc, not {method[:16]}\n".encode()
        fields = [
            (b":status", b"415"),
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(text)),
        ]
        http2 = self._connection.http2
        http2.send_headers(self._stream_id, hpack.encode(fields))
        http2.send_data(self._stream_id, b"" if method == "HEAD" else text, end=True)
        self.abandon()

    def flushed(self) -> None:
        """Do nothing: nothing waits for this."""

    def resumed(self) -> None:
        """Do nothing: nothing waits for this."""

    def abandon(self) -> None:
        """Forget the request: its client has gone, or has its answer."""
        self._connection.received_bytes -= self.counted_bytes
        self.counted_bytes = 0
        self._connection.call_ended(self._stream_id)

    def refuse(self, error: RpcError) -> None:
        """End the request as the server shuts down, without the error, which only a gRPC client would understand."""
        self.ended()
