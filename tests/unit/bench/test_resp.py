"""The load's connection to a Redis: its commands as bytes, and replies however they are cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.client import CallFailedError
from bench.connection import ConnectionFailedError
from bench.resp import Reply, RespConnection, command
from bench.stream_load import entries

REPLIES = b"+OK\r\n:7\r\n$-1\r\n$4\r\na\r\nb\r\n*-1\r\n*2\r\n*1\r\n:1\r\n$0\r\n\r\n"


@asynccontextmanager
async def connected(answers: bytes, each: int) -> AsyncIterator[RespConnection]:
    """A connection to somebody who answers the first command with that, in pieces."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")
        for at in range(0, len(answers), each):
            writer.write(answers[at : at + each])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    _, port = server.sockets[0].getsockname()
    connection = await RespConnection.connect(f"127.0.0.1:{port}")
    try:
        yield connection
    finally:
        connection.close()
        server.close()


async def replies_of(connection: RespConnection, count: int) -> tuple[list[Reply], str]:
    """Replies to a number of commands."""
    came: asyncio.Future[tuple[list[Reply], str]] = asyncio.get_running_loop().create_future()
    connection.call(command("PING") * count, count, lambda replies, error: came.set_result((replies, error)))
    return await came


def test_a_command_says_how_long_each_word_is() -> None:
    assert command("XADD", b"key", 10) == b"*3\r\n$4\r\nXADD\r\n$3\r\nkey\r\n$2\r\n10\r\n"


@pytest.mark.parametrize("each", [1, 3, 7, 1000])
async def test_replies_are_read_however_they_are_cut(each: int) -> None:
    async with connected(REPLIES, each) as connection:
        assert await replies_of(connection, 6) == ([b"OK", 7, None, b"a\r\nb", None, [[1], b""]], "")


async def test_a_refusal_among_several_replies_is_notified_when_all_have_come() -> None:
    async with connected(b"+OK\r\n-ERR no\r\n-ERR later\r\n:1\r\n", 5) as connection:
        assert await replies_of(connection, 4) == ([b"OK", None, None, 1], "ERR no")


async def test_who_waits_is_notified_that_the_connection_was_lost() -> None:
    async with connected(b"$100\r\nnot all", 100) as connection:
        with pytest.raises(CallFailedError, match="connection lost"):
            await connection.ask("GET", "key")
        with pytest.raises(ConnectionFailedError):
            await connection.send(command("PING"))


def test_entries_of_a_stream() -> None:
    assert entries(None) == []
    assert entries([[b"stream", [[b"1-0", [b"body", b"a"]], [b"1-1", [b"body", b"b"]]]]]) == [
        (b"1-0", b"a"),
        (b"1-1", b"b"),
    ]
    with pytest.raises(ValueError, match="no reply of XREADGROUP"):
        entries([b"something else"])
