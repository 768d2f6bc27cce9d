"""A store where proxies add up their polls (`popwheel_proxy.receive.shared_count.CountStore`), honest or lying."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

from popwheel_proxy.receive.mode_choice import WINDOW_S, Key
from popwheel_proxy.receive.shared_count import CountStoreError, Sums
from tests.sim.loop import SimLoop

Mood = Literal["honest", "wrong", "slow", "away", "wiped", "hanging"]

_MOODS: tuple[Mood, ...] = ("honest", "honest", "wrong", "wrong", "slow", "away", "wiped", "hanging")
_WRONG = (0.0, -1.0, -1e300, 0.5, 3.0, 1e6, 1e300, float("inf"), float("-inf"), float("nan"))


class SharedCounts:
    """What all proxies' stores have in common.

    Args:
        loop: whose time it is.
        chance: of the lies.
        lies: whether it lies; it may begin and end.
    """

    def __init__(self, loop: SimLoop, chance: random.Random, lies: bool) -> None:
        self.lies = lies
        self._loop = loop
        self._chance = chance
        self._generation = 0
        self._buckets: dict[int, dict[Key, int]] = defaultdict(lambda: defaultdict(int))

    def store(self) -> "SharedCounts":
        """A proxy's hold on it."""
        return self

    async def exchange(self, counts: Mapping[Key, int]) -> Sums:
        """See `CountStore`."""
        mood: Mood = self._chance.choice(_MOODS) if self.lies else "honest"
        if mood == "slow":
            await asyncio.sleep(self._chance.random())
        elif mood == "hanging":
            await asyncio.sleep(60)
        elif mood == "away":
            raise CountStoreError("it is away")
        elif mood == "wiped":
            self._generation += 1
            self._buckets.clear()
        elif mood == "wrong":
            return Sums({key: self._chance.choice(_WRONG) for key in counts}, str(self._generation))
        bucket = int(self._loop.time() // WINDOW_S)
        before = 1.0 - (self._loop.time() / WINDOW_S - bucket)
        for key, count in counts.items():
            self._buckets[bucket][key] += count
        self._buckets.pop(bucket - 2, None)
        current, previous = self._buckets[bucket], self._buckets[bucket - 1]
        return Sums({key: (previous[key] * before + current[key]) / WINDOW_S for key in counts}, str(self._generation))

    async def close(self) -> None:
        """Others may still hold it."""
