"""The machine's clock, of which a test can move the monotonic time on."""

from popwheel_common.clock import SystemClock, Uptime


class ShiftedClock:
    """A clock whose monotonic time is ahead by `shift_s`."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.shift_s = 0.0

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def steady_ms(self) -> int:
        return self._clock.steady_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.shift_s

    def uptime(self) -> Uptime:
        return self._clock.uptime()
