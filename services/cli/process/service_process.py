"""The processes of a cluster that run one service each: controller, broker, proxy."""

import asyncio
import os
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from services.broker.app import BrokerApp
from services.broker.options import BrokerOptions
from services.cli.options import ClusterOptions
from services.cli.process.data_lock import DataLock
from services.cli.process.listeners import (
    CHANNEL_LIMITS,
    CONTROLLER_LIMITS,
    INTERNAL_LIMITS,
    SEVERAL_CONTROLLERS_LIMITS,
    GrpcServer,
    client_certificate,
    client_limits,
    cluster_certificate,
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
from services.common.clock import SystemClock
from services.common.errors import ConfigurationError
from services.common.pb.popwheel.v1.controller_pb2 import BrokerInfo, WatchRequest
from services.common.tokens import Tokens
from services.controller.app import ControllerApp
from services.proxy.app import ProxyApp
from services.rpc.client.socket_channel import connect
from services.rpc.limits import Limits
from services.rpc.membership.controller_channel import ControllerChannel, addresses_of
from services.rpc.service import Channel, Service
from services.rpc.socket.certificate_files import CertificateMetrics

if TYPE_CHECKING:
    from fastapi import APIRouter

    from services.common.http import Before, HttpServer, ReadinessChecks

_GRACE_S = 3.0
_EVERYWHERE = ("0.0.0.0", "::", "")

_logger = structlog.get_logger()


class ServiceProcess:
    """What they have in common: a clock, chance, metrics, the way to the others, an HTTP port, an end in the
    right order.

    Args:
        options: settings of the cluster.

    Raises:
        ConfigurationError: the certificate for the others cannot be used.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._clock = SystemClock()
        self._secrets = random.SystemRandom()
        self._registry = CollectorRegistry()
        GCCollector(self._registry)
        ProcessCollector(registry=self._registry)
        self._certificates = CertificateMetrics(self._registry, self._clock)
        self._certificate = cluster_certificate(options.tls)
        if self._certificate is not None:
            self._certificates.show("services", self._certificate)
        self._stack = AsyncExitStack()
        self._http: HttpServer | None = None
        self._draining = False
        # Pushed first, so it ends last: health and metrics can be seen while the rest drains.
        self._stack.push_async_callback(self._stop_http)

    async def stop(self) -> None:
        """Finish what is in flight, save, end."""
        self._draining = True
        await self._stack.aclose()

    async def failed(self) -> Exception:
        """Never returns: there is nothing that such a process cannot outlast."""
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def _random(self) -> random.Random:
        return random.Random(self._secrets.getrandbits(64))

    def _lock(self, data_dir: Path) -> None:
        lock = DataLock(data_dir)
        lock.acquire()
        self._stack.callback(lock.release)

    def _connect(self, address: str, limits: Limits = CHANNEL_LIMITS) -> Channel:
        """The way to another of our services."""
        certificate = None if self._options.tls.mode == "accept" else self._certificate
        return connect(address, tls=None if certificate is None else certificate.client, limits=limits)

    def _to_broker(self, broker: BrokerInfo) -> Channel:
        return self._connect(broker.address)

    def _to_controllers(self, addresses: str, key: str) -> Channel:
        """The way to the controller, or to whichever of several leads."""
        try:
            each = addresses_of(addresses)
            if len(each) == 1:
                return self._connect(each[0])
            channels = [self._connect(address, SEVERAL_CONTROLLERS_LIMITS) for address in each]
        except ValueError as error:
            raise ConfigurationError(
                key, f"must be host:port of the controller, or of several with commas between them, not {addresses!r}"
            ) from error
        return ControllerChannel(channels, self._clock)

    def _server(self, service: Service, limits: Limits, authority: str = "") -> GrpcServer:
        """A server for others of our services, not listening yet; `authority` as `Server` has it."""
        plain = self._certificate is None or self._options.tls.mode in ("accept", "prefer")
        return grpc_server(
            service, "popwheel", limits, self._registry, self._certificate, plain=plain, authority=authority
        )

    async def _serve_http(
        self,
        checks: "ReadinessChecks",
        host: str,
        port: int,
        key: str,
        router: "APIRouter | None" = None,
        tokens: Tokens | None = None,
        registry: CollectorRegistry | None = None,
        before: "Before | None" = None,
    ) -> str:
        """Serve health and metrics; the address of it. `registry` is its own if not given."""
        await load_http()
        all_checks = {"process": lambda: "the process is draining" if self._draining else None, **checks}
        routers = [] if router is None else [router]
        shown = self._registry if registry is None else registry
        self._http = await serve_http(shown, all_checks, host, port, key, routers, before, tokens)
        return f"http://{host_in_address(host)}:{self._http.port}"

    async def _stop_http(self) -> None:
        if self._http is not None:
            await self._http.stop()


class ControllerProcess(ServiceProcess):
    """`popwheel controller`.

    Args:
        options: settings of the cluster.
        data_dir: folder of the controller's state.
    """

    def __init__(self, options: ClusterOptions, data_dir: Path) -> None:
        super().__init__(options)
        self._data_dir = data_dir

    async def start(self) -> None:
        """Read the state, then serve brokers and proxies, then the admin API."""
        options = self._options.controller
        self._lock(self._data_dir)
        tokens = tokens_of(self._options.access, self._clock, self._registry)
        warn_of_open_admin(self._options.access, options.http_host)
        shared = options.store.kind != "file" or bool(options.store.folder)
        named = options.advertised_address or (options.grpc_host not in _EVERYWHERE and options.grpc_port)
        if shared and not named:
            raise ConfigurationError(
                "controller.advertised_address",
                "must say at which host:port brokers and proxies reach this controller, because others share its state "
                "and name it",
            )
        address = options.advertised_address or f"{host_in_address(options.grpc_host)}:{options.grpc_port}"
        app = ControllerApp(
            options,
            self._data_dir / "controller",
            self._clock,
            self._secrets,
            self._registry,
            self._to_broker,
            address=address,
            admin_address=_admin_address(options.http_host, options.http_port, address),
        )
        await app.start()
        server = self._server(app.service, CONTROLLER_LIMITS)
        await listen(server, options.grpc_host, options.grpc_port, "controller.grpc_port")
        self._stack.push_async_callback(server.stop, _GRACE_S)
        self._stack.push_async_callback(app.stop)  # ends the streams of watchers, which the server would wait for
        http = await self._serve_http(
            {"controller": app.health}, options.http_host, options.http_port, "controller.http_port", app.admin, tokens
        )
        _logger.info(
            "popwheel controller serves",
            grpc=f"{host_in_address(options.grpc_host)}:{server.port}",
            http=http,
            data=str(self._data_dir),
        )


def stop_s_max(options: BrokerOptions) -> float:
    """How long a broker may take to end: to leave its group, to end its calls, to save."""
    return options.replication.leaving_ms_max / 1000 + _GRACE_S


class BrokerProcess(ServiceProcess):
    """`popwheel broker`.

    Args:
        options: settings of the cluster.
        data_dir: folder of the broker's files.
        lock_held: whether its parent has locked the folder, and has handed the lock on to this process.
    """

    def __init__(self, options: ClusterOptions, data_dir: Path, *, lock_held: bool = False) -> None:
        super().__init__(options)
        self._data_dir = data_dir
        self._lock_held = lock_held
        self._app: BrokerApp | None = None

    async def start(self) -> None:
        """Recover, serve, and register at the controller."""
        options, stack = self._options.broker, self._stack
        if options.grpc_host in _EVERYWHERE and not options.advertised_address:
            raise ConfigurationError(
                "broker.advertised_address",
                f"must say at which host:port proxies reach this broker, because it listens on {options.grpc_host}",
            )
        if not self._lock_held:
            self._lock(self._data_dir)
        controller = self._to_controllers(options.controller_address, "broker.controller_address")
        stack.push_async_callback(controller.close)
        app = BrokerApp(
            options,
            self._data_dir / "broker",
            self._clock,
            self._random(),
            self._registry,
            controller,
            process=_introduction(WatchRequest.BROKER, options.name, "", options.http_port, options.replica),
            to_replica=lambda address: self._connect(address, INTERNAL_LIMITS),
        )
        self._app = app
        await app.start()
        stack.push_async_callback(app.stop)
        # Whoever has an old address of another broker's name, which is this one's now, must not be served.
        server = self._server(app.service, INTERNAL_LIMITS, authority=options.advertised_address)
        await listen(server, options.grpc_host, options.grpc_port, "broker.grpc_port")
        stack.push_async_callback(server.stop, _GRACE_S)
        address = options.advertised_address or f"{host_in_address(options.grpc_host)}:{server.port}"
        registrar = app.registrar(address)
        await registrar.start()
        stack.push_async_callback(registrar.stop)  # proxies send elsewhere
        stack.push_async_callback(app.leave)  # first of all: another replica takes over
        http = await self._serve_http(
            {"broker": app.health, "registration": registrar.health},
            options.grpc_host,
            options.http_port,
            "broker.http_port",
        )
        _logger.info(
            "popwheel broker serves",
            name=options.name,
            grpc=f"{host_in_address(options.grpc_host)}:{server.port}",
            advertised=address,
            http=http,
            controller=options.controller_address,
            data=str(self._data_dir),
        )

    async def failed(self) -> Exception:
        """Wait until the broker cannot go on."""
        assert self._app is not None
        return await asyncio.shield(self._app.failure)  # who waits here may be cancelled, the broker goes on


class ProxyProcess(ServiceProcess):
    """`popwheel proxy`.

    Args:
        options: settings of the cluster.
        worker: whether it is one of several on one port.

    Raises:
        ConfigurationError: a certificate, for clients or for the others, cannot be used.
    """

    def __init__(self, options: ClusterOptions, *, worker: bool = False) -> None:
        super().__init__(options)
        self._client_certificate = client_certificate(options.proxy.tls, options.access.client_authority_file)
        if self._client_certificate is not None:
            self._certificates.show("clients", self._client_certificate)
        self._worker = worker

    async def start(self) -> None:
        """Follow the controller and serve clients."""
        options, stack = self._options.proxy, self._stack
        host = host_in_address(options.grpc_host)
        address = f"{options.advertised_host or host}:{options.advertised_port or options.grpc_port}"
        controller = self._to_controllers(options.controller, "proxy.controller")
        stack.push_async_callback(controller.close)
        app = ProxyApp(
            options,
            self._clock,
            self._random(),
            self._registry,
            controller,
            self._to_broker,
            _introduction(WatchRequest.PROXY, options.name or address, address, options.http_port),
            access=self._options.access,
        )
        await app.start()
        stack.push_async_callback(app.stop)
        server = grpc_server(
            app.service,
            options.transport,
            within_open_files(client_limits(options)),
            self._registry,
            self._client_certificate,
            plain=not self._options.access.client_authority_file,
        )
        if not self._worker:  # else the parent says it, once
            warn_of_open_clients(self._options.access, options.grpc_host)
        await listen(server, options.grpc_host, options.grpc_port, "proxy.grpc_port", shared=self._worker)
        stack.push_async_callback(server.stop, _GRACE_S)
        stack.callback(app.drain)
        http = await self._serve_http(
            {"proxy": lambda: None if app.ready else "the proxy knows of no broker yet"},
            options.http_host,
            options.http_port,
            "proxy.http_port",
        )
        _logger.info(
            "popwheel proxy serves",
            name=options.name or address,
            grpc=f"{host}:{server.port}",
            http=http,
            controller=options.controller,
        )


def _admin_address(host: str, port: int, address: str) -> str:
    """host:port of the admin API, for others to name: one that listens everywhere is where its gRPC service is.

    Args:
        host: at which it listens.
        port: at which it listens.
        address: host:port of the gRPC service, as others name it.
    """
    return f"{address.rpartition(':')[0] if host in _EVERYWHERE else host_in_address(host)}:{port}"


def _introduction(
    kind: WatchRequest.Kind.ValueType, name: str, address: str, http_port: int, replica: int = 0
) -> WatchRequest:
    """What the controller shows operators of this process."""
    return WatchRequest(process=name, kind=kind, address=address, pid=os.getpid(), http_port=http_port, replica=replica)
