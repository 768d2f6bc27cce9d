"""What was wrong when, and with whom: where nothing is, the cluster must be quick."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

RECOVERY_S = 18.0
"""For so long after a trouble nobody is blamed for being slow.

An attempt to connect may hang for 10 s, the next one waits up to 5 s, a Notify stream is opened again after up to
1.5 s; the rest is for what waits behind it.
"""
BROKEN_RECOVERY_S = 3.0
"""The same after connections were broken, which both ends learn at once."""


@dataclass(slots=True, eq=False)
class Trouble:
    """Something that is wrong.

    Args:
        hosts: with one machine, or with the ways between two.
        began_s, ended_s: from when to when.
        recovery_s: how long its consequences may last.
    """

    hosts: frozenset[str]
    began_s: float
    ended_s: float = float("inf")
    recovery_s: float = RECOVERY_S


class Troubles:
    """All of it."""

    def __init__(self) -> None:
        self.all: list[Trouble] = []

    def begin(self, hosts: Iterable[str], now_s: float, recovery_s: float = RECOVERY_S) -> Trouble:
        """Something goes wrong."""
        trouble = Trouble(frozenset(hosts), now_s, recovery_s=recovery_s)
        self.all.append(trouble)
        return trouble

    def calm(self, began_s: float, ended_s: float, *hosts: str) -> Iterator[tuple[float, float]]:
        """The times between `began_s` and `ended_s` when nothing was wrong with some machines and the ways between.

        Also none of what follows from troubles before.
        """
        concerned = frozenset(hosts)
        at_s = began_s
        for trouble in sorted(self.all, key=lambda each: each.began_s):
            if not trouble.hosts <= concerned or trouble.ended_s + trouble.recovery_s <= at_s:
                continue
            if trouble.began_s >= ended_s:
                break
            if trouble.began_s > at_s:
                yield at_s, trouble.began_s
            at_s = trouble.ended_s + trouble.recovery_s
        if at_s < ended_s:
            yield at_s, ended_s

    def is_calm(self, began_s: float, ended_s: float, *hosts: str) -> bool:
        """Whether nothing was wrong with them all that time."""
        return list(self.calm(began_s, ended_s, *hosts)) == [(began_s, ended_s)]
