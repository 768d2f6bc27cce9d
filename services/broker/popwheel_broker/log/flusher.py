"""Group commit: callers that wait for a busy device share the next sync (DESIGN 4, Send).

With replicas, a waiter is released when the sync-state set has its records, too (docs/internals/replication.md).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import structlog

from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.refusals import WriterStoppedError
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.supervision import supervised

_log = structlog.get_logger()

_Waiting = deque[tuple[int, asyncio.Future[None]]]


class Watermarks(Protocol):
    """Watermarks of the replicas without which nothing is acknowledged (`replication.sync_state_set`)."""

    @property
    def high_watermark(self) -> int:
        """High watermark: records before it may be acknowledged to senders, and be read."""

    @property
    def replicated_position(self) -> int:
        """Position before which all outlives the process of the master."""

    @property
    def fully_synced_position(self) -> int:
        """Position before which nothing is cut off any more."""

    @property
    def enough(self) -> bool:
        """True if there are as many of them as `min_in_sync_replicas` says."""

    def synced(self, position: int) -> None:
        """Record a sync of the master."""


class Flusher:
    """Makes appended records durable, and readable when they are.

    Args:
        store: whose log is synced.
        mode: `sync`: a waiter is released when its records are on the device; `async`: at once.
        interval_ms: how often the log is synced for records without a waiter.
        on_failure: called once when a sync has failed; nothing is committed after that (S1).
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
        self._marks: Watermarks | None = None
        self._waiting: _Waiting = deque()
        self._waiting_replicated: _Waiting = deque()
        self._waiting_fully_synced: _Waiting = deque()
        self._wanted = asyncio.Event()
        self._syncing = asyncio.Lock()
        self._failed: OSError | None = None
        self._ended: StatusError | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sync."""
        self._task = supervised(self._run(), "flusher", self._on_failure)

    def attend(self, marks: Watermarks) -> None:
        """Wait for other replicas, too, from now on. Until then a master waits for its own device only.

        Args:
            marks: the watermarks, up to date; `advance` is called when they have changed.
        """
        assert self._marks is None, "it waits for the replicas of two terms"
        self._marks = marks
        self.advance()

    async def stop(self) -> None:
        """Sync once more and end."""
        await self.abandon()
        if self._failed is None:
            await self.sync()

    async def abandon(self) -> None:
        """End without another sync, for a broker that has failed or leads no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def depose(self, error: StatusError) -> None:
        """Fail all who wait for the replicas, also later ones: this broker leads no more."""
        self._ended = error
        for queue in (self._waiting, self._waiting_replicated, self._waiting_fully_synced):
            _fail_all(queue, error)

    async def durable(self, position: int | None = None) -> None:
        """Return when the records before `position` are as durable as the mode promises; they are readable then.

        Args:
            position: where they end; None for all that was appended up to now.

        Raises:
            StatusError: this broker leads no more, or its device refused (WriterStoppedError). Whether the records are
                at the next master, or here after a restart, is unknown.
        """
        self._check()
        if position is None:
            position = self._store.log.end_position
        if self._mode == "async":
            if self._marks is not None and self._marks.replicated_position < position:
                await self.replicated(position)
            self._store.commit(position)
        elif self._store.high_watermark < position:
            # With too few replicas the sync is left to the task, after which all waiters get the refusal.
            enough = self._marks is None or self._marks.enough
            if enough and self._sync_quickly() and self._store.high_watermark >= position:
                return
            self._wanted.set()
            await _wait(self._waiting, position)

    @property
    def is_alone(self) -> bool:
        """True if it has never waited for another replica."""
        return self._marks is None

    def is_replicated(self, position: int) -> bool:
        """Return whether the records before `position` outlive the process of this broker already.

        They do while it waits for no other replica.
        """
        return self._marks is None or self._marks.replicated_position >= position

    async def replicated(self, position: int | None = None) -> None:
        """Return when the records before `position` outlive the process of this broker. It is called, and raises, as
        `durable`.
        """
        self._check()
        if position is None:
            position = self._store.log.end_position
        if not self.is_replicated(position):
            await _wait(self._waiting_replicated, position)

    async def fully_synced(self, position: int) -> None:
        """Return when the records before `position` are on the device, and will never be cut off for another master's.

        Raises:
            OSError: the device refused.
            StatusError: this broker leads no more.
        """
        await self.sync()
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        if self._marks is not None and self._marks.fully_synced_position < position:
            await _wait(self._waiting_fully_synced, position)

    async def all_fully_synced(self) -> None:
        """Return when all that was appended up to now is `fully_synced`."""
        await self.fully_synced(self._store.log.end_position)

    def commit_later(self) -> None:
        """Confirm what was appended soon, without waiting for it."""
        if self._mode == "async":
            self._store.commit(self._store.log.end_position if self._marks is None else self._marks.replicated_position)
        else:
            self._wanted.set()

    async def sync(self) -> None:
        """Sync now and release those who waited for it. Raises OSError as `CommitLog.sync` does."""
        async with self._syncing:
            if self._failed is not None:
                raise self._failed.with_traceback(None)
            try:
                await self._store.log.sync()
            except OSError as error:
                self._fail(error)
                raise
            except asyncio.CancelledError:
                self._synced()  # the device finished, and there may be no later sync that would notice
                raise
        self._synced()

    def _sync_quickly(self) -> bool:
        """Sync at once if the device is quick, and release those who waited for it; return whether it was done.

        Raises:
            WriterStoppedError: the device refused.
        """
        if self._syncing.locked():
            return False
        try:
            if not self._store.log.sync_quickly():
                return False
        except OSError as error:
            self._fail(error)
            raise WriterStoppedError(str(error), outcome_unknown=True) from error
        self._synced()
        return True

    def _synced(self) -> None:
        synced = self._store.log.synced_position
        assert synced <= self._store.log.end_position, "more is synced than was appended"
        if self._marks is None:
            self._commit(synced)
        else:
            self._marks.synced(synced)
            self.advance()

    async def sync_refused(self, error: StatusError) -> None:
        """Make a rollback survive a power loss before the refusal is returned (S2).

        Args:
            error: the refusal.

        Raises:
            WriterStoppedError: the outcome is unknown.
        """
        if isinstance(error, WriterStoppedError):
            raise error
        try:
            await self.sync()
        except OSError as failure:
            raise WriterStoppedError(str(failure), outcome_unknown=True) from error

    def advance(self) -> None:
        """Release those who waited for the replicas, which have advanced."""
        marks = self._marks
        if marks is None or self._failed is not None or self._ended is not None:
            return
        if not marks.enough:
            _fail_all(self._waiting, _replicas_lost())
        self._commit(marks.replicated_position if self._mode == "async" else marks.high_watermark)
        _wake(self._waiting_replicated, marks.replicated_position)
        _wake(self._waiting_fully_synced, marks.fully_synced_position)

    def _commit(self, position: int) -> None:
        self._store.commit(position)
        if self._waiting:
            _wake(self._waiting, position)

    def _check(self) -> None:
        if self._failed is not None:
            raise WriterStoppedError(str(self._failed), outcome_unknown=True)
        if self._ended is not None:
            raise self._ended.with_traceback(None)

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
            if self._waiting and self._waiting[-1][0] > log.synced_position:
                self._wanted.set()

    def _fail(self, error: OSError) -> None:
        self._failed = error
        for queue in (self._waiting, self._waiting_replicated, self._waiting_fully_synced):
            _fail_all(queue, WriterStoppedError(str(error), outcome_unknown=True))
        _log.error("commit log can't be synced, the broker stops", error=str(error))
        self._on_failure(error)


async def _wait(queue: _Waiting, position: int) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.append((position, future))
    try:
        await future
    except asyncio.CancelledError:
        # Cancelled waiters are removed here, too: while the replicas do not advance, callers leave and retry for long.
        while queue and queue[-1][1].done():
            queue.pop()
        while queue and queue[0][1].done():
            queue.popleft()
        raise


def _wake(queue: _Waiting, position: int) -> None:
    while queue and queue[0][0] <= position:
        _, future = queue.popleft()
        if not future.done():
            future.set_result(None)


def _fail_all(queue: _Waiting, error: StatusError) -> None:
    while queue:
        _, future = queue.popleft()
        if not future.done():
            future.set_exception(error)


def _replicas_lost() -> StatusError:
    """Return the answer to a send that is written when replicas are lost that its acknowledgement needs."""
    return StatusError(
        Code.SLAVE_PERSISTENCE_TIMEOUT,
        "too few replicas of this broker are in sync now (broker.replication.min_in_sync_replicas); "
        "the message is written, but it may be lost with this master",
    )


def too_few_replicas() -> StatusError:
    """Return the refusal of a send while fewer replicas than `min_in_sync_replicas` are in sync."""
    return StatusError(
        Code.HA_NOT_AVAILABLE,
        "too few replicas of this broker are in sync (broker.replication.min_in_sync_replicas); "
        "send again when more are back",
    )
