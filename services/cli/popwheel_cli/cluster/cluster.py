"""`popwheel cluster`: controllers, brokers and proxies as processes of this machine, kept running by one parent."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from popwheel_cli.cluster.children import Children
from popwheel_cli.cluster.cluster_plan import INSIDE, Planner, RelayPlan, Row, Shape
from popwheel_cli.cluster.workers import STOP_S_MAX
from popwheel_cli.drills.links import Links
from popwheel_cli.options import StandaloneOptions
from popwheel_cli.process.broker_folders import check_cluster_folder
from popwheel_cli.process.data_lock import DataLock
from popwheel_cli.process.extras import check_extras
from popwheel_cli.process.listeners import warn_of_open_admin, warn_of_open_clients
from popwheel_cli.process.ports import Ports
from popwheel_common.clock import SystemClock

_CHILD_STOP_S_MAX = STOP_S_MAX + 2.0

STOP_S_MAX_OF_ALL = 3 * _CHILD_STOP_S_MAX + 2.0
"""Time that the cluster may take to end: proxies, brokers and the controller, one after the other."""

_logger = structlog.get_logger()


class ClusterOfOneMachine:
    """The whole cluster.

    Args:
        options: settings of everything.
        given: words of the command line that gave them, for the children.
        shape: how many processes.
        data_dir: folder of all persistent data and of the logs, for this process alone.
    """

    def __init__(self, options: StandaloneOptions, given: Sequence[str], shape: Shape, data_dir: Path) -> None:
        check_extras(options.proxy)
        self._options = options
        self._given = given
        self._shape = shape
        self._data_dir = data_dir
        self._lock = DataLock(data_dir)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Start all processes; return when all are ready and their table is shown.

        Raises:
            ConfigurationError: the data folder or a port cannot be had.
            CommandError: a process cannot start.
        """
        check_cluster_folder(self._data_dir, self._shape.groups, self._shape.replicas)
        self._lock.check()
        ports = self._stack.enter_context(Ports())
        plan = Planner(self._options, self._given, self._shape, self._data_dir, ports).make()
        self._lock.acquire()
        self._stack.push(self._lock.release)
        logs = self._data_dir / "logs"
        logs.mkdir(exist_ok=True)
        # The children say it, too, but into their logs.
        warn_of_open_clients(self._options.access, self._options.proxy.grpc_host)
        warn_of_open_admin(self._options.access, self._options.controller.http_host)
        children = Children(plan.tiers, SystemClock(), _CHILD_STOP_S_MAX, self._options.children.silence_ms_max / 1000)
        await self._relay(plan.relays, children)
        self._stack.push_async_callback(children.stop)
        _logger.info(
            "starting a cluster",
            groups=self._shape.groups,
            replicas=self._shape.replicas,
            controllers=self._shape.controllers,
            proxies=self._shape.proxies,
            data=str(self._data_dir),
            logs=str(logs),
        )
        await children.start()
        self._lock.serves()
        show(plan.rows)
        if self._options.console.enabled:
            _logger.info("the console is a page for browsers", console=console_address(plan.rows))

    async def stop(self) -> None:
        """Stop: proxies finish what is in flight, then brokers save, then the controllers end."""
        await self._stack.aclose()

    async def failed(self) -> Exception:
        """Never returns: a process that ends is restarted."""
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def _relay(self, relays: Sequence[RelayPlan], children: Children) -> None:
        """Open the relays, if there are to be any."""
        if not relays:
            return
        links = Links(self._data_dir, lambda: children.pids)
        for relay in relays:
            links.add(relay.name, INSIDE, relay.port, relay.target_port)
        self._stack.push_async_callback(links.stop)
        await links.start()


def console_address(rows: Sequence[Row]) -> str:
    """Return the address of the console: that of the first controller."""
    return next(f"{http}/" for name, _, http, _ in rows if name.startswith("controller"))


def show(rows: Sequence[Row]) -> None:
    """Print the addresses of all listeners."""
    from popwheel_cli.table import print_table

    print_table(("process", "grpc", "http", "log"), rows)
