"""`popwheel proxy --workers N`: several processes on one port, and a parent that keeps them running.

They share nothing but the port: a proxy is stateless, so any of them answers any call (X1).
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from services.cli.cluster.children import Child, Children
from services.cli.cluster.health import fetch, why_not_ready
from services.cli.cluster.ports import Ports
from services.cli.cluster.worker_metrics import WorkerMetrics
from services.cli.options import ClusterOptions
from services.cli.process.listeners import (
    client_certificate,
    cluster_certificate,
    host_in_address,
    load_http,
    reached_here,
    serve_http,
    warn_of_open_clients,
)
from services.cli.settings import assigned
from services.common.clock import SystemClock

if TYPE_CHECKING:
    from services.common.http import HttpServer

STOP_S_MAX = 10.5
"""How long a worker may take to end: a little longer than it gives itself."""

_ASK_S = 2.0

_logger = structlog.get_logger()


class ProxyWorkers:
    """The parent of the workers of one proxy.

    Args:
        options: settings of the cluster.
        given: words of the command line that gave these settings, for the workers.
        count: how many.
    """

    def __init__(self, options: ClusterOptions, given: Sequence[str], count: int) -> None:
        self._options = options.proxy
        self._tls = options.tls
        self._access = options.access
        self._given = given
        self._count = count
        self._registry = CollectorRegistry()
        self._page = WorkerMetrics()
        self._stack = AsyncExitStack()
        self._workers: dict[str, Child] = {}
        self._children: Children | None = None
        self._reasons: dict[str, str] = {}
        self._draining = False
        self._http: HttpServer | None = None

    async def start(self) -> None:
        """Start all workers, then serve health and metrics of all.

        Raises:
            ConfigurationError: the port cannot be had.
            CommandError: a worker cannot start.
        """
        options, stack = self._options, self._stack
        # What is wrong is said once, not by each worker.
        client_certificate(options.tls, self._access.client_authority_file)
        cluster_certificate(self._tls)
        if self._access.file:
            from services.proxy.access.access_file import access_file  # it takes a while to load, and few need it

            access_file(self._access.file)
        warn_of_open_clients(self._access, options.grpc_host)
        self._stack.push_async_callback(self._stop_http)
        ports = stack.enter_context(Ports())
        grpc_port = ports.reserve(options.grpc_host, options.grpc_port, "proxy.grpc_port")
        own_name = options.name or f"{host_in_address(options.grpc_host)}:{grpc_port}"
        for number in range(self._count):
            name = f"{own_name}/{number}"
            http_port = ports.reserve(options.http_host, 0, "proxy.http_host")
            settings = assigned({"proxy.name": name, "proxy.grpc_port": grpc_port, "proxy.http_port": http_port})
            words = ("proxy", *self._given, *settings, "--shared-port")
            self._workers[name] = Child(name, words, reached_here(options.http_host), http_port, "/healthz", None)
        restarts = Counter(
            "popwheel_proxy_worker_restarts", "Workers that had ended and were started again", registry=self._registry
        )
        Gauge("popwheel_proxy_workers", "Worker processes that run now", registry=self._registry).set_function(
            lambda: sum(map(self._runs, self._workers))
        )
        self._registry.register(self._page)
        self._children = Children([list(self._workers.values())], SystemClock(), STOP_S_MAX, restarts.inc)
        stack.push_async_callback(self._children.stop)
        await self._children.start()
        await load_http()
        checks = {"process": lambda: "the process is draining" if self._draining else None, "workers": self._trouble}
        self._http = await serve_http(
            self._registry,
            checks,
            options.http_host,
            options.http_port,
            "proxy.http_port",
            before={"/readyz": self._ask_all, "/metrics": self._read_all},
        )
        _logger.info(
            "popwheel proxy serves",
            name=own_name,
            grpc=f"{host_in_address(options.grpc_host)}:{grpc_port}",
            http=f"http://{host_in_address(options.http_host)}:{self._http.port}",
            controller=options.controller,
            workers=self._count,
        )

    async def stop(self) -> None:
        """Let all workers finish what is in flight, and end."""
        self._draining = True
        await self._stack.aclose()

    async def failed(self) -> Exception:
        """Never returns: a worker that ends is started again."""
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def _runs(self, name: str) -> bool:
        return self._children is not None and self._children.running(name)

    def _trouble(self) -> str | None:
        """Why not all workers are ready."""
        return "; ".join(f"worker {name}: {reason}" for name, reason in self._reasons.items() if reason) or None

    async def _ask_all(self) -> None:
        workers = list(self._workers.values())
        answers = await asyncio.gather(*(why_not_ready(each.host, each.port, _ASK_S) for each in workers))
        self._reasons = {worker.name: answer for worker, answer in zip(workers, answers, strict=True)}

    async def _read_all(self) -> None:
        workers = list(self._workers.values())
        pages = await asyncio.gather(*map(_metrics_of, workers))
        self._page.pages = {
            worker.name.rpartition("/")[2]: page for worker, page in zip(workers, pages, strict=True) if page
        }

    async def _stop_http(self) -> None:
        if self._http is not None:
            await self._http.stop()


async def _metrics_of(worker: Child) -> str:
    """What a worker counts; nothing of one that is just being started again."""
    try:
        status, page = await fetch(worker.host, worker.port, "/metrics", _ASK_S)
    except OSError:
        return ""
    return page.decode() if status == 200 else ""
