"""Keeps a broker registered at the controller for as long as its process serves."""

import asyncio
import contextlib

import structlog

from services.common.errors import StatusError
from services.common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ReplicaReport
from services.rpc.backoff import Backoff
from services.rpc.methods import REGISTER_BROKER
from services.rpc.service import Channel, StreamClosedError
from services.rpc.status import RpcError

_logger = structlog.get_logger()


class BrokerRegistrar:
    """Holds the stream that is a broker's registration; opens it again, for ever, when it ends.

    Args:
        channel: to the controller.
        broker: name of the broker, and the address at which proxies reach it.
    """

    def __init__(self, channel: Channel, broker: BrokerInfo) -> None:
        self.registered = False
        self._channel = channel
        self._broker = broker
        self._task: asyncio.Task[None] | None = None

    def health(self) -> str | None:
        """None if the broker is registered, else a sentence for `/readyz`."""
        return None if self.registered else "the broker is not registered at the controller"

    async def start(self) -> None:
        """Begin to register; returns at once."""
        self._task = asyncio.create_task(self._run(), name="broker-registration")

    async def stop(self) -> None:
        """End the registration: the broker leaves every route."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            reason = await self._register()
            if self.registered:
                self.registered = False
                backoff.reset()
                _logger.warning("registration at the controller ended, trying again", reason=reason)
            await asyncio.sleep(backoff.next_s())

    async def _register(self) -> str:
        """Hold one stream until it ends; why it ended."""
        try:
            stream = self._channel.open(REGISTER_BROKER)
        except RpcError as error:
            return str(error)
        try:
            await stream.send([ReplicaReport(group=self._broker.name, address=self._broker.address)])
            while await stream.receive() is not None:
                if not self.registered:
                    self.registered = True
                    _logger.info("registered at the controller", address=self._broker.address)
        except StatusError as error:
            _logger.error("the controller refuses this broker", reason=str(error))
            return str(error)
        except (RpcError, StreamClosedError) as error:
            return str(error) or "the stream was closed"
        finally:
            stream.cancel()
        return "the controller ended the stream"
