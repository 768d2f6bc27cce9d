"""The HTTP side over a socket: bytes that no client should send, and requests that are dear, wrong or never end."""

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.http import HttpServer
from popwheel_common.web.connections import HEAD_BYTES_MAX
from popwheel_common.web.gate import BODY_BYTES_MAX
from tests.fuzz.subject import FoundError, Subject
from tests.harness.collector import collector_of_servers
from tests.harness.loop_turns import TURN_S_MAX, measured_turns

CONNECTIONS_MAX = 12
_ANSWER_S = 10.0
_PATHS = (
    *(
        "/healthz",
        "/readyz",
        "/metrics",
        "/metrics?pairs=true",
        "/metrics?pairs=x",
        "/docs",
        "/openapi.json",
        "/nowhere",
    ),
    *("/api/v1/topics?limit=1000", "/api/v1/groups", "/api/v1/cluster/status", "/api/v1/inflight?topic=fuzz-a"),
    *(
        "/api/v1/timers/stats",
        "/api/v1/messages/x",
        "/api/v1/clients?after=x%2Fy&limit=3",
        "/api/v1/clients/x%2Fy",
        "/api/v1/debug/page?process=controller&page=x",
        "//",
        "/%00",
        "/" + "x" * 5_000,
        "/api/v1/topics?prefix=" + "%41" * 200,
    ),
)
_HOSTS = ("fuzz", "localhost:1", "127.0.0.1", "[::1]", "evil.example", "fuzz.evil.example", "", "a:b", "fuzz:99999999")
_HEADERS = (
    *("origin: http://evil.example", "origin: null", "origin: http://fuzz", "sec-fetch-site: cross-site"),
    *("expect: 100-continue", "connection: close", "connection: upgrade", "upgrade: websocket", "accept: */*"),
    *(
        "accept: application/openmetrics-text",
        "content-length: 5",
        "content-length: -1",
        "content-length: 99999999999999999999",
    ),
    *(
        "transfer-encoding: chunked",
        "transfer-encoding: gzip",
        "x: " + "y" * 3_000,
        "authorization: Bearer x",
        ": x",
        "\x00: x",
    ),
)
_NAME = "fuzz-admin-http"


class HttpFuzzer:
    """Opens connections, one at a time or some at once, and looks at what comes back and how long turns take.

    Args:
        subject: whose HTTP side it is.
        dice: decides.
    """

    def __init__(self, subject: Subject, dice: random.Random) -> None:
        self._subject = subject
        self._dice = dice
        self._server = HttpServer(subject.http, "127.0.0.1", 0, CollectorRegistry(), CONNECTIONS_MAX, SystemClock())
        self.exchanges = 0
        self.last = "nothing yet"

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def close(self) -> None:
        """Listen no more."""
        await self._server.stop()

    async def some(self, count: int) -> None:
        """Open some connections, and make a health check beside each.

        Raises:
            FoundError: something that must not be; or a turn of the loop took long.
        """
        for _ in range(count):
            silent = [await self._connect() for _ in range(self._dice.choice((0, 0, 1, 20)))]
            sent = self._bytes()
            self.last = f"{sent[:4_000]!r}"
            before, revived = self._subject.snapshot(), self._subject.revived
            with collector_of_servers(), measured_turns() as turns:
                await asyncio.sleep(0)
                answers = await self._exchange(sent)
                await self._is_healthy()
                await asyncio.sleep(0)
            if turns.longest_s > TURN_S_MAX:
                raise FoundError(f"{turns}")
            statuses = self._check(answers)
            changed = self._subject.snapshot() != before and self._subject.revived == revived
            if changed and all(status >= 400 for status in statuses):
                raise FoundError(f"refused, and yet changed: {statuses}")
            for _, writer in silent:
                writer.transport.abort()
            self.exchanges += 1

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._server.port)

    async def _exchange(self, sent: bytes) -> bytes:
        """Send, and read what comes back until a moment after the last of it."""
        reader, writer = await self._connect()
        received = b""
        try:
            writer.write(sent)
            if self._dice.random() < 0.5 and writer.can_write_eof():
                writer.write_eof()
            with suppress(OSError, TimeoutError):
                while more := await asyncio.wait_for(reader.read(2**20), 0.3):
                    received += more
        finally:
            writer.transport.abort()
        return received

    async def _is_healthy(self) -> None:
        reader, writer = await self._connect()
        try:
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), _ANSWER_S)
        finally:
            writer.transport.abort()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise FoundError(f"a health check got {answer[:200]!r}")

    def _check(self, answers: bytes) -> list[int]:
        """The statuses of some answers, one behind the other.

        Raises:
            FoundError: one is no answer, or a refusal without a name.
        """
        statuses = []
        while answers:
            head, separator, rest = answers.partition(b"\r\n\r\n")
            if not separator or not head.startswith(b"HTTP/1.1 "):
                raise FoundError(f"no answer of HTTP: {answers[:300]!r}")
            statuses.append(int(head.split()[1]))
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            length = int(lengths[0].partition(b":")[2]) if lengths else 0
            body, answers = rest[:length], rest[length:]
            if statuses[-1] >= 500 and statuses[-1] != 503:
                raise FoundError(f"status {statuses[-1]}: {body[:300]!r}")
            if statuses[-1] >= 400 and len(body) == length and length:
                refusal = json.loads(body)
                if statuses[-1] != 503 and not (refusal["code"].isupper() and len(refusal["message"].split()) > 2):
                    raise FoundError(f"status {statuses[-1]} without a name: {body[:300]!r}")
        return statuses

    def _bytes(self) -> bytes:
        dice = self._dice
        data = b"".join(self._request() for _ in range(dice.choice((1, 1, 1, 2, 200))))
        roll = dice.random()
        if roll < 0.1:
            return data[: dice.randrange(len(data))]
        if roll < 0.2:
            place = dice.randrange(len(data))
            return data[:place] + dice.randbytes(dice.choice((1, 10, 3_000))) + data[place:]
        return data

    def _request(self) -> bytes:
        dice = self._dice
        method = dice.choice(("GET", "GET", "POST", "DELETE", "OPTIONS", "BREW"))
        path = dice.choice(_PATHS)
        if method in ("POST", "DELETE"):
            path = dice.choice((f"/api/v1/topics/{_NAME}", "/api/v1/topics", "/api/v1/groups", path))
        headers = [f"host: {dice.choice(_HOSTS) if dice.random() < 0.3 else 'fuzz'}"]
        headers += dice.choices(_HEADERS, k=dice.choice((0, 0, 1, 3)))
        headers += ["a:"] * dice.choice((0, 0, 0, 50, 101, HEAD_BYTES_MAX))
        body = self._body() if method == "POST" or dice.random() < 0.1 else b""
        if dice.random() < 0.3:
            headers.append("transfer-encoding: chunked")
            body = self._chunks(body)
        elif body or dice.random() < 0.1:
            headers.append(f"content-length: {len(body)}")
        headers.append("content-type: application/json")
        return "\r\n".join((f"{method} {path} HTTP/1.1", *headers, "", "")).encode("latin-1") + body

    def _body(self) -> bytes:
        dice = self._dice
        name = json.dumps({"name": _NAME, "queues": dice.choice((1, 2, -1, 2**70))}).encode()
        return dice.choice(
            (
                *(name, name, b"", b"{", b"null", b"[" * (BODY_BYTES_MAX - 1), b'{"a":' * 3_000),
                b'{"name": "x", "backoff_ms": [' + b"[]," * 5_000 + b"1]}",
                b"{" + b",".join(b'"%d":1' % number for number in range(2_000)) + b"}",
                b" " * dice.choice((BODY_BYTES_MAX, BODY_BYTES_MAX + 1, 2**20)),
                b'{"name": "' + b"\\ud800" * 2_500 + b'"}',
                b'{"name": 1' + b"0" * 16_000 + b"}",
            )
        )

    def _chunks(self, body: bytes) -> bytes:
        size = self._dice.choice((1, 100, 10_000))
        pieces: Sequence[bytes] = [body[start : start + size] for start in range(0, len(body), size)]
        return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
