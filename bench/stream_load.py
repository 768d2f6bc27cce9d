"""Loads on Redis Streams, as `bench.load` has them for our protocol: closed loops of senders and of pollers."""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter

from bench import requests
from bench.load import POLL_S, Outcome
from bench.resp import Reply, RespConnection, command
from bench.steps import BATCH
from bench.valkey import ValkeyServer

_FIELD = "body"


def add(stream: str, body: bytes) -> bytes:
    """XADD of one message."""
    return command("XADD", stream, "*", _FIELD, body)


def body_of(number: int, size: int) -> bytes:
    """A body that begins with a number, as `requests.numbered_send` makes it."""
    return f"{number:0{requests.SEQUENCE_DIGITS}d}".encode().ljust(size, b"x")


def numbered_add(stream: str, size: int, number: int) -> bytes:
    """XADD of a message whose body says which it is."""
    return add(stream, body_of(number, size))


def entries(reply: Reply) -> list[tuple[bytes, bytes]]:
    """Id and body of each message of an XREADGROUP's reply for one stream.

    Raises:
        ValueError: it is no such reply.
    """
    if reply is None:
        return []
    match reply:
        case [[bytes(), [*found]]]:
            return [_entry(each) for each in found]
    raise ValueError(f"no reply of XREADGROUP: {reply!r:.100}")


def _entry(reply: Reply) -> tuple[bytes, bytes]:
    match reply:
        case [bytes(entry_id), [bytes(), bytes(body)]]:
            return entry_id, body
    raise ValueError(f"no entry of a stream: {reply!r:.100}")


async def connect_all(server: ValkeyServer, count: int) -> list[RespConnection]:
    """Several connections."""
    return [await RespConnection.connect(server.address) for _ in range(count)]


def close_all(connections: Sequence[RespConnection]) -> None:
    """Close all of these."""
    for connection in connections:
        connection.close()


async def fresh(connection: RespConnection, stream: str, group: str = "") -> None:
    """Begin a stream without messages; with a group that gets all of them, if it is named."""
    await connection.ask("UNLINK", stream)
    if group:
        await connection.ask("XGROUP", "CREATE", stream, group, "$", "MKSTREAM")


class Senders:
    """Senders that each send again as soon as they are answered, as `bench.load.SendLoop`.

    Args:
        connections: over which they are spread.
        data: the commands that each sends.
        batch: how many commands that is.
        concurrency: how many senders.
        count: messages after which it stops; 0: only `stop` ends it.
    """

    def __init__(
        self, connections: Sequence[RespConnection], data: bytes, batch: int, concurrency: int, count: int = 0
    ) -> None:
        self.outcome = Outcome()
        self._connections = connections
        self._data = data
        self._batch = batch
        self._concurrency = concurrency
        self._left = count or -1
        self._running = 0
        self._stopping = False
        self._ended = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Let all senders send."""
        for index in range(self._concurrency):
            self._running += 1
            self._sender(self._connections[index % len(self._connections)])()

    def _sender(self, connection: RespConnection) -> Callable[[], None]:
        began = 0.0
        outcome = self.outcome

        def send() -> None:
            nonlocal began
            if self._stopping or self._left == 0:
                self._running -= 1
                if not self._running:
                    self._ended.set_result(None)
                return
            if self._left > 0:
                self._left = max(0, self._left - self._batch)
            began = perf_counter()
            connection.call(self._data, self._batch, done)

        def done(_replies: list[Reply], error: str) -> None:
            if error:
                outcome.fail(error)
            else:
                outcome.calls += 1
                outcome.messages += self._batch
                outcome.latencies_ms.append((perf_counter() - began) * 1000)
            send()

        return send

    async def stop(self) -> Outcome:
        """Let what is under way end, and no more begin."""
        self._stopping = True
        return await self.finished()

    async def finished(self) -> Outcome:
        """Wait until all senders have ended."""
        await self._ended
        return self.outcome


class Pollers:
    """Consumers that each read, ack all of it in one call, and read again, as `bench.load.ReceiveLoop`.

    Args:
        connections: one for each.
        stream: what they read.
        group: for whom.
        on_body: called with each message's body as soon as it is read.
    """

    def __init__(
        self, connections: Sequence[RespConnection], stream: str, group: str, on_body: Callable[[bytes], object]
    ) -> None:
        self.outcome = Outcome()
        self.polls = 0
        self.duplicates = 0
        self._connections = connections
        self._ack = ("XACK", stream, group)
        self._reads = [
            command(
                *("XREADGROUP", "GROUP", group, f"consumer-{index}", "COUNT", BATCH),
                *("BLOCK", int(POLL_S * 1000), "STREAMS", stream, ">"),
            )
            for index in range(len(connections))
        ]
        self._on_body = on_body
        self._seen: set[bytes] = set()
        self._stopping = False
        self._wanted = -1
        self._reached = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Let all of them read."""
        for connection, read in zip(self._connections, self._reads, strict=True):
            self._poller(connection, read)()

    def stop(self) -> None:
        """Begin no more calls; closing the connections ends those under way."""
        self._stopping = True

    async def reach(self, count: int) -> None:
        """Wait until a number of messages were acked in all."""
        self._wanted = count
        self._check()
        await self._reached

    def _check(self) -> None:
        if 0 <= self._wanted <= self.outcome.messages and not self._reached.done():
            self._reached.set_result(None)

    def _poller(self, connection: RespConnection, read: bytes) -> Callable[[], None]:
        count = 0
        seen, outcome = self._seen, self.outcome

        def poll() -> None:
            if not self._stopping:
                self.polls += 1
                connection.call(read, 1, polled)

        def polled(replies: list[Reply], error: str) -> None:
            nonlocal count
            if self._stopping:
                return
            if error:
                outcome.fail(error)
                asyncio.get_running_loop().call_later(0.02, poll)
                return
            found = entries(replies[0])
            if not found:
                poll()
                return
            ids, bodies = zip(*found, strict=True)
            before, count = len(seen), len(ids)
            seen.update(ids)
            self.duplicates += before + count - len(seen)
            for body in bodies:
                self._on_body(body)
            connection.call(command(*self._ack, *ids), 1, acked)

        def acked(replies: list[Reply], error: str) -> None:
            if error or replies != [count]:
                outcome.fail(f"XACK: {error or replies}")
            else:
                outcome.messages += count
                outcome.calls += 2
                self._check()
            poll()

        return poll
