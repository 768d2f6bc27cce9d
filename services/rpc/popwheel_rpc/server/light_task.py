"""Execution of a coroutine without a Task: its first step at once, the others as its futures complete."""

import asyncio
from asyncio import CancelledError, current_task
from asyncio.tasks import _enter_task, _leave_task  # the documented hooks for other task classes
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from types import CoroutineType
from typing import Any

Done = Callable[[Any, Exception | CancelledError | None], None]


class LightTask:
    """Runs one handler for less than half of the cost of an `asyncio.Task`, and for none if it never suspends.

    While it runs it is `asyncio.current_task()`, and it has what `asyncio.timeout`, `asyncio.wait_for` and
    `asyncio.TaskGroup` ask of the current task: cancel, uncancel, cancelling. It has context variables of its
    own. It is not in `asyncio.all_tasks()` and cannot be awaited; code that needs more (anyio, for one) makes a Task of
    its own: `await asyncio.create_task(...)`.

    Args:
        loop: the running loop.
        awaitable: what to run; a coroutine as a rule.
        done: called once with (result, None) or (None, error) when it has ended, perhaps before `start` returns.
    """

    __slots__ = (
        "__weakref__",
        "_cancel_requests",
        "_context",
        "_coroutine",
        "_done",
        "_fault",
        "_loop",
        "_must_cancel",
        "_waits_for",
        "ended",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, awaitable: Awaitable[Any], done: Done) -> None:
        self._loop = loop
        self._context = copy_context()
        self._coroutine: Generator[Any, Any, Any] | CoroutineType[Any, Any, Any] = (
            awaitable if isinstance(awaitable, CoroutineType) else awaitable.__await__()
        )
        self._done = done
        self._waits_for: asyncio.Future[Any] | None = None
        self._must_cancel = False
        self._fault: Exception | None = None
        self._cancel_requests = 0
        self.ended = False

    def start(self) -> None:
        """Take the first step. No other task may be running: call it from a callback of the loop."""
        self._context.run(self._step)

    def start_within(self) -> None:
        """Take the first step inside the step of the running task, if there is one, which continues afterwards."""
        outer = current_task(self._loop)
        if outer is None:
            self.start()
            return
        _leave_task(self._loop, outer)
        try:
            self.start()
        finally:
            _enter_task(self._loop, outer)

    def complete(self, future: "asyncio.Future[None]") -> None:
        """Complete a future; if this task waits for it, take the next step at once, not in the loop's next turn.

        The step is taken inside that of the running task, which continues afterwards.
        """
        if future.done():
            return
        if self._waits_for is future:
            future.remove_done_callback(self._step)
            future.set_result(None)
            self.start_within()
        else:
            future.set_result(None)

    def cancel(self, msg: Any = None) -> bool:
        """Raise CancelledError where it waits, in a later turn of the loop; False if it has ended."""
        if self.ended:
            return False
        self._cancel_requests += 1
        if self._waits_for is None or not self._waits_for.cancel(msg=msg):
            self._must_cancel = True
        return True

    def cancelling(self) -> int:
        """Return the number of cancellations requested and not revoked."""
        return self._cancel_requests

    def uncancel(self) -> int:
        """Undo one cancellation, as `asyncio.timeout` does with its own."""
        if self._cancel_requests > 0:
            self._cancel_requests -= 1
        return self._cancel_requests

    def done(self) -> bool:
        """Return whether it has ended."""
        return self.ended

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that it runs on."""
        return self._loop

    def _step(self, waited: object = None) -> None:
        self._waits_for = None
        loop = self._loop
        _enter_task(loop, self)  # type: ignore[arg-type]
        try:
            if self._must_cancel:
                self._must_cancel = False
                yielded = self._coroutine.throw(CancelledError())
            elif self._fault is not None:
                fault, self._fault = self._fault, None
                yielded = self._coroutine.throw(fault)
            else:
                # A future's own __await__ raises its exception, so there is nothing to pass in.
                yielded = self._coroutine.send(None)
        except StopIteration as stop:
            result, error = stop.value, None
        except (Exception, CancelledError) as raised:  # noqa: BLE001 - passed to `done`, which handles it
            result, error = None, raised
        else:
            self._wait(yielded)
            return
        finally:
            _leave_task(loop, self)  # type: ignore[arg-type]
        self.ended = True
        try:
            self._done(result, error)
        finally:
            # Its traceback holds this frame: together they would keep all that the call had until the next collection.
            del error

    def _wait(self, yielded: Any) -> None:
        if yielded is None:
            # A bare yield: `asyncio.sleep(0)`.
            self._loop.call_soon(self._step, context=self._context)
            return
        if getattr(yielded, "_asyncio_future_blocking", None) is None:
            self._fault = RuntimeError(f"a handler waits for something that is no future: {yielded!r}")
            self._loop.call_soon(self._step, context=self._context)
            return
        yielded._asyncio_future_blocking = False
        self._waits_for = yielded
        yielded.add_done_callback(self._step, context=self._context)
        if self._must_cancel and yielded.cancel():
            self._must_cancel = False
