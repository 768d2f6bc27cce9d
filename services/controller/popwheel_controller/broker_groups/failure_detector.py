"""Liveness of replicas by heartbeats, broken streams and probes (pure: it is passed the time).

A replica that was silent for the detection time is dead. If its stream breaks, its address is probed: without an answer
it is dead at once, with one it has the detection time to reconnect. Safety does not depend on this: a replica that is
declared dead by mistake finds itself in an older epoch (docs/internals/replication.md).
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

_STALL_S = 0.75

Key = TypeVar("Key", bound=Hashable)


class Liveness(Enum):
    """Observed liveness of a replica."""

    LIVING = "living"
    """Report received just now."""
    SILENT = "silent"
    """Stream open, but no report for a while."""
    UNSURE = "unsure"
    """Stream broken, or not opened since this controller began to lead; the replica may still connect."""
    DEAD = "dead"


@dataclass(slots=True, eq=False)
class _Watched:
    """Args:
    last_sign_at: time of its last sign of life, or when waiting for one began.
    connected: whether its stream is open.
    breaks: number of its broken streams, by which answers to old probes are recognized.
    """

    last_sign_at: float
    connected: bool
    breaks: int = 0
    dead: bool = False


class FailureDetector(Generic[Key]):
    """Watches replicas; times are seconds of the monotonic clock.

    Args:
        detection_s: silence after which a replica is dead.
        silent_s: silence after which a replica is not elected.
    """

    def __init__(self, detection_s: float, silent_s: float) -> None:
        self._detection_s = detection_s
        self._silent_s = silent_s
        self._watched: dict[Key, _Watched] = {}
        self._polled_at: float | None = None

    def expect(self, key: Key, now: float) -> None:
        """Give a recorded replica the detection time to connect."""
        self._watched.setdefault(key, _Watched(now, connected=False))

    def reported(self, key: Key, now: float) -> None:
        """Record a report on its stream."""
        watched = self._watched.setdefault(key, _Watched(now, connected=True))
        watched.last_sign_at = now
        watched.connected = True
        watched.dead = False

    def broke(self, key: Key) -> int:
        """Record that its stream broke; return the number to pass with the outcome of the probe that is due now."""
        watched = self._watched[key]
        watched.connected = False
        watched.breaks += 1
        return watched.breaks

    def answered(self, key: Key, breaks: int, now: float) -> None:
        """Record an answer to the probe: its process lives and will reconnect."""
        watched = self._watched.get(key)
        if watched is not None and watched.breaks == breaks and not watched.connected and not watched.dead:
            watched.last_sign_at = now

    def refused(self, key: Key, breaks: int) -> None:
        """Record that its address refuses connections."""
        watched = self._watched.get(key)
        if watched is not None and watched.breaks == breaks and not watched.connected:
            watched.dead = True

    def left(self, key: Key) -> None:
        """Record that it announced its departure and left."""
        if key in self._watched:
            self._watched[key].connected = False
            self._watched[key].dead = True

    def forget(self, key: Key) -> None:
        """Stop watching a replica."""
        self._watched.pop(key, None)

    def forget_all(self) -> None:
        """Stop watching all replicas."""
        self._watched.clear()
        self._polled_at = None

    def time_passed(self, now: float) -> None:
        """Subtract a pause of this process from the silence of all replicas, as their reports wait to be read.

        Call it several times a second, and before `liveness`.
        """
        if self._polled_at is not None and (stood_still_s := now - self._polled_at) > _STALL_S:
            for watched in self._watched.values():
                watched.last_sign_at = min(now, watched.last_sign_at + stood_still_s)
        self._polled_at = now

    def liveness(self, key: Key, now: float) -> Liveness:
        """Return the liveness of a replica."""
        watched = self._watched.get(key)
        if watched is None or watched.dead or now - watched.last_sign_at >= self._detection_s:
            return Liveness.DEAD
        if not watched.connected:
            return Liveness.UNSURE
        return Liveness.SILENT if now - watched.last_sign_at >= self._silent_s else Liveness.LIVING

    def silent_for_s(self, key: Key, now: float) -> float | None:
        """Return the seconds since the replica's last sign of life; None if it is not watched."""
        watched = self._watched.get(key)
        return None if watched is None else max(0.0, now - watched.last_sign_at)
