"""Clients of one purpose, with topics and groups of their own: what a course asks of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from popwheel_broker.core.core import BrokerCore
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType


@dataclass(frozen=True, slots=True)
class OwnTopic:
    """A topic as it is made.

    Args:
        kind: its type.
        queues: how many it has.
        settings: what else is set.
    """

    kind: TopicType.ValueType
    queues: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)


class Workload(ABC):
    """Clients of one purpose. A new one is listed among the clients of the courses that have it, and judged there.

    Attributes:
        topics: what is made for it before it runs, by name.
        groups: likewise, how often each may try a message.
        stopping: whether it is to come to an end.
    """

    topics: Mapping[str, OwnTopic] = {}
    groups: Mapping[str, int] = {}
    stopping = False

    @abstractmethod
    async def run(self) -> None:
        """Send, and whatever else it does, until it is to stop."""

    def stop(self) -> None:
        """Have it stop soon."""
        self.stopping = True

    async def end(self) -> None:  # noqa: B027 - many have nothing to end
        """End what still reads, when nothing is left to be done."""

    def left(self, core: BrokerCore) -> str:
        """Return what a broker has not done of it yet, in words; empty if nothing is left."""
        return ""
