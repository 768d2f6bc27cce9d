"""The relay passes all on, and fails as it is asked to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from popwheel_cli.drills.relay import CUT, OPEN, Flow, Passage, Relay

HOST = "127.0.0.1"
NOTHING_S = 0.05
"""How long is watched where nothing must come."""


class Line:
    """A connection through the relay to a server that says everything back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.port: int = writer.get_extra_info("sockname")[1]

    async def say(self, text: bytes) -> bytes:
        """Say it and hear as much."""
        self.writer.write(text)
        return await asyncio.wait_for(self.reader.readexactly(len(text)), 5)

    async def learns_nothing(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), NOTHING_S) == b"?"
        except TimeoutError:
            return True

    async def is_reset(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), 5) == b""
        except ConnectionError:
            return True


class World:
    """A server that says everything back, and a relay before it."""

    def __init__(self, relay: Relay, learned: bytearray) -> None:
        self.relay = relay
        self.learned = learned
        self._lines: list[Line] = []

    async def line(self) -> Line:
        line = Line(*await asyncio.open_connection(HOST, self.relay.port))
        self._lines.append(line)
        return line

    def hang_up(self) -> None:
        for line in self._lines:
            line.writer.transport.abort()


@asynccontextmanager
async def world(caller: Callable[[int], str] = lambda _: "") -> AsyncIterator[World]:
    learned = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                learned.extend(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    relay = Relay(HOST, 0, HOST, server.sockets[0].getsockname()[1], caller)
    await relay.start()
    found = World(relay, learned)
    try:
        yield found
    finally:
        found.hang_up()
        await relay.stop()
        server.close()
        await server.wait_closed()


async def test_all_passes() -> None:
    async with world() as it:
        lines = [await it.line() for _ in range(3)]
        big = bytes(range(256)) * 8192
        assert await asyncio.gather(*(line.say(big) for line in lines)) == [big] * 3
        lines[0].writer.write_eof()
        assert await lines[0].reader.read() == b"", "the end passes, too"
        assert await lines[1].say(b"still") == b"still"


async def test_what_is_paused_comes_when_it_is_open_again() -> None:
    async with world() as it:
        line = await it.line()
        await line.say(b"before")
        it.relay.set(CUT)
        line.writer.write(b"meanwhile")
        later = await it.line()
        later.writer.write(b"later")
        assert await line.learns_nothing()
        assert bytes(it.learned) == b"before"
        it.relay.set(OPEN)
        assert await asyncio.wait_for(line.reader.readexactly(9), 5) == b"meanwhile"
        assert await asyncio.wait_for(later.reader.readexactly(5), 5) == b"later"


async def test_half_open() -> None:
    async with world() as it:
        line = await it.line()
        await line.say(b"before")
        it.relay.set(Passage(to_client=Flow.PAUSED))
        line.writer.write(b"heard")
        assert await line.learns_nothing()
        assert bytes(it.learned) == b"beforeheard", "the other way is open"


async def test_what_is_lost_is_gone_and_its_connection_with_it() -> None:
    async with world() as it:
        line, other = await it.line(), await it.line()
        await line.say(b"before")
        await other.say(b"x")
        it.relay.set(Passage(Flow.LOST, Flow.LOST))
        line.writer.write(b"meanwhile")
        assert await line.learns_nothing()
        it.relay.set(OPEN)
        assert await line.is_reset()
        assert await other.say(b"y") == b"y", "it lost nothing"
        assert bytes(it.learned) == b"beforexy"


async def test_refused() -> None:
    async with world() as it:
        line = await it.line()
        await line.say(b"before")
        it.relay.set(Passage(refused=True))
        assert await line.is_reset()
        assert await (await it.line()).is_reset()
        it.relay.set(OPEN)
        assert await (await it.line()).say(b"again") == b"again"


async def test_delayed() -> None:
    async with world() as it:
        line = await it.line()
        await line.say(b"before")
        it.relay.set(Passage(delay_s=0.1))
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await line.say(b"slow") == b"slow"
        assert loop.time() - began >= 0.2
        it.relay.set(OPEN)
        assert await line.say(b"quick") == b"quick"


async def test_one_caller_is_cut_off_and_the_others_are_not() -> None:
    names: dict[int, str] = {}
    async with world(lambda port: names.setdefault(port, f"caller-{len(names)}")) as it:
        line, other = await it.line(), await it.line()
        await line.say(b"a")
        await other.say(b"b")
        it.relay.set(CUT, names[line.port])
        line.writer.write(b"c")
        assert await other.say(b"d") == b"d"
        assert await line.learns_nothing()
        it.relay.set(OPEN, names[line.port])
        assert await asyncio.wait_for(line.reader.readexactly(1), 5) == b"c"


async def test_an_end_behind_a_cut_cable_is_seen_by_nobody_until_it_is_mended() -> None:
    async with world() as it:
        line = await it.line()
        await line.say(b"before")
        it.relay.set(CUT, "")
        line.writer.transport.abort()
        other = await it.line()
        other.writer.write_eof()
        assert await other.learns_nothing()
        it.relay.set(OPEN, "")
        assert await other.is_reset()


async def test_nobody_listens_behind_it() -> None:
    unused = await asyncio.start_server(lambda *_: None, HOST, 0)
    port = unused.sockets[0].getsockname()[1]
    unused.close()
    await unused.wait_closed()
    relay = Relay(HOST, 0, HOST, port)
    await relay.start()
    line = Line(*await asyncio.open_connection(HOST, relay.port))
    assert await line.is_reset()
    line.writer.transport.abort()
    await relay.stop()
