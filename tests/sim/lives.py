"""A topic whose messages have times to live, and a group that reads it (P9), in some of the seeds.

Each pop of a broker is watched: when it gave which message, by its own clock. The store times are
read from the log in the end.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from popwheel_broker.calls.server import BrokerServer
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.time_to_live import PROPERTY
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest
from tests.sim.history import History
from tests.sim.producers import Producer
from tests.sim.stored import StoredMessage
from tests.sim.swarm import BRIEF_TOPIC, Swarm
from tests.sim.tools import Tools
from tests.sim.workload import OwnTopic

_LIVES_MS = (1, 50, 300, 1000, 5000, 600_000)
_RATE = 10.0
_BATCH_MAX = 6
_BODY_BYTES_MAX = 300


class BriefProducer(Producer):
    """Sends messages of several times to live, some without any.

    Args:
        name: of the client.
        tools: what clients share.
        chance: its random source.
        swarm: how its topic is made.
    """

    def __init__(self, name: str, tools: Tools, chance: random.Random, swarm: Swarm) -> None:
        settings = {"expired_messages": swarm.expired}
        self.topics = {BRIEF_TOPIC: OwnTopic(swarm.types[BRIEF_TOPIC], swarm.topics[BRIEF_TOPIC], settings)}
        super().__init__(name, tools, chance, [BRIEF_TOPIC], (), _RATE, _BATCH_MAX, _BODY_BYTES_MAX)

    def message(self, topic: str) -> d.Message:
        """A new message."""
        message = super().message(topic)
        if self._chance.random() < 0.8:
            message.user_properties[PROPERTY] = str(self._chance.choice(_LIVES_MS))
        return message


def may_expire(message: d.Message) -> bool:
    """Whether a message that was sent has a time to live that its topic obeys."""
    return message.topic.name == BRIEF_TOPIC and PROPERTY in message.user_properties


class LifeWatch:
    """Watches all brokers of a run."""

    def __init__(self) -> None:
        self._given: list[tuple[str, int]] = []
        """Id of each message of the topic that a pop has returned, and the broker's wall clock then."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch while the run lasts."""
        pop = BrokerServer._pop_once

        def watched(server: BrokerServer, request: PopRequest, turn: int) -> PopAnswer:
            before_ms = server._clock.wall_ms()
            answer = pop(server, request, turn)
            if request.topic == BRIEF_TOPIC:
                for each in answer.messages:
                    self._given.append((d.Message.FromString(each).system_properties.message_id, before_ms))
            return answer

        with patch.object(BrokerServer, "_pop_once", watched):
            yield

    def violations(self, stored: Sequence[StoredMessage], history: History) -> list[str]:
        """Hold all pops against P9.

        Args:
            stored: all messages in the log in the end.
            history: what was sent.
        """
        times: dict[str, list[int]] = {}
        for each in stored:
            if each.topic == BRIEF_TOPIC:
                times.setdefault(each.message_id, []).append(each.record.store_time_ms)
        broken: list[str] = []
        for message_id, given_ms in self._given:
            sent = history.sent.get(message_id)
            if sent is None or not may_expire(sent.message) or message_id not in times:
                continue
            life_ms = int(sent.message.user_properties[PROPERTY])
            if given_ms - max(times[message_id]) >= life_ms:
                broken.append(f"P9: {message_id} was given {given_ms - max(times[message_id])} ms after it was stored")
        return broken
