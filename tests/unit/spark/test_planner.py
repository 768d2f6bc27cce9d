"""What a stream that goes on may be asked to read."""

import asyncio

import pytest

from popwheel_spark.errors import DataLossError, OptionError
from popwheel_spark.source.planner import Planner
from popwheel_spark.source.read_options import read_options
from popwheel_spark.wire.offsets import Queue
from popwheel_spark.wire.queue_client import QueueClient

BEFORE = [Queue("orders", "b-0", number) for number in range(2)]


class There(QueueClient):
    """A cluster that has some topics, of two queues each."""

    def __init__(self, *topics: str) -> None:
        self._topics = topics

    async def queues(self, topic: str) -> list[Queue] | None:
        return [Queue(topic, "b-0", number) for number in range(2)] if topic in self._topics else None


def found(client: QueueClient, **options: str) -> list[Queue]:
    return asyncio.run(Planner(client, read_options({"endpoints": "h:1"} | options)).queues(BEFORE))


@pytest.mark.parametrize(
    "options",
    [
        {"topics": "payments"},
        {"assign": '{"orders": {"b-0": [1]}}'},
        {"assign": '{"orders": {"b-1": [0, 1]}}'},
    ],
)
def test_a_stream_that_is_notified_to_read_something_else_says_what_is_true(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="has read queue 0 of orders at b-0 so far, which is not to be read any more"):
        found(There("orders", "payments"), **options)


def test_a_pattern_that_fits_no_more_is_reported_before_anybody_is_asked() -> None:
    with pytest.raises(OptionError, match="option topicPattern: the stream has read queue 0 of orders"):
        found(There("orders"), topicPattern="order", admin="http://h:1")


def test_more_topics_may_come() -> None:
    assert len(found(There("orders", "payments"), topics="orders,payments")) == 4


def test_a_topic_that_is_gone_is_gone() -> None:
    with pytest.raises(DataLossError, match="the topic orders is gone"):
        found(There("payments"), topics="orders,payments")
