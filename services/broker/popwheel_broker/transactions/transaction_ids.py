"""The transaction ids that a broker issues."""

from popwheel_common.contract import transaction_id
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.transaction_id import TransactionId


class TransactionIds:
    """Makes the ids of one broker, and reads those of all: they are signed with the cluster's key.

    Args:
        view: has the key.
        broker_name: for the ids.
    """

    def __init__(self, view: ClusterView, broker_name: str) -> None:
        self._view = view
        self.broker_name = broker_name

    def key(self) -> bytes:
        """Return the key; raises StatusError while it is unknown."""
        return self._view.receipt_key

    def encode(self, key: bytes, topic: str, position: int, epoch: int, message_id: str) -> str:
        """Return the id of a half message whose record stands at a position of the log, written in an epoch."""
        return transaction_id.encode(key, topic, TransactionId(self.broker_name, position, epoch, message_id))

    def decode(self, topic: str, text: str) -> TransactionId:
        """Decode an id. Raises StatusError: INVALID_TRANSACTION_ID."""
        return transaction_id.decode(self._view.receipt_key, topic, text)
