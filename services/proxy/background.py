"""Work that outlives the call that began it: releasing messages of clients that have gone, pops under way."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

_logger = structlog.get_logger()


class Background:
    """The tasks that nobody awaits, held so that they run to their end and their failures are seen."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def finish(self, timeout_s: float) -> None:
        """Wait until all is done; what is not done in time is cancelled."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in set(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("a background task of the proxy failed", exc_info=error)
