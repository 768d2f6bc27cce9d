"""The slave's part of replication: follows one master of one epoch, over as many streams as it takes."""

import asyncio
from collections.abc import Callable

import structlog

from popwheel_broker.replication.log_receiver import LinkError, LogReceiver, MasterLag, Slave
from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.supervision import supervised
from popwheel_rpc.methods import REPLICATE
from popwheel_rpc.service import Channel, StreamClosedError
from popwheel_rpc.status import RpcError

_log = structlog.get_logger()

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 1.0


class ReplicationSlave:
    """Follows a master until it is stopped: opens a stream, and another one whenever it ends.

    Args:
        slave: who follows, and what it has.
        open_channel: a new channel to the master, for one stream: over a connection that has gone silent nothing else
            is to go.
    """

    def __init__(self, slave: Slave, open_channel: Callable[[], Channel]) -> None:
        self._slave = slave
        self._open_channel = open_channel
        self._log = slave.log
        self._clock = slave.clock
        self._on_failure = slave.on_failure
        self.statistics = slave.statistics
        self._lag = MasterLag()
        self._receiver: LogReceiver | None = None
        self._task: asyncio.Task[None] | None = None
        self._logged: str | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._task = supervised(self._run(), "replication-slave", self._on_failure)

    async def stop(self) -> None:
        """Stop to follow. Received records remain; nothing is cut or folded after this returns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def is_connected(self) -> bool:
        """True while the stream lasts on which the master has let this slave join its log."""
        return self._receiver is not None and self._receiver.joined

    @property
    def behind_bytes(self) -> int:
        """Number of the master's bytes, as last received, that are not on this device."""
        return self._lag.behind_bytes(self._log.synced_position)

    @property
    def behind_ms(self) -> int:
        """Time for which records of the master have not been on this device.

        While the stream is broken, it is the time since the last message.
        """
        now_ms = self._clock.steady_ms()
        behind_ms = self._lag.behind_ms(self._log.synced_position, now_ms)
        if not self.is_connected and self._lag.received_ms:
            return max(behind_ms, now_ms - self._lag.received_ms)
        return behind_ms

    async def _run(self) -> None:
        pause_s = _PAUSE_FIRST_S
        while True:
            try:
                why = await self._follow()
            except OSError as error:  # the device has failed: the broker ends, and its start sees what there is
                self._on_failure(error)
                return
            if self.is_connected:
                pause_s = _PAUSE_FIRST_S
                self._logged = None
                self.statistics.streams_broken += 1
            self._receiver = None
            if why != self._logged:
                self._logged = why
                _log.warning("the master's log cannot be followed, trying again", why=why)
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_MAX_S, 2 * pause_s)

    async def _follow(self) -> str:
        """Follow over one stream; why it ended. Raises OSError: the device has failed."""
        channel = self._open_channel()
        try:
            stream = channel.open(REPLICATE)
            self._receiver = LogReceiver(self._slave, stream, self._lag)
            try:
                await self._receiver.run()
            finally:
                stream.cancel()
        except (LinkError, CorruptDataError, UnknownFormatError, StatusError, RpcError, StreamClosedError) as error:
            return str(error) or "the stream was closed"
        finally:
            await channel.close()
        return "the master ended the stream"
