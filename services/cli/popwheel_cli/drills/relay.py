"""A TCP relay that can pause, lose, delay or refuse traffic: a network that fails on command."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

_CHUNK_BYTES = 64 * 1024
_CHUNKS_WAITING_MAX = 64
_CONNECT_TIMEOUT_S = 5.0


class Flow(Enum):
    """Flow of the bytes in one direction."""

    OPEN = "open"
    """Pass all."""
    PAUSED = "paused"
    """Buffer all until it is open again, as in a short partition. A half-open connection, if in one direction only."""
    LOST = "lost"
    """Lose all bytes: a connection that lost some is reset when it is open again."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Passage between two sides.

    Args:
        to_server: from the connecting side to the listening side.
        to_client: the other way.
        delay_s: delay of all bytes.
        refused: whether connections are reset, and new ones as soon as they are made.
    """

    to_server: Flow = Flow.OPEN
    to_client: Flow = Flow.OPEN
    delay_s: float = 0.0
    refused: bool = False


OPEN = Passage()
CUT = Passage(Flow.PAUSED, Flow.PAUSED)
"""Passage like a pulled cable: connections seem to be there, and nothing is answered."""


class Relay:
    """Listens at one address and passes all on to another.

    Args:
        host: to listen at.
        port: the same; 0 for any.
        target_host: where to.
        target_port: the same.
        caller: returns the name of the process that connects from a port, so that each can be treated differently.
    """

    def __init__(
        self,
        host: str,
        port: int,
        target_host: str,
        target_port: int,
        caller: Callable[[int], str] = lambda _: "",
    ) -> None:
        self.port = port
        self._host = host
        self._target = (target_host, target_port)
        self._caller = caller
        self._all = OPEN
        self._of_callers: dict[str, Passage] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: somebody else does.
        """
        self._server = await asyncio.start_server(self._serve, self._host, self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Reset all connections and listen no more."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.reset()
        if self._server is not None:
            await self._server.wait_closed()

    def set(self, passage: Passage, caller: str | None = None) -> None:
        """Set the passage from now on, also for open connections.

        Args:
            passage: how.
            caller: only for this one; None: for all, and forget what was said of single ones.
        """
        if caller is None:
            self._all = passage
            self._of_callers.clear()
        elif passage == self._all:
            self._of_callers.pop(caller, None)
        else:
            self._of_callers[caller] = passage
        for connection in list(self._connections):
            connection.set(self.passage(connection.caller))

    def passage(self, caller: str) -> Passage:
        """Return the passage of a caller."""
        return self._of_callers.get(caller, self._all)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = self._caller(writer.get_extra_info("peername")[1])
        connection = _Connection(caller, reader, writer, self.passage(caller))
        self._connections.add(connection)
        try:
            if not self.passage(caller).refused:
                await connection.run(*self._target)
        finally:
            self._connections.discard(connection)
            connection.reset()


class _Connection:
    """Connection of a caller, and ours to the target."""

    def __init__(
        self, caller: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passage: Passage
    ) -> None:
        self.caller = caller
        self._passage = passage
        self._reader, self._writer = reader, writer
        self._target_writer: asyncio.StreamWriter | None = None
        self._changed = asyncio.Event()
        self._lost = False
        self._ended = asyncio.Event()

    def set(self, passage: Passage) -> None:
        """Set the passage from now on."""
        lossless = Flow.LOST not in (passage.to_server, passage.to_client)
        self._passage = passage
        if passage.refused or (self._lost and lossless):
            self.reset()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def reset(self) -> None:
        """End it at once."""
        self._ended.set()
        for writer in (self._writer, self._target_writer):
            if writer is not None:
                writer.transport.abort()

    async def run(self, host: str, port: int) -> None:
        """Pass all on until one side resets, or both have ended."""
        work = asyncio.ensure_future(self._work(host, port))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((work, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            ended.cancel()
            await asyncio.gather(work, ended, return_exceptions=True)

    async def _work(self, host: str, port: int) -> None:
        while self._passage.to_server is not Flow.OPEN:  # who calls through a cut cable reaches nobody
            await self._changed.wait()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                target_reader, self._target_writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return
        ways = [
            asyncio.ensure_future(self._pass(self._reader, self._target_writer, lambda: self._passage.to_server)),
            asyncio.ensure_future(self._pass(target_reader, self._writer, lambda: self._passage.to_client)),
        ]
        try:
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: Callable[[], Flow]
    ) -> None:
        """Direction of a connection, until its end has been forwarded."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_CHUNKS_WAITING_MAX)

        async def take() -> None:
            data: bytes | None = None
            while data != b"":
                try:
                    data = await reader.read(_CHUNK_BYTES)
                except OSError:
                    data = None
                await waiting.put((loop.time() + self._passage.delay_s, data))
                if data is None:
                    return

        taking = asyncio.ensure_future(take())
        try:
            while True:
                due, data = await waiting.get()
                if (early_s := due - loop.time()) > 0:
                    await asyncio.sleep(early_s)
                while passing() is Flow.PAUSED:  # a reset, too, is seen by nobody behind a cut cable
                    await self._changed.wait()
                if passing() is Flow.LOST:
                    self._lost = True
                elif data is None:
                    self.reset()
                    return
                elif data:
                    writer.write(data)
                    await writer.drain()
                else:
                    writer.write_eof()
                    return
        except OSError:
            self.reset()
        finally:
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await taking
