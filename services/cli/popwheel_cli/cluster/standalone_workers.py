"""`popwheel standalone --workers N`: N proxy processes on one port, one or more brokers, and their parent.

The parent is the controller. It serves HTTP for all, and starts again what ends.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import Counter

from popwheel_cli.cluster.children import Child, Children
from popwheel_cli.cluster.cluster_plan import INSIDE, Planner, Shape
from popwheel_cli.cluster.worker_metrics import ChildPages
from popwheel_cli.cluster.workers import (
    STOP_S_MAX,
    check_files,
    hung_children,
    show_workers,
    trouble_of,
    worker_restarts,
)
from popwheel_cli.options import StandaloneOptions
from popwheel_cli.process.broker_folders import check_standalone_folder, replica_folder
from popwheel_cli.process.data_lock import DataLock
from popwheel_cli.process.extras import check_extras
from popwheel_cli.process.inspected import pages_of
from popwheel_cli.process.listeners import (
    CONTROLLER_LIMITS,
    host_in_address,
    listen,
    tokens_of,
    warn_of_open_admin,
    warn_of_open_clients,
)
from popwheel_cli.process.service_process import ServiceProcess, stop_s_max
from popwheel_common.errors import ConfigurationError
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerAddresses, ControllerApp

_GRACE_S = 1.0

_logger = structlog.get_logger()


def stop_s_max_of_all(options: StandaloneOptions) -> float:
    """Return how long all may take to end, one tier after the other."""
    return STOP_S_MAX + _child_stop_s_max(options) + 2 * _GRACE_S


class StandaloneWorkers(ServiceProcess):
    """The parent.

    Args:
        options: settings of everything.
        given: words of the command line that gave them, for the children.
        shape: how many workers, and brokers with a log of their own each.
        data_dir: folder of all persistent data, the same as that of one process, for this one alone.

    Raises:
        ConfigurationError: the certificate between services cannot be used.
    """

    def __init__(self, options: StandaloneOptions, given: Sequence[str], shape: Shape, data_dir: Path) -> None:
        check_extras(options.proxy)
        super().__init__(options)
        self._stop_s_max = _child_stop_s_max(options)
        self._given = given
        self._shape = shape
        self._data_dir = data_dir

    async def start(self) -> None:
        """Serve the controller, start brokers and workers, then serve HTTP for all.

        Raises:
            ConfigurationError: the data folder or a port cannot be had.
            CorruptDataError, UnknownFormatError: what the controller has in the data folder cannot be used.
            CommandError: a broker or a worker cannot start.
        """
        options, stack = self._options, self._stack
        proxy, controller = options.proxy, options.controller
        check_standalone_folder(self._data_dir, self._shape.groups)
        self._check_skipped_record()
        lock = DataLock(self._data_dir)
        lock.check()
        check_files(options.access, proxy.tls)
        tokens = tokens_of(options.access, self._clock, self._registry)
        plan = Planner(options, self._given, self._shape, self._data_dir, self._ports).make()
        _, brokers, workers = plan.tiers
        self._lock(lock)
        app = ControllerApp(
            Runtime(self._clock, self._secrets, self._registry),
            controller,
            self._data_dir / "controller",
            self._to_broker,
            addresses=ControllerAddresses(
                plan.controllers, f"{host_in_address(controller.http_host)}:{plan.http_port}"
            ),
        )
        app.own_pages = pages_of(self._options, self._registry)
        self._cluster_id = lambda: app.state.id
        await app.start()
        server = self._server(app.service, CONTROLLER_LIMITS)
        await listen(server, INSIDE, int(plan.controllers.rpartition(":")[2]), "controller.grpc_port")
        stack.push_async_callback(server.stop, _GRACE_S)
        stack.push_async_callback(app.stop)  # ends the streams of watchers, which the server would wait for

        warn_of_open_clients(options.access, proxy.grpc_host)
        warn_of_open_admin(options.access, controller.http_host)
        if options.access.file and not options.tls.certificate_file:
            _logger.warning("local programs can call the broker past access.file: give tls.*, or run one process")
        pages = ChildPages([*brokers, *workers], self._registry)
        hung = hung_children(self._registry)
        children = Children(
            plan.tiers,
            self._clock,
            self._stop_s_max,
            options.children.silence_ms_max / 1000,
            restarted=self._count_restarts(brokers),
            hung=lambda _: hung.inc(),
            # Each has the lock as well: the folder is free when all are gone, also after a kill -9 of this process.
            files=(lock.descriptor,),
        )
        show_workers(self._registry, children, workers)
        stack.push_async_callback(children.stop)
        await children.start()
        lock.serves()

        http = await self._serve_http(
            {
                "controller": app.health,
                **{each.label: partial(pages.trouble, each) for each in brokers},
                "workers": lambda: trouble_of(pages, workers),
            },
            controller.http_host,
            plan.http_port,
            "controller.http_port",
            lambda: app.admin,
            tokens,
            ask_workers=pages.ask,
            worker_pages=pages.read,
        )
        _logger.info(
            "popwheel standalone serves",
            grpc=f"{host_in_address(proxy.grpc_host)}:{plan.grpc_port}",
            http=http,
            data=str(self._data_dir),
            workers=len(workers),
            brokers=len(brokers),
        )

    def _check_skipped_record(self) -> None:
        """Refuse to skip a record of several logs: all but one would say that it is sound there, and not start."""
        if self._shape.groups > 1 and self._options.broker.skip_record is not None:
            raise ConfigurationError(
                "broker.skip_record",
                f"is a place in one log, and there are {self._shape.groups}: first start and stop the broker of that "
                f"log alone with it (`popwheel broker --data-dir {self._data_dir / replica_folder(1)}`, or "
                f"{self._data_dir} for the first), then all without it",
            )

    def _count_restarts(self, brokers: Sequence[Child]) -> Callable[[str], None]:
        of_workers = worker_restarts(self._registry)
        of_brokers = Counter(
            "popwheel_standalone_broker_restarts",
            "Restarts of brokers' processes",
            registry=self._registry,
        )
        names = {broker.name for broker in brokers}
        return lambda name: (of_brokers if name in names else of_workers).inc()


def _child_stop_s_max(options: StandaloneOptions) -> float:
    """Return how long one child may take to end: a little longer than it gives itself."""
    return max(STOP_S_MAX, stop_s_max(options.broker) + 1.5)
