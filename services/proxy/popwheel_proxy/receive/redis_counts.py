"""Counts of the pop requests of all proxies in Redis: one pipelined call per exchange.

Each bucket of `WINDOW_S` is a hash, `popwheel:polls:<number of the bucket>`: topic and group -> requests of all
proxies. It expires by itself. The clock of Redis decides which one is current: proxies' clocks need not agree.
`popwheel:polls:generation` is a random number, set by a proxy that finds none: when it changes, Redis was emptied.
"""

import random
from collections.abc import Mapping
from typing import Any, Final

from popwheel_common.clock import Clock
from popwheel_proxy.receive.mode_choice import WINDOW_S, Key
from popwheel_proxy.receive.shared_count import TIMEOUT_S, CountStoreError, Sums

PREFIX: Final = "popwheel:polls:"
_GENERATION = PREFIX + "generation"
_WINDOWS_STORED = 4


class RedisCounts:
    """A `CountStore` in Redis. Connects when it is first used, and again whenever the connection is lost.

    Args:
        url: redis://, rediss:// or unix://; may hold a password, so it is not shown anywhere.
        clock: carries Redis' time from one call to the next.
        random_source: names generations.
    """

    def __init__(self, url: str, clock: Clock, random_source: random.Random) -> None:
        # Loaded only where it is used: it costs 100 ms and 7 MiB.
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        self._clock = clock
        self._random = random_source
        self._error_type: type[Exception] = RedisError
        self._client: Any = Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # the next exchange is the retry
        )
        self._ahead_s: float | None = None

    async def exchange(self, counts: Mapping[Key, int]) -> Sums:
        """Exchange the counts (`CountStore`)."""
        now_s = self._now_s()
        bucket = int(now_s // WINDOW_S)
        current, previous = f"{PREFIX}{bucket}", f"{PREFIX}{bucket - 1}"
        names = {key: " ".join(key) for key in counts}
        pipeline = self._client.pipeline(transaction=False)
        pipeline.set(_GENERATION, f"{self._random.getrandbits(64):016x}", nx=True)
        pipeline.get(_GENERATION)
        pipeline.time()
        if counts:
            added = False
            for key, count in counts.items():
                if count:
                    pipeline.hincrby(current, names[key], count)
                    added = True
            if added:
                pipeline.expire(current, int(_WINDOWS_STORED * WINDOW_S))
            pipeline.hmget(previous, list(names.values()))
            pipeline.hmget(current, list(names.values()))
        try:
            answers = await pipeline.execute()
        except (self._error_type, OSError, ValueError) as error:  # ValueError: what is there is no text
            raise CountStoreError(f"{type(error).__name__}: {error}") from error
        try:
            generation, (seconds, microseconds) = str(answers[1]), answers[2]
            self._ahead_s = int(seconds) + int(microseconds) / 1e6 - self._clock.monotonic()
            if not counts:
                return Sums({}, generation)
            before = 1.0 - (now_s / WINDOW_S - bucket)
            per_s = {
                key: max(0.0, (int(old or 0) * before + int(new or 0)) / WINDOW_S)
                for key, old, new in zip(names, answers[-2], answers[-1], strict=True)
            }
        except (LookupError, ValueError, TypeError, OverflowError) as error:
            raise CountStoreError(f"its answer makes no sense: {error}") from error
        return Sums(per_s, generation)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    def _now_s(self) -> float:
        """Return Redis' time as of the last call, or this machine's before the first."""
        if self._ahead_s is None:
            return self._clock.wall_ms() / 1000
        return self._clock.monotonic() + self._ahead_s
