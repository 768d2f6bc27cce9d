"""Lag in time: how old the oldest message is that waits, or that is not acknowledged."""

import asyncio
import re

import pytest

from popwheel_broker.consume import oldest_messages
from popwheel_broker.consume.oldest_messages import Ages
from popwheel_common.contract import names
from popwheel_common.series import Labels
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.served_broker import Broker, running
from tests.unit.broker.test_cold_calls import popped, serve, stored
from tests.unit.broker.world import INVISIBLE_MS, World, handles


def found(world: World) -> dict[Labels, Ages]:
    while world.core.oldest.step(world.clock.wall_ms()):
        pass
    return dict(world.core.oldest.found)


def put_one_a_second(world: World, count: int, topic: str = "t", queue_id: int = 0) -> None:
    """The last one is a second old then."""
    for number in range(count):
        world.put(topic, b"%d" % number, queue_id=queue_id)
        world.clock.advance(1000)


def test_a_group_that_has_read_nothing_lags_behind_nothing() -> None:
    world = world_of()
    put_one_a_second(world, 1)
    assert found(world) == {}


def test_what_waits_and_what_is_delivered_both_count_until_they_are_acknowledged() -> None:
    world = world_of()
    put_one_a_second(world, 3)
    (taken,) = handles(world.pop("g", "t", 1))
    assert found(world) == {("g", "t"): Ages(2000, 3000)}
    world.ack("g", "t", taken)
    assert found(world) == {("g", "t"): Ages(2000, 2000)}
    rest = handles(world.pop("g", "t"))
    assert found(world) == {("g", "t"): Ages(None, 2000)}
    world.ack("g", "t", rest[0])
    assert found(world) == {("g", "t"): Ages(None, 2000)}, "a delivery is looked at as a whole"
    world.ack("g", "t", rest[1])
    assert found(world) == {}


def test_it_is_the_oldest_of_all_queues() -> None:
    world = world_of(queues=3)
    for number in (2, 0, 1):
        put_one_a_second(world, 2, queue_id=number)
    for number in range(3):
        assert len(world.pop("g", "t", 1, queue_id=number)) == 1
    assert found(world)["g", "t"] == Ages(5000, 6000)


def test_what_comes_again_counts_from_its_place_in_the_retry_topic() -> None:
    world = world_of()
    put_one_a_second(world, 1)
    world.pop("g", "t")
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 1
    world.flush()
    world.clock.advance(1000)
    retry = names.retry_topic("g", "t")
    assert found(world) == {("g", retry): Ages(1000, 1000)}
    world.pop("g", "t")
    assert found(world) == {("g", "t"): Ages(None, 1000)}


def test_topics_without_a_queue_are_steps_of_a_round() -> None:
    world = world_of()
    world.core.topic_registry.readers.record({f"g{number}": ["empty"] for number in range(1000)})
    put_one_a_second(world, 1)
    world.pop("g", "t", 1)
    steps = 1
    while world.core.oldest.step(world.clock.wall_ms()):
        steps += 1
    assert steps > 3 * 1000 // 200, "a group, its topic and its end"
    assert found(world) == {("g", "t"): Ages(None, 1000)}


def test_a_round_in_many_steps_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(queues=3)
    for number in range(3):
        put_one_a_second(world, 2, queue_id=number)
        world.pop("g", "t", 1, queue_id=number)
    at_once = found(world)
    monkeypatch.setattr(oldest_messages, "_AT_ONCE", 1)
    steps = 1
    while world.core.oldest.step(world.clock.wall_ms()):
        steps += 1
        assert world.core.oldest.found == at_once, "the last round is shown until this one is over"
    assert steps > 6 and world.core.oldest.found == at_once


def test_the_oldest_are_shown_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oldest_messages, "SERIES_MAX", 2)
    world = world_of()
    for name in ("first", "second", "third"):
        world.add_topic(name)
        put_one_a_second(world, 2, name)
    for name in ("third", "second", "first"):
        world.pop("g", name, 1)
    assert found(world).keys() == {("g", "first"), ("g", "second")}


def test_ages_are_shown_and_not_of_what_was_deleted() -> None:
    world = world_of()
    put_one_a_second(world, 2)
    world.pop("g", "t", 1)
    world.clock.advance(500)
    found(world)
    shown = metrics(world)
    assert 'rocketmq_consumer_lag_latency{consumer_group="g",topic="t"} 2500.0' in shown
    assert 'rocketmq_consumer_queueing_latency{consumer_group="g",topic="t"} 1500.0' in shown
    world.delete_topic("t")
    assert 'latency{consumer_group="g"' not in metrics(world)


def test_a_message_that_was_delivered_first_is_counted_by_how_long_it_waited() -> None:
    world = world_of()
    put_one_a_second(world, 3)
    world.pop("g", "t")
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    assert len(world.pop("g", "t")) == 3, "again, which is not counted"
    shown = metrics(world)
    assert "popwheel_pop_queueing_seconds_count 3.0" in shown
    assert "popwheel_pop_queueing_seconds_sum 6.0" in shown
    assert 'popwheel_pop_queueing_seconds_bucket{le="1"} 1.0' in shown


def test_nothing_is_read_on_the_loop_for_it() -> None:
    async def work(broker: Broker) -> None:
        await stored(broker, 3)
        await popped(broker, 1)
        broker.clock.advance(500)
        await asyncio.sleep(6)
        age = re.search(r'rocketmq_consumer_lag_latency{consumer_group="g",topic="t"} (.*)', broker.metrics())
        assert age is not None and float(age[1]) > 3000

    serve(work)


async def test_a_broker_that_leads_no_more_shows_none() -> None:
    async with running() as broker:
        await broker.put(b"1")
        await broker.pop()
        core, leading = broker.app.core, broker.app.role.leader
        assert leading is not None and not core.oldest.step(broker.clock.wall_ms()) and core.oldest.found
        await leading.depose()
        assert not core.oldest.found
