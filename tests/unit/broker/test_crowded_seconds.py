"""No topic takes a whole second from the others."""

import pytest

from popwheel_broker.delay.intake import CrowdedSeconds
from popwheel_common.errors import StatusError
from tests.unit.broker.timer_world import TOPIC, TimerWorld, timer_options


def taken_by(seconds: CrowdedSeconds, topic: str, second: int, due: int) -> int:
    """Messages that a topic brings into a second, by those that are due in it."""
    begin = due
    while seconds.has_room(topic, second, due, 0):
        seconds.take(topic, second, due)
        due += 1
    return due - begin


def test_half_is_anybodys_and_the_rest_is_shared() -> None:
    seconds = CrowdedSeconds(1000)
    first = taken_by(seconds, "a", 7, 0)
    assert first == 750
    second = taken_by(seconds, "b", 7, first)
    assert second == 125
    assert taken_by(seconds, "a", 7, first + second) == 0
    assert taken_by(seconds, "a", 8, 0) == 750


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_the_limit_is_reached_and_never_passed(limit: int) -> None:
    seconds = CrowdedSeconds(limit)
    due = 0
    for topic in range(2 * limit):
        due += taken_by(seconds, f"t{topic}", 7, due)
    assert due == limit


def test_what_one_run_takes_counts() -> None:
    seconds = CrowdedSeconds(1000)
    for due in range(750):
        assert seconds.has_room("a", 7, due, due)
    assert not seconds.has_room("a", 7, 750, 750)


def test_no_more_than_a_thousand_seconds_are_remembered() -> None:
    seconds = CrowdedSeconds(2)
    for second in range(1001):
        assert taken_by(seconds, "a", second, 1) == 1
    assert taken_by(seconds, "a", 1, 1) == 0
    assert taken_by(seconds, "a", 0, 1) == 1


def test_senders_of_other_topics_find_room_in_a_second() -> None:
    world = TimerWorld(timer_options(timers_per_slot_max=8))
    world.add_topic("other")
    for number in range(6):
        world.send(b"%d" % number, 5_000 + number)
    with pytest.raises(StatusError, match=f"the topic {TOPIC} has its share of them"):
        world.send(b"6", 5_000)
    world.send(b"a", 5_000, topic="other")
