"""State of the cluster as one immutable value, and its legal changes.

A decision reads the state and returns a change, or raises. `after` applies a change. `StateWriter` saves, publishes and
answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeVar

from popwheel_common.contract import names
from popwheel_common.contract.cluster_id import new_cluster_id
from popwheel_common.contract.names import GroupName, TopicName, Use
from popwheel_common.contract.priority import LEVELS
from popwheel_common.contract.topic_settings import Value, change_settings
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    BrokerInfo,
    Cluster,
    ClusterUpdate,
    ExponentialBackoff,
    Group,
    Topic,
    TopicType,
)
from popwheel_controller.cluster.deleted_names import DeletedNames, Deletion
from popwheel_controller.cluster.name_map import NameMap
from popwheel_controller.options import (
    ATTEMPTS_MAX,
    BACKOFF_MS_MAX,
    BACKOFF_STEPS_MAX,
    MULTIPLIER_MAX,
    QUEUES_MAX,
    ControllerOptions,
)

Named = TypeVar("Named", Topic, Group)

_QUEUES_OF_TYPE = {TopicType.LITE: 1, TopicType.PRIORITY: LEVELS}
"""Default number of queues by topic type, where the options do not set it."""
_DEFAULTS: Final[Mapping[str, Value]] = MappingProxyType({})
_TOPIC_TYPES = frozenset(TopicType.values()) - {TopicType.TOPIC_TYPE_UNSPECIFIED}


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Immutable value of topics, groups and brokers at one version.

    Args:
        name: the cluster's name.
        receipt_key: key of the signature in receipt handles, 32 bytes.
        version: counts every change, including those of brokers.
        topics: by name; stored.
        groups: by name; stored.
        brokers: routes to the masters of broker groups, by name; not stored.
        away: known broker groups without a route; not stored.
        named: version of the last change of topics or groups, at most the stored version; a state that is read from
            the store may have a later one, if only routes changed since.
        id: distinguishes the cluster from others of its name (`popwheel_common.contract.cluster_id`). Empty until
            the first broker registers, so that a new state after a loss takes over the id of its brokers.
        deleted_topics: deleted topics that a first use may not create for a while; stored.
        deleted_groups: likewise of groups.
    """

    name: str
    receipt_key: bytes = field(repr=False)
    version: int = 0
    topics: NameMap[Topic] = field(default_factory=NameMap)
    groups: NameMap[Group] = field(default_factory=NameMap)
    brokers: Mapping[str, BrokerInfo] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    named: int = field(default=0, compare=False)
    id: str = ""
    deleted_topics: DeletedNames = field(default_factory=DeletedNames)
    deleted_groups: DeletedNames = field(default_factory=DeletedNames)

    def after(self, update: ClusterUpdate) -> "ClusterState":
        """Return the state after a change, which a decision about this very state returned. A snapshot replaces all
        topics and groups, and may have another store id (`cluster.recovery`).
        """
        if update.snapshot:
            return self._replaced(update)
        assert update.version == self.version + 1, (update.version, self.version)
        brokers, away = self.brokers, self.away
        if update.brokers or update.departed_brokers:
            there = {**brokers, **{broker.name: broker for broker in update.brokers}}
            brokers = {name: broker for name, broker in there.items() if name not in update.departed_brokers}
            away = (away - brokers.keys() - {*update.departed_brokers}) | {*update.away_brokers}
        made_topics, made_groups = (each.name for each in update.topics), (each.name for each in update.groups)
        deletion = Deletion(update.deleted_ms, update.rest_until_ms, update.version)
        return replace(
            self,
            version=update.version,
            topics=_after(self.topics, update.topics, update.deleted_topics),
            groups=_after(self.groups, update.groups, update.deleted_groups),
            brokers=brokers,
            away=away,
            named=update.named,
            id=update.cluster.id if update.HasField("cluster") else self.id,
            deleted_topics=self.deleted_topics.after(made_topics, update.deleted_topics, deletion),
            deleted_groups=self.deleted_groups.after(made_groups, update.deleted_groups, deletion),
        )

    def _replaced(self, update: ClusterUpdate) -> "ClusterState":
        topics = {each.name: each for each in update.topics}
        groups = {each.name: each for each in update.groups}
        return replace(
            self,
            version=update.version,
            named=update.named,
            topics=NameMap(topics),
            groups=NameMap(groups),
            deleted_topics=self.deleted_topics.after(topics, (), Deletion(0, 0)),
            deleted_groups=self.deleted_groups.after(groups, (), Deletion(0, 0)),
        )

    def identify(self, cluster_id: str) -> ClusterUpdate | None:
        """Give the cluster its id when the first broker registers; return None if it has one.

        Args:
            cluster_id: id of the broker's cluster; empty if it has none yet.
        """
        if self.id:
            return None
        identified = Cluster(name=self.name, receipt_key=self.receipt_key)
        identified.id = cluster_id or new_cluster_id(self.name, self.receipt_key)
        return ClusterUpdate(version=self.version + 1, cluster=identified, named=self.named)

    def create_topic(
        self,
        options: ControllerOptions,
        name: str,
        topic_type: TopicType.ValueType,
        queues: int | None = None,
        settings: Mapping[str, Value] = _DEFAULTS,
    ) -> ClusterUpdate:
        """Create a topic.

        Args:
            options: limits and defaults.
            name: that clients may use.
            topic_type: type of its messages.
            queues: number of its queues; None for the default of its type. A LITE topic has one, as each of its lite
                topics has.
            settings: others, by name (`popwheel_common.contract.topic_settings`).

        Raises:
            StatusError: ILLEGAL_TOPIC for its name, BAD_REQUEST for its type, queues or settings,
                PRECONDITION_FAILED if it exists, TOO_MANY_REQUESTS at the limit.
        """
        name = topic_name(options, name)
        if topic_type not in _TOPIC_TYPES:
            known = ", ".join(TopicType.Name(each) for each in sorted(_TOPIC_TYPES))
            raise StatusError(Code.BAD_REQUEST, f"a topic's type must be one of {known}")
        if queues is None:
            queues = _QUEUES_OF_TYPE.get(topic_type, options.topic.queues)
        if topic_type == TopicType.LITE and queues != 1:
            raise StatusError(Code.BAD_REQUEST, f"a topic of lite topics has 1 queue, not {queues}; leave queues out")
        version = self.version + 1
        topic = Topic(name=name, type=topic_type, queues=queues, id=version)
        change_settings(topic, settings)
        check_queues(queues)
        if name in self.topics:
            raise StatusError(Code.PRECONDITION_FAILED, f"topic {name} is there already")
        if len(self.topics) >= options.topics_max:
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"the cluster holds {len(self.topics)} topics, as many as controller.topics_max allows; delete some",
            )
        return ClusterUpdate(version=version, topics=[topic], named=version)

    def ensure_topic(
        self, options: ControllerOptions, name: str, topic_type: TopicType.ValueType, now_ms: int
    ) -> ClusterUpdate | None:
        """Create a topic on its first use; return None if it exists.

        Args:
            options: limits and defaults.
            name: that clients may use.
            topic_type: type of its messages.
            now_ms: milliseconds since 1970.

        Raises:
            StatusError: TOPIC_NOT_FOUND if an operator has deleted it recently; else as `create_topic` does.
        """
        if name in self.topics:
            return None
        self.check_topic_may_be_made(name, now_ms)
        return self.create_topic(options, name, topic_type)

    def check_topic_may_be_made(self, name: str, now_ms: int) -> None:
        """Refuse the first use of a topic that an operator has deleted recently.

        Raises:
            StatusError: TOPIC_NOT_FOUND.
        """
        deletion = self.deleted_topics.resting(name, now_ms)
        if deletion is not None:
            raise StatusError(Code.TOPIC_NOT_FOUND, deletion.sentence(f"topic {name}"))

    def delete_topic(self, name: str, now_ms: int = 0, rest_ms: int = 0) -> ClusterUpdate:
        """Delete a topic.

        Args:
            name: of the topic.
            now_ms: milliseconds since 1970.
            rest_ms: how long no first use may create it anew.

        Raises:
            StatusError: TOPIC_NOT_FOUND.
        """
        self.topic(name)
        version = self.version + 1
        deleted = ClusterUpdate(version=version, deleted_topics=[name], named=version)
        deleted.deleted_ms, deleted.rest_until_ms = now_ms, now_ms + rest_ms
        return deleted

    def create_group(
        self,
        options: ControllerOptions,
        name: str,
        max_attempts: int | None = None,
        fifo: bool = False,
        backoff_ms: Sequence[int] | None = None,
        exponential: ExponentialBackoff | None = None,
    ) -> ClusterUpdate:
        """Create a consumer group.

        Args:
            options: limits and defaults.
            name: that clients may use.
            max_attempts: deliveries of a message before it becomes a dead letter; None for the default.
            fifo: whether it consumes in order.
            backoff_ms: waits after its 1st, 2nd ... failed attempt; None for the default.
            exponential: growing waits; None for those of `backoff_ms`.

        Raises:
            StatusError: ILLEGAL_CONSUMER_GROUP for its name, BAD_REQUEST for another value, PRECONDITION_FAILED if it
                is there already, TOO_MANY_REQUESTS if the cluster holds as many as it may.
        """
        name = group_name(options, name)
        attempts = options.group.max_attempts if max_attempts is None else max_attempts
        check_attempts(attempts)
        check_waits(backoff_ms, exponential)
        if exponential is not None:
            backoff_ms = ()
        elif backoff_ms is None:
            backoff_ms = options.group.backoff_ms
        if name in self.groups:
            raise StatusError(Code.PRECONDITION_FAILED, f"group {name} is there already")
        if len(self.groups) >= options.groups_max:
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"the cluster holds {len(self.groups)} groups, as many as controller.groups_max allows; delete some",
            )
        version = self.version + 1
        group = Group(
            name=name,
            max_attempts=attempts,
            fifo=fifo,
            backoff_ms=backoff_ms,
            exponential_backoff=exponential,
            id=version,
        )
        return ClusterUpdate(version=version, groups=[group], named=version)

    def ensure_group(self, options: ControllerOptions, name: str, now_ms: int) -> ClusterUpdate | None:
        """Create a consumer group on its first use; return None if it exists.

        Args:
            options: limits and defaults.
            name: that clients may use.
            now_ms: milliseconds since 1970.

        Raises:
            StatusError: CONSUMER_GROUP_NOT_FOUND if an operator has deleted it recently; else as `create_group` does.
        """
        if name in self.groups:
            return None
        self.check_group_may_be_made(name, now_ms)
        return self.create_group(options, name)

    def check_group_may_be_made(self, name: str, now_ms: int) -> None:
        """Refuse the first use of a consumer group that an operator has deleted recently.

        Raises:
            StatusError: CONSUMER_GROUP_NOT_FOUND.
        """
        deletion = self.deleted_groups.resting(name, now_ms)
        if deletion is not None:
            raise StatusError(Code.CONSUMER_GROUP_NOT_FOUND, deletion.sentence(f"consumer group {name}"))

    def delete_group(self, name: str, now_ms: int = 0, rest_ms: int = 0) -> ClusterUpdate:
        """Delete a consumer group.

        Args:
            name: of the group.
            now_ms: milliseconds since 1970.
            rest_ms: how long no first use may create it anew.

        Raises:
            StatusError: CONSUMER_GROUP_NOT_FOUND.
        """
        self.group(name)
        version = self.version + 1
        deleted = ClusterUpdate(version=version, deleted_groups=[name], named=version)
        deleted.deleted_ms, deleted.rest_until_ms = now_ms, now_ms + rest_ms
        return deleted

    def register_broker(self, broker: BrokerInfo) -> ClusterUpdate:
        """Add a broker group to every route, or change its master."""
        return ClusterUpdate(version=self.version + 1, brokers=[broker], named=self.named)

    def dismiss_broker(self, name: str, *, is_known: bool) -> ClusterUpdate | None:
        """Remove a broker group from every route; return None if nothing changes.

        Args:
            name: its name.
            is_known: whether it may return; else it was removed, and others take over its message groups.
        """
        if name not in self.brokers and (name in self.away) == is_known:
            return None
        away = [name] if is_known else []
        return ClusterUpdate(version=self.version + 1, departed_brokers=[name], away_brokers=away, named=self.named)

    def topic(self, name: str) -> Topic:
        """Return the topic of that name.

        Raises:
            StatusError: TOPIC_NOT_FOUND, or ILLEGAL_TOPIC for an invalid name.
        """
        topic = self.topics.get(name)
        if topic is None:
            names.topic(name, Use.CREATE)
            raise StatusError(Code.TOPIC_NOT_FOUND, f"there is no topic {name}")
        return topic

    def group(self, name: str) -> Group:
        """Return the consumer group of that name.

        Raises:
            StatusError: CONSUMER_GROUP_NOT_FOUND, or ILLEGAL_CONSUMER_GROUP for an invalid name.
        """
        group = self.groups.get(name)
        if group is None:
            names.group(name)
            raise StatusError(Code.CONSUMER_GROUP_NOT_FOUND, f"there is no group {name}")
        return group


def topic_name(options: ControllerOptions, text: str) -> TopicName:
    """Return the checked name of a new topic.

    Raises:
        StatusError: ILLEGAL_TOPIC.
    """
    name = names.topic(text, Use.CREATE)
    if len(name) > options.topic_name_length_max:
        raise StatusError(
            Code.ILLEGAL_TOPIC,
            f"{names.shown(name)} has {len(name)} characters, more than controller.topic_name_length_max allows "
            f"({options.topic_name_length_max})",
        )
    return name


def group_name(options: ControllerOptions, text: str) -> GroupName:
    """Return the checked name of a new consumer group.

    Raises:
        StatusError: ILLEGAL_CONSUMER_GROUP.
    """
    name = names.group(text)
    if len(name) > options.group_name_length_max:
        raise StatusError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"{names.shown(name)} has {len(name)} characters, more than controller.group_name_length_max allows "
            f"({options.group_name_length_max})",
        )
    return name


def check_queues(queues: int) -> None:
    """Refuse an invalid number of queues.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if not 1 <= queues <= QUEUES_MAX:
        raise StatusError(Code.BAD_REQUEST, f"a topic must have from 1 to {QUEUES_MAX} queues, not {queues}")


def check_attempts(attempts: int) -> None:
    """Refuse an invalid number of deliveries.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if not 1 <= attempts <= ATTEMPTS_MAX:
        raise StatusError(Code.BAD_REQUEST, f"max_attempts must be from 1 to {ATTEMPTS_MAX}, not {attempts}")


def check_waits(backoff_ms: Sequence[int] | None, exponential: ExponentialBackoff | None) -> None:
    """Refuse invalid back-off waits of a group; None is unset.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if exponential is not None:
        if backoff_ms is not None:
            raise StatusError(Code.BAD_REQUEST, "a group has backoff_ms or exponential_backoff; leave one out")
        check_exponential(exponential)
    elif backoff_ms is not None and not (
        1 <= len(backoff_ms) <= BACKOFF_STEPS_MAX and all(0 <= ms <= BACKOFF_MS_MAX for ms in backoff_ms)
    ):
        raise StatusError(
            Code.BAD_REQUEST,
            f"backoff_ms must be from 1 to {BACKOFF_STEPS_MAX} waits, each from 0 to {BACKOFF_MS_MAX} ms",
        )


def check_exponential(policy: ExponentialBackoff) -> None:
    """Refuse an invalid exponential back-off.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if not 1 <= policy.initial_ms <= policy.max_ms <= BACKOFF_MS_MAX:
        raise StatusError(
            Code.BAD_REQUEST,
            f"exponential_backoff must have 1 <= initial_ms <= max_ms <= {BACKOFF_MS_MAX}, not {policy.initial_ms} and "
            f"{policy.max_ms}",
        )
    if not 1 <= policy.multiplier <= MULTIPLIER_MAX:
        raise StatusError(
            Code.BAD_REQUEST,
            f"a back-off's multiplier must be from 1 to {MULTIPLIER_MAX}, not {policy.multiplier}",
        )


def topic_type(text: str) -> TopicType.ValueType:
    """Return the type of a new topic, given its name.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if text not in TopicType.keys():  # noqa: SIM118 - an enum wrapper of protobuf, not a dict
        known = ", ".join(kind for kind in TopicType.keys() if kind != "TOPIC_TYPE_UNSPECIFIED")  # noqa: SIM118
        raise StatusError(Code.BAD_REQUEST, f"a topic's type must be one of {known}, not {text[:64]!r}")
    return TopicType.Value(text)


def _after(named: NameMap[Named], come: Sequence[Named], gone: Sequence[str]) -> NameMap[Named]:
    return named.changed({each.name: each for each in come}, gone) if come or gone else named
