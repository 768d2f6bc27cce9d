"""Backoff between two tries."""

import random

_FIRST_S = 0.1
_LAST_S = 0.5
OTHER_CLUSTER_S = 10.0
"""Seconds between tries of a process of another cluster: only an operator can correct that."""


class Backoff:
    """Backoff of about 100 ms, 200 ms ... up to 0.5 s between tries to reach a service.

    Each wait is drawn between half and one and a half of that, so that many processes do not reconnect at once.

    Args:
        random_source: draws them.
    """

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        """Return the seconds to wait now."""
        wait_s = self._next_s * (0.5 + self._random.random())
        self._next_s = min(_LAST_S, 2 * self._next_s)
        return wait_s

    def reset(self) -> None:
        """Start over: a try has succeeded."""
        self._next_s = _FIRST_S
