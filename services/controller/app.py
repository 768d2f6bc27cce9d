"""The controller, put together: its state from disk, the service that others follow, the admin API."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from services.common.clock import Clock
from services.common.disk import Disk
from services.common.errors import ConfigurationError
from services.common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from services.controller.cluster_state import ClusterState
from services.controller.metrics import ControllerMetrics
from services.controller.options import ControllerOptions
from services.controller.private_disk import PrivateDisk
from services.controller.processes import Processes
from services.controller.server import ControllerServer
from services.controller.state_keeper import StateKeeper
from services.controller.state_store import StateStore
from services.controller.timers import Timers
from services.controller.watchers import Watchers
from services.rpc.service import Channel, Service

if TYPE_CHECKING:
    from fastapi import APIRouter

_RECEIPT_KEY_BYTES = 32

_logger = structlog.get_logger()


class ControllerApp:
    """Owns topics, groups and the list of brokers.

    Args:
        options: the controller's settings.
        data_dir: the controller's own folder; made if it is not there.
        clock: measures how long saves take, and tells since when a process is there.
        random_source: the receipt key is drawn from it once, so a real process hands in `random.SystemRandom()`.
        registry: where its metrics are shown.
        broker_channels: makes a channel to a broker; used only for what the admin API asks of brokers.
        disk: what reads and writes the state file; None for the machine's own.
    """

    def __init__(
        self,
        options: ControllerOptions,
        data_dir: Path,
        clock: Clock,
        random_source: random.Random,
        registry: CollectorRegistry,
        broker_channels: Callable[[BrokerInfo], Channel],
        disk: Disk | None = None,
    ) -> None:
        self._options = options
        self._data_dir = data_dir
        self._clock = clock
        self._random_source = random_source
        self._metrics = ControllerMetrics(registry)
        self._own_disk: PrivateDisk | None = None
        if disk is None:
            disk = self._own_disk = PrivateDisk()
        self._disk = disk
        self._store = StateStore(data_dir, self._disk)
        self._watchers = Watchers()
        # The state is read in start(); until then nothing is known and nothing is saved.
        self._keeper = StateKeeper(
            ClusterState(options.cluster_name, b""), self._save, self._watchers.publish, options.changes_waiting_max
        )
        self._timers = Timers(self._keeper, broker_channels)
        self._processes = Processes()
        self._server = ControllerServer(
            options, self._keeper, self._watchers, self._processes, clock, self._metrics.watchers_lagged.inc
        )
        self._started = False

    @property
    def service(self) -> Service:
        """`popwheel.v1.Controller`."""
        return self._server.service

    @property
    def state(self) -> ClusterState:
        """The cluster as it is now."""
        return self._keeper.state

    @property
    def admin(self) -> "APIRouter":
        """The routes of the admin API, `/api/v1/...`. FastAPI is loaded when this is first asked for."""
        from services.controller.admin import admin_router
        from services.controller.status_admin import status_router
        from services.controller.timer_admin import timer_router

        router = admin_router(self._options, self._keeper)
        router.include_router(status_router(self._keeper, self._processes))
        router.include_router(timer_router(self._timers))
        return router

    def health(self) -> str | None:
        """None if all is well, else a sentence for `/readyz`."""
        return None if self._started else "the controller has not read its state yet"

    async def start(self) -> None:
        """Read the state, or make a new cluster's, and begin to take changes.

        Raises:
            CorruptDataError: the state file is damaged.
            UnknownFormatError: the state file is of a kind or version this release does not know.
            ConfigurationError: the folder belongs to a cluster of another name.
            OSError: the folder cannot be used.
        """
        self._disk.make_folder(self._data_dir)
        state = self._store.load()
        if state is None:
            state = ClusterState(self._options.cluster_name, self._random_source.randbytes(_RECEIPT_KEY_BYTES))
            await self._store.save(state)
            _logger.info("new cluster", cluster=state.name, file=str(self._store.path))
        elif state.name != self._options.cluster_name:
            raise ConfigurationError(
                "controller.cluster_name",
                f"{self._data_dir} holds the cluster {state.name}, whose name cannot be changed to "
                f"{self._options.cluster_name}; give {state.name} or another data folder",
            )
        self._keeper.state = state
        self._keeper.start()
        self._metrics.read_from(self._gauges())
        self._started = True

    async def stop(self) -> None:
        """End the streams of those who watch, finish the changes that wait, take no more."""
        self._started = False
        self._server.close()
        await self._keeper.stop()
        if self._own_disk is not None:
            self._own_disk.close()

    async def _save(self, state: ClusterState) -> None:
        began = self._clock.monotonic()
        try:
            await self._store.save(state)
        except OSError:
            self._metrics.save_failures.inc()
            raise
        self._metrics.saves.observe(self._clock.monotonic() - began)

    def _gauges(self) -> dict[str, Callable[[], float]]:
        return {
            "topics": lambda: len(self.state.topics),
            "groups": lambda: len(self.state.groups),
            "brokers": lambda: len(self.state.brokers),
            "watchers": lambda: len(self._watchers),
            "changes_waiting": lambda: self._keeper.waiting,
            "state_version": lambda: self.state.version,
        }
