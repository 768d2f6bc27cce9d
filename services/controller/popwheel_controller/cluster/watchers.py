"""Watchers of the cluster, and the updates due to each: the whole state in parts, then each change (pure)."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final

from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Group, Topic
from popwheel_controller.cluster.cluster_state import ClusterState

_TOGETHER_MAX: Final = 100
"""Limit of changes in one batch: more would delay other watchers."""


class Snapshot:
    """Whole state in parts; each part is built when the first watcher needs it, and shared by all.

    Args:
        state: the state.
        names_max: limit of topics and groups in a part.
    """

    def __init__(self, state: ClusterState, names_max: int) -> None:
        self.state = state
        self._names_max = names_max
        self._names = chain(state.topics.values(), state.groups.values())
        self._parts: list[ClusterUpdate] = []

    def parts(self) -> Iterator[ClusterUpdate]:
        """Yield all parts, in order; `more` is set in all but the last."""
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
            part.cluster.CopyFrom(Cluster(name=state.name, receipt_key=state.receipt_key, id=state.id))
            part.brokers.extend(state.brokers.values())
            part.away_brokers.extend(sorted(state.away))
        part.topics.extend(each for each in some if isinstance(each, Topic))
        part.groups.extend(each for each in some if isinstance(each, Group))
        part.more = len(some) == self._names_max
        if not part.more:
            part.gone_topics.update(state.deleted_topics.versions())
            part.gone_groups.update(state.deleted_groups.versions())
        return part


class Watcher:
    """Stream of updates: first the whole state, in one part or several, then each change.

    It buffers up to `updates_max` changes. A watcher that lags further loses them all and gets the whole state anew,
    but only after the last part of the state that is being sent: else it might never get a complete one.

    Args:
        updates_max: changes that may wait.
        snapshot: returns the current state, in parts.
        wake: called when there is an update, or the watcher was closed.
    """

    def __init__(
        self, updates_max: int, snapshot: Callable[[], Iterator[ClusterUpdate]], wake: Callable[[], None]
    ) -> None:
        self.closed = False
        self.lagged = 0
        self._updates_max = updates_max
        self._snapshot = snapshot
        self._wake = wake
        self._needs_snapshot = True
        self._parts: Iterator[ClusterUpdate] | None = None
        self._updates: list[ClusterUpdate] = []

    @property
    def takes_snapshot(self) -> bool:
        """True if the next update is a part of the whole state."""
        return self._parts is not None or self._needs_snapshot

    def offer(self, update: ClusterUpdate) -> None:
        """Add a change."""
        if not self._needs_snapshot:
            assert not self._updates or update.version > self._updates[-1].version, "changes are out of order"
            if len(self._updates) < self._updates_max:
                self._updates.append(update)
            else:
                self.lagged += 1
                self.renew()
        self._wake()

    def renew(self) -> None:
        """Send the whole state anew."""
        self._updates.clear()
        self._needs_snapshot = True
        self._wake()

    def close(self) -> None:
        """End its stream after the pending updates."""
        self.closed = True
        self._wake()

    def take(self) -> list[ClusterUpdate]:
        """Return the next updates in order; empty if there are none."""
        if self._parts is None and self._needs_snapshot:
            self._needs_snapshot = False
            self._parts = self._snapshot()
        if self._parts is not None:
            part = next(self._parts)
            if not part.more:
                self._parts = None
            return [part]
        updates, self._updates = self._updates[:_TOGETHER_MAX], self._updates[_TOGETHER_MAX:]
        return updates


class Watchers:
    """Watchers of the controller."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}  # in the order of notification
        self._closed = False
        self._snapshots: dict[int, Snapshot] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, watcher: Watcher) -> None:
        """Register a watcher; it gets all changes from now on."""
        self._watchers[watcher] = None
        if self._closed:
            watcher.close()

    def remove(self, watcher: Watcher) -> None:
        """Unregister a watcher."""
        self._watchers.pop(watcher, None)

    def publish(self, update: ClusterUpdate) -> None:
        """Send a change to all watchers; a snapshot is sent as the whole state."""
        if update.snapshot:
            self.renew()
            return
        self._snapshots.clear()
        for watcher in self._watchers:
            watcher.offer(update)

    def renew(self) -> None:
        """Send the full state to all watchers."""
        self._snapshots.clear()
        for watcher in self._watchers:
            watcher.renew()

    def parts(self, state: ClusterState, names_max: int) -> Iterator[ClusterUpdate]:
        """Return the whole state in parts, shared until it changes: after a restart all processes connect at once.

        Args:
            state: as it is now.
            names_max: limit of topics and groups in a part.
        """
        snapshot = self._snapshots.get(names_max)
        if snapshot is None or snapshot.state is not state:
            snapshot = self._snapshots[names_max] = Snapshot(state, names_max)
        return snapshot.parts()

    def open(self) -> None:
        """Accept watchers from now on."""
        self._closed = False

    def close(self) -> None:
        """End all streams after the pending updates; later ones end after their snapshot."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()
