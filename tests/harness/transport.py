"""What the tests of our server over real sockets share: an observer, and sockets that speak for themselves."""

import asyncio
from collections.abc import Awaitable, Callable

from popwheel_rpc.http2 import frames
from popwheel_rpc.server.server import Server
from popwheel_rpc.status import GrpcStatus
from tests.unit.rpc.contract_service import ECHO
from tests.unit.rpc.peers import REQUEST

START = frames.PREFACE + frames.settings({})
MIB = 2**20
ECHO_BLOCK = REQUEST.replace(b"\x09/t.T/Echo", bytes((len(ECHO.path),)) + ECHO.path.encode())
"""The headers of a call of Echo."""

Serve = Callable[..., Awaitable[Server]]


class Recorder:
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.limits: list[str] = []
        self.calls: list[tuple[str, GrpcStatus]] = []
        self.open = self.opened = 0
        self.changed = asyncio.Event()

    def connection_opened(self) -> None:
        self.open += 1
        self.opened += 1

    def connection_closed(self) -> None:
        self.open -= 1
        self.changed.set()

    def call_started(self, path: str) -> None:
        pass

    def call_ended(self, path: str, status: GrpcStatus, seconds: float) -> None:
        self.calls.append((path, status))
        self.changed.set()

    def limit_hit(self, name: str) -> None:
        self.limits.append(name)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was seen fulfils a condition."""
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def raw(server: Server, *sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A socket to the server that has sent these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"".join(sent))
    return reader, writer


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What the server says until it closes the connection."""
    said = b""
    try:
        async with asyncio.timeout(10):
            while part := await reader.read(65_536):
                said += part
    except ConnectionResetError:
        pass
    finally:
        writer.close()
    return said
