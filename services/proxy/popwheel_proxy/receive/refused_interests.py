"""Interests that a broker refused to register, and the schedule of their pops (pure).

A broker takes a limited number of interests; for those past it, it does not notify. Their polls must find its messages
nevertheless: every `POP_INTERVAL_S` one poll that waits pops there, as if the broker had said that a message is there.
Turns are taken in order, and at most `REFUSED_POPS_AT_ONCE_MAX` with one look, so that very many refused interests cost
longer waiting and not ever more pops. Now and then a turn is used to register again.
"""

from dataclasses import dataclass

POP_INTERVAL_S = 1.0
"""Interval between the pops of a refused interest, if there are not too many."""
REFUSED_POPS_AT_ONCE_MAX = 50
"""Pops of refused interests in one step, ten times a second: past 500 refused interests they become rarer."""
REGISTER_EVERY_S = 30.0
"""Time after a refusal until the interest is registered again."""


@dataclass(slots=True, eq=False)
class RefusedInterest:
    """An interest at a broker that does not notify for it.

    Args:
        interest_id: the proxy's number for it, which no other one gets later.
        broker: who has refused it.
        pop_at: time of its next pop, seconds of the monotonic clock.
        register_at: when it is to be registered again.
        is_unknown: whether the broker does not know which lite topics its client reads: then it has none for it.
    """

    interest_id: int
    broker: str
    pop_at: float
    register_at: float
    is_unknown: bool = False


class RefusedInterests:
    """Refused interests, the next pop first."""

    def __init__(self) -> None:
        self._all: dict[tuple[int, str], RefusedInterest] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, key: tuple[int, str]) -> bool:
        """Return whether a broker refused the interest of a number."""
        return key in self._all

    def add(self, interest_id: int, broker: str, now: float, *, is_unknown: bool = False) -> None:
        """Add an interest that a broker has refused; one that is refused again keeps its turn.

        `is_unknown`: as it does not know the client, which may change at any time: each turn registers again.
        """
        register_at = now + (POP_INTERVAL_S if is_unknown else REGISTER_EVERY_S)
        known = self._all.get((interest_id, broker))
        if known is None:
            known = RefusedInterest(interest_id, broker, now + POP_INTERVAL_S, register_at)
            self._all[interest_id, broker] = known
        known.register_at = register_at
        known.is_unknown = is_unknown

    def drop(self, interest_id: int, broker: str) -> None:
        """Remove an interest that was registered or has ended."""
        self._all.pop((interest_id, broker), None)

    def drop_broker(self, broker: str) -> None:
        """Remove all of a broker whose stream has ended: the next stream registers everything anew."""
        for key in [key for key in self._all if key[1] == broker]:
            del self._all[key]

    def take_due(self, now: float) -> list[RefusedInterest]:
        """Return the interests that are due, and schedule their next pops."""
        turns: list[RefusedInterest] = []
        for refusal in self._all.values():
            if refusal.pop_at > now or len(turns) == REFUSED_POPS_AT_ONCE_MAX:
                break
            turns.append(refusal)
        for refusal in turns:
            key = (refusal.interest_id, refusal.broker)
            del self._all[key]
            self._all[key] = refusal
            refusal.pop_at = now + POP_INTERVAL_S
        return turns
