"""Kinds that Kubernetes resources declare, topics and consumer groups, and their differences (pure)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from popwheel_common.contract import names
from popwheel_common.contract.topic_settings import TOPIC_SETTINGS
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, ExponentialBackoff, Group, Topic, TopicType
from popwheel_controller.cluster.alteration import GroupSettings, TopicSettings, define_group, define_topic
from popwheel_controller.cluster.cluster_state import ClusterState, Named, topic_type
from popwheel_controller.cluster.name_map import NameMap
from popwheel_controller.kubernetes.api import CONSUMER_GROUPS, TOPICS, ResourceKind
from popwheel_controller.options import ControllerOptions

Facts = Mapping[str, Any]
"""Settings of a topic or group, as resources write them."""

_UNSAID: Facts = {each.resource_key: each.default for each in TOPIC_SETTINGS if not each.types}
_EXPONENTIAL = {"initialMs": "initial_ms", "maxMs": "max_ms", "multiplier": "multiplier"}


@dataclass(frozen=True, slots=True)
class DeclaredKind(Generic[Named]):
    """Kind of object that can be declared.

    Args:
        resource: the kind of its resources.
        word: its name in sentences.
        name_key: key of the spec with the name, if it differs from the resource's.
        defaults: of missing settings.
        unsaid: settings that `facts` leaves out at these values. So a definition of an older release, which would drop
            them from the status, stays right until somebody uses them.
        facts: returns the settings of an object.
        all_of: returns all objects of the cluster.
        is_name: returns whether a stored name can be declared.
        define: decides to create or change one (`define_topic`).
        delete: decides to delete one (`ClusterState.delete_topic`).
    """

    resource: ResourceKind
    word: str
    name_key: str
    defaults: Facts
    unsaid: Facts
    facts: Callable[[Named], Facts]
    all_of: Callable[[ClusterState], NameMap[Named]]
    is_name: Callable[[str], bool]
    define: Callable[[ClusterState, ControllerOptions, str, Facts], ClusterUpdate | None]
    delete: Callable[[ClusterState, str, int, int], ClusterUpdate]


def _define_topic(state: ClusterState, options: ControllerOptions, name: str, facts: Facts) -> ClusterUpdate | None:
    others = {each.name: facts[each.resource_key] for each in TOPIC_SETTINGS if each.resource_key in facts}
    settings = TopicSettings(topic_type(facts["type"]), facts.get("queues"), others)
    return define_topic(state, options, name, settings)


def _define_group(state: ClusterState, options: ControllerOptions, name: str, facts: Facts) -> ClusterUpdate | None:
    said = facts.get("exponentialBackoff")
    grows = None if said is None else ExponentialBackoff(**{field: said[key] for key, field in _EXPONENTIAL.items()})
    settings = GroupSettings(facts.get("maxAttempts"), facts["fifo"], facts.get("backoffMs"), grows)
    return define_group(state, options, name, settings)


def _topic_facts(topic: Topic) -> Facts:
    shown = {each.resource_key: value for each in TOPIC_SETTINGS if each.is_shown(topic.type, value := each.of(topic))}
    return {"type": TopicType.Name(topic.type), "queues": topic.queues, **shown}


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
    _UNSAID,
    _topic_facts,
    lambda state: state.topics,
    names.is_topic,
    _define_topic,
    ClusterState.delete_topic,
)
DECLARED_GROUPS = DeclaredKind(
    CONSUMER_GROUPS,
    "group",
    "groupName",
    {"fifo": False},
    {},
    _group_facts,
    lambda state: state.groups,
    names.is_group,
    _define_group,
    ClusterState.delete_group,
)
