"""Two processes of a cluster are cut apart by name, over the socket in the data folder."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from popwheel_cli.drills.links import Links, LinksClient
from popwheel_cli.drills.relay import CUT, Passage
from popwheel_cli.drills.socket_owner import owner_of_port
from popwheel_cli.errors import CommandError
from tests.harness.ports import free_ports

HOST = "127.0.0.1"
CALLER = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while word := sys.stdin.buffer.readline():
    line.sendall(word)
"""


class Learned:
    """A server that takes down what it hears, and a process of another name that talks to it through the relay."""

    def __init__(self) -> None:
        self.text = b""
        self._changed = asyncio.Event()

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                self.text += data
                self._changed.set()
        writer.close()

    async def wait_for(self, text: bytes) -> None:
        async with asyncio.timeout(5):
            while self.text != text:
                await self._changed.wait()
                self._changed.clear()


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[tuple[Learned, asyncio.subprocess.Process]]:
    """`tmp_path` is the data folder of a cluster of a caller and of `server`."""
    learned = Learned()
    server = await asyncio.start_server(learned.listen, HOST, 0)
    (port,) = free_ports(1)
    pids: dict[str, int] = {}
    links = Links(tmp_path, lambda: pids)
    links.add("server", HOST, port, server.sockets[0].getsockname()[1])
    await links.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CALLER, str(port), stdin=asyncio.subprocess.PIPE
    )
    pids["caller"] = process.pid
    try:
        yield learned, process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await links.stop()
        server.close()
        await server.wait_closed()


async def test_two_are_cut_apart_and_together_again(
    caller: tuple[Learned, asyncio.subprocess.Process], tmp_path: Path
) -> None:
    learned, process = caller
    assert process.stdin is not None
    client = LinksClient(tmp_path)
    assert await asyncio.to_thread(client.heal) == ["server"]
    process.stdin.write(b"one\n")
    await learned.wait_for(b"one\n")
    await asyncio.to_thread(client.between, "caller", "server", CUT)
    process.stdin.write(b"two\n")
    await asyncio.sleep(0.05)
    assert learned.text == b"one\n"
    await asyncio.to_thread(client.between, "server", "caller", Passage())
    await learned.wait_for(b"one\ntwo\n")
    await asyncio.to_thread(client.between, "server", "caller", CUT)
    process.stdin.write(b"three\n")
    await asyncio.to_thread(client.heal)
    await learned.wait_for(b"one\ntwo\nthree\n")


@pytest.mark.usefixtures("caller")
async def test_who_is_not_there_cannot_be_cut_off(tmp_path: Path) -> None:
    for one, other in (("caller", "nobody"), ("nobody", "server")):
        with pytest.raises(CommandError, match=f"no relay between {one} and {other}"):
            await asyncio.to_thread(LinksClient(tmp_path).between, one, other, CUT)
    with pytest.raises(CommandError, match="this is no order for relays"):
        await asyncio.to_thread(LinksClient(tmp_path)._order, {"betwixt": []})


def test_no_relays_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="start the cluster with `popwheel cluster --relays`"):
        LinksClient(tmp_path).heal()


def test_a_port_has_an_owner() -> None:
    with socket.create_server((HOST, 0)) as listener, socket.create_connection(listener.getsockname()) as line:
        port = line.getsockname()[1]
        assert owner_of_port(port, [1, os.getpid()]) == os.getpid()
        assert owner_of_port(port, []) is None
    (unused,) = free_ports(1)
    assert owner_of_port(unused, [os.getpid()]) is None
