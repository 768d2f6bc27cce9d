"""Which segments may go: a table."""

import pytest

from popwheel_broker.log.retention import SegmentAge, delete_before

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
OLD = (1, 2, 3)
"""Hours at which three segments of 100 bytes had their newest record."""


@pytest.mark.parametrize(
    ("newest_hours", "hours", "disk_is_short", "needed_from", "expected"),
    [
        pytest.param((), 72, False, None, 0, id="nothing there"),
        pytest.param((), 72, True, None, 0, id="nothing there to free"),
        pytest.param((50, 60, 70), 72, False, None, 0, id="all young"),
        pytest.param((28, 60, 70), 72, False, None, 0, id="just not old enough"),
        pytest.param((27.9, 60, 70), 72, False, None, 100, id="one old"),
        pytest.param((1, 2, 70), 72, False, None, 200, id="two old"),
        pytest.param(OLD, 72, False, None, 300, id="all old"),
        pytest.param((1, 50, 2), 72, False, None, 100, id="an old one behind a young one waits"),
        pytest.param((50, 60, 70), 72, True, None, 100, id="short of disk: the oldest, and no more"),
        pytest.param(OLD, 72, True, None, 300, id="short of disk, all old"),
        pytest.param(OLD, 72, False, 0, 0, id="the first is needed"),
        pytest.param(OLD, 72, False, 99, 0, id="its last byte is needed"),
        pytest.param(OLD, 72, False, 100, 100, id="the second is needed"),
        pytest.param(OLD, 72, False, 250, 200, id="the third is needed"),
        pytest.param(OLD, 72, False, 300, 300, id="what is written now is needed"),
        pytest.param((50, 60, 70), 72, True, 50, 0, id="short of disk, but needed"),
        pytest.param((99, 99, 99.5), 0.75, False, None, 200, id="hours in parts"),
    ],
)
def test_what_may_go(
    newest_hours: tuple[float, ...], hours: float, disk_is_short: bool, needed_from: int | None, expected: int
) -> None:
    segments = [SegmentAge(100 * (number + 1), int(at * HOUR_MS)) for number, at in enumerate(newest_hours)]
    assert delete_before(segments, NOW_MS, hours, disk_is_short, needed_from) == expected


def test_a_clock_that_was_set_back_deletes_nothing() -> None:
    assert delete_before([SegmentAge(100, NOW_MS)], NOW_MS - 50 * HOUR_MS, 72, False, None) == 0
