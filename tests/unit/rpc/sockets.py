"""The server's end of a connection without a network, and an observer that remembers."""

import asyncio
from typing import Any

from popwheel_rpc.server.server_connection import ServerConnection
from popwheel_rpc.status import GrpcStatus


class Observer:
    """Remembers the limits that were hit."""

    def __init__(self) -> None:
        self.limits: list[str] = []

    def connection_opened(self) -> None: ...

    def connection_closed(self) -> None: ...

    def call_started(self, path: str) -> None: ...

    def call_ended(self, path: str, status: GrpcStatus, seconds: float) -> None: ...

    def limit_hit(self, name: str) -> None:
        self.limits.append(name)


class Socket(asyncio.Transport):
    """The server's end of a socket whose other end takes all, or nothing.

    Args:
        connection: told when it is closed.
        reads: whether the other end takes what is written.
    """

    def __init__(self, connection: ServerConnection, *, reads: bool) -> None:
        super().__init__()
        self._connection = connection
        self._reads = reads
        self.unread: list[bytes] = []
        self.unread_bytes = 0
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        if not self._reads and not self.closed:
            self.unread.append(bytes(data))
            self.unread_bytes += len(data)
            if self.unread_bytes > 256 * 1024:
                self._connection.pause_writing()

    def take(self) -> bytes:
        """The other end reads what has been written, after all."""
        taken = b"".join(self.unread)
        self.unread.clear()
        self.unread_bytes = 0
        return taken

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.unread.clear()
        self.unread_bytes = 0
        self.close()
