"""Work that many clients ask for at once, and that is done for all of them together."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class SharedWork(Generic[Result]):
    """Does one piece of work at a time. Clients that ask while it is done get the result of the next one, all the same.

    So a result is never older than the question, and any number of clients costs no more than one.

    Args:
        work: is done again and again.
    """

    def __init__(self, work: Callable[[], Awaitable[Result]]) -> None:
        self._work = work
        self._next: asyncio.Task[Result] | None = None
        """Work that is not begun yet."""
        self._doing = asyncio.Lock()

    async def result(self) -> Result:
        """Do the work, or wait for the work that others wait for."""
        if self._next is None:
            self._next = asyncio.create_task(self._do())
        return await asyncio.shield(self._next)

    async def _do(self) -> Result:
        async with self._doing:
            self._next = None
            return await self._work()
