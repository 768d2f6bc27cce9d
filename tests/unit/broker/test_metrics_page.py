"""The page of metrics of a broker with very many pairs of a topic and a group: made in steps, and few series."""

import asyncio

import httpx

from popwheel_common.http import make_http_app
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic
from tests.harness.collector import collector_of_servers
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.broker.served_broker import Broker, running

TOPICS, GROUPS = 500, 20
PAIRS = TOPICS * GROUPS


async def use_all(broker: Broker) -> None:
    """Make every group take two messages of every topic, and keep them."""
    topics, groups = [f"topic-{number}" for number in range(TOPICS)], [f"group-{number}" for number in range(GROUPS)]
    update = ClusterUpdate(
        version=2,
        topics=[Topic(name=name, queues=2, id=2) for name in topics],
        groups=[Group(name=name, max_attempts=2, id=2) for name in groups],
    )
    broker.controller.updates.put_nowait(update)
    while broker.app.view.version < update.version:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    statistics, table = broker.app.statistics, broker.app.core.state.table
    for topic in topics:
        statistics.delivered_of_topic.row(topic).messages += 2 * GROUPS
        table.in_flight_of_topic[topic] = 2 * GROUPS
        for group in groups:
            statistics.delivered.row(topic, group).messages += 2
            table.in_flight[group, topic] = 2
    for group in groups:
        statistics.delivered_to_group.row(group).messages += 2 * TOPICS
        table.shares.take(group, 2 * TOPICS)


def http_of(broker: Broker) -> httpx.AsyncClient:
    app = make_http_app("test", "0", broker.registry, {})
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_ten_thousand_pairs_are_shown_by_group_and_by_topic() -> None:
    async with running() as broker:
        await use_all(broker)
        async with http_of(broker) as http:
            lines = (await http.get("/metrics")).text.splitlines()
            assert 'rocketmq_consumer_inflight_messages{consumer_group="group-7"} 1000.0' in lines
            assert 'rocketmq_consumer_lag_messages{consumer_group="group-7"} 1000.0' in lines
            assert 'rocketmq_messages_out_total{consumer_group="group-7"} 1000.0' in lines
            assert 'popwheel_topic_lag_messages{topic="topic-9"} 40.0' in lines
            assert 'popwheel_topic_messages_out_total{topic="topic-9"} 40.0' in lines
            assert len(lines) < 2 * TOPICS + 10 * GROUPS + 500


async def test_pairs_are_shown_on_demand_in_short_turns() -> None:
    async with running() as broker:
        await use_all(broker)
        async with http_of(broker) as http:
            with collector_of_servers(), measured_turns() as turns:
                await asyncio.sleep(0)
                lines = (await http.get("/metrics?pairs=true")).text.splitlines()
                await asyncio.sleep(0)
        assert 'rocketmq_consumer_lag_messages{consumer_group="group-7",topic="topic-9"} 2.0' in lines
        assert sum(line.startswith("rocketmq_messages_out_total{") for line in lines) == PAIRS
        assert turns.longest_s < TURN_S_MAX, str(turns)
