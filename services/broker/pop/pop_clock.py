"""The clock that hidden messages go by, which all masters of one log share though their own clocks differ."""

from services.common.clock import Clock


class PopClock:
    """Milliseconds since 1970 as the log's first master had them, and from then on as the log's masters count them.

    Check points say in this time when they were made and when they are due. A master goes on where the log's records
    leave off; for a slave, time has passed since it was given the latest of them. So an hour by which clocks differ,
    or jump, brings nothing back before its time. While no process of the log runs no time passes: what is hidden stays
    so for as long as it was to be, and for longer than by the wall by the time that all were down.

    Args:
        clock: only how fast it goes counts, and before the log says anything what it shows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted_ms = 0
        self._ahead_ms = 0

    def note(self, time_ms: int) -> None:
        """The log says that it has been as late as this; earlier times come again with copies of records."""
        if time_ms > self._noted_ms:
            self._noted_ms = time_ms
            self._ahead_ms = time_ms - self._clock.steady_ms()

    def now_ms(self) -> int:
        """The time."""
        return self._clock.steady_ms() + self._ahead_ms
