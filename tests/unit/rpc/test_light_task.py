"""A handler without a Task: it must see what it would see in one."""

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Awaitable, Coroutine
from typing import Any

import pytest

from popwheel_rpc.server.light_task import LightTask


async def run(coroutine: Awaitable[Any]) -> Any:
    """Run in a LightTask that starts, as in a server, within a callback of the loop."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    task: LightTask | None = None

    def done(result: Any, error: BaseException | None) -> None:
        if error is None:
            outcome.set_result(result)
        elif isinstance(error, asyncio.CancelledError):
            outcome.cancel()
        else:
            outcome.set_exception(error)

    task = LightTask(loop, coroutine, done)
    loop.call_soon(task.start)
    try:
        return await outcome
    finally:
        assert task.done()


async def test_one_that_never_waits_has_ended_when_start_returns() -> None:
    loop = asyncio.get_running_loop()
    ended: list[object] = []

    async def answer() -> int:
        return 42

    def start() -> None:
        LightTask(loop, answer(), lambda result, error: ended.append((result, error))).start()
        ended.append("returned")

    loop.call_soon(start)
    await asyncio.sleep(0)
    assert ended == [(42, None), "returned"]


async def test_one_that_starts_within_another_is_the_current_task_only_for_its_steps() -> None:
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[None] = loop.create_future()
    seen: list[object] = []

    async def inner() -> None:
        seen.append(asyncio.current_task())
        await gate
        seen.append(asyncio.current_task())

    async def outer() -> None:
        task = LightTask(loop, inner(), lambda result, error: seen.append((result, error)))
        current = asyncio.current_task()
        task.start_within()
        assert asyncio.current_task() is current
        assert seen == [task]
        async with asyncio.timeout(5):
            gate.set_result(None)
            await asyncio.sleep(0.001)
        assert seen == [task, task, (None, None)]

    await outer()  # in a Task
    seen.clear()
    gate = loop.create_future()
    await run(outer())


async def test_results_and_errors() -> None:
    async def wait_and(outcome: Exception | int) -> int:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert await run(wait_and(7)) == 7
    with pytest.raises(LookupError):
        await run(wait_and(LookupError()))


async def test_what_is_awaitable_and_no_coroutine() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, future.set_result, 3)
    assert await run(future) == 3


async def test_tools_that_ask_for_the_current_task() -> None:
    async def work() -> list[str]:
        seen = []
        first = asyncio.current_task()
        assert first is not None
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        except TimeoutError:
            seen.append("timeout")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0.01)
        seen.append("wait_for")

        async def fail() -> None:
            raise LookupError

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(10))
                group.create_task(fail())
        except* LookupError:
            seen.append("group")
        seen.append(await asyncio.create_task(asyncio.sleep(0, "task")))
        assert asyncio.current_task() is first
        return seen

    assert await run(work()) == ["timeout", "wait_for", "group", "task"]
    assert isinstance(asyncio.current_task(), asyncio.Task)


async def started(coroutine: Coroutine[Any, Any, Any]) -> tuple[LightTask, list[object]]:
    """A task that has taken its first step, and what `done` will be told."""
    loop = asyncio.get_running_loop()
    ended: list[object] = []
    task = LightTask(loop, coroutine, lambda result, error: ended.append(error or result))
    loop.call_soon(task.start)
    await asyncio.sleep(0)
    return task, ended


async def test_cancellation_where_it_waits() -> None:
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    task, ended = await started(work())
    assert task.cancel()
    assert not task.done(), "not within cancel()"
    for _ in range(4):
        await asyncio.sleep(0)
    assert cleaned == [True]
    assert isinstance(ended[0], asyncio.CancelledError)
    assert not task.cancel()


async def test_cancellation_between_two_steps() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(10)

    task, ended = await started(work())
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert isinstance(ended[0], asyncio.CancelledError)


async def test_a_cancellation_that_is_survived() -> None:
    async def work() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "finished anyway"

    task, ended = await started(work())
    task.cancel()
    for _ in range(4):
        await asyncio.sleep(0)
    assert ended == ["finished anyway"]


async def test_waiting_for_what_is_no_future() -> None:
    class Odd:
        def __await__(self) -> Any:
            yield "odd"

    async def work() -> None:
        await Odd()

    with pytest.raises(RuntimeError, match="no future"):
        await run(work())


async def test_context_variables_are_its_own() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")

    async def work(name: str) -> str:
        variable.set(name)
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return variable.get()

    assert [*await asyncio.gather(run(work("a")), run(work("b")))] == ["a", "b"]
    assert variable.get() == "outside"


async def test_what_a_cancelled_one_had_is_freed_without_a_collection() -> None:
    class OpenMessages:
        pass

    loop = asyncio.get_running_loop()
    ended: list[str] = []
    freed: list[str] = []

    async def wait() -> None:
        held = OpenMessages()
        weakref.finalize(held, freed.append, "held")
        await loop.create_future()
        assert held

    gc.disable()
    try:
        task = LightTask(loop, wait(), lambda result, error: ended.append(type(error).__name__))
        loop.call_soon(task.start)
        await asyncio.sleep(0)
        task.cancel()
        del task
        for _ in range(3):
            await asyncio.sleep(0)
        assert (ended, freed) == (["CancelledError"], ["held"])
    finally:
        gc.enable()


async def test_completing_what_it_waits_for_takes_its_next_step_at_once() -> None:
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[None] = loop.create_future()
    seen: list[object] = []

    async def work() -> str:
        await gate
        seen.append(asyncio.current_task())
        return "done"

    task = LightTask(loop, work(), lambda result, error: seen.append((result, error)))
    task.start_within()
    task.complete(gate)
    assert seen == [task, ("done", None)]
    assert isinstance(asyncio.current_task(), asyncio.Task), "the running task goes on"
    task.complete(gate)
    await asyncio.sleep(0)
    assert len(seen) == 2, "each step is taken once"


async def test_completing_what_it_does_not_wait_for_takes_no_step() -> None:
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    ended: list[object] = []

    async def work() -> None:
        await first
        await second

    task = LightTask(loop, work(), lambda result, error: ended.append(error))
    task.start_within()
    task.complete(second)
    assert second.done() and not ended
    task.cancel()
    task.complete(first)
    await asyncio.sleep(0)
    assert len(ended) == 1 and isinstance(ended[0], asyncio.CancelledError), "a cancellation before goes first"
