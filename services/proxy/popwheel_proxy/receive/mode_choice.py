"""Mode of the polls of a (topic, group): pop with notify while they are few, plain long polling while they are many.

With few polls, one that waits at one broker misses messages of the others. With many, each broker is polled
all the time, and notifications are not needed. The measure is the number of pop requests per second over a sliding
window: of this proxy or, where a store shared by all proxies is there, of the cluster.

The window has two buckets of `WINDOW_S`: the previous one counts by its share that is still in the window, as
if its requests were evenly spread. That is four numbers per (topic, group), and one addition per request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, NamedTuple

from popwheel_proxy.receive.long_poll import Mode

WINDOW_S: Final = 5.0
"""Period for which requests are counted."""
PATIENCE_S: Final = 2.0
"""Time after which a poll that waits at one broker waits at all, unless plain long polling is pinned.

So a message is found by then, even if the count was wrong.
"""
COUNTED_MAX: Final = 10_000
"""Limit of the counted (topic, group) pairs; the polls of others are notified."""

Key = tuple[str, str]
"""Topic and group."""


@dataclass(slots=True, eq=False)
class Demand:
    """Pop requests of one (topic, group).

    Args:
        mode: how its polls wait.
        current: requests in the current bucket.
        previous: in the one before.
        unreported: requests not yet added to the shared count of the cluster.
        since: since when the mode is this one, in seconds of the monotonic clock.
        cluster_per_s: the cluster's requests per second, as far as known.
    """

    mode: Mode
    current: int = 0
    previous: int = 0
    unreported: int = 0
    since: float = float("-inf")
    cluster_per_s: float = 0.0


class Switch(NamedTuple):
    """Change of the mode of a (topic, group)."""

    topic: str
    group: str
    mode: Mode
    per_s: float


class ModeChoice:
    """Counts requests and chooses modes.

    Args:
        pinned: the mode of all polls; None to choose by their rate.
        up_per_s: requests per second from which on polls are plain.
        down_per_s: requests per second below which they are notified again; less than `up_per_s`.
        stay_s: shortest time between two changes of a mode, in seconds.
        now: seconds of the monotonic clock.
        counted_max: how many (topic, group)s are counted.
    """

    def __init__(
        self,
        pinned: Mode | None,
        up_per_s: float,
        down_per_s: float,
        stay_s: float,
        now: float,
        counted_max: int = COUNTED_MAX,
    ) -> None:
        self._pinned = pinned
        self._up_per_s = up_per_s
        self._down_per_s = down_per_s
        self._stay_s = stay_s
        self._counted_max = counted_max
        self._bucket_began = now
        self._demands: dict[Key, Demand] = {}

    def __len__(self) -> int:
        return len(self._demands)

    @property
    def patience_s(self) -> float:
        """Time for which a poll waits at one broker before it waits at all of them, in seconds."""
        return PATIENCE_S if self._pinned is None else float("inf")

    @property
    def modes(self) -> list[tuple[Key, Mode]]:
        """Mode of each (topic, group) that was polled recently."""
        return [(key, demand.mode) for key, demand in list(self._demands.items())]

    def mode_of(self, topic: str, group: str) -> Mode | None:
        """Return the mode of a topic's and group's polls; None without recent polls, or if they are not counted."""
        demand = self._demands.get((topic, group))
        return None if demand is None else demand.mode

    def count(self, topic: str, group: str) -> Mode | None:
        """Count a poll.

        Returns:
            How it waits; None: it is one (topic, group) too many to count, and `uncounted` says how it waits.
        """
        demand = self._demands.get((topic, group))
        if demand is None:
            if len(self._demands) >= self._counted_max:
                return None
            demand = self._demands[topic, group] = Demand(self.uncounted)
        demand.current += 1
        demand.unreported += 1
        return demand.mode

    @property
    def uncounted(self) -> Mode:
        """Mode of polls that are not counted."""
        return self._pinned or Mode.NOTIFY

    def time_passed(self, now: float) -> list[Switch]:
        """Move the window and choose the modes; called about once a second.

        Returns:
            The changes.
        """
        self._begin_bucket(now)
        if self._pinned is not None:
            return []
        before = 1.0 - (now - self._bucket_began) / WINDOW_S
        switches = []
        for (topic, group), demand in self._demands.items():
            per_s = max((demand.previous * before + demand.current) / WINDOW_S, demand.cluster_per_s)
            if demand.mode is Mode.NOTIFY:
                chosen = Mode.PLAIN if per_s >= self._up_per_s else Mode.NOTIFY
            else:
                chosen = Mode.NOTIFY if per_s < self._down_per_s else Mode.PLAIN
            if chosen is not demand.mode and now - demand.since >= self._stay_s:
                demand.mode = chosen
                demand.since = now
                switches.append(Switch(topic, group, chosen, per_s))
        return switches

    def report(self, keys_max: int) -> dict[Key, int]:
        """Return the requests since the last call, for the shared count of the cluster.

        Args:
            keys_max: limit of the (topic, group) pairs; those with most requests are returned.
        """
        chosen: Iterable[tuple[Key, Demand]] = self._demands.items()
        if len(self._demands) > keys_max:
            chosen = nlargest(keys_max, chosen, key=lambda item: item[1].current + item[1].previous)
        reported = {}
        for key, demand in chosen:
            reported[key] = demand.unreported
            demand.unreported = 0
        return reported

    def cluster(self, per_s: Mapping[Key, float]) -> None:
        """Set the requests per second of all proxies; pairs without an entry use this proxy's own count."""
        for key, demand in self._demands.items():
            demand.cluster_per_s = per_s.get(key, 0.0)

    def _begin_bucket(self, now: float) -> None:
        """Begin a new bucket if it is time; forget pairs that were not polled for two buckets."""
        passed = int((now - self._bucket_began) / WINDOW_S)
        if passed < 1:
            return
        self._bucket_began += passed * WINDOW_S
        for key, demand in list(self._demands.items()):
            demand.previous = demand.current if passed == 1 else 0
            demand.current = 0
            if not demand.previous and demand.mode is self.uncounted:
                del self._demands[key]
