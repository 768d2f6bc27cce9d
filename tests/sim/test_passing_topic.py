"""What is demanded of a topic that comes and goes."""

import random
from unittest.mock import Mock

import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from tests.sim.delays import Delays
from tests.sim.history import Delivery, Handle, Sent
from tests.sim.passing_topic import GROUP, TOPIC, PassingTopic

DELETED_S = 4.0


@pytest.mark.parametrize(
    ("learned", "may_come"),
    [
        (None, False),
        ([(0, DELETED_S)], False),
        ([(1, DELETED_S)], False),
        # The master of epoch 1 is deposed, and does not hear what the one of epoch 2 has heard.
        ([(2, DELETED_S)], True),
        ([(1, DELETED_S - 1.0)], True),
    ],
)
def test_a_message_may_come_from_a_master_who_has_not_learned_that_its_topic_is_deleted(
    learned: list[tuple[int, float]] | None, may_come: bool
) -> None:
    passing = PassingTopic(Mock(), random.Random(0), Mock(), Delays(0.0, 0.0, 0.0, 0))
    passing._deletions.append((DELETED_S, DELETED_S))
    passing.history.sent["m"] = Sent(Message(), 1.0, 1.1)
    handle = Handle(100001000007, 0, 1000, False, 0, 0)
    passing.history.deliveries.append(Delivery(GROUP, TOPIC, "m", "", handle, 1, 5.9, 6.0, 0))
    assert (not passing.violations(learned)) == may_come
