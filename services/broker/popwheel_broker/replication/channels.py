"""The ways of a replica to the others of its cluster."""

from collections.abc import Callable
from dataclasses import dataclass

from popwheel_rpc.service import Channel


@dataclass(frozen=True, slots=True)
class BrokerChannels:
    """Channels from a replica to others.

    Args:
        controller: the way to the controller.
        to_replica: makes the way to another replica of its group, from its address; None: none can be reached.
    """

    controller: Channel
    to_replica: Callable[[str], Channel] | None = None
