"""End of messages that are past their time to live, at the moment at which they would be delivered.

Nothing waits for that moment, so a message without a time to live costs nothing, and one with it no more than a look at
its properties. Each group ends a message for itself: it goes to the group's dead letter queue, or away. The record of
its end is that of any other end of a delivery, so replicas and restarts need no code for it.
"""

from collections.abc import Iterator, Mapping

from google.protobuf.message import DecodeError
from prometheus_client.core import CounterMetricFamily, Metric

from popwheel_broker.consume.acks import Acks
from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.message_properties import NamedProperties
from popwheel_broker.consume.store_time import first_stored_ms
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.time_to_live import DEAD_LETTER, DROP, PROPERTY, time_to_live_ms
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb

_CAUSE = int(pb.MESSAGE_TIME_TO_LIVE_PASSED)


class TimeToLive:
    """Ends expired messages of the topics that ask for it (`popwheel_broker.consume.pops.Ending`).

    Args:
        view: topics and their settings.
        acks: ends messages of deliveries.

    Attributes:
        ended_messages: number of messages that have ended, by where they went.
    """

    def __init__(self, view: ClusterView, acks: Acks) -> None:
        self._view = view
        self._acks = acks
        self._properties = NamedProperties({PROPERTY})
        self.ended_messages = {DROP: 0, DEAD_LETTER: 0}

    def concerns(self, topic: str) -> bool:
        """Return whether expired messages of a topic end."""
        return self._goal(topic) in self.ended_messages

    def ended(self, delivery: Delivery, stored: Mapping[int, StoredRecord], now_ms: int) -> Mapping[int, StoredRecord]:
        """Return the expired messages of a delivery, by index."""
        return {index: each for index, each in stored.items() if self._has_expired(each, now_ms)}

    def end(self, delivery: Delivery, ended: Mapping[int, StoredRecord]) -> None:
        """End expired messages. Raises StatusError: the disk is full; what has not ended is unchanged."""
        goal = self._goal(delivery.topic)
        self._acks.end(delivery, ended, _CAUSE, to_dead_letters=goal == DEAD_LETTER)
        self.ended_messages[goal] += len(ended)

    def _goal(self, topic: str) -> str:
        known = self._view.topics.get(names.client_topic(topic))
        return "" if known is None else str(known.expired_messages)

    def _has_expired(self, stored: StoredRecord, now_ms: int) -> bool:
        if stored.kind == RecordKind.SKIPPED:
            return False
        try:
            text = self._properties.of(stored).get(PROPERTY)
        except DecodeError:
            return False  # its consumer is to see that it is no message
        life_ms = None if text is None else time_to_live_ms(text)
        return life_ms is not None and now_ms - first_stored_ms(stored) >= life_ms


def time_to_live_metrics(ended_messages: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the metrics of expired messages."""
    ended = CounterMetricFamily(
        "popwheel_expired_messages",
        "Messages that were past their time to live when they were to be delivered to a group.",
        labels=("outcome",),
    )
    for goal, count in ended_messages.items():
        ended.add_metric((goal,), count)
    yield ended
