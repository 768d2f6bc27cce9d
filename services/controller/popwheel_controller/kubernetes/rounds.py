"""Periodic work that updates Kubernetes, while this controller leads."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import structlog

from popwheel_common.errors import StatusError

_POLL_S = 5.0

_logger = structlog.get_logger()


class Rounds:
    """Rounds of work: one after each change, and one every five seconds.

    Args:
        name: of the task.
        works: by their subject; one that fails is retried in the next round.
        rest_s: minimum pause between two rounds, in seconds.
        check_leads: raises StatusError while this controller may decide nothing.
    """

    def __init__(
        self,
        name: str,
        works: Mapping[str, Callable[[], Awaitable[None]]],
        rest_s: float,
        check_leads: Callable[[], None],
    ) -> None:
        self._name = name
        self._works = works
        self._rest_s = rest_s
        self._check_leads = check_leads
        self._changed = asyncio.Event()
        self._failing: set[str] = set()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start: this controller leads now."""
        self._running = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Stop: this controller no longer leads."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    def soon(self) -> None:
        """Schedule another round after a change."""
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            for what, work in self._works.items():
                await self._try(what, work)
            await asyncio.sleep(self._rest_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._changed.wait()

    async def _try(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a piece of work. A failure is logged once, until it succeeds."""
        try:
            self._check_leads()
            await work()
        except (OSError, StatusError) as error:
            if what not in self._failing:
                self._failing.add(what)
                _logger.warning("Kubernetes could not be updated", what=what, reason=str(error))
        except Exception as error:  # the next round starts from the then current state
            _logger.error("the update of Kubernetes failed", what=what, exc_info=error)
        else:
            self._failing.discard(what)
