"""Listeners of a process: gRPC at once, HTTP when gRPC serves; and the error when a port is taken."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Protocol

import structlog
from prometheus_client import CollectorRegistry

from popwheel_cli.options import ClusterOptions
from popwheel_cli.process.loop_turns import LoopTurns
from popwheel_common.beside_loop import run_beside_loop
from popwheel_common.clock import Clock, SystemClock
from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.access_options import AccessOptions
from popwheel_common.settings.tls_options import ClusterTlsOptions
from popwheel_common.web.tokens import Tokens
from popwheel_proxy.options import ProxyOptions, TlsOptions
from popwheel_rpc.limits import MIB, Limits
from popwheel_rpc.server.metrics import RpcMetrics
from popwheel_rpc.service import Service
from popwheel_rpc.socket.certificate_files import CertificateFiles

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI

    from popwheel_common.http import HttpServer, ReadinessChecks
    from popwheel_common.web.hosts import AllowedHosts
    from popwheel_common.web.metrics_page import WorkerPages
    from popwheel_common.web.routes import Routes

_logger = structlog.get_logger()

INTERNAL_LIMITS = Limits(message_bytes_max=64 * MIB, keepalive_interval_s=5.0, keepalive_timeout_s=5.0)
"""Limits between our own services, which limit their own sends."""

CHANNEL_LIMITS = replace(INTERNAL_LIMITS, preface_timeout_s=2.0)
"""Limits of callers of another of our services.

A host that swallows its input is given up before clients' own deadlines of three seconds, so that a send can still go
elsewhere.
"""

SEVERAL_CONTROLLERS_LIMITS = replace(CHANNEL_LIMITS, keepalive_interval_s=1.0, keepalive_timeout_s=1.5)
"""Limits of callers of one of several controllers: when the leader hangs, another is tried after about 3 s."""

CONTROLLER_LIMITS = replace(INTERNAL_LIMITS, keepalive_interval_s=1.0, keepalive_timeout_s=1.5)
"""Limits of the controller.

A broker that hangs, with its connection open, is out of every route after about three seconds.
"""


EVERYWHERE = ("0.0.0.0", "::", "")
"""Hosts of a listener that every address of the machine reaches."""


class GrpcServer(Protocol):
    """A listener of either transport."""

    port: int

    async def start(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen and serve, perhaps on a port that other processes of the same user share."""

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, and give those in flight some seconds."""


def connections_are_asked_for(options: ProxyOptions) -> bool:
    """Return whether the number of connections was set, and is not the default."""
    return "connections_max" in options.limits.model_fields_set


def client_limits(options: ProxyOptions) -> Limits:
    """Return the transport's limits for clients of a proxy."""
    limits = options.limits
    return Limits(
        connections_max=limits.connections_max,
        concurrent_streams_max=limits.streams_per_connection_max,
        message_bytes_max=limits.request_bytes_max,
        send_buffer_bytes_max=limits.unsent_bytes_per_connection_max,
        send_total_bytes_max=limits.unsent_bytes_max,
        receive_total_bytes_max=limits.unfinished_bytes_max,
        preface_timeout_s=limits.handshake_timeout_ms / 1000,
        keepalive_interval_s=limits.keepalive_interval_ms / 1000,
        keepalive_timeout_s=limits.keepalive_timeout_ms / 1000,
    )


def within_open_files(limits: Limits, *, is_asked_for: bool = False) -> Limits:
    """Return the limits with at most as many connections as this process may open files, less a reserve for disk.

    Without that, clients that only connect would leave the broker no file to write to. The soft limit of open files is
    raised to the hard one first.

    Args:
        limits: what clients may do.
        is_asked_for: whether somebody has set the number of connections, and will miss those that there cannot be.
    """
    import resource  # Windows has none

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections = connections_within(hard)
    if connections >= limits.connections_max:
        return limits
    (_logger.warning if is_asked_for else _logger.info)(
        "fewer connections than proxy.limits.connections_max, as so few files may be open: raise ulimit -n",
        connections=connections,
        connections_max=limits.connections_max,
        open_files=hard,
    )
    return replace(limits, connections_max=connections)


def connections_within(open_files: int) -> int:
    """Return how many open files are for clients: all but a quarter, and that is 64 to 1,024."""
    return max(1, open_files - min(1_024, max(64, open_files // 4)))


def client_certificate(options: TlsOptions, authority_file: str = "") -> CertificateFiles | None:
    """Return the certificate for clients of a proxy; None: one is made when a client wants it.

    Args:
        options: the certificate's files.
        authority_file: of those by whom clients must show a certificate; empty: nothing is asked of them.

    Raises:
        ConfigurationError: the files hold none.
    """
    if not options.certificate_file:
        if authority_file:
            raise ConfigurationError(
                "access.client_authority_file",
                "clients check the server's certificate, too: give proxy.tls.certificate_file and proxy.tls.key_file",
            )
        return None
    certificate, key = Path(options.certificate_file), Path(options.key_file)
    try:
        if authority_file:
            return CertificateFiles(certificate, key, Path(authority_file), both_sides=False)
        return CertificateFiles(certificate, key)
    except (OSError, ValueError) as error:
        if authority_file:
            raise ConfigurationError(
                "access.client_authority_file",
                f"{options.certificate_file}, {options.key_file} and {authority_file} are not a certificate, its key "
                f"and an authority: {error}",
            ) from error
        raise ConfigurationError(
            "proxy.tls.certificate_file",
            f"{options.certificate_file} and {options.key_file} are not a certificate and its key: {error}",
        ) from error


def cluster_certificate(options: ClusterTlsOptions) -> CertificateFiles | None:
    """Return the certificate between the services of a cluster; None: they speak plain text.

    Raises:
        ConfigurationError: the files do not belong together, or are not good for it.
    """
    if not options.certificate_file:
        return None
    try:
        return CertificateFiles(Path(options.certificate_file), Path(options.key_file), Path(options.authority_file))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "tls.certificate_file",
            f"{options.certificate_file}, {options.key_file} and {options.authority_file} are not a certificate for "
            f"both sides of a connection, its key and its authority: {error}",
        ) from error


def grpc_server(
    service: Service,
    transport: str,
    limits: Limits,
    registry: CollectorRegistry,
    tls: CertificateFiles | None = None,
    *,
    plain: bool = True,
    authority: str = "",
) -> GrpcServer:
    """Return a server of one service on the chosen transport, not listening yet.

    For `plain` and `authority` see `popwheel_rpc.server.server`.

    Raises:
        ConfigurationError: a certificate is given, and the transport knows no TLS.
    """
    if transport == "grpcio":
        if tls is not None:
            raise ConfigurationError("proxy.transport", "grpcio serves plain text only; give no proxy.tls, or popwheel")
        from popwheel_rpc.server.grpcio_server import GrpcioServer

        return GrpcioServer(service, limits, observer=RpcMetrics(registry).counts)
    from popwheel_rpc.server.server import Server

    metrics = RpcMetrics(registry)
    context = None if tls is None else tls.server
    server = Server(service, limits, tls=context, plain=plain, observer=metrics.counts, authority=authority)
    metrics.read_from(server.totals)
    return server


def tokens_of(options: AccessOptions, clock: Clock, registry: CollectorRegistry) -> Tokens | None:
    """Return the tokens of the admin API; None if it needs none.

    Raises:
        ConfigurationError: their file cannot be used.
    """
    return Tokens(options.token_file, clock, registry) if options.token_file else None


def warn_of_open_clients(options: AccessOptions, host: str) -> None:
    """Log a warning if a proxy without access control is reachable from other machines."""
    if not options.file and not options.client_authority_file and not is_loopback(host):
        _logger.warning(
            "all clients that reach this port may send and receive all: set access.file (docs/operate/access.md)",
            port="proxy.grpc_port",
            host=host,
        )


def warn_of_open_admin(options: AccessOptions, host: str) -> None:
    """Log the same warning for the admin API."""
    if not options.token_file and not is_loopback(host):
        _logger.warning(
            "all clients that reach this port may do everything: set access.token_file (docs/operate/access.md)",
            port="controller.http_port",
            host=host,
        )


def address_for_clients(options: ProxyOptions, port: int) -> str:
    """Return host:port of a proxy for operators.

    Args:
        options: of the proxy.
        port: on which it listens.
    """
    advertised = options.advertised
    return f"{host_in_address(advertised.host or options.grpc_host)}:{advertised.port or port}"


def is_loopback(host: str) -> bool:
    """Return whether a listener on this host is reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def listen(server: "GrpcServer", host: str, port: int, key: str, *, shared: bool = False) -> None:
    """Start to listen with a gRPC server.

    Args:
        server: not listening yet.
        host: name or address.
        port: 0 for any.
        key: the setting of the port, for the sentence if it cannot be had.
        shared: whether workers share the port.

    Raises:
        ConfigurationError: the port or the address cannot be had.
    """
    try:
        await server.start(host, port, shared=shared)
    except (OSError, OverflowError) as error:
        raise not_ours(key, host, port, error) from error


async def serve_http(
    options: ClusterOptions,
    registry: CollectorRegistry,
    checks: "ReadinessChecks",
    host: str,
    port: int,
    key: str,
    *,
    router: "Callable[[], Routes] | None" = None,
    tokens: Tokens | None = None,
    ask_workers: Callable[[], Awaitable[None]] | None = None,
    worker_pages: "WorkerPages | None" = None,
) -> "HttpServer":
    """Serve health, metrics and further routes, and measure the loop; call it when gRPC serves (see `load_http`).

    Args:
        options: of the process.
        registry: where its metrics are.
        checks: what `/readyz` asks.
        host: name or address to listen on.
        port: the port to listen on.
        key: the setting of the port, for the sentence if it cannot be had.
        router: makes further routes.
        tokens, ask_workers, worker_pages: as for `make_http_app`.

    Raises:
        ConfigurationError: the port or the address cannot be had.
    """
    from importlib.metadata import version

    from popwheel_common.http import HttpServer, make_http_app
    from popwheel_common.web.connections import connections_within
    from popwheel_common.web.gate import AT_ONCE_MAX, short_bodies
    from popwheel_common.web.hosts import AllowedHosts

    connections_max = connections_within(options.http.connections_max)
    hosts = AllowedHosts((*own_names(options), host, *options.http.allowed_hosts))
    learn_full_name(hosts)

    if router is None:
        body_limit = short_bodies
        complete = None
    else:
        from popwheel_controller.http import api_document
        from popwheel_controller.http.demands import body_limit

        complete = api_document.complete

    def make() -> "FastAPI":
        console = None
        if router is not None and options.console.enabled:
            from popwheel_cli.process.console import make_console

            console = make_console(options, tokens, registry)
        routers: list[APIRouter | Routes] = [] if router is None else [router()]
        return make_http_app(
            "Popwheel",
            version("popwheel"),
            registry,
            checks,
            routers if console is None else [*routers, console.router],
            ask_workers=ask_workers,
            worker_pages=worker_pages,
            tokens=tokens,
            signed=None if console is None else console.signed,
            hosts=hosts,
            at_once_max=min(AT_ONCE_MAX, max(1, connections_max // 2)),
            body_limit=body_limit,
            complete=complete,
        )

    app = await run_beside_loop(make)  # it takes some 250 ms
    server = HttpServer(app, host, port, registry, connections_max)
    try:
        await server.start()
    except OSError as error:
        raise not_ours(key, host, port, error) from error
    LoopTurns(registry, SystemClock()).start()
    return server


def console_of(options: ClusterOptions, http: str) -> dict[str, str]:
    """Return the log's fields for the console: its address, if there is one.

    Args:
        options: of the process.
        http: the address of its admin API.
    """
    return {"console": f"{http}/"} if options.console.enabled else {}


def own_names(options: ClusterOptions) -> set[str]:
    """Return the names of this cluster's processes, from the settings and the machine.

    A broker is also asked as `GROUP-master`: the chart has a Service of this name for each broker group.
    """
    controller, broker, proxy = options.controller, options.broker, options.proxy
    addresses = f"{controller.advertised_address},{broker.advertised_address},{broker.controller}"
    hosts = {each.strip().rpartition(":")[0] for each in f"{addresses},{proxy.controller}".split(",")}
    return {*hosts, proxy.advertised.host, f"{broker.name}-master", socket.gethostname()} - {""}


def learn_full_name(hosts: "AllowedHosts") -> Thread:
    """Add the machine's full name, in the background, as it may need a lookup over the network."""
    thread = Thread(target=lambda: hosts.add(socket.getfqdn()), name="full-name", daemon=True)
    thread.start()
    return thread


async def load_http() -> None:
    """Load the HTTP modules beside the loop: it takes some 130 ms."""
    from importlib import import_module

    await run_beside_loop(partial(import_module, "popwheel_common.http"))


def not_ours(key: str, host: str, port: int, error: Exception) -> ConfigurationError:
    """Return the error for a port or an address that is not available; `key` is the setting to change."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigurationError(
        key, f"cannot listen on {host_in_address(host)}:{port}: {reason}; choose another port or address"
    )


def host_in_address(host: str) -> str:
    """Return a host in the form for `host:port`: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def reached_here(host: str) -> str:
    """Return the host by which a process of this machine reaches a listener on this host."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
