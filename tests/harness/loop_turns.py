"""Measures the turns of asyncio's own loop in CPU time: how long one pass through all that is ready keeps a core busy.

CPU time of the loop's thread does not grow while the machine is busy with something else. It does grow, up to twice,
while others wear out the caches. So right after a long turn the time of work of known length is taken, and the turn is
told in seconds of one machine; a bound on that can be a test. uvloop's turns can't be seen this way: servers show
theirs as a metric.
"""

import asyncio
import gc
import json
import time
from asyncio import base_events, events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

TURN_S_MAX = 0.05
"""The longest that a turn of the loop may take, whatever clients send."""

_YARDSTICK_ROWS = 6_000
_YARDSTICK_S = 0.0105
"""CPU time of making and encoding these rows on the machine that the bound was set for, while it is quiet."""


class LoopTurns:
    """The longest turn since measuring began.

    Attributes:
        longest_s: CPU time of the longest turn, in seconds of the machine that the bound was set for.
        longest_step_s: CPU time of the longest callback, or step of a task, in such seconds.
        longest_step: that callback, as asyncio describes it.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest_step_s = 0.0
        self.longest_step = ""

    def __str__(self) -> str:
        return (
            f"longest turn {self.longest_s * 1000:.1f} ms, longest step {self.longest_step_s * 1000:.1f} ms: "
            f"{self.longest_step}"
        )


@contextmanager
def measured_turns(besides: asyncio.Task[Any] | None = None) -> Iterator[LoopTurns]:
    """Measure the turns of all loops of asyncio in this process, also of one that runs already.

    Garbage is not collected meanwhile: a collection goes over all objects of all tests. Servers collect what is old
    while nothing goes on (`services/cli/popwheel_cli/process/garbage_collection.py`).

    Args:
        besides: a task whose own steps count as nothing: a test that makes input and looks at what came of it.
    """
    turns = LoopTurns()
    uncounted_s = step_s = 0.0
    step = ""
    run_once: Callable[[Any], None] = cast(Any, base_events.BaseEventLoop)._run_once
    run_handle: Callable[[asyncio.Handle], None] = cast(Any, events.Handle)._run

    def measured_turn(loop: Any) -> None:
        nonlocal uncounted_s, step_s
        uncounted_s, step_s, began_s = 0.0, turns.longest_step_s, time.thread_time()
        run_once(loop)
        turn_s = time.thread_time() - began_s - uncounted_s
        if max(turn_s, step_s) > TURN_S_MAX:  # between turns: it would leave the turn with cold caches
            slow = slowness()
            turn_s, step_s = turn_s / slow, step_s / slow
        turns.longest_s = max(turns.longest_s, turn_s)
        if step_s > turns.longest_step_s:
            turns.longest_step_s, turns.longest_step = step_s, step

    def measured_step(handle: asyncio.Handle) -> None:
        nonlocal uncounted_s, step_s, step
        owner = getattr(cast(Any, handle)._callback, "__self__", None)
        began_s = time.thread_time()
        run_handle(handle)
        taken_s = time.thread_time() - began_s
        if besides is not None and owner is besides:
            uncounted_s += taken_s
        elif taken_s > step_s:
            step_s, step = taken_s, repr(owner or handle)

    cast(Any, base_events.BaseEventLoop)._run_once = measured_turn
    cast(Any, events.Handle)._run = measured_step
    collects = gc.isenabled()
    gc.disable()
    try:
        yield turns
    finally:
        if collects:
            gc.enable()
        cast(Any, base_events.BaseEventLoop)._run_once = run_once
        cast(Any, events.Handle)._run = run_handle


def slowness() -> float:
    """How many times as long the same work takes at this moment; 1 at least."""
    began_s = time.thread_time()
    json.dumps([{"name": f"n{number}", "value": number, "tags": [str(number)]} for number in range(_YARDSTICK_ROWS)])
    return max(1.0, (time.thread_time() - began_s) / _YARDSTICK_S)
