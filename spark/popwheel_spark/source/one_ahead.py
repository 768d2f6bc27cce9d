"""Asynchronous work for a consumer that is not: it runs in a thread, one item ahead."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")


class OneAhead(Generic[Item]):
    """Iterator over what a generator yields in a thread of its own. While an item is processed, the next one is made.

    Nothing goes on once that is made, so the consumer may be slow. To be closed.

    Args:
        items: runs in the thread's event loop alone; none of its items is None.
    """

    def __init__(self, items: AsyncGenerator[Item, None]) -> None:
        self._items = items
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="one-ahead", daemon=True)
        self._thread.start()
        self._next = self._begin()

    def _begin(self) -> "Future[Item | None]":
        return asyncio.run_coroutine_threadsafe(self._make(), self._loop)

    async def _make(self) -> Item | None:
        return await anext(self._items, None)

    def __iter__(self) -> Iterator[Item]:
        """Yield all items. Raises what the generator raises, after the items before."""
        while (item := self._next.result()) is not None:
            self._next = self._begin()
            yield item

    def close(self) -> None:
        """End the generator, also while it makes an item, and the thread."""
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._items.aclose()
