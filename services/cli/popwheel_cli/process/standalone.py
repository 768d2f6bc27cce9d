"""`popwheel standalone`: controller, broker and proxy in one loop, with no socket between them."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from popwheel_broker.app import BrokerApp
from popwheel_cli.options import StandaloneOptions
from popwheel_cli.process.broker_folders import check_standalone_folder
from popwheel_cli.process.data_lock import DataLock
from popwheel_cli.process.extras import check_extras
from popwheel_cli.process.in_process import InProcessCluster
from popwheel_cli.process.inspected import answer_to, pages_of
from popwheel_cli.process.listeners import (
    address_for_clients,
    client_certificate,
    client_limits,
    connections_are_asked_for,
    console_of,
    grpc_server,
    host_in_address,
    listen,
    load_http,
    serve_http,
    tokens_of,
    warn_of_open_admin,
    warn_of_open_clients,
    within_open_files,
)
from popwheel_cli.process.ports import Ports
from popwheel_common import log_writer
from popwheel_common.clock import Clock, SystemClock
from popwheel_common.pb.popwheel.v1.controller_pb2 import WatchRequest
from popwheel_common.runtime import Runtime
from popwheel_rpc.membership.inspection_stream import InspectionStream
from popwheel_rpc.socket.certificate_files import CertificateMetrics

if TYPE_CHECKING:
    from popwheel_common.http import HttpServer

_GRACE_S = 3.0
_MASTER_S_MAX = 0.1
_POLL_S = 0.002

_logger = structlog.get_logger()


class Standalone:
    """The whole cluster as one process.

    Args:
        options: settings of everything.
        data_dir: folder of all persistent data, for this process alone.
    """

    def __init__(self, options: StandaloneOptions, data_dir: Path) -> None:
        check_extras(options.proxy)
        clock, random_source, registry = SystemClock(), random.SystemRandom(), CollectorRegistry()
        self._options = options
        self._data_dir = data_dir
        self._clock = clock
        self._random_source = random_source
        self._registry = registry
        GCCollector(registry)
        ProcessCollector(registry=registry)
        log_writer.show(registry)
        self._lock = DataLock(data_dir)
        self._draining = False
        self._stack = AsyncExitStack()
        self._broker: BrokerApp | None = None
        self._http: HttpServer | None = None

    async def start(self) -> None:
        """Reserve the ports, recover, then serve gRPC, then HTTP.

        Raises:
            ConfigurationError: the data folder or a port cannot be had.
            CorruptDataError, UnknownFormatError: what is in the data folder cannot be used.
        """
        options, stack = self._options, self._stack
        check_standalone_folder(self._data_dir, 1)
        self._lock.check()
        ports = stack.enter_context(Ports())
        grpc_port = ports.reserve(options.proxy.grpc_host, options.proxy.grpc_port, "proxy.grpc_port")
        http_port = ports.reserve(options.controller.http_host, options.controller.http_port, "controller.http_port")
        self._lock.acquire()
        stack.push(self._lock.release)
        # Pushed first, so it ends last: health and metrics are served while the rest drains.
        stack.push_async_callback(self._stop_http)

        cluster = InProcessCluster(
            Runtime(self._clock, self._random_source, self._registry),
            options,
            self._data_dir,
            proxy_address=address_for_clients(options.proxy, grpc_port),
        )
        stack.push_async_callback(cluster.stop)
        await cluster.start()
        self._lock.serves(**cluster.broker.recovered)
        self._broker = cluster.broker
        proxy = cluster.proxy
        cluster.controller.own_pages = pages_of(options, self._registry)
        inspection = InspectionStream(
            cluster.to_controller,
            WatchRequest(process=options.proxy.name or "proxy", kind=WatchRequest.PROXY),
            (),
            lambda question: answer_to(question, {}, proxy),
            lambda: proxy.view.cluster_id,
            random.Random(self._random_source.getrandbits(64)),
        )
        await inspection.start()
        stack.push_async_callback(inspection.stop)
        certificate = client_certificate(options.proxy.tls, options.access.client_authority_file)
        tokens = tokens_of(options.access, self._clock, self._registry)
        if certificate is not None:
            CertificateMetrics(self._registry, self._clock).show("clients", certificate)
        server = grpc_server(
            proxy.service,
            options.proxy.transport,
            within_open_files(client_limits(options.proxy), is_asked_for=connections_are_asked_for(options.proxy)),
            self._registry,
            certificate,
            plain=not options.access.client_authority_file,
        )
        warn_of_open_clients(options.access, options.proxy.grpc_host)
        warn_of_open_admin(options.access, options.controller.http_host)
        await listen(server, options.proxy.grpc_host, grpc_port, "proxy.grpc_port")
        stack.push_async_callback(server.stop, _GRACE_S)
        stack.callback(proxy.drain)

        await until_sends_are_answered(cluster, self._clock)
        await load_http()
        checks = {
            "process": lambda: "the process is draining" if self._draining else None,
            "controller": cluster.controller.health,
            "broker": cluster.broker.health,
            "registration": cluster.registrar.health,
            "proxy": lambda: None if proxy.ready else "the proxy knows of no broker yet",
        }
        self._http = http = await serve_http(
            options,
            self._registry,
            checks,
            options.controller.http_host,
            http_port,
            "controller.http_port",
            router=lambda: cluster.controller.admin,
            tokens=tokens,
        )
        _logger.info(
            "popwheel standalone serves",
            grpc=f"{host_in_address(options.proxy.grpc_host)}:{server.port}",
            http=f"http://{host_in_address(http.host)}:{http.port}",
            **console_of(options, f"http://{host_in_address(http.host)}:{http.port}"),
            data=str(self._data_dir),
        )

    async def stop(self) -> None:
        """End long polls, finish calls in flight, save, end."""
        self._draining = True
        await self._stack.aclose()

    async def failed(self) -> Exception:
        """Wait until the broker cannot continue."""
        assert self._broker is not None
        return await asyncio.shield(self._broker.failure)  # the waiter may be cancelled, the broker continues

    async def _stop_http(self) -> None:
        if self._http is not None:
            await self._http.stop()


async def until_sends_are_answered(cluster: InProcessCluster, clock: Clock) -> None:
    """Wait for a master, but no longer than it usually takes.

    What loads HTTP meanwhile would keep the election, and the first sends, waiting for the interpreter.
    """
    until_s = clock.monotonic() + _MASTER_S_MAX
    while cluster.broker.health() is not None or not cluster.proxy.ready:
        if clock.monotonic() >= until_s:
            return
        await asyncio.sleep(_POLL_S)
