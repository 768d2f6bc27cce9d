"""Counts of the transport's events, as plain numbers: every call passes here twice."""

from bisect import bisect_left
from typing import Final

from popwheel_rpc.status import GrpcStatus

BUCKETS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)
"""Upper bounds of the histogram of call durations."""


class PathCounts:
    """Calls of one method."""

    __slots__ = ("buckets", "in_flight", "seconds", "statuses")

    def __init__(self) -> None:
        self.in_flight = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.statuses = [0] * len(GrpcStatus)


class CallCounts:
    """`RpcObserver` that counts; `popwheel_rpc.server.metrics` shows the counts."""

    def __init__(self) -> None:
        self.connections = 0
        self.connections_total = 0
        self.paths: dict[str, PathCounts] = {}
        self.limits: dict[str, int] = {}

    def connection_opened(self) -> None:
        self.connections += 1
        self.connections_total += 1

    def connection_closed(self) -> None:
        self.connections -= 1

    def call_started(self, path: str) -> None:
        counts = self.paths.get(path)
        if counts is None:
            counts = self.paths[path] = PathCounts()
        counts.in_flight += 1

    def call_ended(self, path: str, status: GrpcStatus, seconds: float) -> None:
        counts = self.paths[path]
        counts.in_flight -= 1
        counts.statuses[status] += 1
        counts.seconds += seconds
        counts.buckets[bisect_left(BUCKETS_S, seconds)] += 1

    def limit_hit(self, name: str) -> None:
        self.limits[name] = self.limits.get(name, 0) + 1
