"""A connection of Redis' protocol (RESP 2) for a load: prebuilt commands, callbacks, all of a turn in one write."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self, cast

from bench.client import CallFailedError
from bench.connection import ConnectionFailedError

Reply = bytes | int | None | list["Reply"]
Done = Callable[[list[Reply], str], None]
"""Takes the replies to a request, and the error if it failed."""

_END = b"\r\n"
_CONNECTED_IN_S = 10.0


class ReplyError(Exception):
    """The server refused a command; what it says."""


class _IncompleteError(Exception):
    """A reply goes on behind what has come."""


def command(*words: bytes | str | int) -> bytes:
    """The bytes of a command."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def read_reply(data: bytes, at: int) -> tuple[Reply | ReplyError, int]:
    """The reply that begins there, and where the next one does.

    Raises:
        _IncompleteError: it is not all there.
        ValueError: it is none of the kinds of RESP 2.
    """
    end = data.find(_END, at)
    if end < 0:
        raise _IncompleteError
    kind, text, after = data[at], data[at + 1 : end], end + 2
    if kind == ord("$"):
        size = int(text)
        if size < 0:
            return None, after
        if len(data) < after + size + 2:
            raise _IncompleteError
        return data[after : after + size], after + size + 2
    if kind == ord("*"):
        items: list[Reply] = []
        for _ in range(int(text)):
            item, after = read_reply(data, after)
            if isinstance(item, ReplyError):
                return item, after
            items.append(item)
        return (None if int(text) < 0 else items), after
    if kind == ord(":"):
        return int(text), after
    if kind == ord("+"):
        return text, after
    if kind == ord("-"):
        return ReplyError(text.decode(errors="replace")), after
    raise ValueError(f"no reply of RESP 2 begins with {data[at : at + 1]!r}")


class RespConnection(asyncio.Protocol):
    """Connection over which several callers may call at once; made by `connect`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, Done]] = deque()
        self._replies: list[Reply] = []
        self._error = ""
        self._partial = b""
        self._out: list[bytes] = []
        self._receiving = False
        self._flush_planned = False

    @classmethod
    async def connect(cls, address: str) -> Self:
        """Connect to `host:port`.

        Raises:
            ConnectionFailedError: nobody is there.
        """
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(_CONNECTED_IN_S):
                _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        except (OSError, TimeoutError) as error:
            raise ConnectionFailedError(f"no connection to {address}: {error}") from error
        return connection

    def call(self, commands: bytes, replies: int, done: Done) -> None:
        """Send commands, and say when all of their replies have come.

        Raises:
            ConnectionFailedError: the connection is closed.
        """
        if self._transport is None:
            raise ConnectionFailedError("the connection is closed")
        self._waiting.append((replies, done))
        self._out.append(commands)
        if not (self._receiving or self._flush_planned):
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    async def ask(self, *words: bytes | str | int) -> Reply:
        """Run a command whose time does not matter.

        Raises:
            CallFailedError: it failed.
        """
        return (await self._ask(command(*words)))[0]

    async def send(self, message: bytes) -> None:
        """Run a command that is prebuilt, as `bench.client.Client` has it.

        Raises:
            CallFailedError: it failed.
        """
        await self._ask(message)

    async def _ask(self, data: bytes) -> list[Reply]:
        answer: asyncio.Future[list[Reply]] = self._loop.create_future()

        def done(replies: list[Reply], error: str) -> None:
            if answer.done():
                return
            if error:
                answer.set_exception(CallFailedError(error))
            else:
                answer.set_result(replies)

        self.call(data, 1, done)
        return await answer

    def close(self) -> None:
        """Close it at once; calls in flight get no reply."""
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _flush(self) -> None:
        self._flush_planned = False
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # What the loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done([], f"connection lost: {exc}")

    def data_received(self, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        self._receiving = True
        at = 0
        try:
            while at < len(data):
                reply, at = read_reply(data, at)
                self._take(reply)
        except _IncompleteError:
            pass
        self._partial = data[at:]
        self._receiving = False
        if self._out:
            self._flush()

    def _take(self, reply: Reply | ReplyError) -> None:
        if not self._waiting:  # it was closed meanwhile
            return
        if isinstance(reply, ReplyError):
            self._error = self._error or str(reply)
            reply = None
        self._replies.append(reply)
        wanted, done = self._waiting[0]
        if len(self._replies) == wanted:
            self._waiting.popleft()
            replies, error, self._replies, self._error = self._replies, self._error, [], ""
            done(replies, error)
