"""Processes of a cluster that run one service each: controller, broker, proxy."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from popwheel_broker.app import BrokerApp
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.channels import BrokerChannels
from popwheel_cli.options import ClusterOptions
from popwheel_cli.process.broker_process import kill_replica
from popwheel_cli.process.data_lock import DataLock
from popwheel_cli.process.extras import check_extras
from popwheel_cli.process.inspected import answer_to, pages_of
from popwheel_cli.process.listeners import (
    CHANNEL_LIMITS,
    CONTROLLER_LIMITS,
    EVERYWHERE,
    INTERNAL_LIMITS,
    SEVERAL_CONTROLLERS_LIMITS,
    GrpcServer,
    address_for_clients,
    client_certificate,
    client_limits,
    cluster_certificate,
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
from popwheel_common.clock import SystemClock
from popwheel_common.errors import ConfigurationError
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, WatchRequest
from popwheel_common.runtime import Runtime
from popwheel_common.web.tokens import Tokens
from popwheel_controller.app import ControllerAddresses, ControllerApp
from popwheel_proxy.app import ProxyApp, ProxyChannels
from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.limits import Limits
from popwheel_rpc.membership.controller_channel import ControllerChannel, addresses_of
from popwheel_rpc.membership.inspection_stream import InspectionStream
from popwheel_rpc.service import Channel, Service
from popwheel_rpc.socket.certificate_files import CertificateMetrics

if TYPE_CHECKING:
    from popwheel_common.http import HttpServer, ReadinessChecks
    from popwheel_common.web.metrics_page import WorkerPages
    from popwheel_common.web.routes import Routes

_GRACE_S = 3.0

_logger = structlog.get_logger()


class ServiceProcess:
    """Base of the service processes: clock, randomness, metrics, channels to others, an HTTP port, an ordered end.

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
        self._cluster_id: Callable[[], str] = lambda: ""
        """Function that returns the id of the process's cluster; empty while it knows of none."""
        log_writer.show(self._registry)
        self._certificates = CertificateMetrics(self._registry, self._clock)
        self._certificate = cluster_certificate(options.tls)
        if self._certificate is not None:
            self._certificates.show("services", self._certificate)
        self._stack = AsyncExitStack()
        self._http: HttpServer | None = None
        self._draining = False
        self._ports = Ports()
        """Ports of its listeners, reserved before anything is written."""
        self._stack.callback(self._ports.close)
        # Pushed first, so it ends last: health and metrics are served while the rest drains.
        self._stack.push_async_callback(self._stop_http)

    async def stop(self) -> None:
        """Finish what is in flight, save, end."""
        self._draining = True
        await self._stack.aclose()

    async def failed(self) -> Exception:
        """Never returns: no failure ends such a process."""
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    def _random(self) -> random.Random:
        return random.Random(self._secrets.getrandbits(64))

    def _lock(self, lock: DataLock) -> None:
        lock.acquire()
        self._stack.push(lock.release)

    def _connect(self, address: str, limits: Limits = CHANNEL_LIMITS) -> Channel:
        """Return the channel to another of our services."""
        certificate = None if self._options.tls.mode == "accept" else self._certificate
        tls = None if certificate is None else certificate.client
        return connect(address, tls=tls, limits=limits, cluster_id=lambda: self._cluster_id())

    def _to_broker(self, broker: BrokerInfo) -> Channel:
        return self._connect(broker.address)

    def _to_controllers(self, addresses: str, key: str) -> Channel:
        """Return the channel to the controller, or to the leader of several."""
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

    async def _answer_inspections(
        self, controller: Channel, process: WatchRequest, proxy: ProxyApp | None = None
    ) -> None:
        """Answer the controller's inspections of this process; `proxy` if it is one."""
        pages = pages_of(self._options, self._registry)
        stream = InspectionStream(
            channel=controller,
            process=process,
            pages=list(pages),
            answer=lambda question: answer_to(question, pages, proxy),
            cluster_id=lambda: self._cluster_id(),
            random_source=self._random(),
        )
        await stream.start()
        self._stack.push_async_callback(stream.stop)

    def _server(self, service: Service, limits: Limits, authority: str = "") -> GrpcServer:
        """Return a server for our other services, not listening yet; for `authority` see `Server`."""
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
        router: "Callable[[], Routes] | None" = None,
        tokens: Tokens | None = None,
        ask_workers: Callable[[], Awaitable[None]] | None = None,
        worker_pages: "WorkerPages | None" = None,
    ) -> str:
        """Serve health and metrics as `serve_http` does; return the address."""
        await load_http()
        all_checks = {"process": lambda: "the process is draining" if self._draining else None, **checks}
        self._http = await serve_http(
            options=self._options,
            registry=self._registry,
            checks=all_checks,
            host=host,
            port=port,
            key=key,
            router=router,
            tokens=tokens,
            ask_workers=ask_workers,
            worker_pages=worker_pages,
        )
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
        lock = DataLock(self._data_dir)
        lock.check()
        grpc_port = self._ports.reserve(options.grpc_host, options.grpc_port, "controller.grpc_port")
        http_port = self._ports.reserve(options.http_host, options.http_port, "controller.http_port")
        tokens = tokens_of(self._options.access, self._clock, self._registry)
        warn_of_open_admin(self._options.access, options.http_host)
        shared = options.store.kind != "file" or bool(options.store.folder)
        named = options.advertised_address or (options.grpc_host not in EVERYWHERE and options.grpc_port)
        if shared and not named:
            raise ConfigurationError(
                "controller.advertised_address",
                "must say at which host:port brokers and proxies reach this controller, because others share its state "
                "and name it",
            )
        address = options.advertised_address or f"{host_in_address(options.grpc_host)}:{grpc_port}"
        self._lock(lock)
        app = ControllerApp(
            Runtime(self._clock, self._secrets, self._registry),
            options,
            self._data_dir / "controller",
            self._to_broker,
            addresses=ControllerAddresses(address, _admin_address(options.http_host, http_port, address)),
        )
        app.own_pages = pages_of(self._options, self._registry)
        app.kill_replica = kill_replica if options.drills else None
        self._cluster_id = lambda: app.state.id
        await app.start()
        lock.serves()
        server = self._server(app.service, CONTROLLER_LIMITS)
        await listen(server, options.grpc_host, grpc_port, "controller.grpc_port")
        self._stack.push_async_callback(server.stop, _GRACE_S)
        self._stack.push_async_callback(app.stop)  # ends the watchers' streams, which the server would wait for
        http = await self._serve_http(
            {"controller": app.health},
            options.http_host,
            http_port,
            "controller.http_port",
            lambda: app.admin,
            tokens,
        )
        _logger.info(
            "popwheel controller serves",
            grpc=f"{host_in_address(options.grpc_host)}:{server.port}",
            http=http,
            **console_of(self._options, http),
            data=str(self._data_dir),
        )


def stop_s_max(options: BrokerOptions) -> float:
    """Return how long a broker may take to end: to leave its group, to end its calls, to save."""
    return options.replication.leaving_ms_max / 1000 + _GRACE_S


class BrokerProcess(ServiceProcess):
    """`popwheel broker`.

    Args:
        options: settings of the cluster.
        data_dir: folder of the broker's files.
        lock_inherited: whether its parent has locked the folder, and has passed the lock to this process.
    """

    def __init__(self, options: ClusterOptions, data_dir: Path, *, lock_inherited: bool = False) -> None:
        super().__init__(options)
        self._data_dir = data_dir
        self._lock_inherited = lock_inherited
        self._app: BrokerApp | None = None

    async def start(self) -> None:
        """Recover, serve, and register at the controller."""
        options, stack = self._options.broker, self._stack
        if options.grpc_host in EVERYWHERE and not options.advertised_address:
            raise ConfigurationError(
                "broker.advertised_address",
                f"must say at which host:port proxies reach this broker, because it listens on {options.grpc_host}",
            )
        lock = DataLock(self._data_dir)
        if not self._lock_inherited:
            lock.check()
        grpc_port = self._ports.reserve(options.grpc_host, options.grpc_port, "broker.grpc_port")
        http_port = self._ports.reserve(options.grpc_host, options.http_port, "broker.http_port")
        if not self._lock_inherited:
            self._lock(lock)
        controller = self._to_controllers(options.controller, "broker.controller")
        stack.push_async_callback(controller.close)
        introduction = _introduction(WatchRequest.BROKER, options.name, "", http_port, options.replica)
        app = BrokerApp(
            Runtime(self._clock, self._random(), self._registry),
            options,
            self._data_dir / "broker",
            BrokerChannels(controller, lambda address: self._connect(address, INTERNAL_LIMITS)),
            process=introduction,
        )
        self._app = app
        self._cluster_id = lambda: app.view.cluster_id
        await app.start()
        lock.serves(**app.recovered)
        stack.push_async_callback(app.stop)
        # Callers that mean another broker, which had this address before, must be refused.
        server = self._server(app.service, INTERNAL_LIMITS, authority=options.advertised_address)
        await listen(server, options.grpc_host, grpc_port, "broker.grpc_port")
        stack.push_async_callback(server.stop, _GRACE_S)
        address = options.advertised_address or f"{host_in_address(options.grpc_host)}:{server.port}"
        registrar = app.registrar(address)
        await registrar.start()
        await self._answer_inspections(controller, introduction)
        stack.push_async_callback(registrar.stop)  # proxies send elsewhere
        stack.push_async_callback(app.leave)  # first: another replica takes over
        http = await self._serve_http(
            {"broker": app.health, "registration": registrar.health},
            options.grpc_host,
            http_port,
            "broker.http_port",
        )
        _logger.info(
            "popwheel broker serves",
            name=options.name,
            grpc=f"{host_in_address(options.grpc_host)}:{server.port}",
            advertised=address,
            http=http,
            controller=options.controller,
            data=str(self._data_dir),
        )

    async def failed(self) -> Exception:
        """Wait until the broker cannot continue."""
        assert self._app is not None
        return await asyncio.shield(self._app.failure)  # the waiter may be cancelled, the broker continues


class ProxyProcess(ServiceProcess):
    """`popwheel proxy`.

    Args:
        options: settings of the cluster.
        worker: whether it is one of several on one port.

    Raises:
        ConfigurationError: a certificate, for clients or for the others, cannot be used.
    """

    def __init__(self, options: ClusterOptions, *, worker: bool = False) -> None:
        check_extras(options.proxy)
        super().__init__(options)
        self._client_certificate = client_certificate(options.proxy.tls, options.access.client_authority_file)
        if self._client_certificate is not None:
            self._certificates.show("clients", self._client_certificate)
        self._worker = worker

    async def start(self) -> None:
        """Follow the controller and serve clients."""
        options, stack = self._options.proxy, self._stack
        host = host_in_address(options.grpc_host)
        grpc_port = options.grpc_port  # of workers: their parent has reserved it
        if not self._worker:
            grpc_port = self._ports.reserve(options.grpc_host, grpc_port, "proxy.grpc_port")
        http_port = self._ports.reserve(options.http_host, options.http_port, "proxy.http_port")
        address = address_for_clients(options, grpc_port)
        controller = self._to_controllers(options.controller, "proxy.controller")
        stack.push_async_callback(controller.close)
        introduction = _introduction(WatchRequest.PROXY, options.name or address, address, http_port)
        app = ProxyApp(
            Runtime(self._clock, self._random(), self._registry),
            options,
            ProxyChannels(controller, self._to_broker),
            introduction,
            access=self._options.access,
            otel=self._options.otel,
        )
        self._cluster_id = lambda: app.view.cluster_id
        await app.start()
        stack.push_async_callback(app.stop)
        await self._answer_inspections(controller, introduction, app)
        server = grpc_server(
            app.service,
            options.transport,
            within_open_files(client_limits(options), is_asked_for=connections_are_asked_for(options)),
            self._registry,
            self._client_certificate,
            plain=not self._options.access.client_authority_file,
        )
        if not self._worker:  # else the parent logs it, once
            warn_of_open_clients(self._options.access, options.grpc_host)
        await listen(server, options.grpc_host, grpc_port, "proxy.grpc_port", shared=self._worker)
        stack.push_async_callback(server.stop, _GRACE_S)
        stack.callback(app.drain)
        http = await self._serve_http(
            {"proxy": lambda: None if app.ready else "the proxy knows of no broker yet"},
            options.http_host,
            http_port,
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
    return f"{address.rpartition(':')[0] if host in EVERYWHERE else host_in_address(host)}:{port}"


def _introduction(
    kind: WatchRequest.Kind.ValueType, name: str, address: str, http_port: int, replica: int = 0
) -> WatchRequest:
    """Return the facts that the controller shows operators of this process."""
    return WatchRequest(process=name, kind=kind, address=address, pid=os.getpid(), http_port=http_port, replica=replica)
