"""Exchange of pop request counts: adds this proxy's to those of all proxies, and reads their sum, once a second.

No request waits for it. If the store fails, polls use the proxy's own count: a metric shows that, and
the log once.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from popwheel_common.clock import Clock
from popwheel_proxy.receive.mode_choice import WINDOW_S, Key, ModeChoice

INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 0.5
"""Timeout of an exchange."""
KEYS_MAX: Final = 1_000
"""Limit of (topic, group) pairs in one call: those with most requests."""

_logger = structlog.get_logger()


class CountStoreError(Exception):
    """Error of a store that is away, or whose answer makes no sense; the text says which."""


class Sums(NamedTuple):
    """Sums that the store returns.

    Args:
        per_s: requests per second of all proxies over the last `WINDOW_S`.
        generation: another one than before: the store has lost its data.
    """

    per_s: Mapping[Key, float]
    generation: str


class CountStore(Protocol):
    """Store where proxies add up their requests."""

    async def exchange(self, counts: Mapping[Key, int]) -> Sums:
        """Add requests to those of the current window, and read what all proxies have added; 0 only reads.

        Raises:
            CountStoreError: the exchange failed; the requests may have been added or not.
        """

    async def close(self) -> None:
        """Close the connection."""


class SharedCount:
    """Keeps `mode_choice` up to date with the cluster's requests.

    Args:
        store: the shared counts.
        mode_choice: knows this proxy's own.
        clock: measures how long a wiped store is ignored.
        registry: where metrics are shown.
    """

    def __init__(self, store: CountStore, mode_choice: ModeChoice, clock: Clock, registry: CollectorRegistry) -> None:
        self._store = store
        self._mode_choice = mode_choice
        self._clock = clock
        self._generation: str | None = None
        self._believed_from = float("-inf")
        self._trouble: str | None = None
        self._up = Gauge(
            "popwheel_proxy_shared_count_up",
            "1 while the mode of polls follows the count of all proxies, 0 while it follows this proxy's own",
            registry=registry,
        )
        self._failures = Counter(
            "popwheel_proxy_shared_count_failures",
            "Times that the count of all proxies was not available or not valid",
            registry=registry,
        )

    async def run(self) -> None:
        """Exchange counts until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.exchange()

    async def exchange(self) -> None:
        """Exchange counts once."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                sums = await self._store.exchange(self._mode_choice.report(KEYS_MAX))
        except CountStoreError as error:
            self._fall_back(str(error))
        except TimeoutError:
            self._fall_back(f"it did not answer within {TIMEOUT_S} s")
        else:
            self._take(sums)

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    def _take(self, sums: Sums) -> None:
        now = self._clock.monotonic()
        if self._generation not in (None, sums.generation):
            # The other proxies' counts in this window are gone, so the sums would be too small.
            self._believed_from = now + WINDOW_S
        self._generation = sums.generation
        if now < self._believed_from:
            self._fall_back("it has lost its counts")
            return
        self._mode_choice.cluster(sums.per_s)
        self._up.set(1)
        if self._trouble is not None:
            self._trouble = None
            _logger.info("polls of all proxies are counted again")

    def _fall_back(self, reason: str) -> None:
        """Use the proxy's own count; logged once, until the store is back."""
        self._mode_choice.cluster({})
        self._up.set(0)
        self._failures.inc()
        if self._trouble is None:
            _logger.warning("polls of all proxies are not counted: this proxy uses its own count", reason=reason)
        self._trouble = reason
