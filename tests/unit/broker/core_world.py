"""Worlds around one broker's core with small segments, and what it tells Prometheus."""

from prometheus_client import CollectorRegistry, generate_latest

from popwheel_broker.calls.metrics import BrokerCollector, BrokerStatistics
from popwheel_broker.options import BrokerOptions, LogOptions, PopOptions
from tests.unit.broker.world import FOLDER, World


def world_of(seed: int = 0, *, max_attempts: int = 3, queues: int = 1, **pop: int) -> World:
    options = BrokerOptions(
        log=LogOptions(segment_bytes=4096, index_entries_max=16, queue_entries_in_memory=500),
        pop=PopOptions(**pop),
    )
    world = World(seed, options)
    world.add_topic("t", queues)
    world.add_group("g", max_attempts)
    return world


def world_of_segments(messages: int) -> World:
    """A topic with messages that fill several segments, saved."""
    world = World(0, BrokerOptions(log=LogOptions(segment_bytes=4096)))
    world.add_topic("t")
    world.add_group("g")
    for _ in range(messages):
        world.put("t", b"x" * 1000)
    world.save()
    return world


def metrics(world: World) -> str:
    registry = CollectorRegistry()
    BrokerCollector(
        registry,
        world.options,
        lambda: world.core,
        BrokerStatistics(),
        world.clock,
        lambda: 0,
        lambda: world.disk.usage(FOLDER),
    )
    return generate_latest(registry).decode()
