"""Redelivery of messages at the millisecond they are due: RocketMQ's PopReviveService, without its tick."""

import asyncio
from collections.abc import Callable

import structlog

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.core.core import BrokerCore
from popwheel_common.clock import Clock
from popwheel_common.cold_reads import NotInMemory
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pace import STEP_S, Pace
from popwheel_common.supervision import supervised

_log = structlog.get_logger()

_MESSAGES_AT_ONCE = 64
"""Messages of one step, besides the rest of the last delivery: some 2 ms of work, during which clocks stand still."""
_REST = 2
"""Pause between two steps, as a multiple of a step. With 1, each send that waits for the device met several steps: its
p99 was 8 to 25 ms, and is 5 ms with 2 (`revive-burst --flush sync`).
"""
_TRY_AGAIN_MS = 1000
_NEVER_MS = 1 << 62
_COMMITTED_POLL_S = 0.005


class Reviver:
    """Waits for the next due time and redelivers what is due.

    Args:
        core: the core with the open deliveries.
        clock: measures the steps.
        waiting_bytes_max: limit of appended bytes that are not readable yet; at the limit it waits.
        commit_later: commits what was appended.
        on_failure: called with an error that stops it.
    """

    def __init__(
        self,
        core: BrokerCore,
        clock: Clock,
        waiting_bytes_max: int,
        commit_later: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._core = core
        self._pop_clock = core.pop_clock
        self._clock = clock
        self._pace = Pace(clock, _REST)
        self._waiting_bytes_max = waiting_bytes_max
        self._appended_bytes = self._appended_end = 0
        self._commit_later = commit_later
        self._on_failure = on_failure
        self._changed = asyncio.Event()
        self._wake_at_ms = _NEVER_MS
        self._task: asyncio.Task[None] | None = None
        self.redelivered = 0
        self.failing_since_ms: int | None = None

    def start(self) -> None:
        """Start to redeliver."""
        self._task = supervised(self._run(), "reviver", self._on_failure)

    async def stop(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def due_changed(self) -> None:
        """Wake up if a delivery is due earlier than the next one before."""
        due_ms = self._core.state.table.next_due_ms()
        if due_ms is not None and due_ms < self._wake_at_ms:
            self._changed.set()

    async def _run(self) -> None:
        table = self._core.state.table
        while True:
            if self._is_ahead():
                await asyncio.sleep(_COMMITTED_POLL_S)
                continue
            began_s = self._clock.monotonic()
            if await self._core.store.reads.run(self._step):
                self._commit_later()
                await self._pace.let_others(self._clock.monotonic() - began_s)
                continue
            next_due_ms = table.next_due_ms()
            self._changed.clear()
            self._wake_at_ms = _NEVER_MS if next_due_ms is None else next_due_ms
            wait_s = None if next_due_ms is None else max(0.0005, (next_due_ms - self._pop_clock.now_ms()) / 1000)
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _is_ahead(self) -> bool:
        """Return whether the limit of unreadable bytes is reached. The rest of the broker's limit is for sends."""
        if self._appended_bytes < self._waiting_bytes_max:
            return False
        if self._core.store.high_watermark < self._appended_end:
            return True
        self._appended_bytes = 0
        return False

    def _step(self) -> int:
        """Redeliver some of what is due; return how many messages."""
        log = self._core.store.log
        begin = log.end_position
        try:
            return self._redeliver_some()
        finally:
            self._appended_end = log.end_position
            self._appended_bytes += self._appended_end - begin

    def _redeliver_some(self) -> int:
        table = self._core.state.table
        until_s = self._clock.monotonic() + STEP_S
        done = 0
        while done < _MESSAGES_AT_ONCE and (done == 0 or self._clock.monotonic() < until_s):
            now_ms = self._pop_clock.now_ms()
            due = table.take_due(now_ms, 1)
            if not due:
                break
            for delivery, indexes in due:
                try:
                    self._redeliver(delivery, indexes)
                except NotInMemory:
                    # Its due time is unchanged, so the next step begins with it, and with what was read for it
                    # meanwhile.
                    table.postpone(delivery, min(map(delivery.due_of, indexes)))
                    if done:
                        return done
                    raise
                done += len(indexes)
        return done

    def _redeliver(self, delivery: Delivery, indexes: list[int]) -> None:
        """Redeliver messages of a delivery: together, and one by one if one of them fails."""
        try:
            self._core.acks.redeliver([(delivery, index) for index in indexes], attempted=True)
        except (StatusError, OSError, CorruptDataError):
            self._redeliver_messages(delivery, indexes)
        else:
            self.redelivered += len(indexes)
            self.failing_since_ms = None

    def _redeliver_messages(self, delivery: Delivery, indexes: list[int]) -> None:
        for index in indexes:
            try:
                self._core.acks.redeliver([(delivery, index)], attempted=True)
            except (StatusError, OSError, CorruptDataError) as error:
                now_ms = self._pop_clock.now_ms()
                if self.failing_since_ms is None:
                    self.failing_since_ms = now_ms
                    _log.error(
                        "a message that is due cannot be redelivered, trying again",
                        group=delivery.group,
                        topic=delivery.topic,
                        queue=delivery.queue_id,
                        offset=delivery.offsets[index],
                        error=str(error),
                    )
                self._core.state.table.postpone(delivery, now_ms + _TRY_AGAIN_MS)
            else:
                self.redelivered += 1
                self.failing_since_ms = None
