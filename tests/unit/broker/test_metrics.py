"""What the broker shows by topic and group, when these are deleted."""

import asyncio

from popwheel_common.contract import names
from popwheel_common.exposition import PLAIN
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic
from popwheel_common.series import OTHER, SERIES_MAX
from popwheel_common.web.metrics_page import MetricsPage
from popwheel_rpc import methods
from tests.unit.broker.served_broker import Broker, running


def named(broker: Broker, label: str) -> set[str]:
    """Metrics with a series of this label, `topic="t"`."""
    return {line.partition("{")[0] for line in broker.metrics().splitlines() if label in line}


async def use(broker: Broker) -> None:
    """Put four messages, and have one of each kind: acked, dead, delivered, waiting."""
    for number in range(4):
        await broker.put(b"%d" % number)
    acked, dead, _ = await broker.pop(3)
    await broker.ack(acked)
    await broker.channel.call(methods.DEAD_LETTER, pb.DeadLetterRequest(group="g", topic="t", receipt_handle=dead))


async def publish(broker: Broker, update: ClusterUpdate) -> None:
    broker.controller.updates.put_nowait(update)
    while broker.app.view.version < update.version:
        await asyncio.sleep(0)
    await asyncio.sleep(0)


TRAFFIC = {"rocketmq_messages_out_total", "rocketmq_throughput_out_total"}
STATE = {
    *("rocketmq_consumer_ready_messages", "rocketmq_consumer_inflight_messages", "rocketmq_consumer_lag_messages"),
}


async def test_no_series_of_a_deleted_topic_is_shown() -> None:
    async with running() as broker:
        await use(broker)
        assert named(broker, 'topic="t"') == {
            *TRAFFIC,
            *STATE,
            *("rocketmq_messages_in_total", "rocketmq_throughput_in_total"),
            *("popwheel_topic_messages_out_total", "popwheel_topic_lag_messages"),
        }
        await publish(broker, ClusterUpdate(version=2, deleted_topics=["t"]))
        assert named(broker, 'topic="t"') == set()


async def test_no_series_of_a_deleted_group_is_shown() -> None:
    async with running() as broker:
        await use(broker)
        assert named(broker, 'consumer_group="g"') == {*TRAFFIC, *STATE, "rocketmq_send_to_dlq_messages_total"}
        await publish(broker, ClusterUpdate(version=2, deleted_groups=["g"]))
        assert named(broker, 'consumer_group="g"') == set()
        assert "rocketmq_messages_in_total" in named(broker, 'topic="t"')


async def test_a_count_of_a_group_does_not_go_down_with_a_topic() -> None:
    """Prometheus would take it for a restart, and count all that is left once more."""

    async def shown(broker: Broker) -> list[str]:
        text = await MetricsPage(broker.registry).text(PLAIN, pairs=False)
        return [line for line in text.decode().splitlines() if line.startswith("rocketmq_messages_out_total")]

    async with running() as broker:
        await use(broker)
        before = await shown(broker)
        assert before == ['rocketmq_messages_out_total{consumer_group="g"} 3.0']
        await publish(broker, ClusterUpdate(version=2, deleted_topics=["t"]))
        assert await shown(broker) == before


async def test_a_topic_that_is_made_again_begins_anew() -> None:
    async with running() as broker:
        await use(broker)
        await publish(broker, ClusterUpdate(version=2, deleted_topics=["t"]))
        await publish(broker, ClusterUpdate(version=3, topics=[Topic(name="t", queues=2, id=3)]))
        await broker.put(b"new")
        assert 'rocketmq_messages_in_total{topic="t"} 1.0' in broker.metrics()


async def test_what_a_call_counts_after_the_deletion_is_not_shown() -> None:
    async with running() as broker:
        await publish(broker, ClusterUpdate(version=2, groups=[Group(name="h", id=2)]))
        await publish(broker, ClusterUpdate(version=3, deleted_groups=["h"]))
        broker.app.statistics.delivered.row("t", "h").messages += 1
        broker.app.statistics.stored.row("never heard of").messages += 1
        assert named(broker, 'consumer_group="h"') == named(broker, 'topic="never heard of"') == set()


async def test_made_up_names_make_no_more_series_than_allowed() -> None:
    async with running() as broker:
        for number in range(SERIES_MAX + 5):
            broker.app.statistics.delivered.row("t", f"group-{number}").messages += 1
        assert len(broker.app.statistics.delivered) == SERIES_MAX + 1
        others = f'rocketmq_messages_out_total{{consumer_group="{OTHER}",topic="{OTHER}"}} 5.0'
        assert others in broker.metrics()


async def test_retry_and_dead_letter_topics_are_known_with_what_they_are_made_of() -> None:
    async with running() as broker:
        core = broker.app.core
        made_of_them = (names.retry_topic("g", "t"), names.dead_letter_topic("g"))
        assert all(map(core.topic_registry.knows_topic, made_of_them))
        others = (names.retry_topic("g", "x"), names.retry_topic("x", "t"), names.dead_letter_topic("x"))
        assert not any(map(core.topic_registry.knows_topic, (*others, names.RETRY_PREFIX, "x")))
        await publish(broker, ClusterUpdate(version=2, deleted_groups=["g"]))
        assert not any(map(core.topic_registry.knows_topic, made_of_them))
