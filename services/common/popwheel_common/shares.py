"""Fair shares of a common limit."""

from collections.abc import Mapping


class Shares:
    """Shares of all holders in a common limit.

    A holder may take more only while it has less than is free: the dynamic threshold by which switches share their
    buffers. One that hoards gets half, a second one half of what is left, and so on: a late holder finds room,
    and if all release in time, all have the same. Nothing has to be configured but the limit.
    """

    def __init__(self) -> None:
        self._shares: dict[str, int] = {}
        self.total = 0
        """Total of all holders."""

    def __len__(self) -> int:
        return len(self._shares)

    def share(self, holder: str) -> int:
        """Return one holder's share."""
        return self._shares.get(holder, 0)

    @property
    def by_holder(self) -> Mapping[str, int]:
        """Shares by holder."""
        return self._shares

    @property
    def largest(self) -> int:
        """Largest share."""
        return max(self._shares.values(), default=0)

    def room(self, holder: str, limit: int) -> int:
        """Return how much more a holder may take now, one after another, of a limit for all."""
        return room(limit, self.total, self.share(holder))

    def take(self, holder: str, amount: int = 1) -> None:
        """Add to a holder's share, without a check of the limit, as the log may have it already."""
        self._change(holder, amount)

    def give(self, holder: str, amount: int = 1) -> None:
        """Reduce a holder's share."""
        self._change(holder, -amount)

    def _change(self, holder: str, amount: int) -> None:
        self.total += amount
        share = self._shares.get(holder, 0) + amount
        assert share >= 0, "a holder has released more than it had (M1)"
        if share:
            self._shares[holder] = share
        else:
            self._shares.pop(holder, None)


def room(limit: int, total: int, share: int) -> int:
    """Return how much more a holder with `share` may take, where all have `total`."""
    return max(0, limit - total - share + 1) // 2
