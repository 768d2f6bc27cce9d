"""An event loop on virtual time, the same for the same seed, in which a process can be killed at any step.

A step is one callback of the loop: a task runs from one await to the next. Every callback belongs to the simulated
process in whose context it was made (`PROCESS`); those of a process that is dead are dropped and never run, and its
tasks are kept until the run is over, so that no `finally` of theirs runs in the middle of it.
"""

import asyncio
import contextvars
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from heapq import heappop, heappush
from typing import Any, NoReturn, Protocol, TypeVar, TypeVarTuple

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

_STEP_COST_S = 2e-6
_TASKS_BEFORE_PRUNING = 512
_THROWS_MAX = 100


class StuckError(Exception):
    """Nothing can happen any more, or it never stops: the message names the tasks."""


class Mortal(Protocol):
    """What the loop asks of a process."""

    alive: bool
    held: "deque[_Step] | None"
    """What it will do when it is resumed; None while it runs."""


PROCESS: contextvars.ContextVar[Mortal | None] = contextvars.ContextVar("process", default=None)
"""The process that the running code belongs to; None for clients and for the simulator itself."""


class SimTask(asyncio.Task[Result]):
    """A task whose place in a set does not depend on its address."""

    __slots__ = ("number",)

    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Step(list[Any]):
    """A callback of the loop: its context, what is called, with what. It is a list, and not the library's handle, as
    there are millions: one is made, and taken apart, without a line of Python.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<step {self[1]} {self[2]}>"

    def cancel(self) -> None:
        """Have it never run."""
        self[1], self[2] = None, ()


class _TimedStep(float):
    """Due time of a callback: a number, so that those that wait are kept in order without a line of Python."""

    __slots__ = ("step",)

    step: _Step

    def cancel(self) -> None:
        """Have it never run."""
        self.step.cancel()


class SimLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they are due; time passes only while nobody has anything to do.

    Args:
        steps_max: a run that takes more steps is taken for one that never ends.
    """

    def __init__(self, steps_max: int = 2_000_000) -> None:
        super().__init__()
        self._now_s = 0.0
        self._steps_max = steps_max
        self._tasks: list[SimTask[Any]] = []
        self._task_number = 0
        self._prune_at = _TASKS_BEFORE_PRUNING
        self._over = False
        self._base_context = contextvars.copy_context()
        self.steps = 0
        self.act_at_step = -1
        """Before this step `act` is called."""
        self.act: Callable[[], None] = _nothing
        self.failures: list[dict[str, Any]] = []
        """What tasks and callbacks raised that nobody asked for."""
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _, context: self._failed(context))

    def time(self) -> float:
        return self._now_s

    def outside(self, delay_s: float, callback: Callable[..., object], *args: Any) -> _TimedStep:
        """Call back later on behalf of no process, whoever runs now."""
        return self.call_later(delay_s, callback, *args, context=self._base_context)

    def take_up(self, held: "deque[_Step]") -> None:
        """Let callbacks run that a paused process could not, in their order."""
        self._ready.extend(held)  # type: ignore[attr-defined]

    def spawn_outside(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Run a task on behalf of no process."""
        return self.create_task(work, context=self._base_context.copy())

    def run_in_executor(self, executor: Any, func: Callable[[*Arguments], Any], *args: *Arguments) -> NoReturn:
        raise AssertionError(f"{func} would run in a thread, whose timing no seed decides")

    get_debug = bool
    """No: it is asked for every future, and a method of Python takes longer to say so."""

    def _write_to_self(self) -> None:
        """There is no thread that would have to be woken."""

    def call_soon(  # type: ignore[override]
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: contextvars.Context | None = None
    ) -> _Step:
        step = _Step((copy_context() if context is None else context, callback, args))
        if not self._over:
            self._ready.append(step)  # type: ignore[attr-defined]
        return step

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> _TimedStep:
        timed = _TimedStep(self._now_s + delay)
        timed.step = _Step((copy_context() if context is None else context, callback, args))
        if not self._over:
            heappush(self._scheduled, timed)  # type: ignore[attr-defined]
        return timed

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> _TimedStep:
        timed = _TimedStep(when)
        timed.step = _Step((copy_context() if context is None else context, callback, args))
        if not self._over:
            heappush(self._scheduled, timed)  # type: ignore[attr-defined]
        return timed

    def _run_once(self) -> None:
        """Run until somebody stops the loop: the library's would call this for every turn."""
        ready: deque[_Step] = self._ready  # type: ignore[attr-defined]
        scheduled: list[_TimedStep] = self._scheduled  # type: ignore[attr-defined]
        take = ready.popleft
        handled = sys.exc_info()[1]
        while True:
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                # Time passes, to when the next callback is due.
                while scheduled and scheduled[0].step[1] is None:
                    heappop(scheduled)
                if not scheduled:
                    raise StuckError(f"nothing is scheduled any more; {self._stuck()}")
                if (due_s := scheduled[0]) > self._now_s:
                    self._now_s = due_s + 0.0  # a plain number
                now_s = self._now_s
                while scheduled and scheduled[0] <= now_s:
                    step = heappop(scheduled).step
                    if step[1] is not None:
                        ready.append(step)
            for _ in range(len(ready)):
                step = take()
                context, callback, args = step
                if callback is None:
                    continue
                process = context.get(PROCESS)
                if process is not None:
                    if not process.alive:
                        continue
                    if process.held is not None:
                        process.held.append(step)
                        continue
                self.steps += 1
                if self.steps == self.act_at_step:
                    self._base_context.copy().run(self.act)
                    if process is not None and not process.alive:
                        continue
                self._now_s += _STEP_COST_S
                try:
                    context.run(callback, *args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as the library's loop does
                    self.call_exception_handler({"message": "a callback failed", "exception": error, "handle": step})
                if sys.exc_info()[1] is not handled:
                    handled = self._left_behind(step)
            now_s = self._now_s
            while scheduled and scheduled[0] <= now_s:
                step = heappop(scheduled).step
                if step[1] is not None:
                    ready.append(step)
            if self.steps > self._steps_max:
                raise StuckError(f"{self.steps} steps and no end; {self._stuck()}")
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, context: Any = None, **_: Any
    ) -> asyncio.Future[Any]:
        if self._over:
            coro.close()
            return self.create_future()
        self._task_number += 1
        task: SimTask[Any] = SimTask.__new__(SimTask)
        task.number = self._task_number  # which is asked for as soon as there is a task
        asyncio.Task.__init__(task, coro, loop=loop, context=context)
        self._tasks.append(task)
        if len(self._tasks) > self._prune_at:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._prune_at = 2 * len(self._tasks) + _TASKS_BEFORE_PRUNING
        return task

    def _stuck(self) -> str:
        waiting = [f"{task.get_name()} {task.get_coro()}" for task in self._tasks if not task.done()]
        return "these wait: " + "; ".join(waiting)

    def _failed(self, context: dict[str, Any]) -> None:
        # A BaseException is how the disk tells code of a dead process that it is dead.
        if not self._over and isinstance(context.get("exception", Exception()), Exception):
            self.failures.append(context)

    def _left_behind(self, step: object) -> BaseException | None:
        """Note a step after which an exception counts as handled still: compiled coroutines have no state of their own
        for that, so what awaits within `except` or `finally` may make others raise its exception again. Return it.
        """
        error = sys.exc_info()[1]
        self.failures.append({"message": "an exception was left behind", "exception": error, "handle": step})
        return error

    def bury(self) -> None:
        """End the run: what still waits is brought to its end, and nothing that it does then has any effect."""
        self._over = True
        asyncio._set_running_loop(self)
        handled = sys.exc_info()[1]
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
                if sys.exc_info()[1] is not handled:
                    handled = self._left_behind(task)
        asyncio._set_running_loop(None)
        self._tasks.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()


class _BuriedError(BaseException):
    """Thrown into what is left when a run is over."""


def _close(coroutine: Any) -> None:
    """Bring a coroutine to its end however often it awaits on the way; all it meets is dead."""
    for _ in range(_THROWS_MAX):
        try:
            coroutine.throw(_BuriedError)
        except BaseException:  # noqa: BLE001 - how it ends is of no interest to anybody
            return


def _nothing() -> None:
    """Nothing is to be done at that step."""
