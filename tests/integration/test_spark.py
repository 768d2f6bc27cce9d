"""Messages go through a real Spark and back. Its other tests take minutes: `make spark`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from tests.harness.client import MessagingClient
from tests.harness.standalone import StandaloneProcess
from tests.spark.local_spark import local_spark
from tests.spark.topics import Topics


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    with local_spark(tmp_path, "local[1]") as session:
        yield session


def tag(message: Message, number: int) -> None:
    message.system_properties.tag = "ab"[number % 2]


def test_messages_are_read_and_sent_on(spark: SparkSession, server: StandaloneProcess) -> None:
    with Topics(server.grpc_address, server.http_url) as topics:
        topics.fill(topics.make("SparkFrom", queues=1), 5, tag)
        into = topics.make("SparkInto", queues=1)
        table = spark.read.format("popwheel").options(**topics.options, topic="SparkFrom").load()
        sent = table.select("body", "tag").write.format("popwheel").mode("append")
        sent.options(**topics.options, topic=into).save()

    async def received() -> list[Message]:
        async with MessagingClient(server.grpc_address) as client:
            return await client.receive_all("spark-readers", into, 5)

    assert sorted((message.body, message.system_properties.tag) for message in asyncio.run(received())) == [
        (b"%08d" % number, "ab"[number % 2]) for number in range(5)
    ]
