"""Client of the admin API, within this process; over HTTP if another controller leads."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlencode

import httpx
import structlog
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from popwheel_common.web.within import mark_within
from popwheel_console.answer import NO_LEADER, Answer, Question, Row

_PREFIX: Final = "/api/v1"
_LEADER_TIMEOUT_S: Final = 6.0
_STREAM_READ_S: Final = 15.0
"""Time-out of a stream, which has an event every five seconds."""
_NOBODY: Final = Answer(
    503,
    code=NO_LEADER,
    message="no controller leads now, or the leader cannot be reached; this page retries",
)


_logger = structlog.get_logger()


class Api(Protocol):
    """Interface of the API for pages."""

    leader: str

    async def ask(self, question: Question) -> Answer:
        """Return the answer, which may be a refusal."""

    def stream(self, question: Question, media_type: str) -> Response:
        """Return a response that streams what the API sends."""


class ApiClient:
    """Client for one request of a browser.

    Args:
        app: the application that serves the API.
        authorization: header of the user; empty for none.
        address: of the browser.
        host: name by which the browser called this server.
    """

    def __init__(self, app: ASGIApp, authorization: str, address: str, host: str) -> None:
        self._app = app
        self._authorization = authorization
        self._address = address
        self._host = host
        self.leader = ""
        """Address of the remote leader, `host:port`; empty while this process answers itself."""

    async def ask(self, question: Question) -> Answer:
        """Ask this process, or the controller that leads instead."""
        if not self.leader:
            status, data = await self._within(question)
            answer = read(status, data)
            if answer.code != NO_LEADER or "leader" not in answer.body:
                return answer
            if not answer.leader:
                return _NOBODY
            self.leader = answer.leader
        return await self._of_leader(question)

    def stream(self, question: Question, media_type: str) -> Response:
        """Return a response that streams what the API sends. Call `ask` first: it finds the leader.

        Args:
            question: for the API.
            media_type: of what the API answers with.
        """
        if self.leader:
            return StreamingResponse(self._of_leader_in_parts(question), media_type=media_type)
        return _PassedOn(self._app, self._scope(question, b""))

    async def _of_leader_in_parts(self, question: Question) -> AsyncIterator[bytes]:
        url = f"http://{self.leader}{_PREFIX}{question.path}?{_query(question)}"
        timeout = httpx.Timeout(_LEADER_TIMEOUT_S, read=_STREAM_READ_S)
        with suppress(httpx.HTTPError):  # the browser reconnects
            async with _http() as client, client.stream("GET", url, headers=self._headers(), timeout=timeout) as answer:
                if answer.status_code == 200:
                    async for data in answer.aiter_raw():
                        yield data

    def _headers(self) -> dict[str, str]:
        return {"authorization": self._authorization} if self._authorization else {}

    def _scope(self, question: Question, body: bytes) -> Scope:
        """Return a request like one from a socket."""
        headers = [(b"host", self._host.encode("latin-1", "replace")), (b"content-length", b"%d" % len(body))]
        if self._authorization:
            headers.append((b"authorization", self._authorization.encode("latin-1", "replace")))
        if question.body is not None:
            headers.append((b"content-type", b"application/json"))
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": question.method,
            "scheme": "http",
            "path": _PREFIX + unquote(question.path),
            "raw_path": (_PREFIX + question.path).encode(),
            "query_string": _query(question).encode(),
            "root_path": "",
            "headers": headers,
            "client": (self._address, 0) if self._address else None,
            "server": None,
        }
        mark_within(scope)
        return scope

    async def _within(self, question: Question) -> tuple[int, bytes]:
        """Call the application without a socket."""
        body = b"" if question.body is None else json.dumps(question.body).encode()
        scope = self._scope(question, body)
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        parts: list[bytes] = []
        status = 500

        async def receive() -> Message:
            return whole.pop() if whole else await asyncio.Future()

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        try:
            await self._app(scope, receive, send)
        except Exception:
            _logger.exception("a route failed for the console", path=question.path)
        return status, b"".join(parts)

    async def _of_leader(self, question: Question) -> Answer:
        """Ask the leader over HTTP; a former leader counts as none."""
        url = f"http://{self.leader}{_PREFIX}{question.path}?{_query(question)}"
        try:
            async with _http() as client:
                answer = await client.request(question.method, url, headers=self._headers(), json=question.body)
        except httpx.HTTPError:
            return _NOBODY
        found = read(answer.status_code, answer.content)
        return _NOBODY if found.code == NO_LEADER and "leader" in found.body else found


class _PassedOn(Response):
    """Response with the application's answer to another request.

    Args:
        app: the application.
        request: the other request.
    """

    def __init__(self, app: ASGIApp, request: Scope) -> None:
        super().__init__()
        self._app = app
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer until the browser disconnects."""
        await self._app(self._request, receive, send)


def load() -> None:
    """Create an HTTP client once in advance, as the first one takes 30 ms.

    Call it in a thread.
    """
    _http()


def _http() -> httpx.AsyncClient:
    # Loading the public authorities takes long, and no call uses TLS.
    return httpx.AsyncClient(trust_env=False, timeout=_LEADER_TIMEOUT_S, verify=False)


def part(name: str) -> str:
    """Quote a name as a part of a path."""
    return quote(name, safe="")


def read(status: int, data: bytes) -> Answer:
    """Parse an answer of the API."""
    try:
        found = json.loads(data, object_hook=Row)
    except ValueError:
        found = None
    fields: Mapping[str, Any] = found if isinstance(found, dict) else {}
    if status < 400:
        return Answer(status, fields)
    code, message, leader = (str(fields.get(name) or "") for name in ("code", "message", "leader"))
    return Answer(status, fields, code, message, leader)


def _query(question: Question) -> str:
    return urlencode({name: value for name, value in question.query.items() if value not in (None, "")})
