"""`popwheel cluster`: a controller, brokers and proxies as processes of this machine, kept running by one parent."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from services.cli.children import Child, Children
from services.cli.data_lock import DataLock
from services.cli.options import StandaloneOptions
from services.cli.ports import Ports
from services.cli.serving import host_in_address, reached_here
from services.cli.settings import assigned
from services.cli.workers import STOP_S_MAX
from services.common.clock import SystemClock
from services.common.errors import ConfigurationError

_INSIDE = "127.0.0.1"
_PORT_MAX = 65535
_CHILD_STOP_S_MAX = STOP_S_MAX + 2.0

STOP_S_MAX_OF_ALL = 3 * _CHILD_STOP_S_MAX + 2.0
"""How long the cluster may take to end: proxies, brokers and the controller, one after the other."""

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many processes of which kind.

    Args:
        groups: brokers.
        proxies: proxies.
        workers: of each proxy.
    """

    groups: int
    proxies: int
    workers: int


class ClusterOfOneMachine:
    """The whole cluster.

    Args:
        options: settings of everything.
        given: words of the command line that gave them, for the children.
        shape: how many processes.
        data_dir: folder of all that must last, and of the logs; nobody else may have it.
    """

    def __init__(self, options: StandaloneOptions, given: Sequence[str], shape: Shape, data_dir: Path) -> None:
        self._options = options
        self._given = given
        self._shape = shape
        self._data_dir = data_dir
        self._lock = DataLock(data_dir)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Start all processes; returns when all are ready and the table of them is shown.

        Raises:
            ConfigurationError: the data folder or a port cannot be had.
            CommandError: a process cannot start.
        """
        check_folder(self._data_dir, self._shape.groups)
        self._lock.acquire()
        self._stack.callback(self._lock.release)
        logs = self._data_dir / "logs"
        logs.mkdir(exist_ok=True)
        ports = self._stack.enter_context(Ports())
        tiers, rows = self._plan(ports, logs)
        children = Children(tiers, SystemClock(), _CHILD_STOP_S_MAX)
        self._stack.push_async_callback(children.stop)
        _logger.info(
            "starting a cluster",
            brokers=self._shape.groups,
            proxies=self._shape.proxies,
            data=str(self._data_dir),
            logs=str(logs),
        )
        await children.start()
        show(rows)

    async def stop(self) -> None:
        """Let proxies finish what is in flight, then brokers save, then the controller end."""
        await self._stack.aclose()

    async def failed(self) -> Exception:
        """Never returns: a process that ends is started again."""
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def _plan(self, ports: Ports, logs: Path) -> tuple[list[list[Child]], list[tuple[str, str, str, str]]]:
        """The processes, tier by tier, and what the table says of each."""
        proxy, controller = self._options.proxy, self._options.controller
        first = proxy.grpc_port
        http_port = ports.reserve(controller.http_host, controller.http_port, "controller.http_port")
        if first and first + self._shape.proxies - 1 > _PORT_MAX:
            raise ConfigurationError(
                "--grpc-port", f"must leave ports for {self._shape.proxies} proxies, up to {_PORT_MAX}, not {first}"
            )
        if first and http_port in range(first, first + self._shape.proxies):
            raise ConfigurationError(
                "--http-port", f"{http_port} is a port of the proxies ({first} and the next ones); choose another"
            )
        at = f"{_INSIDE}:{ports.reserve(_INSIDE, 0, 'controller.grpc_port')}"
        rows: list[tuple[str, str, str, str]] = []

        def child(
            name: str, words: Sequence[str], settings: dict[str, object], grpc: str, http: tuple[str, int]
        ) -> Child:
            log = logs / f"{name}.log"
            rows.append((name, grpc, f"http://{host_in_address(http[0])}:{http[1]}", str(log)))
            words = (words[0], *self._given, *assigned(settings), *words[1:])
            return Child(name, words, reached_here(http[0]), http[1], "/readyz", log)

        proxies = []
        for number in range(self._shape.proxies):
            port = ports.reserve(proxy.grpc_host, first + number if first else 0, "proxy.grpc_port")
            health = ports.reserve(proxy.http_host, 0, "proxy.http_host")
            settings: dict[str, object] = {
                "proxy.name": f"proxy-{number}",
                "proxy.grpc_port": port,
                "proxy.http_port": health,
                "proxy.controller": at,
                "proxy.auto_create_topics": proxy.auto_create_topics,
                "proxy.auto_create_groups": proxy.auto_create_groups,
            }
            grpc = f"{host_in_address(proxy.grpc_host)}:{port}"
            words = ("proxy", "--workers", str(self._shape.workers)) if self._shape.workers > 1 else ("proxy",)
            proxies.append(child(f"proxy-{number}", words, settings, grpc, (proxy.http_host, health)))
        settings = {
            "controller.grpc_host": _INSIDE,
            "controller.grpc_port": int(at.rpartition(":")[2]),
            "controller.http_port": http_port,
        }
        words = ("controller", "--data-dir", str(self._data_dir / "controller"))
        first_tier = [child("controller", words, settings, at, (controller.http_host, http_port))]
        brokers = []
        for number in range(self._shape.groups):
            port, health = (ports.reserve(_INSIDE, 0, "broker.grpc_port") for _ in range(2))
            settings = {
                "broker.name": f"broker-{number}",
                "broker.grpc_host": _INSIDE,
                "broker.grpc_port": port,
                "broker.http_port": health,
                "broker.advertised_address": "",
                "broker.controller_address": at,
            }
            words = ("broker", "--data-dir", str(self._data_dir / f"broker-{number}"))
            brokers.append(child(f"broker-{number}", words, settings, f"{_INSIDE}:{port}", (_INSIDE, health)))
        return [first_tier, brokers, proxies], rows


def check_folder(data_dir: Path, groups: int) -> None:
    """See that a data folder is of such a cluster, or new.

    Raises:
        ConfigurationError: it is not, or it holds brokers that would be left out.
    """
    if (data_dir / "broker").exists():
        raise ConfigurationError(
            "--data-dir", f"{data_dir} holds data of a broker that runs by itself or standalone; give another folder"
        )
    numbers = [path.name.removeprefix("broker-") for path in data_dir.glob("broker-*")]
    beyond = max((int(number) for number in numbers if number.isdigit()), default=-1)
    if beyond >= groups:
        raise ConfigurationError(
            "--groups", f"must be at least {beyond + 1}, because {data_dir} holds the messages of broker-{beyond}"
        )


def show(rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Print what listens where."""
    from services.cli.table import print_table

    print_table(("process", "grpc", "http", "log"), rows)
