"""The clock for hidden messages, which all masters of one log share though their own clocks differ."""

from typing import NamedTuple

from popwheel_common.clock import UNKNOWN_UPTIME, Clock, Uptime


class LogTime(NamedTuple):
    """Time that a `PopClock` showed once, as a checkpoint saves it.

    Args:
        ms: the time; 0 if the log had no time yet.
        uptime: of the machine that showed it.
    """

    ms: int = 0
    uptime: Uptime = UNKNOWN_UPTIME


class PopClock:
    """Milliseconds since 1970 as the log's first master had them, and from then on as the log's masters count them.

    Deliveries have in this time when they were made and when they are due. A master continues from the time of the
    log's last records; on a slave, time has passed since it received the latest of them. So an hour by which clocks
    differ, or jump, makes no message visible before its time. A restarted process knows by its machine's uptime how
    long it was away. When the machine itself was down and no other replica led, no time has passed: hidden messages
    become visible later by as much, never earlier.

    Args:
        clock: only its pace counts, and its time before the log has any.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recorded_ms = 0
        self._ahead_ms = 0
        self._is_set = False

    def record(self, time_ms: int, *, is_news: bool) -> None:
        """Record the time of a record; earlier times occur again with copies of records.

        Args:
            time_ms: the time.
            is_news: whether the master has just sent the record: then its time is now, however late it is here. How
                long ago a record was written that was read from the log is unknown.
        """
        if time_ms <= self._recorded_ms:
            return
        self._recorded_ms = time_ms
        if is_news or not self._is_set or time_ms > self.now_ms():
            self._ahead_ms = time_ms - self._clock.steady_ms()
            self._is_set = True

    def resume(self, saved: LogTime) -> None:
        """Continue from the time of an earlier process, or another machine."""
        if saved.ms:
            self._ahead_ms = saved.ms + self._clock.uptime().since(saved.uptime) - self._clock.steady_ms()
            self._is_set = True

    def now_ms(self) -> int:
        """Return the time."""
        return self._clock.steady_ms() + self._ahead_ms

    def saved(self) -> LogTime:
        """Return the time, for a later process to continue from."""
        return LogTime(self.now_ms(), self._clock.uptime())
