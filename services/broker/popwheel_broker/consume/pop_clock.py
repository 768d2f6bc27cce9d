"""The clock that hidden messages go by, which all masters of one log share though their own clocks differ."""

from typing import NamedTuple

from popwheel_common.clock import UNKNOWN_UPTIME, Clock, Uptime


class LogTime(NamedTuple):
    """Time that a `PopClock` showed once, as a checkpoint saves it.

    Args:
        ms: the time; 0 if the log had said nothing of it.
        uptime: of the machine that showed it.
    """

    ms: int = 0
    uptime: Uptime = UNKNOWN_UPTIME


class PopClock:
    """Milliseconds since 1970 as the log's first master had them, and from then on as the log's masters count them.

    Deliveries say in this time when they were made and when they are due. A master goes on where the log's records
    leave off; for a slave, time has passed since it was given the latest of them. So an hour by which clocks differ,
    or jump, brings nothing back before its time. A process that is started again knows by its machine's uptime how long
    it was away. When the machine itself was down and no other replica led, no time has passed: what is hidden comes
    later by as much, never earlier.

    Args:
        clock: only how fast it goes counts, and before the log says anything what it shows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted_ms = 0
        self._ahead_ms = 0
        self._is_told = False

    def note(self, time_ms: int, *, is_news: bool) -> None:
        """A record says that it has been as late as this; earlier times come again with copies of records.

        Args:
            time_ms: the time.
            is_news: whether the master has just given the record out: then it goes by that, however late it is here.
                Of a record that was read from the log, nobody knows how long ago that was.
        """
        if time_ms <= self._noted_ms:
            return
        self._noted_ms = time_ms
        if is_news or not self._is_told or time_ms > self.now_ms():
            self._ahead_ms = time_ms - self._clock.steady_ms()
            self._is_told = True

    def resume(self, saved: LogTime) -> None:
        """Go on from what an earlier process saw, or another machine."""
        if saved.ms:
            self._ahead_ms = saved.ms + self._clock.uptime().since(saved.uptime) - self._clock.steady_ms()
            self._is_told = True

    def now_ms(self) -> int:
        """The time."""
        return self._clock.steady_ms() + self._ahead_ms

    def saved(self) -> LogTime:
        """The time, for a later process to go on from."""
        return LogTime(self.now_ms(), self._clock.uptime())
