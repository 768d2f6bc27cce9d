"""What every process answers over HTTP: `/healthz`, `/readyz`, `/metrics`, and routes of its own beside them.

FastAPI and uvicorn take long to load and no message needs them: import this module only when gRPC serves already.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from services.common.errors import NotLeadingError, StatusError, code_name
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.tokens import Tokens

ReadinessChecks = Mapping[str, Callable[[], str | None]]
"""By name: a function that says in a sentence why its part cannot serve, or None if it can."""

Before = Mapping[str, Callable[[], Awaitable[None]]]
"""By page, `/readyz` or `/metrics`: what is to be waited for before it is answered."""

_GRACE_S = 2
_MESSAGE_LENGTH_MAX = 1_000
_PATH_LENGTH_MAX = 300
_OPEN_PATHS = frozenset(("/healthz", "/readyz", "/metrics"))
_NO_TOKEN = "show a token: authorization: Bearer TOKEN, or popwheel admin --token; POPWHEEL_TOKEN holds it, too"
_HTTP_STATUS_OF_CODE = {Code.PRECONDITION_FAILED: 409, Code.PROXY_TIMEOUT: 504}
_HTTP_STATUSES = frozenset((400, 401, 402, 403, 404, 408, 409, 413, 429, 431, 500, 501, 504))


def make_http_app(
    title: str,
    version: str,
    registry: CollectorRegistry,
    checks: ReadinessChecks,
    routers: Sequence[APIRouter] = (),
    before: Before | None = None,
    tokens: Tokens | None = None,
) -> FastAPI:
    """The application of one process; its OpenAPI page is at `/docs`, without a word to the Internet.

    Args:
        title: shown on the OpenAPI page.
        version: the same; the release.
        registry: what `/metrics` shows.
        checks: what `/readyz` asks.
        routers: further routes.
        before: for a process that has to ask others first.
        tokens: without one of which nothing but health, readiness and metrics is answered; None: all is.
    """
    app: FastAPI = FastAPIOffline(title=title, version=version)
    prepare = before or {}
    app.add_exception_handler(StatusError, _refused)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(HTTPException, _no_such_route)

    @app.get("/healthz", tags=["process"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """The process is alive."""
        return "ok\n"

    @app.get("/readyz", tags=["process"], responses={503: {"description": "The parts that cannot serve, and why."}})
    async def readyz() -> JSONResponse:
        """Every part of the process can serve."""
        if "/readyz" in prepare:
            await prepare["/readyz"]()
        reasons = {name: reason for name, check in checks.items() if (reason := check()) is not None}
        return JSONResponse({"ready": not reasons, "reasons": reasons}, status_code=503 if reasons else 200)

    @app.get("/metrics", tags=["process"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """All metrics of the process, for Prometheus."""
        if "/metrics" in prepare:
            await prepare["/metrics"]()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    for router in routers:
        app.include_router(router)
    if tokens is not None:
        app.add_middleware(_TokenGate, tokens=tokens)
    return app


class _TokenGate:
    """Stands before an application: who shows no token is refused before anything of the request is read.

    Args:
        app: the application.
        tokens: those that are good.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            request = Request(scope)
            if not self._tokens.allow(request.headers.get("authorization", "")):
                peer = "" if request.client is None else f"{request.client.host}:{request.client.port}"
                self._tokens.denied(request.method, request.url.path, peer)
                refused = _refusal(401, code_name(Code.UNAUTHORIZED), _NO_TOKEN)
                refused.headers["www-authenticate"] = "Bearer"
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process has its own way to end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves an application in the running loop.

    Args:
        app: what to serve.
        host: name or address to listen on.
        port: port to listen on; 0 for any that is free (then see `port`).
    """

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._uvicorn = _UvicornServer(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                http="h11",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; returns when requests are answered.

        Raises:
            OSError: the port is taken, or the host is not this machine's.
        """
        family, kind, protocol, _, address = (
            await asyncio.get_running_loop().getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._uvicorn.serve(sockets=[listener]), name="http-server")
        while not self._uvicorn.started and not self._task.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Take no more requests; give those under way two seconds."""
        if self._task is not None:
            self._uvicorn.should_exit = True
            await self._task
            self._task = None


def http_status(code: int) -> int:
    """The HTTP status that says the same as a code of `apache.rocketmq.v2.Code`."""
    status = _HTTP_STATUS_OF_CODE.get(Code.ValueType(code), code // 100)
    return status if status in _HTTP_STATUSES else (400 if 40000 <= code < 50000 else 500)


def _refusal(status: int, code: str, message: str, **more: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": _printable(message), **more}, status_code=status)


def _printable(message: str) -> str:
    """A sentence that may hold what a caller wrote, as terminals and logs can bear it."""
    escaped = "".join(each if each.isprintable() else repr(each)[1:-1] for each in message[:_MESSAGE_LENGTH_MAX])
    return escaped if len(message) <= _MESSAGE_LENGTH_MAX else f"{escaped}..."


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StatusError)
    more = {"leader": error.leader} if isinstance(error, NotLeadingError) else {}
    return _refusal(http_status(error.code), code_name(error.code), error.message, **more)


async def _not_understood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sentences = [
        f"{'.'.join(str(part) for part in details['loc'][1:]) or 'the request'}: {details['msg']}"
        for details in error.errors()
    ]
    return _refusal(400, code_name(Code.BAD_REQUEST), "; ".join(sentences))


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = Code.NOT_FOUND if error.status_code == 404 else Code.BAD_REQUEST
    return _refusal(
        error.status_code, code_name(code), f"{request.method} {request.url.path[:_PATH_LENGTH_MAX]}: {error.detail}"
    )
