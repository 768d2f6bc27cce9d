"""Plan of several processes on one machine: their ports, settings and folders."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from popwheel_cli.cluster.children import Child
from popwheel_cli.cluster.workers import worker_children
from popwheel_cli.options import ClusterOptions
from popwheel_cli.process.broker_folders import replica_folder
from popwheel_cli.process.listeners import host_in_address, reached_here
from popwheel_cli.process.ports import Ports
from popwheel_cli.settings import assigned
from popwheel_common.errors import ConfigurationError

INSIDE = "127.0.0.1"
"""Host on which all but proxies and the admin API listen."""

_PORT_MAX = 65535

Row = tuple[str, str, str, str]
"""Name, gRPC address, HTTP address, log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a cluster: the number of processes of each kind.

    Args:
        standalone: whether the parent is the controller itself, with the workers of the one proxy as its children, on
            the data folder of `popwheel standalone`.
        groups: broker groups.
        proxies: proxies.
        workers: of each proxy.
        replicas: brokers of one group.
        controllers: controllers, on one folder.
        relays: whether there is a relay before each broker and controller.
    """

    standalone: bool = False
    groups: int
    proxies: int = 1
    workers: int = 1
    replicas: int = 1
    controllers: int = 1
    relays: bool = False


@dataclass(frozen=True, slots=True)
class RelayPlan:
    """A relay before a process.

    Args:
        name: of the process.
        port: of the relay.
        target_port: of the process.
    """

    name: str
    port: int
    target_port: int


@dataclass(slots=True)
class Plan:
    """The processes of a cluster.

    Args:
        grpc_port: port of the first proxy.
        http_port: port of the admin API.
        controllers: addresses of the controllers, with commas between them.
        tiers: controllers, which are started first and stopped last, then brokers, then proxies.
        rows: rows of the table at the start.
        relays: before which of them there is a relay.
    """

    grpc_port: int = 0
    http_port: int = 0
    controllers: str = ""
    tiers: list[list[Child]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    relays: list[RelayPlan] = field(default_factory=list)


class Planner:
    """Makes a plan.

    Args:
        options: settings of everything.
        given: words of the command line that gave them, for the children.
        shape: how many processes.
        data_dir: folder of all that must last; logs go to `logs` below it.
        ports: where ports are reserved.
    """

    def __init__(
        self, options: ClusterOptions, given: Sequence[str], shape: Shape, data_dir: Path, ports: Ports
    ) -> None:
        self._options = options
        self._given = given
        self._shape = shape
        self._data_dir = data_dir
        self._ports = ports
        self._plan = Plan()

    def make(self) -> Plan:
        """Return the plan; all its ports are reserved.

        Raises:
            ConfigurationError: a port cannot be had.
        """
        shape, plan = self._shape, self._plan
        proxy_ports, plan.http_port = self._public_ports()
        plan.grpc_port = proxy_ports[0]
        ports = [self._ports.reserve(INSIDE, 0, "controller.grpc_port") for _ in range(shape.controllers)]
        plan.controllers = ",".join(f"{INSIDE}:{port}" for port in ports)
        names = [_controller_name(number, shape.controllers) for number in range(shape.controllers)]
        relayed = ",".join(f"{INSIDE}:{self._relay(name, port)}" for name, port in zip(names, ports, strict=True))
        if shape.standalone:
            controllers, proxies = [], self._workers()
        else:
            controllers = [self._controller(*each) for each in zip(range(shape.controllers), names, ports, strict=True)]
            proxies = [self._proxy(number, port) for number, port in enumerate(proxy_ports)]
        groups, replicas = range(shape.groups), range(shape.replicas)
        brokers = [self._broker(group, replica, relayed) for group in groups for replica in replicas]
        plan.tiers = [controllers, brokers, proxies]
        return plan

    def _public_ports(self) -> tuple[list[int], int]:
        """Return the ports that the operator chose: of each proxy, and of the admin API."""
        proxy, controller, count = self._options.proxy, self._options.controller, self._shape.proxies
        first = proxy.grpc_port
        http_port = self._ports.reserve(controller.http_host, controller.http_port, "controller.http_port")
        if first and first + count - 1 > _PORT_MAX:
            raise ConfigurationError(
                "--grpc-port", f"must leave ports for {count} proxies, up to {_PORT_MAX}, not {first}"
            )
        reserve = self._ports.reserve
        return [
            reserve(proxy.grpc_host, first + number if first else 0, "proxy.grpc_port") for number in range(count)
        ], http_port

    def _relay(self, name: str, port: int) -> int:
        """Return the port of a process: that of the relay before it, if there are relays."""
        if not self._shape.relays:
            return port
        relay = RelayPlan(name, self._ports.reserve(INSIDE, 0, "--relays"), port)
        self._plan.relays.append(relay)
        return relay.port

    def _workers(self) -> list[Child]:
        """Return the workers of the only proxy."""
        options, port = self._options.proxy, self._plan.grpc_port
        name = options.name or f"{host_in_address(options.grpc_host)}:{port}"
        return worker_children(self._ports, name, self._shape.workers, INSIDE, self._given, self._proxy_settings(port))

    def _proxy(self, number: int, port: int) -> Child:
        options, workers = self._options.proxy, self._shape.workers
        health = self._ports.reserve(options.http_host, 0, "proxy.http_host")
        name = f"proxy-{number}"
        settings = {**self._proxy_settings(port), "proxy.name": name, "proxy.http_port": health}
        words = ("proxy", "--workers", str(workers)) if workers > 1 else ("proxy",)
        grpc = f"{host_in_address(options.grpc_host)}:{port}"
        return self._child(name, words, settings, grpc, (options.http_host, health))

    def _proxy_settings(self, port: int) -> dict[str, object]:
        options = self._options.proxy
        return {
            "proxy.grpc_host": options.grpc_host,
            "proxy.grpc_port": port,
            "proxy.controller": self._plan.controllers,
            "proxy.auto_create_topics": options.auto_create_topics,
            "proxy.auto_create_groups": options.auto_create_groups,
        }

    def _controller(self, number: int, name: str, port: int) -> Child:
        host = self._options.controller.http_host
        http_port = self._ports.reserve(host, 0, "controller.http_port") if number else self._plan.http_port
        settings: dict[str, object] = {
            "controller.grpc_host": INSIDE,
            "controller.grpc_port": port,
            "controller.http_port": http_port,
            "controller.drills": True,
        }
        if self._shape.controllers > 1:
            settings["controller.store.folder"] = str(self._data_dir.absolute() / "controller" / "controller")
        words = ("controller", "--data-dir", str(self._data_dir / (f"controller-{number}" if number else "controller")))
        return self._child(name, words, settings, f"{INSIDE}:{port}", (host, http_port))

    def _broker(self, group: int, replica: int, controllers: str) -> Child:
        options, standalone = self._options.broker, self._shape.standalone
        name = group_name = f"broker-{group}"
        folder = ["--data-dir", str(self._data_dir / replica_folder(group, replica))]
        if standalone and group == 0:  # as with one process
            name, group_name = "broker", options.name
            folder = ["--data-dir", str(self._data_dir), "--lock-inherited"]
        elif standalone:
            group_name = f"{options.name.removesuffix('-0')}-{group}"
        elif self._shape.replicas > 1:
            name = f"{name}-{replica}"
        port, health = (self._ports.reserve(INSIDE, 0, "broker.grpc_port") for _ in range(2))
        reached = self._relay(name, port)
        settings: dict[str, object] = {
            "broker.name": group_name,
            "broker.replica": options.replica if standalone else replica,
            "broker.grpc_host": INSIDE,
            "broker.grpc_port": port,
            "broker.http_port": health,
            "broker.advertised_address": "" if reached == port else f"{INSIDE}:{reached}",
            "broker.controller": controllers,
        }
        return self._child(name, ("broker", *folder), settings, f"{INSIDE}:{port}", (INSIDE, health))

    def _child(
        self, name: str, words: Sequence[str], settings: dict[str, object], grpc: str, http: tuple[str, int]
    ) -> Child:
        log = None if self._shape.standalone else self._data_dir / "logs" / f"{name}.log"
        self._plan.rows.append((name, grpc, f"http://{host_in_address(http[0])}:{http[1]}", str(log)))
        words = (words[0], *self._given, *assigned(settings), *words[1:])
        return Child(name, words, reached_here(http[0]), http[1], "/readyz", log)


def _controller_name(number: int, count: int) -> str:
    return "controller" if count == 1 else f"controller-{number}"
