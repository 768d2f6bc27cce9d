"""Periodic work of a term's leader: saves, releases, repairs of records, deletions."""

import asyncio

import structlog

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.delay.service import TimerService
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.flusher import Flusher
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pace import Pace

_log = structlog.get_logger()

_EVICTION_INTERVAL_S = 1.0
_STEPS = 10
_OLDEST_INTERVAL_S = 5.0
_OLDEST_RESTS = 50
"""Pause after a round, as a multiple of its length: with a million queues it must not take a core of its own."""
_LITE_INTERVAL_S = 1.0
_LITE_REST = 2
_LITE_RESTS = 10
"""Factor as above: a round over a million lite topics takes some ten seconds of work."""
_PROGRESS_INTERVAL_S = 3.0
_SAVE_POLL_INTERVAL_S = 1.0
_SAVE_TIME_INTERVAL_S = 60.0


class Upkeep:
    """Periodic work on the files and the core of one term. The leader runs the methods `..._often` as tasks.

    Args:
        context: of the replica.
        flusher: makes records durable.
        timer: woken for delayed messages that were repaired.
    """

    def __init__(self, context: BrokerContext, flusher: Flusher, timer: TimerService) -> None:
        self._files = context.files
        self._core = context.files.core
        self._flusher = flusher
        self._timer = timer
        self._options = context.options
        self._clock = context.clock
        self._repair = context.repair
        self._logged_damage: set[ConsumeQueue] = set()

    async def save(self) -> None:
        """Save the broker's progress. Raises OSError: the device refused; StatusError: it leads no more."""
        await self._files.save(self._flusher.all_fully_synced)

    async def save_often(self) -> None:
        """Save by time and by appended bytes."""
        saved_position = -1
        interval_s = self._options.checkpoint_interval_ms / 1000
        look_s = min(interval_s, _SAVE_POLL_INTERVAL_S)
        waited_s = 0.0
        while True:
            await asyncio.sleep(look_s)
            waited_s += look_s
            position = self._core.store.log.end_position
            much_is_new = position - max(saved_position, 0) >= self._options.checkpoint_bytes
            # Without new records, the checkpoint has the clock by which hidden messages are due after a restart.
            is_late = waited_s >= _SAVE_TIME_INTERVAL_S and len(self._core.state.table) > 0
            if position == saved_position and not is_late:
                continue
            if not (waited_s >= interval_s or much_is_new):
                continue
            waited_s = 0.0
            try:
                self._core.rewrite_lagging()
                await self.save()
                saved_position = position
            except (OSError, StatusError) as error:
                _log.error("the broker's progress could not be saved, trying again", error=str(error))

    async def record_progress_often(self) -> None:
        """Record where groups are that have passed messages without a delivery."""
        while True:
            await asyncio.sleep(_PROGRESS_INTERVAL_S)
            try:
                for _ in self._core.record_progress():
                    self._flusher.commit_later()
                    await asyncio.sleep(0)
            except StatusError as error:
                _log.error("the progress of groups could not be recorded, trying again", error=str(error))

    async def evict_often(self) -> None:
        """Free memory of what is done, and repair damaged records."""
        while True:
            await asyncio.sleep(_EVICTION_INTERVAL_S)
            try:
                for _ in range(_STEPS):
                    more = (self._evict(), self._core.lag.step())
                    if not any(more):
                        break
                    await asyncio.sleep(0)
                await self.mend()
            except OSError as error:
                _log.error("housekeeping failed, trying again", error=str(error))

    async def measure_oldest_often(self) -> None:
        """Measure the age of the oldest waiting messages."""
        oldest, reads, pace = self._core.oldest, self._core.store.reads, Pace(self._clock)
        rest_s = _OLDEST_INTERVAL_S
        while True:
            await asyncio.sleep(rest_s)
            busy_s = 0.0
            try:
                goes_on = True
                while goes_on:
                    began_s = self._clock.monotonic()
                    goes_on = await reads.run(lambda: oldest.step(self._clock.wall_ms()))
                    step_s = self._clock.monotonic() - began_s
                    busy_s += step_s
                    await pace.let_others(step_s)
            except OSError as error:
                _log.error("the oldest messages could not be read, trying again", error=str(error))
            rest_s = max(_OLDEST_INTERVAL_S, busy_s * _OLDEST_RESTS)

    async def end_lite_topics_often(self) -> None:
        """End expired lite topics, and remove idle clients."""
        core, reads, pace = self._core, self._core.store.reads, Pace(self._clock, _LITE_REST)
        idle_ms = self._options.lite.client_idle_ms
        rest_s = _LITE_INTERVAL_S
        while True:
            await asyncio.sleep(rest_s)
            goes_on = True
            while goes_on:
                began_s, now_ms = self._clock.monotonic(), self._clock.steady_ms()
                goes_on = core.lite.subscriptions.end_idle(now_ms - idle_ms, now_ms)
                await pace.let_others(self._clock.monotonic() - began_s)
            busy_s = 0.0
            ended = core.lite.ended
            try:
                is_through = False
                while not is_through:
                    began_s = self._clock.monotonic()
                    is_through = await reads.run(lambda: core.lite.step(self._careful_ms()))
                    step_s = self._clock.monotonic() - began_s
                    busy_s += step_s
                    await pace.let_others(step_s)
            except (OSError, StatusError) as error:
                _log.error("expired lite topics could not be ended, trying again", error=str(error))
            if core.lite.ended > ended:
                self._flusher.commit_later()
            rest_s = max(_LITE_INTERVAL_S, busy_s * _LITE_RESTS)

    def _careful_ms(self) -> int:
        """Return the earlier time of both clocks: a wall clock that is set forward expires nothing early."""
        return min(self._clock.wall_ms(), self._clock.steady_ms())

    def _evict(self) -> bool:
        more = self._core.state.merge_buffer.evict(self._core.pop_clock.now_ms())
        for queue, damage in self._core.pops.damaged.items():
            if queue not in self._logged_damage:
                self._logged_damage.add(queue)
                _log.error(
                    "a queue stands still at a damaged record", topic=queue.topic, queue=queue.queue_id, why=damage.why
                )
        return more

    async def mend(self) -> None:
        """Repair damaged records that calls have met from another replica, so that they are delivered (S7)."""
        log = self._core.store.log
        mended = {position for position in sorted(log.damaged) if await self._repair(position)}
        if mended:
            await self._core.store.reads.run(self._core.damage_mended)
            self._logged_damage.clear()
            self._timer.arrived()
        # Only now: after an error above it is repeated.
        left = {each for each in log.damaged - mended if log.start_position <= each < log.end_position}
        log.damaged.intersection_update(left)  # tried again: the replica that has it may have been away

    async def delete_expired_often(self) -> None:
        """Delete expired segments."""
        while True:
            await asyncio.sleep(self._options.retention.interval_ms / 1000)
            removed = 0
            try:
                await self._relocate()
                while await self._files.delete_expired():
                    removed += 1
                    await self._flusher.sync()
            except (OSError, CorruptDataError, StatusError) as error:
                _log.error("old segments could not be deleted, trying again", error=str(error))
            if removed:
                _log.info("old segments deleted", segments=removed, log_begins_at=self._core.store.log.start_position)

    async def _relocate(self) -> None:
        """Copy long-hidden messages out of expired segments, which the next checkpoint frees."""
        core, reads = self._core, self._core.store.reads
        waiting = await reads.run(core.expiry.to_relocate)
        while waiting:
            copied = await reads.run(lambda: core.relocation.copy(waiting, core.revive_topic))
            await self._flusher.durable()
            core.relocation.rewrite(copied)
            self._flusher.commit_later()
