"""Follower: a broker while another leads its group. It receives the log, folds what is committed, saves."""

import asyncio
from collections.abc import Callable

import structlog

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.delay.service import TimerService
from popwheel_broker.replication.log_receiver import Slave
from popwheel_broker.replication.replication_slave import ReplicationSlave
from popwheel_common.supervision import supervised
from popwheel_rpc.service import Channel

_log = structlog.get_logger()


class Follower:
    """Term of a slave under one master.

    Args:
        context: of the replica.
        identity: of this replica's data folder.
        epoch: the master's.
        address: of the master.
        open_channel: opens a channel to it.
    """

    def __init__(
        self, context: BrokerContext, identity: bytes, epoch: int, address: str, open_channel: Callable[[], Channel]
    ) -> None:
        self._options = options = context.options
        self._files = context.files
        self._disk = context.disk
        self._clock = context.clock
        self._on_failure = context.on_failure
        self.epoch = epoch
        self.address = address
        slave = Slave(
            group=options.name,
            replica=options.replica,
            identity=identity,
            epoch=epoch,
            log=context.files,
            constants=context.constants,
            clock=context.clock,
            statistics=context.replication_statistics,
            repair=context.repair,
            on_failure=context.on_failure,
        )
        self.replication = ReplicationSlave(slave, open_channel)
        self._timer: TimerService | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def is_of(self, epoch: int, address: str) -> bool:
        """Return whether this slave follows that master."""
        return (self.epoch, self.address) == (epoch, address)

    def start(self) -> None:
        """Start to follow."""
        self._files.subscribe(self)
        self.resume()
        self.replication.start()
        self._tasks = [supervised(self._save_often(), "broker-checkpoint", self._on_failure)]

    async def stop(self) -> None:
        """Stop; the log is unchanged."""
        await self.replication.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._files.unsubscribe()
        self._files.stop_folding()
        if self._timer is not None:
            await self._timer.stop()

    async def save(self) -> None:
        """Save the replica's progress, also after it has stopped. Raises OSError: the device refused."""
        if self._timer is not None:
            await self._timer.save()
        await self._files.save(self._files.sync)

    def resume(self) -> None:
        """Start the timer of a new core."""
        self._timer = TimerService(
            self._files.core.timer, self._disk, self._clock, self._files.sync, _nothing, self._on_failure
        )
        self._timer.start()

    async def rest(self) -> None:
        """Stop the timer, as the log is about to be cut, or the core to be replaced."""
        if self._timer is not None:
            await self._timer.stop()
            self._timer = None

    def folded(self) -> None:
        """Wake the timer: records were folded."""
        if self._timer is not None:
            self._timer.arrived()

    async def _save_often(self) -> None:
        saved_position = -1
        while True:
            await asyncio.sleep(self._options.checkpoint_interval_ms / 1000)
            position = self._files.high_watermark
            if position == saved_position:
                continue
            try:
                await self._files.save(self._files.sync)
                saved_position = position
            except OSError as error:
                _log.error("the replica's progress could not be saved, trying again", error=str(error))


def _nothing() -> None:
    """Do nothing: a slave appends nothing that a caller could wait for."""
