"""Work that outlives the call that started it: releases for clients that have gone, pops in flight."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import structlog

from popwheel_rpc.server.light_task import LightTask

_logger = structlog.get_logger()


class Background:
    """Tasks that nobody awaits: referenced here so that they run to their end and their failures are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun: dict[int, LightTask] = {}
        """Tasks of `start_at_once` that are suspended."""
        self._last = 0
        self._is_starting = False
        self._all_ended: asyncio.Future[None] | None = None

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def start_at_once(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` now up to its first suspension, and from there on as a task does.

        It saves a turn of the loop, and nearly all that a task costs if it never waits. What it starts itself in this
        way becomes a task: else a row of them would be a stack.
        """
        if self._is_starting:
            self.start(work)
            return
        self._last += 1
        task = LightTask(asyncio.get_running_loop(), work, partial(self._ended, self._last))
        self._begun[self._last] = task
        self._is_starting = True
        try:
            task.start_within()
        finally:
            self._is_starting = False

    async def finish(self, timeout_s: float) -> None:
        """Wait until all work is done; cancel what is not done in time."""
        if self._tasks or self._begun:
            await asyncio.wait(self._under_way(), timeout=timeout_s)
        for task in set(self._tasks):
            task.cancel()
        for begun in list(self._begun.values()):
            begun.cancel()
        while self._tasks or self._begun:
            await asyncio.wait(self._under_way())

    def _under_way(self) -> set[asyncio.Future[Any]]:
        """Return futures that complete when all current work has ended."""
        futures: set[asyncio.Future[Any]] = set(self._tasks)
        if self._begun:
            if self._all_ended is None:
                self._all_ended = asyncio.get_running_loop().create_future()
            futures.add(self._all_ended)
        return futures

    def _ended(self, number: int, result: Any, error: BaseException | None) -> None:
        del self._begun[number]
        if isinstance(error, Exception):
            _logger.error("a background task of the proxy failed", exc_info=error)
        if not self._begun and self._all_ended is not None:
            self._all_ended.set_result(None)
            self._all_ended = None

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("a background task of the proxy failed", exc_info=error)
