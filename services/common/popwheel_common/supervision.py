"""Tasks that run for as long as the broker does: none of them may end by an error without a word."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

_log = structlog.get_logger()


def supervised(
    work: Coroutine[Any, Any, None], name: str, on_failure: Callable[[Exception], None]
) -> asyncio.Task[None]:
    """Run `work` as a task; if it ends by an error, say so and have the broker end.

    Args:
        work: what to run.
        name: of the task, in logs.
        on_failure: called with the error.
    """
    task = asyncio.create_task(work, name=name)

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            _log.error("a part of the broker has failed, the broker stops", part=name, exc_info=error)
            on_failure(error)

    task.add_done_callback(ended)
    return task
