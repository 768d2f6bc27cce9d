"""Topics of a broker's own records; their names contain the cluster's name."""

from popwheel_broker.log.message_store import MessageStore
from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView


class SystemTopics:
    """The names of those topics.

    The records are needed before the controller answers. Until then the cluster's name comes from the log.

    Args:
        view: the view of the cluster.
        store: the message store.
    """

    def __init__(self, view: ClusterView, store: MessageStore) -> None:
        self._view = view
        self._store = store

    @property
    def revive(self) -> str:
        """Topic of deliveries, acks and relocated messages."""
        return names.revive_topic(self._cluster())

    @property
    def quarantine(self) -> str:
        """Topic of poison messages."""
        return names.quarantine_topic(self._cluster())

    def _cluster(self) -> str:
        if not self._view.ready:
            for name in self._store.queues.system_topics:
                if name.startswith(names.REVIVE_PREFIX):
                    return name.removeprefix(names.REVIVE_PREFIX)
        return self._view.name
