"""RecallMessage: recalls a delayed message before its time; any proxy serves any handle.

The broker that holds the message is read from the handle; only that broker checks it, and knows which of recall and
delivery was first.
"""

from popwheel_common.contract import recall_handle
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.names import Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import RecallMessageRequest, RecallMessageResponse
from popwheel_common.pb.popwheel.v1.broker_pb2 import RecallRequest
from popwheel_proxy.brokers.master_calls import MasterCalls, RetryRefusedError
from popwheel_proxy.protocol.statuses import OK
from popwheel_proxy.session.resources import topic_name
from popwheel_rpc.methods import RECALL
from popwheel_rpc.service import Call

_OVER = (Code.PRECONDITION_FAILED, Code.MESSAGE_NOT_FOUND)
"""Codes of a master for a message whose time has come: it was delivered, or recalled."""
_OUTCOME_UNKNOWN = (
    "an earlier try had no answer, and the message's delivery time has come, so it is unknown whether it was recalled "
    "or is being delivered"
)


class RecallHandler:
    """Forwards producers' recalls to the brokers.

    Args:
        view: for the key of the handles' signature.
        masters: the way to the brokers.
    """

    def __init__(self, view: ClusterView, masters: MasterCalls) -> None:
        self._view = view
        self._masters = masters

    async def recall(self, call: Call, request: RecallMessageRequest) -> RecallMessageResponse:
        """Recall a message: OK means that it will not be delivered. Its topic may have been deleted since.

        Raises:
            StatusError: ILLEGAL_TOPIC; BAD_REQUEST: the handle was not issued for this topic; HA_NOT_AVAILABLE: its
                broker is away; PRECONDITION_FAILED: it is too late; MESSAGE_NOT_FOUND: there is no such message;
                PROXY_TIMEOUT: it is too late now, but an earlier try that had no answer may have been in time.
        """
        topic = topic_name(request.topic, Use.SEND)
        handle = request.recall_handle
        broker = recall_handle.broker_name(handle)
        if broker not in self._view.brokers and self._view.ready:
            # A client with a good handle may try again when its broker is back; with another there is no point.
            recall_handle.decode(self._view.receipt_key, topic, handle)
        asked = RecallRequest(topic=topic, recall_handle=handle)
        try:
            answer, _ = await self._masters.call(broker, RECALL, asked, call.deadline)
        except RetryRefusedError as refusal:
            if refusal.code not in _OVER:
                raise
            raise StatusError(Code.PROXY_TIMEOUT, _OUTCOME_UNKNOWN) from refusal
        return RecallMessageResponse(status=OK, message_id=answer.message_id)
