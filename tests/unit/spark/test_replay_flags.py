"""How a replay keeps to its rate, and what it is told about delays."""

import click
import pytest

from popwheel_spark.jobs.replay import Delays, DelaysFlag, paced


def test_what_was_sent_is_never_far_ahead_of_the_rate() -> None:
    now_s = 0.0

    def wait(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    given = [now_s for _ in paced(iter(range(500)), 100.0, lambda: now_s, wait)]
    assert len(given) == 500
    assert all(number / 100 - 0.11 <= at_s <= number / 100 for number, at_s in enumerate(given))


def test_who_is_slower_than_the_rate_does_not_wait() -> None:
    clock = iter(range(0, 1_000, 10))

    def wait(_: float) -> None:
        raise AssertionError("waited")

    assert list(paced(iter("abc"), 1.0, lambda: float(next(clock)), wait)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "delays"),
    [
        ("none", Delays("none")),
        ("shift:1d", Delays("shift", shift_ms=86_400_000)),
        ("scale:0.5", Delays("scale", factor=0.5)),
    ],
)
def test_delays(text: str, delays: Delays) -> None:
    assert DelaysFlag().convert(text, None, None) == delays


@pytest.mark.parametrize("text", ["later", "shift", "shift:1", "scale:-1", "scale:", "none:1"])
def test_what_is_no_delay(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DelaysFlag().convert(text, None, None)
