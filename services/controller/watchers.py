"""Who watches the cluster, and which changes each has still to be sent."""

from collections.abc import Callable

from services.common.pb.popwheel.v1.controller_pb2 import ClusterUpdate


class Watcher:
    """One stream of updates: first the whole state, then each change.

    It holds no more than `updates_max` changes. One that lags further loses them all and gets the whole state anew.

    Args:
        updates_max: changes that may wait.
        snapshot: makes the whole state as it is now.
        wake: called when there is something to take, or the watcher was closed.
    """

    def __init__(self, updates_max: int, snapshot: Callable[[], ClusterUpdate], wake: Callable[[], None]) -> None:
        self.closed = False
        self.lagged = 0
        self._updates_max = updates_max
        self._snapshot = snapshot
        self._wake = wake
        self._needs_snapshot = True
        self._updates: list[ClusterUpdate] = []

    def offer(self, update: ClusterUpdate) -> None:
        """Take in a change."""
        if not self._needs_snapshot:
            if len(self._updates) < self._updates_max:
                self._updates.append(update)
            else:
                self._updates.clear()
                self._needs_snapshot = True
                self.lagged += 1
        self._wake()

    def close(self) -> None:
        """Say that its stream is to end when what waits has been taken."""
        self.closed = True
        self._wake()

    def take(self) -> list[ClusterUpdate]:
        """What is to be sent next, in order; empty if nothing is."""
        if self._needs_snapshot:
            self._needs_snapshot = False
            return [self._snapshot()]
        updates, self._updates = self._updates, []
        return updates


class Watchers:
    """All watchers of the controller."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}  # who came first is told first
        self._closed = False

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, watcher: Watcher) -> None:
        """Send it all changes from now on."""
        self._watchers[watcher] = None
        if self._closed:
            watcher.close()

    def remove(self, watcher: Watcher) -> None:
        """Forget it."""
        self._watchers.pop(watcher, None)

    def publish(self, update: ClusterUpdate) -> None:
        """Hand a change to everyone."""
        for watcher in self._watchers:
            watcher.offer(update)

    def open(self) -> None:
        """Let those who come from now on watch."""
        self._closed = False

    def close(self) -> None:
        """End all their streams, after what waits has been sent; those that come later end after their snapshot."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()
