"""Fair shares of a common limit."""

from collections.abc import Mapping


class Shares:
    """Shares of all holders in a common limit.

    A holder may take more only while it has less than is free: the dynamic threshold by which switches share their
    buffers. One that hoards gets half, a second one half of what is left, and so on: who comes later finds room, and
    where all give back in time, all have the same. Nothing has to be configured but the limit.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self.total = 0
        """Total of all holders."""

    def __len__(self) -> int:
        return len(self._held)

    def held(self, holder: str) -> int:
        """Return one holder's share."""
        return self._held.get(holder, 0)

    @property
    def of_each(self) -> Mapping[str, int]:
        """The number that each holder has."""
        return self._held

    @property
    def largest(self) -> int:
        """Largest share."""
        return max(self._held.values(), default=0)

    def room(self, holder: str, limit: int) -> int:
        """Return how much more a holder may take now, one after another, of a limit for all."""
        return room(limit, self.total, self.held(holder))

    def take(self, holder: str, amount: int = 1) -> None:
        """A holder has more; whether it may is not asked here, as the log may say that it has."""
        self._change(holder, amount)

    def give(self, holder: str, amount: int = 1) -> None:
        """A holder has less."""
        self._change(holder, -amount)

    def _change(self, holder: str, amount: int) -> None:
        self.total += amount
        held = self._held.get(holder, 0) + amount
        assert held >= 0, "a holder has given back more than it had (M1)"
        if held:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)


def room(limit: int, total: int, held: int) -> int:
    """Return how much more a holder with `held` may take, where all have `total`."""
    return max(0, limit - total - held + 1) // 2
