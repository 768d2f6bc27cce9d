"""Limit of login attempts, by name and by address (pure)."""

from collections import OrderedDict, deque
from typing import Final

FAILURES_MAX: Final = 10
"""Failures of one name, or of one address, within the time."""
WITHIN_S: Final = 600.0
_KEYS_MAX: Final = 10_000


class Attempts:
    """Counter of failures. A name or an address with too many failures has to wait."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def wait_s(self, name: str, address: str, now_s: float) -> float:
        """Return how long a name, or an address, has to wait; 0 if it may try.

        Args:
            name: of the user.
            address: of the browser.
            now_s: the monotonic clock.
        """
        waits = [0.0]
        for key in (("name", name), ("address", address)):
            failures = self._failures.get(key)
            if failures is None:
                continue
            while failures and failures[0] <= now_s - WITHIN_S:
                failures.popleft()
            if not failures:
                del self._failures[key]
            elif len(failures) >= FAILURES_MAX:
                waits.append(failures[0] + WITHIN_S - now_s)
        return max(waits)

    def failed(self, name: str, address: str, now_s: float) -> None:
        """Count a failure; the oldest names and addresses are forgotten where there are very many."""
        for key in (("name", name), ("address", address)):
            failures = self._failures.pop(key, None) or deque(maxlen=FAILURES_MAX)
            failures.append(now_s)
            self._failures[key] = failures
        while len(self._failures) > _KEYS_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, name: str) -> None:
        """Forget the failures of a name."""
        self._failures.pop(("name", name), None)
