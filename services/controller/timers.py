"""Asks the brokers about their delayed messages, for the admin API."""

from services.common import names, recall_handle
from services.common.names import Use
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.controller.inquiry import Answers, Inquiry, away
from services.rpc.methods import RECALL, TIMER_LIST, TIMER_STATS


class Timers:
    """Delayed messages, wherever they are.

    Args:
        inquiry: asks the brokers.
    """

    def __init__(self, inquiry: Inquiry) -> None:
        self._inquiry = inquiry

    async def stats(self) -> Answers[pb.TimerStatsResponse]:
        """How many messages wait at each broker."""
        return await self._inquiry.of_all(TIMER_STATS, pb.TimerStatsRequest())

    async def due(self, topic: str, within_ms: int, limit: int) -> Answers[pb.TimerListResponse]:
        """The messages of a topic that are due within a time, up to `limit` of each broker.

        Raises:
            StatusError: TOPIC_NOT_FOUND.
        """
        self._inquiry.state.topic(topic)
        return await self._inquiry.of_all(
            TIMER_LIST, pb.TimerListRequest(topic=topic, within_ms=within_ms, limit=limit)
        )

    async def recall(self, topic: str, handle: str) -> str:
        """Take a message back; its id.

        Raises:
            StatusError: ILLEGAL_TOPIC; as the broker says; HA_NOT_AVAILABLE if it is away, BAD_REQUEST if the handle is
                of no broker.
        """
        names.topic(topic, Use.SEND)
        name = recall_handle.broker_name(handle)
        state = self._inquiry.state
        if name not in state.brokers:
            recall_handle.decode(state.receipt_key, topic, handle)
            raise away(name)
        answer = await self._inquiry.of(name, RECALL, pb.RecallRequest(topic=topic, recall_handle=handle))
        return answer.message_id
