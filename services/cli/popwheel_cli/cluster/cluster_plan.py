"""Plan of a cluster on one machine: processes, ports, settings and folders."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from popwheel_cli.cluster.children import Child
from popwheel_cli.options import StandaloneOptions
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
        groups: broker groups.
        proxies: proxies.
        workers: of each proxy.
        replicas: brokers of one group.
        controllers: controllers, on one folder.
        relays: whether there is a relay before each broker and controller.
    """

    groups: int
    proxies: int
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
        tiers: those that are started first and stopped last in the first tier.
        rows: rows of the table at the start.
        relays: before which of them there is a relay.
    """

    tiers: list[list[Child]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    relays: list[RelayPlan] = field(default_factory=list)


def replica_name(group: int, replica: int, replicas: int) -> str:
    """Return the name of a replica's process; a group's only one has the group's name."""
    return f"broker-{group}" if replicas == 1 else f"broker-{group}-{replica}"


def replica_folder(group: int, replica: int) -> str:
    """Return the folder of a replica; that of the first does not depend on their number."""
    return f"broker-{group}-{replica}" if replica else f"broker-{group}"


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
        self, options: StandaloneOptions, given: Sequence[str], shape: Shape, data_dir: Path, ports: Ports
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
        proxy_ports, http_port = self._public_ports()
        controllers = [self._ports.reserve(INSIDE, 0, "controller.grpc_port") for _ in range(self._shape.controllers)]
        direct = ",".join(f"{INSIDE}:{port}" for port in controllers)
        names = [_controller_name(number, self._shape.controllers) for number in range(self._shape.controllers)]
        relayed = ",".join(f"{INSIDE}:{self._relay(name, port)}" for name, port in zip(names, controllers, strict=True))
        proxies = [self._proxy(number, port, direct) for number, port in enumerate(proxy_ports)]
        first_tier = [
            self._controller(number, name, port, http_port if number == 0 else 0)
            for number, (name, port) in enumerate(zip(names, controllers, strict=True))
        ]
        brokers = [
            self._broker(group, replica, relayed)
            for group in range(self._shape.groups)
            for replica in range(self._shape.replicas)
        ]
        self._plan.tiers = [first_tier, brokers, proxies]
        return self._plan

    def _public_ports(self) -> tuple[list[int], int]:
        """Return the ports that the operator chose: of each proxy, and of the admin API."""
        proxy, controller, count = self._options.proxy, self._options.controller, self._shape.proxies
        first = proxy.grpc_port
        http_port = self._ports.reserve(controller.http_host, controller.http_port, "controller.http_port")
        if first and first + count - 1 > _PORT_MAX:
            raise ConfigurationError(
                "--grpc-port", f"must leave ports for {count} proxies, up to {_PORT_MAX}, not {first}"
            )
        if first and http_port in range(first, first + count):
            raise ConfigurationError(
                "--http-port", f"{http_port} is a port of the proxies ({first} and the next ones); choose another"
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

    def _proxy(self, number: int, port: int, controllers: str) -> Child:
        options = self._options.proxy
        health = self._ports.reserve(options.http_host, 0, "proxy.http_host")
        settings: dict[str, object] = {
            "proxy.name": f"proxy-{number}",
            "proxy.grpc_port": port,
            "proxy.http_port": health,
            "proxy.controller": controllers,
            "proxy.auto_create_topics": options.auto_create_topics,
            "proxy.auto_create_groups": options.auto_create_groups,
        }
        workers = self._shape.workers
        words = ("proxy", "--workers", str(workers)) if workers > 1 else ("proxy",)
        grpc = f"{host_in_address(options.grpc_host)}:{port}"
        return self._child(f"proxy-{number}", words, settings, grpc, (options.http_host, health))

    def _controller(self, number: int, name: str, port: int, http_port: int) -> Child:
        host = self._options.controller.http_host
        http_port = http_port or self._ports.reserve(host, 0, "controller.http_port")
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
        name = replica_name(group, replica, self._shape.replicas)
        port, health = (self._ports.reserve(INSIDE, 0, "broker.grpc_port") for _ in range(2))
        reached = self._relay(name, port)
        settings: dict[str, object] = {
            "broker.name": f"broker-{group}",
            "broker.replica": replica,
            "broker.grpc_host": INSIDE,
            "broker.grpc_port": port,
            "broker.http_port": health,
            "broker.advertised_address": "" if reached == port else f"{INSIDE}:{reached}",
            "broker.controller": controllers,
        }
        words = ("broker", "--data-dir", str(self._data_dir / replica_folder(group, replica)))
        return self._child(name, words, settings, f"{INSIDE}:{port}", (INSIDE, health))

    def _child(
        self, name: str, words: Sequence[str], settings: dict[str, object], grpc: str, http: tuple[str, int]
    ) -> Child:
        log = self._data_dir / "logs" / f"{name}.log"
        self._plan.rows.append((name, grpc, f"http://{host_in_address(http[0])}:{http[1]}", str(log)))
        words = (words[0], *self._given, *assigned(settings), *words[1:])
        return Child(name, words, reached_here(http[0]), http[1], "/readyz", log)


def _controller_name(number: int, count: int) -> str:
    return "controller" if count == 1 else f"controller-{number}"


def check_folder(data_dir: Path, groups: int, replicas: int = 1) -> None:
    """Check that a data folder belongs to such a cluster, or is new.

    Raises:
        ConfigurationError: it is not, or it holds brokers that would be left out.
    """
    if (data_dir / "broker").exists():
        raise ConfigurationError(
            "--data-dir", f"{data_dir} holds data of a broker that runs by itself or standalone; give another folder"
        )
    group = replica = 0
    for path in data_dir.glob("broker-*"):
        words = path.name.split("-")[1:]
        if all(word.isdigit() for word in words) and len(words) <= 2:
            group = max(group, int(words[0]))
            replica = max(replica, int(words[1]) if len(words) == 2 else 0)
    if group >= groups:
        raise ConfigurationError(
            "--groups", f"must be at least {group + 1}, because {data_dir} holds the messages of broker-{group}"
        )
    if replica >= replicas:
        raise ConfigurationError(
            "--replicas", f"must be at least {replica + 1}, because {data_dir} holds replicas with the number {replica}"
        )
