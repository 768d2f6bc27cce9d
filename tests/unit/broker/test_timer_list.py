"""Delayed messages, listed some at a time: each page costs what it shows, and no pending message is left out."""

import pytest

from popwheel_broker.delay import overview
from popwheel_broker.delay.overview import PendingMessage, TimerPlace
from tests.unit.broker.timer_world import TOPIC, TimerWorld, timer_options

WITHIN_MS = 24 * 3_600_000


def listed(
    world: TimerWorld, topic: str = TOPIC, messages_max: int = 64, within_ms: int = WITHIN_MS
) -> list[PendingMessage]:
    """All of them, step by step."""
    found: list[PendingMessage] = []
    rest: TimerPlace | None = TimerPlace()
    while rest is not None:
        now_ms = world.clock.wall_ms()
        before = rest
        messages, rest = overview.pending_messages(
            *(world.timer, world.core.store, topic, now_ms, now_ms + within_ms, rest, messages_max)
        )
        assert len(messages) <= messages_max
        assert rest != before
        found += messages
    return found


def dues(world: TimerWorld, found: list[PendingMessage]) -> list[int]:
    return [each.delay.due_ms - world.begin_ms for each in found]


def ids(found: list[PendingMessage]) -> list[bytes]:
    return [bytes.fromhex(each.properties.message_id) for each in found]


def world_of_many(count: int = 60) -> TimerWorld:
    """Messages that are due within twelve seconds, several in each."""
    world = TimerWorld(timer_options(1 << 20, slots=4096, roll_window_ms=100_000))
    world.send_many(
        [b"%d" % number for number in range(count)], [1500 + number * 7919 % 12_000 for number in range(count)]
    )
    world.turn()
    return world


def test_all_come_once_in_the_order_of_their_seconds() -> None:
    world = world_of_many()
    everything = listed(world)
    assert sorted(ids(everything)) == sorted(b"%d" % number for number in range(60))
    seconds = [due_ms // 1000 for due_ms in dues(world, everything)]
    assert seconds == sorted(seconds)
    for messages_max in (1, 2, 7, 59, 60, 61):
        assert listed(world, messages_max=messages_max) == everything
    assert listed(world, topic="") == everything
    assert listed(world, topic="other") == []
    soon = listed(world, within_ms=5000)
    assert 0 < len(soon) < 60
    assert soon == [each for each in everything if each.delay.due_ms <= world.clock.wall_ms() + 5000]


def test_of_one_topic_of_several() -> None:
    world = world_of_many()
    world.add_topic("u")
    world.flush()
    world.send_many([b"u1", b"u2"], [2000, 9000], topic="u")
    world.turn()
    assert ids(listed(world, "u", messages_max=1)) == [b"u1", b"u2"]
    assert len(listed(world, "")) == 62
    assert {each.delay.topic for each in listed(world, "")} == {TOPIC, "u"}


def test_a_step_is_bounded_in_units_seconds_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of_many()
    everything = listed(world)

    def first() -> tuple[int, TimerPlace | None]:
        now_ms = world.clock.wall_ms()
        found, rest = overview.pending_messages(
            *(world.timer, world.core.store, TOPIC, now_ms, now_ms + WITHIN_MS, TimerPlace())
        )
        return len(found), rest

    monkeypatch.setattr(overview, "_CHAIN_READ", 2)
    monkeypatch.setattr(overview, "_UNITS_AT_ONCE", 6)
    count, rest = first()
    assert (count, rest) == (2, everything[1].place)
    assert listed(world) == everything
    assert listed(world, "other") == []
    monkeypatch.setattr(overview, "_BYTES_AT_ONCE", 1)
    assert first() == (1, everything[0].place)
    assert listed(world) == everything


def test_a_crowded_second_is_not_read_from_its_beginning_for_each_page(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimerWorld(timer_options(1 << 20, slots=4096, roll_window_ms=100_000, log_file_bytes=1 << 20))
    count = 3000
    for first in range(0, count, 500):
        world.send_many(
            [b"%d" % number for number in range(first, first + 500)], [5000 + number % 1000 for number in range(500)]
        )
    world.turn()
    read = 0
    plain = world.timer.state.log.read_chain

    def counted(position: int, chain: int) -> object:
        nonlocal read
        units = plain(position, chain)
        read += len(units[0])
        return units

    monkeypatch.setattr(world.timer.state.log, "read_chain", counted)
    assert len(listed(world, messages_max=50)) == count
    assert read <= count // 50 * (1 + overview._CHAIN_READ)


def test_what_was_recalled_or_has_fired_is_not_listed() -> None:
    world = world_of_many(3)
    position = world.send(b"x", 20_000)
    world.turn()
    assert b"x" in ids(listed(world))
    world.recall(position, b"x", 20_000)
    assert b"x" not in ids(listed(world))
    world.pass_to(15_000)
    assert listed(world) == []


def test_a_page_may_begin_in_a_second_that_is_over() -> None:
    world = world_of_many()
    everything = listed(world)
    now_ms = world.clock.wall_ms()
    _, rest = overview.pending_messages(
        *(world.timer, world.core.store, TOPIC, now_ms, now_ms + WITHIN_MS, TimerPlace(), 2)
    )
    assert rest is not None
    world.pass_to(6000)
    now_ms = world.clock.wall_ms()
    found, _ = overview.pending_messages(*(world.timer, world.core.store, TOPIC, now_ms, now_ms + WITHIN_MS, rest, 100))
    assert found == [each for each in everything if each.delay.due_ms > now_ms]


@pytest.mark.parametrize("unit_position", [52, 53, 10**12])
def test_a_place_of_another_replicas_timer_log_leaves_nothing_out(unit_position: int) -> None:
    """Timer logs differ, records of the commit log do not: those before the record come, wherever their units are."""
    world = TimerWorld(timer_options(1 << 20))
    world.send_many([b"%d" % number for number in range(10)], [5000] * 10)
    world.turn()
    everything = listed(world)
    now_ms = world.clock.wall_ms()
    place = everything[3].place._replace(unit_position=unit_position)
    found, rest = overview.pending_messages(
        *(world.timer, world.core.store, TOPIC, now_ms, now_ms + WITHIN_MS, place, 100)
    )
    assert (found, rest) == (everything[4:], None)


def test_what_rolls_is_listed_with_its_own_time_and_for_a_moment_twice() -> None:
    world = TimerWorld()
    world.send_many([b"far", b"near"], [10_000, 1500])
    world.turn()
    assert sorted(dues(world, listed(world, messages_max=1))) == [1500, 10_000]
    world.pass_to(4000)
    assert set(dues(world, listed(world))) == {10_000}
    world.pass_to(5000)
    assert dues(world, listed(world)) == [10_000]
