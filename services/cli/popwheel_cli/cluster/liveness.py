"""Detection of hanging child processes: those that run without heartbeats (pure)."""

POLL_S = 1.0
"""Pause between two calls of `silent`."""
_POLL_S_MAX = 2 * POLL_S


class Liveness:
    """Measures how long children have been silent.

    Time advances by two seconds per check at the most. So a parent that was stopped, starved
    or suspended with the whole machine finds no child silent when it continues.

    One that is not ready yet may be silent for as long as it likes: a broker recovers its log in its loop, and a large
    one takes minutes.

    Args:
        silence_s_max: how long one that is ready may be silent, in seconds.
    """

    def __init__(self, silence_s_max: float) -> None:
        self.silence_s_max = silence_s_max
        self._watched_s = 0.0
        self._polled_at: float | None = None
        self._last_signs: dict[str, float] = {}
        """Latest heartbeats of the ready children."""
        self._signs: set[str] = set()
        self._starting: set[str] = set()

    def started(self, name: str) -> None:
        """Record that a child was started."""
        self._starting.add(name)

    def sign(self, name: str) -> None:
        """Record a heartbeat of a child."""
        self._signs.add(name)

    def ready(self, name: str) -> None:
        """Record that a child is ready; it is supervised from now on, unless it was asked to end."""
        if name in self._starting:
            self._starting.discard(name)
            self._last_signs[name] = self._watched_s
            self._signs.add(name)

    def forget(self, name: str) -> None:
        """Forget a child that has ended, or is asked to end."""
        self._last_signs.pop(name, None)
        self._signs.discard(name)
        self._starting.discard(name)

    def silent(self, now: float) -> list[str]:
        """Return the children that were silent for too long; each is returned again only after as long a silence.

        Args:
            now: seconds of the monotonic clock.
        """
        if self._polled_at is not None:
            self._watched_s += min(now - self._polled_at, _POLL_S_MAX)
        self._polled_at = now
        self._last_signs.update((name, self._watched_s) for name in self._signs & self._last_signs.keys())
        self._signs.clear()
        hung = [name for name, sign in self._last_signs.items() if self._watched_s - sign > self.silence_s_max]
        for name in hung:
            self._last_signs[name] = self._watched_s
        return hung
