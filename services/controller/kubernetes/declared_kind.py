"""What can be declared by resources of Kubernetes, topics and consumer groups, and what they have different (pure)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from services.common.contract import names
from services.common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, ExponentialBackoff, Group, Topic, TopicType
from services.controller.cluster.cluster_state import ClusterState, Named, topic_type
from services.controller.cluster.name_map import NameMap
from services.controller.kubernetes.api import CONSUMER_GROUPS, TOPICS, ResourceKind
from services.controller.options import ControllerOptions

Facts = Mapping[str, Any]
"""What a topic or group is made with, as resources say it."""

_EXPONENTIAL = {"initialMs": "initial_ms", "maxMs": "max_ms", "multiplier": "multiplier"}


@dataclass(frozen=True, slots=True)
class DeclaredKind(Generic[Named]):
    """A kind of what can be declared.

    Args:
        resource: the kind of its resources.
        word: what it is called in sentences.
        name_key: under which key of its spec a resource says the name, if it is not its own.
        defaults: facts of a resource that does not say them.
        facts: all facts of one.
        all_of: all there are.
        is_name: whether a stored name is one that can be declared.
        create: decides to make one (`ClusterState.create_topic`).
        delete: decides to delete one (`ClusterState.delete_topic`).
    """

    resource: ResourceKind
    word: str
    name_key: str
    defaults: Facts
    facts: Callable[[Named], Facts]
    all_of: Callable[[ClusterState], NameMap[Named]]
    is_name: Callable[[str], bool]
    create: Callable[[ClusterState, ControllerOptions, str, Facts], ClusterUpdate]
    delete: Callable[[ClusterState, str], ClusterUpdate]


def _create_topic(state: ClusterState, options: ControllerOptions, name: str, facts: Facts) -> ClusterUpdate:
    return state.create_topic(
        options, name, topic_type(facts["type"]), facts.get("queues"), facts.get("liteExpirationMs", 0)
    )


def _create_group(state: ClusterState, options: ControllerOptions, name: str, facts: Facts) -> ClusterUpdate:
    said = facts.get("exponentialBackoff")
    grows = None if said is None else ExponentialBackoff(**{field: said[key] for key, field in _EXPONENTIAL.items()})
    return state.create_group(options, name, facts.get("maxAttempts"), facts["fifo"], facts.get("backoffMs"), grows)


def _topic_facts(topic: Topic) -> Facts:
    facts = {"type": TopicType.Name(topic.type), "queues": topic.queues}
    return {**facts, "liteExpirationMs": topic.lite_expiration_ms} if topic.type == TopicType.LITE else facts


def _group_facts(group: Group) -> Facts:
    facts: dict[str, Any] = {"maxAttempts": group.max_attempts, "fifo": group.fifo}
    if group.HasField("exponential_backoff"):
        policy = group.exponential_backoff
        return facts | {"exponentialBackoff": {key: getattr(policy, field) for key, field in _EXPONENTIAL.items()}}
    return facts | {"backoffMs": list(group.backoff_ms)}


DECLARED_TOPICS = DeclaredKind(
    TOPICS,
    "topic",
    "topicName",
    {"type": TopicType.Name(TopicType.NORMAL)},
    _topic_facts,
    lambda state: state.topics,
    names.is_topic,
    _create_topic,
    lambda state, name: state.delete_topic(name),
)
DECLARED_GROUPS = DeclaredKind(
    CONSUMER_GROUPS,
    "group",
    "groupName",
    {"fifo": False},
    _group_facts,
    lambda state: state.groups,
    names.is_group,
    _create_group,
    lambda state, name: state.delete_group(name),
)
