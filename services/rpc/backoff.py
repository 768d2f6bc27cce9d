"""How long to wait before the next try."""

_FIRST_S = 0.1
_LAST_S = 0.5


class Backoff:
    """Waits of 100 ms, 200 ms ... up to 0.5 s, between tries of what must come back in the end."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        """How many seconds to wait now."""
        wait_s = self._next_s
        self._next_s = min(_LAST_S, 2 * wait_s)
        return wait_s

    def reset(self) -> None:
        """Begin anew: a try went well."""
        self._next_s = _FIRST_S
