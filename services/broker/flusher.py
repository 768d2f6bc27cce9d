"""Group commit: whoever waits for the device while it is busy shares the next sync (DESIGN 4, Send)."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal

import structlog

from services.broker.store.commit_log import WriterStoppedError
from services.broker.store.message_store import MessageStore
from services.broker.supervised import supervised

_log = structlog.get_logger()


class Flusher:
    """Makes appended records durable, and readable when they are.

    Args:
        store: whose log is synced.
        mode: `sync`: a waiter is let go when his records are on the device; `async`: at once.
        interval_ms: how often the log is synced for records that nobody waits for.
        on_failure: told once when a sync has failed; nothing is confirmed after that (S1).
    """

    def __init__(
        self,
        store: MessageStore,
        mode: Literal["sync", "async"],
        interval_ms: int,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._mode = mode
        self._interval_s = interval_ms / 1000
        self._on_failure = on_failure
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._wanted = asyncio.Event()
        self._syncing = asyncio.Lock()
        self._failed: OSError | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sync."""
        self._task = supervised(self._run(), "flusher", self._on_failure)

    async def stop(self) -> None:
        """Sync once more and end."""
        await self.abandon()
        if self._failed is None:
            await self.sync()

    async def abandon(self) -> None:
        """End without another sync, for a broker that has failed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def durable(self, position: int) -> None:
        """Return when the records before `position` are as durable as the mode promises; they are readable then.

        Raises:
            WriterStoppedError: the device refused; whether they will be there after a restart can't be told.
        """
        if self._failed is not None:
            raise WriterStoppedError(str(self._failed))
        if self._mode == "async":
            self._store.confirm(position)
        elif self._store.confirmed_position < position:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((position, future))
            self._wanted.set()
            await future

    def confirm_later(self) -> None:
        """Have what was appended confirmed soon, without waiting for it."""
        if self._mode == "async":
            self._store.confirm(self._store.log.end_position)
        else:
            self._wanted.set()

    async def sync(self) -> None:
        """Sync now and let those go who waited for it. Raises OSError as `CommitLog.sync` does."""
        async with self._syncing:
            if self._failed is not None:
                raise self._failed
            try:
                await self._store.log.sync()
            except OSError as error:
                self._fail(error)
                raise
        synced = self._store.log.synced_position
        self._store.confirm(synced)
        while self._waiting and self._waiting[0][0] <= synced:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    async def _run(self) -> None:
        log = self._store.log
        while self._failed is None:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            if log.stopped is not None:
                self._fail(OSError(log.stopped))
                return
            if log.needs_sync:
                try:
                    await self.sync()
                except OSError:
                    return
            if self._waiting:
                self._wanted.set()

    def _fail(self, error: OSError) -> None:
        self._failed = error
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(WriterStoppedError(str(error)))
        _log.error("commit log can't be synced, the broker stops", error=str(error))
        self._on_failure(error)
