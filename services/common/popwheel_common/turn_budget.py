"""Bound of one kind of work in a turn of the loop, for all callers together."""

import asyncio


class TurnBudget:
    """Lets callers begin their work one after another, and in a later turn once this one has had enough of it.

    A caller waits for `room`, works without waiting, and says by `spend` how much that was:

        await budget.room()
        work()
        budget.spend(cost)

    Args:
        cost_max: no work is begun in a turn that has spent so much. So a turn spends less than that, and one piece
            of work more.
    """

    def __init__(self, cost_max: int) -> None:
        self._cost_max = cost_max
        self._spent = 0
        self._line = asyncio.Lock()

    async def room(self) -> None:
        """Wait for a turn with room, in the order of the calls."""
        if self._spent < self._cost_max and not self._line.locked():
            return
        async with self._line:
            if self._spent >= self._cost_max:
                await asyncio.sleep(0)  # the next turn has begun when this is over

    def spend(self, cost: int) -> None:
        """Count work that was done in this turn."""
        if cost and not self._spent:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._spent += cost

    def _next_turn(self) -> None:
        self._spent = 0
