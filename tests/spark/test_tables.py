"""What waits for its time, what is delivered, and what is dead, as tables."""

import asyncio
import time
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import DELAY, Code, Message
from tests.harness.client import MessagingClient
from tests.spark.topics import Topics

GROUP = "table-readers"
AN_HOUR_S = 3600
LONG_S = 300.0


def table(spark: SparkSession, topics: Topics, name: str, **options: str) -> DataFrame:
    return spark.read.format("popwheel").options(**topics.options, table=name, **options).load()


def test_each_message_is_in_the_table_of_its_state(spark: SparkSession, topics: Topics) -> None:
    later, now = topics.make("TableTimers", kind="DELAY"), topics.make("TableMessages")
    topics.make_group(GROUP)
    due_s = int(time.time()) + AN_HOUR_S

    def delay(message: Message, number: int) -> None:
        message.system_properties.message_type = DELAY
        message.system_properties.tag = f"tag-{number}"
        message.system_properties.delivery_timestamp.FromSeconds(due_s + number)

    waiting, ids = topics.fill(later, 5, delay), topics.fill(now, 12)

    async def consume() -> tuple[set[str], set[str]]:
        """Of ten that are delivered, three are acknowledged and two given up; those given up and those still out."""
        async with MessagingClient(topics.address) as client:
            given = await client.receive_all(GROUP, now, 10, invisible_s=LONG_S)
            assert len(given) == 10
            await client.ack(GROUP, now, given[:3])
            for message in given[3:5]:
                status = await client.forward_to_dead_letters(GROUP, now, message)
                assert status.code == Code.OK, status
            dead, out = ({each.system_properties.message_id for each in some} for some in (given[3:5], given[5:]))
            return dead, out

    dead, out = asyncio.run(consume())

    timers = table(spark, topics, "timers", topic=later).collect()
    assert {row["messageId"] for row in timers} == waiting
    assert {(row["topic"], row["tag"], row["deliveryTimestamp"].astimezone(UTC)) for row in timers} == {
        (later, f"tag-{number}", datetime.fromtimestamp(due_s + number, UTC)) for number in range(5)
    }
    assert table(spark, topics, "timers", topic=later, withinMs="60000").count() == 0

    inflight = table(spark, topics, "inflight", topic=now, group=GROUP).collect()
    assert sorted(row["messageId"] for row in inflight) == sorted(out)
    assert {(row["group"], row["topic"], row["attempts"]) for row in inflight} == {(GROUP, now, 1)}
    assert all((row["dueTimestamp"] - row["poppedTimestamp"]).total_seconds() == LONG_S for row in inflight)

    letters = table(spark, topics, "dlq", group=GROUP).collect()
    assert sorted(row["messageId"] for row in letters) == sorted(dead)
    assert {row["originTopic"] for row in letters} == {now}
    assert dead | out < ids
