"""What brokers are asked before a topic or group is changed, and what their answers forbid."""

from dataclasses import replace
from typing import Any

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import DescribeUseRequest, DescribeUseResponse
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, TopicType
from popwheel_controller.cluster.alteration import GroupSettings, TopicSettings, alter_group, alter_topic
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.http.inquiry import Answers, Silence
from popwheel_controller.http.use_checks import UseChecks
from tests.unit.controller.changes import OPTIONS, fresh_state


class Brokers:
    """What stands for an `Inquiry`."""

    def __init__(self, *given: DescribeUseResponse, silent: bool = False) -> None:
        self.asked: list[DescribeUseRequest] = []
        unanswered = [Silence(broker="b9", reason="away")] if silent else []
        self._answers = Answers({f"b{number}": each for number, each in enumerate(given)}, unanswered)

    async def of_all(self, method: object, request: DescribeUseRequest) -> Answers[DescribeUseResponse]:
        self.asked.append(request)
        return self._answers


def cluster() -> ClusterState:
    state = fresh_state()
    state = state.after(state.create_topic(OPTIONS, "t", TopicType.MIXED, 4))
    return state.after(state.create_group(OPTIONS, "g"))


async def refusal(brokers: Brokers, state: ClusterState, update: ClusterUpdate | None) -> StatusError | None:
    assert update is not None
    inquiry: Any = brokers
    return await UseChecks(inquiry).refusal(state, update)


@pytest.mark.parametrize(
    ("used", "words"),
    [
        ({"in_flight": 3}, "3 messages are in flight, 0 wait for a retry, clients poll at 0 proxies"),
        ({"retries": 2}, "0 messages are in flight, 2 wait for a retry"),
        ({"polling_proxies": 1}, "clients poll at 1 proxies"),
        ({"unread": 9, "dead_letters": 7}, ""),
    ],
)
async def test_the_order_of_a_group_in_use_stays(used: dict[str, Any], words: str) -> None:
    state = cluster()
    brokers = Brokers(DescribeUseResponse(), DescribeUseResponse(**used))
    error = await refusal(brokers, state, alter_group(state, "g", GroupSettings(fifo=True)))
    assert brokers.asked == [DescribeUseRequest(group="g")]
    if not words:
        assert error is None
    else:
        assert error is not None and error.code == Code.PRECONDITION_FAILED and words in error.message


async def test_the_order_stays_while_a_broker_cannot_be_asked() -> None:
    state = cluster()
    update = alter_group(state, "g", GroupSettings(fifo=True))
    for brokers, of in (
        (Brokers(silent=True), state),
        (Brokers(), replace(state, away=frozenset(("b9",)))),
    ):
        error = await refusal(brokers, of, update)
        assert error is not None and error.code == Code.HA_NOT_AVAILABLE and "without the broker b9" in error.message


async def test_queues_that_a_broker_has_no_room_for_are_not_given() -> None:
    state = cluster()
    update = alter_topic(state, "t", TopicSettings(queues=8))
    assert await refusal(Brokers(DescribeUseResponse(queues_room=4), silent=True), state, update) is None
    brokers = Brokers(DescribeUseResponse(queues_room=9), DescribeUseResponse(queues_room=3))
    error = await refusal(brokers, state, update)
    assert brokers.asked == [DescribeUseRequest()]
    assert error is not None and error.code == Code.TOO_MANY_REQUESTS
    assert error.message.startswith("the broker b1 has room for 3 queues more, not for 4: raise broker.log.queues_max")


async def test_of_several_changes_a_silent_broker_is_asked_once_and_room_is_counted_together() -> None:
    state = cluster()
    state = state.after(state.create_group(OPTIONS, "h"))
    changes = []
    for name in ("g", "h"):
        update = alter_group(state, name, GroupSettings(fifo=True))
        assert update is not None
        changes.append((state, update))
        state = state.after(update)
    for queues in (6, 8):
        update = alter_topic(state, "t", TopicSettings(queues=queues))
        assert update is not None
        changes.append((state, update))
        state = state.after(update)
    brokers: Any = Brokers(DescribeUseResponse(queues_room=3), silent=True)
    errors = await UseChecks(brokers).refusals(changes)
    assert [None if each is None else each.code for each in errors] == [
        Code.HA_NOT_AVAILABLE,
        Code.HA_NOT_AVAILABLE,
        None,
        Code.TOO_MANY_REQUESTS,
    ]
    assert brokers.asked == [DescribeUseRequest(group="g"), DescribeUseRequest()]


async def test_other_changes_ask_nobody() -> None:
    state, brokers = cluster(), Brokers()
    for update in (
        alter_group(state, "g", GroupSettings(max_attempts=3)),
        state.create_group(OPTIONS, "new", fifo=True),
        state.create_topic(OPTIONS, "new", TopicType.MIXED, 900),
    ):
        assert await refusal(brokers, state, update) is None
    assert brokers.asked == []
