"""Clients that are silent, slow, or send too much, over sockets: they cost little, and health checks are answered."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import httpx
import pytest
from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from popwheel_common.http import HttpServer, make_http_app
from popwheel_common.web.connections import (
    HEAD_BYTES_MAX,
    READ_S_MAX,
    TAKE_S_MAX,
    Connections,
    connections_within,
)
from popwheel_common.web.gate import BODY_BYTES_MAX, HEADERS_MAX
from tests.harness.collector import collector_of_servers
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.harness.manual_clock import ManualClock

CONNECTIONS_MAX = 8
HEAD = b"POST /numbers HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def posted(body: bytes) -> bytes:
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


class Numbers(BaseModel):
    numbers: list[int]


class Served:
    """A server with a route that counts, and one that waits.

    Args:
        at_once_max: as for `make_http_app`.
        connections_max: as for `HttpServer`.
    """

    def __init__(self, at_once_max: int, connections_max: int) -> None:
        self.clock, self.registry = ManualClock(), CollectorRegistry()
        self.writers: list[asyncio.StreamWriter] = []
        self.counted = 0
        self.go_on = asyncio.Event()
        router = APIRouter()

        @router.post("/numbers")
        async def count(body: Numbers) -> int:
            self.counted += len(body.numbers)
            return self.counted

        @router.get("/waits")
        async def wait() -> str:
            await self.go_on.wait()
            return "done"

        @router.get("/long")
        async def answer_at_length() -> list[str]:
            return ["x" * 1_000] * 20_000

        app = make_http_app("test", "0", self.registry, {}, [router], at_once_max=at_once_max)
        self.server = HttpServer(app, "127.0.0.1", 0, self.registry, connections_max, self.clock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def ended(self, reason: str) -> float | None:
        return self.registry.get_sample_value("popwheel_http_connections_ended_total", {"reason": reason})

    async def connect(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection, and send this."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(data)
        self.writers.append(writer)
        return reader, writer

    async def time_passes(self, seconds: float) -> None:
        """Let time pass, with a look at the connections at its end."""
        self.clock.advance(seconds * 1000)
        self.server.connections.end_idle()

    async def is_healthy(self) -> bool:
        async with httpx.AsyncClient() as http:
            return (await http.get(f"{self.url}/healthz")).status_code == 200


@asynccontextmanager
async def serving(at_once_max: int = 4, connections_max: int = CONNECTIONS_MAX) -> AsyncIterator[Served]:
    served = Served(at_once_max, connections_max)
    await served.server.start()
    try:
        yield served
    finally:
        served.go_on.set()
        for writer in served.writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        await served.server.stop()


async def until_open(served: Served, count: int) -> None:
    while served.registry.get_sample_value("popwheel_http_connections") != count:
        await asyncio.sleep(0)


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, str, str]:
    """Status, code and sentence of a refusal."""
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    refusal = json.loads(body)
    return int(head.split()[1]), refusal["code"], refusal["message"]


async def test_silent_connections_leave_room_for_health_checks() -> None:
    async with serving() as served:
        silent = [await served.connect() for _ in range(3 * CONNECTIONS_MAX)]
        await until_open(served, CONNECTIONS_MAX)
        assert await served.is_healthy()
        assert served.ended("full") == 2 * CONNECTIONS_MAX + 1
        assert await silent[0][0].read() == b"", "those that were silent for longest are closed"


async def test_requests_that_wait_leave_room_for_health_checks() -> None:
    async with serving() as served:
        request = b"GET /waits HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        asked = [await served.connect(request) for _ in range(CONNECTIONS_MAX)]
        refused = await answer_of(asked[-1][0])
        assert refused == (
            429,
            "TOO_MANY_REQUESTS",
            "4 requests are being answered, the most at the same time: try again",
        )
        assert await served.is_healthy()
        served.go_on.set()
        answers = [await reader.read() for reader, _ in asked]
        assert sum(answer.startswith(b"HTTP/1.1 200") for answer in answers) == 4


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serving() as served:
        reader, _ = await served.connect()
        await until_open(served, 1)
        await served.time_passes(READ_S_MAX)
        await until_open(served, 1)
        await served.time_passes(1)
        assert await reader.read() == b""
        assert served.ended("slow") == 1


@pytest.mark.parametrize("sent", [HEAD[:-5], HEAD + b"content-length: 900\r\n\r\n{"])
async def test_a_request_that_does_not_come_in_is_given_up(sent: bytes) -> None:
    async with serving() as served:
        reader, writer = await served.connect(sent)
        await until_open(served, 1)
        for _ in range(READ_S_MAX):  # a byte now and then does not help
            writer.write(b" ")
            await asyncio.sleep(0)
            await served.time_passes(1)
        await until_open(served, 1)
        await served.time_passes(1)
        assert await answer_of(reader) == (
            *(408, "REQUEST_TIMEOUT"),
            f"the request did not come in within {READ_S_MAX} s: send it faster",
        )
        assert served.counted == 0
        await served.time_passes(READ_S_MAX + 1)
        await until_open(served, 0)


async def test_who_does_not_take_his_answer_is_given_up() -> None:
    async with serving() as served:
        await served.connect(b"GET /long HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await until_open(served, 1)
        (connection,) = served.server.connections._open
        while not connection.transport.get_write_buffer_size():
            await asyncio.sleep(0)
        await served.time_passes(READ_S_MAX + 1)
        await until_open(served, 1)
        await served.time_passes(TAKE_S_MAX)
        await until_open(served, 0)


async def test_a_request_that_is_worked_on_is_not_given_up() -> None:
    async with serving() as served:
        reader, _ = await served.connect(b"GET /waits HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        await until_open(served, 1)
        while not served.server._uvicorn.server_state.tasks:
            await asyncio.sleep(0)
        for _ in range(100):
            await served.time_passes(1)
        served.go_on.set()
        assert (await reader.read()).startswith(b"HTTP/1.1 200")


async def test_garbage_behind_a_request_holds_no_connection() -> None:
    async with serving() as served:
        await served.connect(b"GET /waits HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n")
        await served.connect(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\nno chunk\r\n\r\n")
        await until_open(served, 2)
        while not all(connection._is_refused for connection in served.server.connections._open):
            await asyncio.sleep(0)
        await served.time_passes(READ_S_MAX + 1)
        await until_open(served, 0)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size_bytes", [BODY_BYTES_MAX, BODY_BYTES_MAX + 1, 5 * 2**20])
async def test_a_body_has_a_limit_before_it_is_looked_at(size_bytes: int, chunked: bool) -> None:
    body = b'{"numbers": [1]' + b" " * (size_bytes - 16) + b"}"

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 60_000):
            yield body[start : start + 60_000]

    async with serving() as served, httpx.AsyncClient() as http:
        answer = await http.post(
            f"{served.url}/numbers",
            content=pieces() if chunked else body,
            headers={"content-type": "application/json"},
        )
        if size_bytes == BODY_BYTES_MAX:
            assert (answer.status_code, served.counted) == (200, 1)
        else:
            assert (answer.status_code, answer.json()["code"], served.counted) == (413, "PAYLOAD_TOO_LARGE", 0)
            assert f"more than {BODY_BYTES_MAX} bytes" in answer.json()["message"]


async def test_a_length_that_is_not_true_does_not_help() -> None:
    async with serving() as served:
        for length in (b"9" * 18, b"9" * 19):
            reader, _ = await served.connect(HEAD + b"content-length: " + length + b"\r\n\r\n")
            assert (await reader.readline()).startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


async def test_heads_have_a_limit() -> None:
    async with serving() as served, httpx.AsyncClient() as http:
        few = {f"x-{number}": "1" for number in range(HEADERS_MAX - 10)}
        assert (await http.get(f"{served.url}/healthz", headers=few)).status_code == 200
        many = {f"x-{number}": "1" for number in range(HEADERS_MAX)}
        answer = await http.get(f"{served.url}/healthz", headers=many)
        assert (answer.status_code, answer.json()["code"]) == (431, "REQUEST_HEADER_FIELDS_TOO_LARGE")
        for head in (b"x: " + b"y" * 2 * HEAD_BYTES_MAX, b"x: y\r\n" * (HEAD_BYTES_MAX // 2)):
            reader, _ = await served.connect(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n")
            status, code, sentence = await answer_of(reader)
            assert (status, code) == (431, "REQUEST_HEADER_FIELDS_TOO_LARGE")
            assert f"{HEAD_BYTES_MAX} bytes" in sentence
        reader, _ = await served.connect(b"\x16\x03\x01 no HTTP\r\n\r\n")
        assert (await answer_of(reader))[:2] == (400, "BAD_REQUEST")


@pytest.mark.parametrize(
    "sent",
    {
        "headers": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"a:\r\n" * 65_000,
        "chunks": HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 43_000 + b"0\r\n\r\n",
        "requests": b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n" * 6_000,
        "errors": posted(b'{"numbers": [' + b"[]," * (BODY_BYTES_MAX // 3 - 10) + b"[]]}"),
        "keys": posted(b'{"numbers": 1' + b"".join(b',"%04d":1' % key for key in range(1_800)) + b"}"),
        "nested": posted(b'{"numbers": ' + b"[" * (BODY_BYTES_MAX - 100)),
    }.items(),
    ids=lambda item: item[0],
)
async def test_nothing_that_comes_in_at_once_takes_a_long_turn(sent: tuple[str, bytes]) -> None:
    async with serving() as served:
        with collector_of_servers(), measured_turns() as turns:
            reader, _ = await served.connect(sent[1])
            assert (await reader.read(9)) == b"HTTP/1.1 "
            assert await served.is_healthy()
        assert turns.longest_s < TURN_S_MAX, f"{sent[0]}: {turns}"


async def test_a_request_has_one_length() -> None:
    """Else its chunks would be read as if they were a body of that length, and a proxy may see others."""
    sent = HEAD + b"connection: close\r\ncontent-length: 250000\r\ntransfer-encoding: chunked\r\n\r\n"
    sent += b"1\r\na\r\n" * 40_000 + b"0\r\n\r\n"
    async with serving() as served:
        with collector_of_servers(), measured_turns() as turns:
            reader, _ = await served.connect(sent)
            refused = await answer_of(reader)
        assert turns.longest_s < TURN_S_MAX, str(turns)
        assert refused == (
            *(400, "BAD_REQUEST"),
            "the request has both content-length and transfer-encoding: send one of them",
        )
        assert served.counted == 0


@pytest.mark.parametrize(
    "sent",
    {
        "headers": b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n" + b"a:\r\n" * 1_000,
        "chunks": HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 1_300,
        "requests": b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n" * 10,
    }.items(),
    ids=lambda item: item[0],
)
async def test_many_connections_at_once_take_no_long_turn(sent: tuple[str, bytes]) -> None:
    """A piece of each of them in one turn would take a third of a second."""
    many = 128
    async with serving(connections_max=many) as served:
        opened = [await served.connect() for _ in range(many)]
        await until_open(served, many)
        with collector_of_servers(), measured_turns() as turns:
            for connection in served.server.connections._open:  # all of it in one turn, as one sends it who means it
                connection.data_received(sent[1])
            while served.server.connections._to_read:
                await asyncio.sleep(0)
        assert turns.longest_s < TURN_S_MAX, f"{sent[0]}: {turns}"
        assert len(opened) == many


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as served:
        bodies = [posted(b'{"numbers": [%s]}' % b",".join([b"1"] * count)) for count in (1, 2, 3)]
        last = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        reader, _ = await served.connect(b"".join(bodies) + last)
        answers = await reader.read()
        assert [part.split(b"HTTP/1.1")[0] for part in answers.split(b"\r\n\r\n")[1:]] == [b"1", b"3", b"6", b"ok\n"]


class _FakeConnection:
    """Serves, or waits for its client."""

    def __init__(self) -> None:
        self.waits_s_max: int | None = READ_S_MAX
        self.transport = self
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_the_connection_that_waited_for_longest_makes_room_and_no_other() -> None:
    clock = ManualClock()
    connections = Connections(2, CollectorRegistry(), clock)
    connections._end_idle_often = lambda: None  # type: ignore[method-assign]
    served, silent, new = _FakeConnection(), _FakeConnection(), _FakeConnection()
    for each in (served, silent):
        connections.opened(cast(Any, each))
    served.waits_s_max = None
    clock.advance(5_000)
    connections.end_idle()
    served.waits_s_max = TAKE_S_MAX  # its answer is there, and it takes it slowly
    assert connections.opened(cast(Any, new))
    assert (served.is_aborted, silent.is_aborted) == (False, True)


def test_connections_take_an_eighth_of_the_files_that_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, connections in ((1_024, 128), (256, 32), (8, 1), (4, 1), (1_000_000, 500)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert connections_within(500) == connections
