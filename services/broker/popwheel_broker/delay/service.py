"""Waits for the timer: fires at the millisecond, saves every second (TimerFlushService), deletes finished files.

On a slave it does the same, but for firing: `arrived` notifies it of recorded messages. It is stopped before the timer
finishes following, and started again when the cluster's changes are applied.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from popwheel_broker.delay import timer_checkpoint
from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.delay.timer_state import TimerLogDamagedError
from popwheel_broker.log.fault import RecordFaultError
from popwheel_common.clock import Clock
from popwheel_common.disk import Disk, File, replace_file, to_its_end
from popwheel_common.errors import StatusError
from popwheel_common.pace import Pace
from popwheel_common.supervision import supervised

_log = structlog.get_logger()

_TRY_AGAIN_S = 1.0
_LONGEST_WAIT_S = 1.0
"""The wall clock may be set while the loop's own clock is waited on; T1 and T3 then hold to this bound."""
_SHORTEST_WAIT_S = 0.0005
_FIRED_AT_ONCE = 32
_WHEEL_NAME = "timerwheel"
_LOG_FOLDER = "timerlog"


class TimerService:
    """Runs the timer of a broker.

    Args:
        timer: the timer.
        disk: where its files are.
        clock: the time.
        sync: returns when the commit log is on the device, and its content will not be cut off any more. A StatusError
            says that this broker leads no more.
        commit_later: makes appended records readable.
        on_failure: called if it can't continue.
    """

    def __init__(
        self,
        timer: MessageTimer,
        disk: Disk,
        clock: Clock,
        sync: Callable[[], Awaitable[None]],
        commit_later: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._timer = timer
        self._disk = disk
        self._clock = clock
        self._pace = Pace(clock)
        self._flush_interval_s = timer.options.flush_interval_ms / 1000
        self._clean_interval_s = timer.options.clean_interval_ms / 1000
        self._sync = sync
        self._commit_later = commit_later
        self._on_failure = on_failure
        self._log_failed: OSError | None = None
        self._arrived = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.failing: str | None = None

    def start(self) -> None:
        """Begin to fire and to save, if not begun yet."""
        if self._tasks:
            return
        self._tasks = [
            supervised(self._run(), "timer", self._on_failure),
            supervised(self._save_often(), "timer-flush", self._on_failure),
            supervised(self._clean_often(), "timer-clean", self._on_failure),
        ]

    async def stop(self) -> None:
        """End; unsaved progress is rebuilt from the commit log."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            self._tasks = []  # also when this was cancelled: that, too, is raised when all have ended

    def arrived(self) -> None:
        """Wake up: there are new records in the timer queue."""
        self._arrived.set()

    async def _run(self) -> None:
        fired_at_once = _FIRED_AT_ONCE
        while True:
            self._arrived.clear()
            began_s = self._clock.monotonic()
            try:
                step = await self._disk.reads.run(partial(self._timer.step, fired_at_once))
            except TimerLogDamagedError as error:
                self._fails(f"{error}; the broker ends, and rebuilds the timer log as it starts")
                self._timer.distrust()
                self._on_failure(error)
                return
            if step.appended:
                self._commit_later()
            if step.refusal is not None:
                self._fails(step.refusal)
            elif self.failing is not None and step.appended:
                _log.info("the timer continues")
                self.failing = None
            if step.busy:
                took_s = self._clock.monotonic() - began_s  # a wait for the device left the time to others
                # Where a turn of the loop is long, a step may be longer, too: else it fires less than its share.
                fired_at_once = _FIRED_AT_ONCE if await self._pace.let_others(took_s) else 2 * _FIRED_AT_ONCE
                continue
            await self._wait(_TRY_AGAIN_S if step.refusal is not None else self._until_next_s())

    def _until_next_s(self) -> float | None:
        """Return how long there is nothing to do; None: until something arrives."""
        next_ms = self._timer.next_time_ms()
        if next_ms is None:
            return None
        return min(_LONGEST_WAIT_S, max(_SHORTEST_WAIT_S, (next_ms - self._clock.wall_ms()) / 1000))

    async def _wait(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._arrived.wait()
        except TimeoutError:
            return

    def _fails(self, reason: str) -> None:
        if self.failing is None:
            _log.error("delayed messages cannot be fired, trying again", why=reason)
        self.failing = reason

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(self._flush_interval_s)
            try:
                await self.save_when_due()
            except OSError as error:
                _log.error("the timer's progress could not be saved, trying again", error=str(error))
            except StatusError as refusal:
                _log.info("the timer's progress is not saved any more", why=refusal.message)
                return

    async def save_when_due(self) -> None:
        """Save, unless recalls that fail are to be tried again only later. Raises as `save`."""
        if not self._timer.recalls_wait():
            await self.save()

    async def save(self) -> None:
        """Write timer log, wheel and checkpoint to the device, if anything has changed, in an order that is valid after
        a crash at any point: units before slots that lead to them, firings before the time that covers them.

        Raises:
            OSError: the device refused; for good, if the timer log could not be synced.
            StatusError: this broker leads no more.
        """
        if self._log_failed is not None:
            raise self._log_failed.with_traceback(None)
        timer = self._timer
        if not timer.has_begun:
            return
        state = timer.state
        try:
            if timer.append_anew():
                self._commit_later()
                self.arrived()
        except (RecordFaultError, StatusError) as error:
            _log.error("the timer's progress waits for recalls that can't be appended, trying again", why=str(error))
            return
        snapshot = timer.snapshot()
        if snapshot == timer.saved:
            return
        await to_its_end(self._sync_log(state.log.write()))
        if state.log.names_changed:
            state.log.names_changed = synced = False
            try:
                await self._disk.sync_folder(timer.folder / _LOG_FOLDER)
                synced = True
            finally:
                state.log.names_changed |= not synced  # also when this was cancelled
        state.log.synced(snapshot.last_timer_log_flush_position)
        await self._sync()
        wheel = self._disk.open(timer.folder / _WHEEL_NAME)
        try:
            state.wheel.write(wheel)
            await to_its_end(wheel.sync())
        finally:
            wheel.close()
        await replace_file(self._disk, timer.path_of_checkpoint(), timer_checkpoint.encode(snapshot))
        timer.saved = snapshot

    async def _sync_log(self, files: Sequence[File]) -> None:
        try:
            for file in files:
                await file.sync()
        except OSError as error:
            # The content of the device is unknown now, whatever a later sync returns: no checkpoint may count on it.
            # The next process rebuilds it from the valid end in the last checkpoint.
            self._log_failed = error
            self._on_failure(error)
            raise

    async def _clean_often(self) -> None:
        while True:
            await asyncio.sleep(self._clean_interval_s)
            try:
                removed = self._timer.clean()
            except OSError as error:
                _log.error("files of the timer log could not be deleted, trying again", error=str(error))
            else:
                if removed:
                    _log.info("files of the timer log deleted", files=removed)
