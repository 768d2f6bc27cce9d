"""The whole state as watchers are told it, in parts (pure)."""

from collections.abc import Iterator
from itertools import chain, islice

from services.common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Group, Topic
from services.controller.cluster.cluster_state import ClusterState


class Snapshot:
    """One state, of which each part is made when the first watcher comes to it, once for all of them.

    Args:
        state: the state.
        names_max: so many topics and groups a part has at the most.
    """

    def __init__(self, state: ClusterState, names_max: int) -> None:
        self.state = state
        self._names_max = names_max
        self._names = chain(state.topics.values(), state.groups.values())
        self._parts: list[ClusterUpdate] = []

    def parts(self) -> Iterator[ClusterUpdate]:
        """All parts, in order; `more` is set in all but the last."""
        number, more = 0, True
        while more:
            if number == len(self._parts):
                self._parts.append(self._next())
            part = self._parts[number]
            yield part
            number, more = number + 1, part.more

    def _next(self) -> ClusterUpdate:
        state, some = self.state, list(islice(self._names, self._names_max))
        part = ClusterUpdate(version=state.version, snapshot=True, named=state.named)
        if not self._parts:
            part.cluster.CopyFrom(Cluster(name=state.name, receipt_key=state.receipt_key))
            part.brokers.extend(state.brokers.values())
        part.topics.extend(each for each in some if isinstance(each, Topic))
        part.groups.extend(each for each in some if isinstance(each, Group))
        part.more = len(some) == self._names_max
        return part
