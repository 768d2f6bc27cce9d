"""HTTP server of every process: `/healthz`, `/readyz`, `/metrics`, and the routes of its service.

FastAPI and uvicorn take long to load and no message needs them: import this module only when gRPC serves already.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import uvicorn
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException

from popwheel_common.beside_loop import run_beside_loop
from popwheel_common.clock import Clock, SystemClock
from popwheel_common.errors import StatusError
from popwheel_common.exposition import preferred
from popwheel_common.web import refusals
from popwheel_common.web.connections import HEAD_BYTES_MAX, Connections
from popwheel_common.web.gate import AT_ONCE_MAX, BodyLimit, Gate, GateRules, short_bodies
from popwheel_common.web.hosts import AllowedHosts
from popwheel_common.web.metrics_page import MetricsPage, WorkerPages
from popwheel_common.web.routes import Routes
from popwheel_common.web.security_headers import SecurityHeaders
from popwheel_common.web.shared_work import SharedWork
from popwheel_common.web.signed_callers import SignedCallers
from popwheel_common.web.tokens import Tokens

ReadinessChecks = Mapping[str, Callable[[], str | None]]
"""Checks by name: a function that returns a sentence why its part cannot serve, or None if it can."""

_GRACE_S = 2


def make_http_app(
    title: str,
    version: str,
    registry: CollectorRegistry,
    checks: ReadinessChecks,
    routers: Sequence[APIRouter | Routes] = (),
    *,
    ask_workers: Callable[[], Awaitable[None]] | None = None,
    worker_pages: WorkerPages | None = None,
    tokens: Tokens | None = None,
    signed: SignedCallers | None = None,
    hosts: AllowedHosts | None = None,
    at_once_max: int = AT_ONCE_MAX,
    body_limit: BodyLimit = short_bodies,
    complete: Callable[[dict[str, Any]], None] | None = None,
) -> FastAPI:
    """Return the application of one process; its OpenAPI page is at `/docs`, without a word to the Internet.

    Args:
        title: shown on the OpenAPI page.
        version: the same; the release.
        registry: what `/metrics` shows.
        checks: what `/readyz` asks.
        routers: further routes.
        ask_workers: is waited for before `checks` are made, by a process that has to ask others.
        worker_pages: what `/metrics` shows of other processes.
        tokens: without one of which nothing but health, readiness and metrics is answered; None: all is.
        signed: those whom the console has let in; None: everybody, or there is no console.
        hosts: names that requests may be for; None: all.
        at_once_max: requests that are answered at the same time, without health checks.
        body_limit: how long bodies may be.
        complete: adds to the OpenAPI document, once, when somebody asks for it.
    """
    app: FastAPI = FastAPIOffline(title=title, version=version)
    page = MetricsPage(registry, worker_pages)
    asked = None if ask_workers is None else SharedWork(ask_workers)
    app.add_exception_handler(StatusError, refusals.refused)
    app.add_exception_handler(RequestValidationError, refusals.not_understood)
    app.add_exception_handler(HTTPException, refusals.no_such_route)

    @app.get("/healthz", tags=["process"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """Report that the process runs."""
        return "ok\n"

    @app.get("/readyz", tags=["process"], responses={503: {"description": "The parts that cannot serve, and why."}})
    async def readyz() -> JSONResponse:
        """Return 200 if every part of the process can serve."""
        if asked is not None:
            await asked.result()
        reasons = {name: reason for name, check in checks.items() if (reason := check()) is not None}
        return JSONResponse({"ready": not reasons, "reasons": reasons}, status_code=503 if reasons else 200)

    @app.get("/metrics", tags=["process"], response_class=PlainTextResponse)
    async def metrics(
        request: Request, pairs: bool = Query(default=False, description="Also by topic and group.")
    ) -> Response:
        """Return all metrics of the process, for Prometheus: by topic, and by group."""
        content_type = preferred(request.headers.get("accept", ""))
        return Response(await page.text(content_type, pairs=pairs), headers={"content-type": content_type})

    for router in routers:
        if isinstance(router, Routes):
            router.add_to(app)
        else:
            app.include_router(router)
    if complete is not None:
        _complete_document(app, complete)
    # It takes long, once, to find out what the document says.
    document = SharedWork(lambda: run_beside_loop(app.openapi))
    app.add_middleware(
        Gate,
        rules=GateRules(hosts, tokens, signed, at_once_max, body_limit),
        document=document.result,
        registry=registry,
    )
    _prepare(app)
    return app


def _complete_document(app: FastAPI, complete: Callable[[dict[str, Any]], None]) -> None:
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            complete(make())
        return make()

    # As FastAPI has it: it asks for no subclass, and fastapi-offline has none.
    app.openapi = openapi  # type: ignore[method-assign]


def _prepare(app: FastAPI) -> None:
    """Have all routes and what stands around them be worked out now: else the first request has it done, in one turn
    of the loop that takes 100 ms and more.
    """
    nowhere = {"type": "http", "method": "GET", "path": "/api/v1/-", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(dict(nowhere))
    app.middleware_stack = app.build_middleware_stack()


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
        registry: where connections are shown; None: nowhere.
        connections_max: as many at the most.
        clock: by which slow clients are found; the machine's if not given.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        registry: CollectorRegistry | None = None,
        connections_max: int = 128,
        clock: Clock | None = None,
    ) -> None:
        self.host = host
        self.port = port
        # An error of one client is its own affair: a line for each would fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self.connections = Connections(connections_max, registry or CollectorRegistry(), clock or SystemClock())
        self._uvicorn = _UvicornServer(
            uvicorn.Config(
                SecurityHeaders(app),
                lifespan="off",
                ws="none",
                http=cast(Any, self.connections),
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
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
