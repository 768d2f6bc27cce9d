"""The brokers there are, and a channel to each."""

from collections.abc import Callable

from services.common.cluster import ClusterView
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ClusterUpdate
from services.proxy.background import Background
from services.rpc.service import Channel

Listener = Callable[[], None]


class Brokers:
    """Follows the cluster's list of brokers.

    Args:
        view: the cluster as the controller streams it.
        connect: makes a channel to a broker; it connects when it is first used.
        background: where channels of departed brokers are closed.
    """

    def __init__(self, view: ClusterView, connect: Callable[[BrokerInfo], Channel], background: Background) -> None:
        self._view = view
        self._connect = connect
        self._background = background
        self._channels: dict[str, tuple[str, Channel]] = {}
        self._listeners: list[Listener] = []
        self.names: tuple[str, ...] = ()
        view.subscribe(self._update)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` whenever a broker has come, left or moved."""
        self._listeners.append(listener)

    def channel(self, name: str) -> Channel:
        """The way to a broker.

        Raises:
            StatusError: HA_NOT_AVAILABLE, if no broker of that name is there now.
        """
        known = self._channels.get(name)
        if known is not None:
            return known[1]
        raise StatusError(Code.HA_NOT_AVAILABLE, f"the broker {_shown(name)} is not there now; try again")

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels, self.names = self._channels, {}, ()
        for _, channel in channels.values():
            await channel.close()

    def _update(self, update: ClusterUpdate) -> None:
        if not (update.snapshot or update.brokers or update.departed_brokers):
            return
        brokers = self._view.brokers
        for name in [name for name, (address, _) in self._channels.items() if self._moved(name, address)]:
            _, channel = self._channels.pop(name)
            self._background.start(channel.close())
        for name, info in brokers.items():
            if name not in self._channels:
                self._channels[name] = (info.address, self._connect(info))
        self.names = tuple(sorted(self._channels))
        for listener in self._listeners:
            listener()

    def _moved(self, name: str, address: str) -> bool:
        info = self._view.brokers.get(name)
        return info is None or info.address != address


def _shown(name: str) -> str:
    """A name that a client made up, as it may stand in a sentence."""
    return repr(name if len(name) <= 64 else name[:61] + "...")
