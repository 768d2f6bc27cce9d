"""How far behind, in time."""

from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.replication.lag import PositionTimes


def test_reports_since_when_there_is_more() -> None:
    times = PositionTimes()
    assert times.behind_ms(0, 100, 5) == 0
    times.record(100, 1000)
    times.record(200, 1050)
    times.record(300, 1055)
    times.record(400, 1100)
    times.record(400, 1200)
    assert times.behind_ms(400, 400, 5000) == 0
    assert times.behind_ms(350, 400, 5000) == 3900
    assert times.behind_ms(250, 400, 5000) == 3945
    assert times.behind_ms(150, 400, 5000) == 3950
    assert times.behind_ms(50, 400, 5000) == 4000
    assert times.behind_ms(400, 450, 5000) == 3900, "at the most: it was not noted when 450 came"
    assert times.behind_ms(50, 400, 900) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=200), st.integers(0, 5000))
def test_is_right_to_twenty_milliseconds(steps: list[tuple[int, int]], position: int) -> None:
    times = PositionTimes()
    end, now_ms = 0, 1000
    truth: list[tuple[int, int]] = []
    for length, passed in [(1, 0), *steps]:
        end, now_ms = end + length, now_ms + passed
        times.record(end, now_ms)
        truth.append((end, now_ms))
    since = next((at for reached, at in truth if reached > position), None)
    said = times.behind_ms(position, end, now_ms)
    if since is None:
        assert said == 0
    else:
        assert now_ms - since - 20 <= said <= now_ms - since + 20


def test_what_is_long_ago_is_forgotten_by_halves() -> None:
    times = PositionTimes()
    for step in range(10_000):
        times.record(step + 1, 20 * step)
    assert times.behind_ms(9_000, 10_000, 200_000) == 200_000 - 20 * 9_000
    assert 1500 * 20 <= times.behind_ms(0, 10_000, 200_000) <= 3000 * 20
