"""Controller, broker and proxy wired in one loop, with no socket between them: the inside of `popwheel standalone`.

The simulator runs the same, on a disk and a clock of its own.
"""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from popwheel_broker.app import BrokerApp
from popwheel_broker.replication.channels import BrokerChannels
from popwheel_cli.options import StandaloneOptions
from popwheel_common.disk import Disk
from popwheel_common.pb.popwheel.v1.controller_pb2 import WatchRequest
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_proxy.app import ProxyApp, ProxyChannels
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.service import Channel

_LOCAL_ADDRESS = "in-process:0"


class InProcessCluster:
    """The three services in one loop, started and stopped in the order of their dependencies.

    Args:
        runtime: time, chance, and where metrics are shown. The receipt key is drawn from it, so a real process hands in
            `random.SystemRandom()`.
        options: settings of everything.
        data_dir: folder of all that must last.
        disk: where the folder is; the machine's disk if not given.
        way_to_broker: what the proxy's channel to the broker is put into; itself if not given.
        proxy_address: host:port at which clients reach the proxy, for operators.
    """

    def __init__(
        self,
        runtime: Runtime,
        options: StandaloneOptions,
        data_dir: Path,
        disk: Disk | None = None,
        way_to_broker: Callable[[Channel], Channel] = lambda channel: channel,
        proxy_address: str = "",
    ) -> None:
        clock = runtime.clock
        self.controller = ControllerApp(
            runtime,
            options.controller,
            data_dir / "controller",
            lambda _: LocalChannel(self.broker.service, clock=clock),
            disk,
        )
        to_controller = LocalChannel(self.controller.service, clock=clock)
        self.broker = broker = BrokerApp(
            _with_own_chance(runtime),
            options.broker,
            data_dir / "broker",
            BrokerChannels(to_controller),
            disk,
        )
        self.registrar = broker.registrar(_LOCAL_ADDRESS)
        self.proxy = ProxyApp(
            _with_own_chance(runtime),
            options.proxy,
            ProxyChannels(to_controller, lambda _: way_to_broker(LocalChannel(broker.service, clock=clock))),
            WatchRequest(process=options.proxy.name or "proxy", kind=WatchRequest.PROXY, address=proxy_address),
            access=options.access,
            otel=options.otel,
        )
        self.to_controller = to_controller
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Recover and serve.

        Raises:
            CorruptDataError, UnknownFormatError: what is in the data folder cannot be used.
            ConfigurationError: the folder belongs to a cluster of another name.
            OSError: the folder cannot be used.
        """
        stack = self._stack
        await self.controller.start()
        stack.push_async_callback(self.controller.stop)
        stack.push_async_callback(self.to_controller.close)
        await self.broker.start()
        stack.push_async_callback(self.broker.stop)
        await self.registrar.start()
        stack.push_async_callback(self.registrar.stop)
        await self.proxy.start()
        stack.push_async_callback(self.proxy.stop)

    async def stop(self) -> None:
        """Finish calls in flight, save, end; also after a failed start."""
        await self._stack.aclose()


def _with_own_chance(runtime: Runtime) -> Runtime:
    """Return the runtime with a random source of its own, so that one service's draws do not affect the others'."""
    return replace(runtime, random_source=random.Random(runtime.random_source.getrandbits(64)))
