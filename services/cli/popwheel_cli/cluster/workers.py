"""`popwheel proxy --workers N`: several processes on one port, and a parent that keeps them running.

They share nothing but the port: a proxy is stateless, so any of them answers any call (X1).
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from popwheel_cli.cluster.children import Child, Children
from popwheel_cli.cluster.worker_metrics import ChildPages
from popwheel_cli.options import ClusterOptions
from popwheel_cli.process.extras import check_extras
from popwheel_cli.process.listeners import (
    client_certificate,
    cluster_certificate,
    host_in_address,
    load_http,
    reached_here,
    serve_http,
    warn_of_open_clients,
)
from popwheel_cli.process.ports import Ports
from popwheel_cli.settings import assigned
from popwheel_common import log_writer
from popwheel_common.clock import SystemClock
from popwheel_common.settings.access_options import AccessOptions
from popwheel_proxy.options import TlsOptions

if TYPE_CHECKING:
    from popwheel_common.http import HttpServer

STOP_S_MAX = 10.5
"""Time that a worker may take to end: a little longer than it gives itself."""

_logger = structlog.get_logger()


class ProxyWorkers:
    """The parent of the workers of one proxy.

    Args:
        options: settings of the cluster.
        given: words of the command line that gave these settings, for the workers.
        count: how many.
    """

    def __init__(self, options: ClusterOptions, given: Sequence[str], count: int) -> None:
        check_extras(options.proxy)
        self._all_options = options
        self._options = options.proxy
        self._silence_s_max = options.children.silence_ms_max / 1000
        self._tls = options.tls
        self._access = options.access
        self._given = given
        self._count = count
        self._registry = CollectorRegistry()
        log_writer.show(self._registry)
        self._stack = AsyncExitStack()
        self._draining = False
        self._http: HttpServer | None = None

    async def start(self) -> None:
        """Start all workers, then serve health and metrics of all.

        Raises:
            ConfigurationError: the port cannot be had.
            CommandError: a worker cannot start.
        """
        options, stack = self._options, self._stack
        # An error is reported once, not by each worker.
        check_files(self._access, options.tls)
        cluster_certificate(self._tls)
        warn_of_open_clients(self._access, options.grpc_host)
        self._stack.push_async_callback(self._stop_http)
        ports = stack.enter_context(Ports())
        grpc_port = ports.reserve(options.grpc_host, options.grpc_port, "proxy.grpc_port")
        http_port = ports.reserve(options.http_host, options.http_port, "proxy.http_port")
        own_name = options.name or f"{host_in_address(options.grpc_host)}:{grpc_port}"
        workers = worker_children(
            ports, own_name, self._count, options.http_host, self._given, {"proxy.grpc_port": grpc_port}
        )
        pages = ChildPages(workers, self._registry)
        restarts, hung = worker_restarts(self._registry), hung_children(self._registry)
        children = Children(
            [workers],
            SystemClock(),
            STOP_S_MAX,
            self._silence_s_max,
            restarted=lambda _: restarts.inc(),
            hung=lambda _: hung.inc(),
        )
        show_workers(self._registry, children, workers)
        stack.push_async_callback(children.stop)
        await children.start()
        await load_http()
        checks = {
            "process": lambda: "the process is draining" if self._draining else None,
            "workers": lambda: trouble_of(pages, workers),
        }
        self._http = await serve_http(
            self._all_options,
            self._registry,
            checks,
            options.http_host,
            http_port,
            "proxy.http_port",
            ask_workers=pages.ask,
            worker_pages=pages.read,
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
        """Stop all workers once they have finished what is in flight."""
        self._draining = True
        await self._stack.aclose()

    async def failed(self) -> Exception:
        """Never returns: a worker that ends is restarted."""
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def _stop_http(self) -> None:
        if self._http is not None:
            await self._http.stop()


def check_files(access: AccessOptions, tls: TlsOptions) -> None:
    """Check that the files of all workers can be read, so that an error is reported once, and not by each.

    Raises:
        ConfigurationError: it cannot be used.
    """
    client_certificate(tls, access.client_authority_file)
    if access.file:
        from popwheel_proxy.access.access_file import access_file  # imported late: slow to load, rarely needed

        access_file(access.file)


def worker_children(
    ports: Ports, name: str, count: int, http_host: str, given: Sequence[str], settings: Mapping[str, object]
) -> list[Child]:
    """Return the workers of a proxy.

    Args:
        ports: where their HTTP ports are reserved.
        name: of the proxy.
        count: how many.
        http_host: where they listen for HTTP.
        given: words of the command line that gave the settings.
        settings: further ones, the port for clients among them, which override those.
    """
    workers = []
    for number in range(count):
        http_port = ports.reserve(http_host, 0, "proxy.http_host")
        own = {**settings, "proxy.name": f"{name}/{number}", "proxy.http_host": http_host, "proxy.http_port": http_port}
        words = ("proxy", *given, *assigned(own), "--shared-port")
        workers.append(Child(f"{name}/{number}", words, reached_here(http_host), http_port, "/healthz", None))
    return workers


def worker_restarts(registry: CollectorRegistry) -> Counter:
    """Return the counter of restarted workers."""
    return Counter("popwheel_proxy_worker_restarts", "Restarts of worker processes", registry=registry)


def hung_children(registry: CollectorRegistry) -> Counter:
    """Count processes that are killed because they hang."""
    return Counter(
        "popwheel_hung_processes_killed",
        "Child processes without a heartbeat for children.silence_ms_max, which were killed and restarted",
        registry=registry,
    )


def show_workers(registry: CollectorRegistry, children: Children, workers: Sequence[Child]) -> None:
    """Show how many of the workers run."""
    Gauge("popwheel_proxy_workers", "Running worker processes", registry=registry).set_function(
        lambda: sum(children.running(worker.name) for worker in workers)
    )


def trouble_of(pages: ChildPages, workers: Sequence[Child]) -> str | None:
    """Return why not all workers are ready."""
    reasons = {worker.label: pages.trouble(worker) for worker in workers}
    return "; ".join(f"worker {number}: {reason}" for number, reason in reasons.items() if reason) or None
