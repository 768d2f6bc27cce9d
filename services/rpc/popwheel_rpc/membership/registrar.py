"""Keeps a replica of a broker group registered at the controller for as long as its process serves."""

import asyncio
import contextlib
import random
from collections.abc import Callable

import structlog

from popwheel_common.errors import InconsistentClusterIdError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, ReplicaReport
from popwheel_rpc.backoff import OTHER_CLUSTER_S, Backoff
from popwheel_rpc.methods import REGISTER_BROKER
from popwheel_rpc.service import Channel, ClientStream, StreamClosedError
from popwheel_rpc.status import RpcError

_logger = structlog.get_logger()


class BrokerRegistrar:
    """Registration of a replica by a stream; it is opened again, for ever, when it ends.

    Args:
        channel: to the controller.
        report: returns the replica's current report.
        on_group: called with each state of its group from the controller.
        random_source: when it is tried again.
        heartbeat_s: how often it reports, in seconds.
    """

    def __init__(
        self,
        channel: Channel,
        report: Callable[[], ReplicaReport],
        on_group: Callable[[BrokerGroup], None],
        random_source: random.Random,
        heartbeat_s: float = 0.5,
    ) -> None:
        self.registered = False
        self._channel = channel
        self._report = report
        self._on_group = on_group
        self._random = random_source
        self._heartbeat_s = heartbeat_s
        self._refusal: InconsistentClusterIdError | None = None
        """Refusal of this replica by a controller of another cluster; None without one."""
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def health(self) -> str | None:
        """Return None if the broker is registered, else a sentence for `/readyz`."""
        if self._refusal is not None:
            return f"the controller refuses this broker: {self._refusal.message}"
        return None if self.registered else "the broker is not registered at the controller"

    async def start(self) -> None:
        """Begin to register; returns at once."""
        self._task = asyncio.create_task(self._run(), name="broker-registration")

    async def stop(self) -> None:
        """End the registration: the replica counts as gone."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def hurry(self) -> None:
        """Report now, without waiting for the next heartbeat."""
        self._hurry.set()

    async def _run(self) -> None:
        backoff = Backoff(self._random)
        while True:
            refusal = self._refusal
            reason = await self._register()
            if self._refusal is not None and self._refusal is not refusal:
                if refusal is None:
                    _logger.error("the controller refuses this broker", reason=reason)
                self.registered = False
                await asyncio.sleep(OTHER_CLUSTER_S)
                continue
            if self.registered:
                self.registered = False
                backoff.reset()
                _logger.warning("registration at the controller ended, trying again", reason=reason)
            await asyncio.sleep(backoff.next_s())

    async def _register(self) -> str:
        """Keep one stream until it ends; return why it ended."""
        try:
            stream = self._channel.open(REGISTER_BROKER)
        except RpcError as error:
            return str(error)
        beating: asyncio.Task[None] | None = None
        try:
            report = self._report()
            await stream.send([report])
            beating = asyncio.create_task(self._beat(stream), name="broker-heartbeat")
            while (group := await stream.receive()) is not None:
                if not self.registered:
                    self.registered = True
                    self._refusal = None
                    _logger.info("registered at the controller", address=report.address, replica=report.replica)
                self._on_group(group)
        except InconsistentClusterIdError as error:
            self._refusal = error
            return error.message
        except StatusError as error:
            if error.code == Code.HA_NOT_AVAILABLE:  # another one leads, or will: as expected
                _logger.info("this controller does not lead, trying the next", reason=str(error))
            else:
                _logger.error("the controller refuses this broker", reason=str(error))
            return str(error)
        except (RpcError, StreamClosedError) as error:
            return str(error) or "the stream was closed"
        finally:
            stream.cancel()
            if beating is not None:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
        return "the controller ended the stream"

    async def _beat(self, stream: ClientStream[BrokerGroup, ReplicaReport]) -> None:
        """Report periodically; the receiver notices the end of the stream."""
        with contextlib.suppress(StatusError, RpcError, StreamClosedError):
            while True:
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        await self._hurry.wait()
                except TimeoutError:
                    pass
                self._hurry.clear()
                await stream.send([self._report()])
