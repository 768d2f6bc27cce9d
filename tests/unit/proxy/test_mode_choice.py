"""When polls change the way they wait: by how many come, not to and fro, and never for more topics than are counted."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_proxy.receive.long_poll import Mode
from popwheel_proxy.receive.mode_choice import WINDOW_S, ModeChoice
from tests.unit.proxy.virtual import LoopClock, run
from tests.unit.proxy.world import poll_request, world

KEY = ("t", "g")


def adaptive(pinned: Mode | None = None, stay_s: float = 10.0, counted_max: int = 100) -> ModeChoice:
    return ModeChoice(pinned, 100, 50, stay_s, 0.0, counted_max)


def mode(subject: ModeChoice) -> Mode | None:
    return dict(subject.modes).get(KEY)


def poll(subject: ModeChoice, count: int) -> None:
    for _ in range(count):
        subject.count(*KEY)


def test_few_polls_are_notified_and_many_are_plain() -> None:
    subject = adaptive()
    for second in range(10):
        poll(subject, 99)
        assert subject.time_passed(second + 1.0) == []
    poll(subject, 200)
    (switch,) = subject.time_passed(11.0)
    assert switch[:3] == (*KEY, Mode.PLAIN)
    assert switch.per_s == pytest.approx((99 * 4 + 99 + 200 - 99) / 5, rel=0.3)
    assert subject.count(*KEY) is Mode.PLAIN


def test_a_number_between_the_two_bounds_changes_nothing() -> None:
    subject = adaptive(stay_s=0.0)
    poll(subject, 600)
    assert [switch.mode for switch in subject.time_passed(1.0)] == [Mode.PLAIN]
    for second in range(2, 40):
        poll(subject, 75)
        assert subject.time_passed(float(second)) == []
    assert mode(subject) is Mode.PLAIN


def test_a_mode_is_kept_for_a_while() -> None:
    subject = adaptive(stay_s=30.0)
    poll(subject, 600)
    assert subject.time_passed(1.0)
    assert not any(subject.time_passed(float(second)) for second in range(2, 31))
    assert [switch.mode for switch in subject.time_passed(31.0)] == [Mode.NOTIFY]


def test_what_is_not_polled_is_forgotten() -> None:
    subject = adaptive()
    poll(subject, 1)
    subject.time_passed(WINDOW_S)
    assert len(subject) == 1
    subject.time_passed(2 * WINDOW_S)
    assert len(subject) == 0


def test_a_long_pause_between_two_looks_does_no_harm() -> None:
    subject = adaptive(stay_s=0.0)
    poll(subject, 600)
    subject.time_passed(1.0)
    assert [switch.mode for switch in subject.time_passed(1000.0)] == [Mode.NOTIFY]


@pytest.mark.parametrize("pinned", Mode)
def test_a_pinned_mode_stays_whatever_comes(pinned: Mode) -> None:
    subject = adaptive(pinned)
    poll(subject, 10_000)
    assert subject.time_passed(1.0) == []
    assert subject.count(*KEY) is pinned
    assert subject.uncounted is pinned
    assert subject.patience_s == float("inf")


def test_no_more_are_counted_than_allowed() -> None:
    subject = adaptive(counted_max=2)
    assert [subject.count("t", str(number)) for number in range(3)] == [Mode.NOTIFY, Mode.NOTIFY, None]
    assert subject.count("t", "0") is Mode.NOTIFY
    assert len(subject) == 2


def test_the_count_of_all_proxies_counts_but_never_less_than_ones_own() -> None:
    subject = adaptive(stay_s=0.0)
    poll(subject, 5)
    subject.cluster({KEY: 120.0, ("other", "g"): 1e9})
    assert [switch.mode for switch in subject.time_passed(1.0)] == [Mode.PLAIN]
    subject.cluster({})
    assert [switch.mode for switch in subject.time_passed(2.0)] == [Mode.NOTIFY]
    poll(subject, 600)
    subject.cluster({KEY: 0.0})
    assert [switch.mode for switch in subject.time_passed(3.0)] == [Mode.PLAIN]


def test_others_are_notified_of_each_poll_once_and_of_the_busiest_first() -> None:
    subject = adaptive()
    poll(subject, 3)
    subject.count("t", "idle")
    assert subject.report(1) == {KEY: 3}
    assert subject.report(10) == {KEY: 0, ("t", "idle"): 1}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.floats(0.2, 3.0)), min_size=1, max_size=60),
    st.sampled_from((0.0, 4.0, 20.0)),
)
def test_it_follows_the_true_number(life: list[tuple[int, float]], stay_s: float) -> None:
    """Against the requests themselves: up only after many, down only after few, each for a while."""
    subject = adaptive(stay_s=stay_s)
    now, times, switched = 0.0, [], []
    for count, pause in life:
        poll(subject, count)
        times += [now] * count
        now += pause
        for switch in subject.time_passed(now):
            switched.append(now)
            # The window reaches one to two buckets back, of which one counts in part.
            lately = sum(at >= now - 2 * WINDOW_S for at in times)
            if switch.mode is Mode.PLAIN:
                assert lately >= 100 * WINDOW_S
            else:
                assert sum(at >= now - 0.01 for at in times) < 50 * WINDOW_S
    assert all(later - earlier >= stay_s for earlier, later in pairwise(switched))
    for extra in range(1, int(stay_s + 2 * WINDOW_S) + 2):
        subject.time_passed(now + extra)
    assert len(subject) == 0


def test_polls_of_what_is_not_counted_go_on_and_are_a_limit_hit() -> None:
    async def body() -> None:
        async with world(clock=LoopClock()) as w:
            w.app._mode_choice._counted_max = 0
            await w.receive(poll_request(wait_s=0))
            assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "counted_polls_max"}) == 1
            assert w.metric("popwheel_proxy_counted_polls") == 0

    run(body())


def test_the_mode_of_a_deleted_topic_is_not_shown() -> None:
    labels = {"topic": "orders", "consumer_group": "group", "mode": "notify"}

    async def body() -> None:
        async with world(clock=LoopClock()) as w:
            await w.receive(poll_request(wait_s=0))
            assert w.metric("popwheel_proxy_poll_mode", labels) == 1
            w.controller.delete_topic("orders")
            await w.receive(poll_request(wait_s=0))
            assert w.registry.get_sample_value("popwheel_proxy_poll_mode", labels) is None

    run(body())
