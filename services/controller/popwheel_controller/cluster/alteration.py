"""Rules about which settings of an existing topic or group may change (pure).

No change may lose a message, break the order of messages, or refuse what clients already send. A refusal names the
violated part. A change is made as a whole or not at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from popwheel_common.contract.topic_settings import Value, change_settings
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, ExponentialBackoff, Group, Topic, TopicType
from popwheel_controller.cluster.cluster_state import (
    ClusterState,
    check_attempts,
    check_queues,
    check_waits,
)
from popwheel_controller.options import ControllerOptions

_WIDENED: Final = frozenset((TopicType.NORMAL, TopicType.FIFO, TopicType.DELAY, TopicType.TRANSACTION))
"""Types whose messages all fit into a MIXED topic."""
_FIXED_QUEUES: Final[Mapping[int, str]] = {
    TopicType.FIFO: "each message group has one of them, and would lose its order if it got another; more would bring "
    "nothing, as message groups do not wait for one another",
    TopicType.LITE: "it has one, and each of its lite topics has one of its own",
    TopicType.PRIORITY: "they are its levels, and what is stored would change its priority",
}
"""Types whose number of queues is fixed, and why."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Requested settings of a topic. None: unchanged, or for a new topic the default of the options.

    Args:
        type: what kind of messages it takes.
        queues: how many it has.
        others: by name (`popwheel_common.contract.topic_settings`); one that is left out is unchanged.
    """

    type: TopicType.ValueType | None = None
    queues: int | None = None
    others: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Requested settings of a group. None: unchanged, or for a new group the default of the options.

    Args:
        max_attempts: deliveries of a message before it becomes a dead letter.
        fifo: whether it consumes in order.
        backoff_ms: waits after its 1st, 2nd ... failed attempt.
        exponential: waits that grow, in place of these.
    """

    max_attempts: int | None = None
    fifo: bool | None = None
    backoff_ms: Sequence[int] | None = None
    exponential: ExponentialBackoff | None = None


def define_topic(
    state: ClusterState, options: ControllerOptions, name: str, wanted: TopicSettings
) -> ClusterUpdate | None:
    """Create a topic or change it; return None if it has these settings already.

    Raises:
        StatusError: as `ClusterState.create_topic` or `alter_topic` does.
    """
    if name in state.topics:
        return alter_topic(state, name, wanted)
    kind = TopicType.NORMAL if wanted.type is None else wanted.type
    return state.create_topic(options, name, kind, wanted.queues, wanted.others)


def define_group(
    state: ClusterState, options: ControllerOptions, name: str, wanted: GroupSettings
) -> ClusterUpdate | None:
    """Create a group or change it; return None if it has these settings already.

    Raises:
        StatusError: as `ClusterState.create_group` or `alter_group` does.
    """
    if name in state.groups:
        return alter_group(state, name, wanted)
    return state.create_group(
        options, name, wanted.max_attempts, bool(wanted.fifo), wanted.backoff_ms, wanted.exponential
    )


def alter_topic(state: ClusterState, name: str, wanted: TopicSettings) -> ClusterUpdate | None:
    """Change a topic; return None if it has these settings already.

    Raises:
        StatusError: TOPIC_NOT_FOUND; BAD_REQUEST for invalid settings; PRECONDITION_FAILED for a forbidden change.
    """
    topic = state.topic(name)
    kind = topic.type if wanted.type is None else wanted.type
    queues = topic.queues if wanted.queues is None else wanted.queues
    if kind != topic.type:
        _check_type(topic, kind)
    if queues != topic.queues:
        check_queues(queues)
        _check_more_queues(topic, kind, queues)
    altered = Topic()
    altered.CopyFrom(topic)
    altered.type, altered.queues = kind, queues
    change_settings(altered, wanted.others)
    if queues != topic.queues and topic.type in (TopicType.MIXED, TopicType.FIFO):
        altered.message_group_queues = topic.message_group_queues or topic.queues
    if altered == topic:
        return None
    version = state.version + 1
    return ClusterUpdate(version=version, topics=[altered], named=version)


def alter_group(state: ClusterState, name: str, wanted: GroupSettings) -> ClusterUpdate | None:
    """Change a group; return None if it has these settings already. The brokers are asked whether its order may
    change now (`popwheel_controller.http.use_checks`).

    Raises:
        StatusError: CONSUMER_GROUP_NOT_FOUND; BAD_REQUEST for invalid settings.
    """
    group = state.group(name)
    check_waits(wanted.backoff_ms, wanted.exponential)
    altered = Group()
    altered.CopyFrom(group)
    if wanted.max_attempts is not None:
        check_attempts(wanted.max_attempts)
        altered.max_attempts = wanted.max_attempts
    if wanted.fifo is not None:
        altered.fifo = wanted.fifo
    if wanted.exponential is not None:
        del altered.backoff_ms[:]
        altered.exponential_backoff.CopyFrom(wanted.exponential)
    elif wanted.backoff_ms is not None:
        altered.ClearField("exponential_backoff")
        altered.backoff_ms[:] = wanted.backoff_ms
    if altered == group:
        return None
    version = state.version + 1
    return ClusterUpdate(version=version, groups=[altered], named=version)


def _check_type(topic: Topic, kind: TopicType.ValueType) -> None:
    if kind == TopicType.TOPIC_TYPE_UNSPECIFIED or kind not in TopicType.values():
        raise StatusError(Code.BAD_REQUEST, "TOPIC_TYPE_UNSPECIFIED is no type for a topic; leave the type out")
    if kind == TopicType.MIXED and topic.type in _WIDENED:
        return
    before, after = TopicType.Name(topic.type), TopicType.Name(kind)
    if {topic.type, kind} & {TopicType.LITE, TopicType.PRIORITY}:
        why = "topics of type LITE and PRIORITY store their messages in another way than others"
    elif topic.type == TopicType.MIXED:
        why = f"a topic of type {after} would refuse what may be sent to it now"
    else:
        why = f"a topic of type {after} would refuse what is sent to it now; it may become MIXED, which takes both"
    raise StatusError(
        Code.PRECONDITION_FAILED,
        f"topic {topic.name} is of type {before} and can't become {after}: {why}. Else make another topic",
    )


def _check_more_queues(topic: Topic, kind: TopicType.ValueType, queues: int) -> None:
    why = _FIXED_QUEUES.get(kind)
    if why is None and queues < topic.queues:
        why = "the messages in those that would go could not be read any more"
    if why is not None:
        raise StatusError(
            Code.PRECONDITION_FAILED, f"topic {topic.name} has {topic.queues} queues and can't get {queues}: {why}"
        )
