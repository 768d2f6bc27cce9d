"""EndTransaction: commits half messages and rolls them back; any proxy serves any transaction id.

The broker that holds the half message is read from the id; only that broker checks it.
"""

from popwheel_common.contract import transaction_id
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.names import Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, TransactionResolution
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import EndTransactionRequest, EndTransactionResponse
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker_pb
from popwheel_proxy.brokers.master_calls import MasterCalls
from popwheel_proxy.protocol.statuses import OK
from popwheel_proxy.session.resources import topic_name
from popwheel_rpc.methods import END_TRANSACTION
from popwheel_rpc.service import Call


class EndHandler:
    """Forwards the ends of transactions to the brokers.

    Args:
        view: for the key of the ids' signature.
        masters: the way to the brokers.
    """

    def __init__(self, view: ClusterView, masters: MasterCalls) -> None:
        self._view = view
        self._masters = masters

    async def end(self, call: Call, request: EndTransactionRequest) -> EndTransactionResponse:
        """End a transaction. The call is idempotent, so one without an answer is retried.

        A client that says neither commit nor rollback is answered OK, and checked again later.

        Raises:
            StatusError: ILLEGAL_TOPIC; INVALID_TRANSACTION_ID: the id was not issued for this topic and message, or
                the transaction is not known any more; PRECONDITION_FAILED: it has ended the other way;
                HA_NOT_AVAILABLE: its broker is away.
        """
        topic = topic_name(request.topic, Use.SEND)
        broker = transaction_id.broker_name(request.transaction_id)
        if self._view.ready:
            half = transaction_id.decode(self._view.receipt_key, topic, request.transaction_id)
            if request.message_id and request.message_id != half.message_id:
                raise StatusError(
                    Code.INVALID_TRANSACTION_ID, "this transaction id was issued for a message with another id"
                )
        if request.resolution == TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED:
            return EndTransactionResponse(status=OK)
        if request.resolution not in (TransactionResolution.COMMIT, TransactionResolution.ROLLBACK):
            raise StatusError(
                Code.BAD_REQUEST, f"{request.resolution} is no resolution of a transaction: say COMMIT or ROLLBACK"
            )
        asked = broker_pb.EndTransactionRequest(
            topic=topic,
            transaction_id=request.transaction_id,
            commit=request.resolution == TransactionResolution.COMMIT,
        )
        await self._masters.call(broker, END_TRANSACTION, asked, call.deadline)
        return EndTransactionResponse(status=OK)
