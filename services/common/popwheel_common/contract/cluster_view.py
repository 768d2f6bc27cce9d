"""View of the cluster at a broker or proxy: the controller's topics, groups and brokers, as last received."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from popwheel_common.contract import names
from popwheel_common.contract.cluster_id import check_same_cluster
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, Cluster, ClusterUpdate, Group, Topic

VERSIONS_PER_STORE: Final = 1_000_000_000
STORE_IDS: Final = 1_000_000
"""Controllers that find no store make one with a random id. A version is the store id followed by nine digits, and so
are ids of topics and groups, which are versions. All are exact as floats, too."""

_log = structlog.get_logger()


def store_id_of(version: int) -> int:
    """Return the id of the store that a version belongs to."""
    return version // VERSIONS_PER_STORE


@dataclass(slots=True)
class _Partial:
    """The parts of a snapshot that have arrived."""

    cluster: Cluster
    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    brokers: dict[str, BrokerInfo] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)


class ClusterView:
    """The state that the controller streams (`Controller.Watch`), kept up to date by `apply`.

    It is unchanged while no controller answers, so its readers continue with what they know. `ready` is False until the
    first snapshot has arrived.
    """

    def __init__(self) -> None:
        self.ready = False
        self.version = 0
        self.named = 0
        """Highest id of the topics and groups seen: those made later have larger ids."""
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.brokers: dict[str, BrokerInfo] = {}
        self.paused_topics: set[str] = set()
        self.paused_groups: set[str] = set()
        self.away: set[str] = set()
        """Broker groups that may return and are in no route now."""
        self.name = ""
        self.cluster_id = ""
        """Id of the cluster that this process belongs to; empty until that is known."""
        self._receipt_key = b""
        self._partial: _Partial | None = None
        self._listeners: list[Callable[[ClusterUpdate], None]] = []
        self._name_listeners: list[Callable[[ClusterUpdate], None]] = []

    @property
    def receipt_key(self) -> bytes:
        """Key of the signature in receipt handles.

        Raises:
            StatusError: HA_NOT_AVAILABLE before the first snapshot. Without the key, valid handles would look forged,
                and issued ones would be refused later.
        """
        if not self._receipt_key:
            raise StatusError(
                Code.HA_NOT_AVAILABLE, "the controller has not sent the key of receipt handles yet; try again"
            )
        return self._receipt_key

    @property
    def store_id(self) -> int:
        """Id of the controllers' store; 0 before the first snapshot."""
        return store_id_of(self.named)

    def is_paused(self, group: str, topic: str) -> bool:
        """Return whether an operator has paused the group or the topic, so that nothing is delivered."""
        return bool(self.paused_topics or self.paused_groups) and (
            group in self.paused_groups or topic in self.paused_topics
        )

    def subscribe(self, listener: Callable[[ClusterUpdate], None]) -> None:
        """Call `listener` after each update has been applied (also the first snapshot, and the last part of each)."""
        self._listeners.append(listener)

    def subscribe_to_names(self, listener: Callable[[ClusterUpdate], None]) -> None:
        """Call `listener` with each update, also each part of a snapshot, before it is applied.

        So a listener that checks topics and groups does it part by part.
        """
        self._name_listeners.append(listener)

    def apply(self, update: ClusterUpdate) -> None:
        """Apply a snapshot, or a part of one, or a change. An outdated change is skipped, and so are illegal names.

        The parts of a snapshot are applied when the last one has arrived: a topic or group that none of them has was
        deleted.

        Raises:
            StatusError: BAD_REQUEST, the cluster itself has such a name; nothing has changed.
            InconsistentClusterIdError: it is of another cluster; nothing has changed.
        """
        if update.snapshot and update.cluster.name:
            names.cluster(update.cluster.name)
        check_same_cluster(self.cluster_id, update.cluster.id, "this process", "it goes on with what it knows")
        if not update.snapshot and update.version <= self.version:
            return
        for listener in self._name_listeners:
            listener(update)
        if update.snapshot and (self._partial is None or update.HasField("cluster")):
            self._partial = _Partial(update.cluster)
        target = self._partial if update.snapshot and self._partial is not None else self
        for topic in update.topics:
            # An equal topic stays the same object: to free 100,000 at once would take a tenth of a second.
            known = self.topics.get(topic.name)
            if known is not None or self._is_legal(names.is_topic, topic.name):
                target.topics[topic.name] = known if known == topic and known is not None else topic
        for group in update.groups:
            present = self.groups.get(group.name)
            if present is not None or self._is_legal(names.is_group, group.name):
                target.groups[group.name] = present if present == group and present is not None else group
        for broker in update.brokers:
            if self._is_legal(names.is_broker_group, broker.name):
                target.brokers[broker.name] = broker
        target.away.difference_update(target.brokers, update.departed_brokers)
        target.away.update(name for name in update.away_brokers if self._is_legal(names.is_broker_group, name))
        if update.more:
            return
        if target is self._partial:
            self.name, self._receipt_key = target.cluster.name, target.cluster.receipt_key
            self.cluster_id = target.cluster.id or self.cluster_id
            self.topics, self.groups, self.brokers, self.away = (
                target.topics,
                target.groups,
                target.brokers,
                target.away,
            )
            self._partial = None
        elif update.HasField("cluster"):
            self.cluster_id = update.cluster.id or self.cluster_id
        for name in update.deleted_topics:
            self.topics.pop(name, None)
        for name in update.deleted_groups:
            self.groups.pop(name, None)
        self._index_pauses(update)
        for name in update.departed_brokers:
            self.brokers.pop(name, None)
        self.version = update.version
        self.named = update.named if update.HasField("named") else update.version
        self.ready = True
        for listener in self._listeners:
            listener(update)

    def _index_pauses(self, update: ClusterUpdate) -> None:
        """Index the paused topics and groups: each delivery checks them."""
        if update.snapshot:
            self.paused_topics = {name for name, each in self.topics.items() if each.paused_ms}
            self.paused_groups = {name for name, each in self.groups.items() if each.paused_ms}
            return
        for paused, changed, deleted in (
            (self.paused_topics, update.topics, update.deleted_topics),
            (self.paused_groups, update.groups, update.deleted_groups),
        ):
            paused.difference_update(deleted, (each.name for each in changed if not each.paused_ms))
            paused.update(each.name for each in changed if each.paused_ms)

    @staticmethod
    def _is_legal(rule: Callable[[str], bool], name: str) -> bool:
        legal = rule(name)
        if not legal:
            _log.warning("the controller has sent an illegal name, it is skipped", name=names.shown(name))
        return legal
