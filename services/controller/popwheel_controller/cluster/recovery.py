"""Recovery of the topics and groups of a lost controller store, from the logs of brokers (pure).

A new store has a new store id, the high part of its versions. Recovery returns to the lost store: topics and groups get
their former ids, and versions continue after the last one that any broker has seen.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Literal

from google.protobuf.message import DecodeError

from popwheel_common.contract.cluster_view import store_id_of
from popwheel_common.contract.names import is_group, is_topic, shown
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import ListedName, SeenStore
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic, TopicType
from popwheel_controller.cluster.cluster_state import ClusterState, Named
from popwheel_controller.cluster.name_map import NameMap
from popwheel_controller.options import QUEUES_MAX, ControllerOptions

VERSIONS_LEFT_OUT: Final = 1_000_000
"""Number of versions skipped after the last one that a broker has seen: some may have been in use."""
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class BrokerNames:
    """Names in the log of the master of one broker group.

    Args:
        topics: by name.
        groups: likewise.
        states: states of the cluster that it has seen, the latest last.
    """

    topics: Mapping[str, ListedName] = field(default_factory=dict)
    groups: Mapping[str, ListedName] = field(default_factory=dict)
    states: Sequence[SeenStore] = ()

    def lost(self, ours: int) -> set[int]:
        """Return the store ids that it saw before ours. One that reappears in between was recovered."""
        seen = list(dict.fromkeys(store_id_of(state.version) for state in self.states))
        return {*seen[: seen.index(ours)]} if ours in seen else {*seen}

    def seen_version_of(self, store_id: int) -> int:
        """Return the version up to which it knows all names of a store; 0 if it saw none."""
        return max((each.applied_version for each in self.states if store_id_of(each.version) == store_id), default=0)


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding about one topic or group, for an operator.

    Args:
        kind: `topic` or `group`.
        name: its name.
        what: a sentence.
    """

    kind: str
    name: str
    what: str


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Topics and groups to restore.

    Args:
        made_of: version of the last change of topics or groups that it is based on.
        version: of the restored state; 0 if there is nothing to do.
        topics: restored ones.
        groups: likewise.
        recreated_topics: those created since, with their new ids.
        recreated_groups: likewise.
        findings: what could not be restored, or not as it was.
    """

    made_of: int
    version: int = 0
    topics: Sequence[Topic] = ()
    groups: Sequence[Group] = ()
    recreated_topics: Sequence[Topic] = ()
    recreated_groups: Sequence[Group] = ()
    findings: Sequence[Finding] = ()

    def decide(self, state: ClusterState) -> ClusterUpdate | None:
        """Return the change that executes the plan, as a snapshot; None if there is nothing to do.

        Raises:
            StatusError: PRECONDITION_FAILED, topics or groups have changed since the plan was made.
        """
        if state.named != self.made_of:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                "topics or groups were changed while it was looked at what there was; try again",
            )
        if not self.version:
            return None
        return ClusterUpdate(
            snapshot=True,
            version=self.version,
            named=self.version,
            topics=[*self.topics, *self.recreated_topics],
            groups=[*self.groups, *self.recreated_groups],
        )


def plan_recovery(
    state: ClusterState, options: ControllerOptions, brokers: Mapping[str, BrokerNames], *, adopt: bool = False
) -> RecoveryPlan:
    """Plan the recovery of topics and groups.

    Args:
        state: current state of the cluster.
        options: defaults for unknown settings, and limits.
        brokers: names that each broker group knows, by its name.
        adopt: topics and groups that were created again keep their settings, and get their former ids. Groups with
            the settings of a first use get their former settings, too.

    Raises:
        StatusError: PRECONDITION_FAILED, topics or groups exist under other ids; TOO_MANY_REQUESTS, there were more
            than the limits allow.
    """
    ours = store_id_of(state.named)
    lost = {broker: known.lost(ours) for broker, known in brokers.items()}
    target = _target(brokers, lost, ours)
    topics = _Kind("topic", state.topics, {name: known.topics for name, known in brokers.items()})
    groups = _Kind("group", state.groups, {name: known.groups for name, known in brokers.items()})
    world = _World(target, ours, {name: known.seen_version_of(target) for name, known in brokers.items()}, lost)
    found_topics, found_groups = list(_found(topics, world)), list(_found(groups, world))
    _check_clashes([*found_topics, *found_groups], adopt)
    if all(each.left_out for each in (*found_topics, *found_groups)):
        left_out = [Finding(each.kind, shown(each.name), each.left_out) for each in (*found_topics, *found_groups)]
        return RecoveryPlan(state.named, findings=left_out)
    version = state.version if target == ours else _last_version(brokers, target) + VERSIONS_LEFT_OUT
    numbers = _Numbers(version)
    findings: list[Finding] = []
    by_freshness = sorted(brokers, key=lambda name: world.seen_versions[name], reverse=True)
    back_topics, recreated_topics = _entries(
        found_topics,
        state.topics,
        numbers,
        findings,
        lambda each: _topic(each, options, by_freshness, findings),
        _recreated_topic,
    )
    back_groups, recreated_groups = _entries(
        found_groups,
        state.groups,
        numbers,
        findings,
        lambda each: _group(each, options, by_freshness, findings),
        lambda each, existing: _recreated_group(each, existing, options, by_freshness, findings),
    )
    recreated_topics += _renumbered(state.topics, {each.name for each in recreated_topics}, target, numbers)
    recreated_groups += _renumbered(state.groups, {each.name for each in recreated_groups}, target, numbers)
    for count, limit, what in (
        (len(back_topics) + len(recreated_topics), options.topics_max, "topics"),
        (len(back_groups) + len(recreated_groups), options.groups_max, "groups"),
    ):
        if count > limit:
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"there were {count} {what}, more than controller.{what}_max allows ({limit}); raise it",
            )
    return RecoveryPlan(
        state.named,
        numbers.last + 1,
        back_topics,
        back_groups,
        recreated_topics,
        recreated_groups,
        sorted(findings, key=_place),
    )


@dataclass(frozen=True, slots=True)
class _Kind(Generic[Named]):
    kind: str
    existing: NameMap[Named]
    by_broker: Mapping[str, Mapping[str, ListedName]]


@dataclass(frozen=True, slots=True)
class _World:
    target: int
    ours: int
    seen_versions: Mapping[str, int]
    lost: Mapping[str, set[int]]


@dataclass(frozen=True, slots=True)
class _Found:
    """Name of a topic or group in a lost state.

    Args:
        kind: `topic` or `group`.
        name: the name.
        id: its former id; 0 if no broker knows it.
        by_broker: entry of each broker.
        ids: by broker, where they differ.
        exists: whether one of that name exists now.
        left_out: why it is not restored; empty if it is.
    """

    kind: str
    name: str
    id: int
    by_broker: Mapping[str, ListedName]
    ids: Mapping[str, int]
    exists: bool
    left_out: str


class _Numbers:
    """Source of new ids, for entries without a former one."""

    def __init__(self, last: int) -> None:
        self.last = last

    def next(self) -> int:
        self.last += 1
        return self.last


def _target(brokers: Mapping[str, BrokerNames], lost: Mapping[str, set[int]], ours: int) -> int:
    """Return the store id to return to: that of most names; ours if there is none."""
    counts: Counter[int] = Counter()
    for broker, known in brokers.items():
        for each in (*known.topics.values(), *known.groups.values()):
            before = [store_id_of(id_) for id_ in each.ids if _is_lost(store_id_of(id_), lost[broker], known, ours)]
            if before:
                counts[before[-1]] += 1
    return max(counts, key=lambda store_id: (counts[store_id], store_id), default=ours)


def _is_lost(store_id: int, lost: set[int], known: BrokerNames, ours: int) -> bool:
    """Return whether a store id was before ours. Logs of older releases do not list the store ids."""
    if store_id == ours:
        return False
    return store_id in lost or all(store_id_of(state.version) != store_id for state in known.states)


def _found(kind: "_Kind[Topic] | _Kind[Group]", world: _World) -> Iterator[_Found]:
    """Yield all names that the brokers know of a lost state."""
    is_legal = is_topic if kind.kind == "topic" else is_group
    for name in sorted({name for names in kind.by_broker.values() for name in names}):
        by_broker = {broker: names[name] for broker, names in kind.by_broker.items() if name in names}
        every = {id_ for each in by_broker.values() for id_ in each.ids}
        exists = name in kind.existing
        if world.target == world.ours:
            if every or exists:
                continue  # it belongs, or belonged, to this state
        elif not exists and any(store_id_of(id_) == world.ours for id_ in every):
            continue  # it was created again since, and deleted
        ids = {
            broker: max(of_target)
            for broker, each in by_broker.items()
            if (of_target := [id_ for id_ in each.ids if store_id_of(id_) == world.target])
        }
        if exists and not ids:
            continue  # it was created since
        id_ = max(ids.values(), default=0)
        left_out = "" if is_legal(name) else "its name can't be used; its messages stay in the log"
        deleted_at = [
            broker for broker, seen in world.seen_versions.items() if broker not in by_broker and seen >= id_ > 0
        ]
        if deleted_at:
            left_out = (
                f"it was deleted: {_some(sorted(deleted_at))} had seen a later state without it; "
                f"{_some(sorted(by_broker))} had not"
            )
        yield _Found(kind.kind, name, id_, by_broker, ids if len({*ids.values()}) > 1 else {}, exists, left_out)


def _check_clashes(found: Iterable[_Found], adopt: bool) -> None:
    clashes = [f"{each.kind} {each.name}" for each in found if each.exists]
    if clashes and not adopt:
        raise StatusError(
            Code.PRECONDITION_FAILED,
            f"{_some(clashes)} {'is' if len(clashes) == 1 else 'are'} there already under another id than before the "
            "store was lost: have them get their former ids, with the settings that they have now (--adopt). Do not "
            "delete them: their messages would be lost",
        )


def _last_version(brokers: Mapping[str, BrokerNames], target: int) -> int:
    versions = [state.version for known in brokers.values() for state in known.states]
    ids = [
        id_
        for known in brokers.values()
        for each in (*known.topics.values(), *known.groups.values())
        for id_ in each.ids
    ]
    return max(each for each in (*versions, *ids) if store_id_of(each) == target)


def _entries(
    found: Iterable[_Found],
    existing: NameMap[Named],
    numbers: _Numbers,
    findings: list[Finding],
    remade: Callable[[_Found], Named],
    adopted: Callable[[_Found, Named], Named],
) -> tuple[list[Named], list[Named]]:
    """Return the restored entries, and the existing entries that get their former ids."""
    back: list[Named] = []
    kept: list[Named] = []
    for each in found:
        if each.left_out:
            findings.append(Finding(each.kind, shown(each.name), each.left_out))
            continue
        if each.ids:
            said = ", ".join(f"{broker}: {id_}" for broker, id_ in sorted(each.ids.items())[:_NAMED_MAX])
            what = f"brokers know it by several ids ({said}); the highest counts"
            findings.append(Finding(each.kind, each.name, what))
        if not each.id:
            findings.append(Finding(each.kind, each.name, "nobody knows the id that it had; it gets a new one"))
        id_ = each.id or numbers.next()
        if each.exists:
            findings.append(Finding(each.kind, each.name, "it was made again since, and gets its former id"))
            kept.append(_with_id(adopted(each, existing[each.name]), id_))
        else:
            back.append(_with_id(remade(each), id_))
    return back, kept


def _renumbered(existing: NameMap[Named], but: set[str], target: int, numbers: _Numbers) -> list[Named]:
    """Return the entries created since; those with ids of the restored store get new ones."""
    return [
        each if store_id_of(each.id) == target else _with_id(each, numbers.next())
        for name, each in existing.items()
        if name not in but
    ]


def _with_id(each: Named, id_: int) -> Named:
    copy = type(each)()
    copy.CopyFrom(each)
    copy.id = id_
    return copy


def _topic(found: _Found, options: ControllerOptions, brokers: Sequence[str], findings: list[Finding]) -> Topic:
    topic = Topic()
    queues = max(each.queues for each in found.by_broker.values())
    known = _read_settings(found, topic, brokers, findings)
    if not known or topic.type not in TopicType.values() or not topic.type:
        is_lite = any(each.has_lite_topics for each in found.by_broker.values())
        kind = TopicType.LITE if is_lite else TopicType.NORMAL
        topic = Topic(type=kind, queues=1 if is_lite else queues or options.topic.queues)
        guessed = "" if queues or is_lite else ", which is the default"
        findings.append(
            Finding(
                "topic",
                found.name,
                f"no log has its settings: it is of type {TopicType.Name(kind)} now, and has {topic.queues} queues"
                f"{guessed}; change what was otherwise",
            )
        )
    elif topic.type != TopicType.LITE:
        topic.queues = max(topic.queues, queues)
    topic.queues = min(max(topic.queues, 1), QUEUES_MAX)
    topic.name = found.name
    return topic


def _group(found: _Found, options: ControllerOptions, brokers: Sequence[str], findings: list[Finding]) -> Group:
    group = Group()
    if not _read_settings(found, group, brokers, findings) or not group.max_attempts:
        group = Group(max_attempts=options.group.max_attempts, backoff_ms=options.group.backoff_ms)
        findings.append(
            Finding("group", found.name, "no log has its settings: it has the default ones; change what was otherwise")
        )
    group.name = found.name
    return group


def _recreated_topic(found: _Found, existing: Topic) -> Topic:
    """Return a topic that was created again: as it is now, with all queues that have messages."""
    topic = Topic()
    topic.CopyFrom(existing)
    queues = min(max(each.queues for each in found.by_broker.values()), QUEUES_MAX)
    if existing.type not in (TopicType.LITE, TopicType.PRIORITY) and queues > existing.queues:
        topic.queues, topic.message_group_queues = queues, existing.message_group_queues or existing.queues
    return topic


def _recreated_group(
    found: _Found, existing: Group, options: ControllerOptions, brokers: Sequence[str], findings: list[Finding]
) -> Group:
    """Return a group that was created again: as it is now, or as it was before if it has the settings of a first use.
    Its order stays, as it may be in use.
    """
    group = Group()
    by_first_use = Group(max_attempts=options.group.max_attempts, backoff_ms=options.group.backoff_ms)
    by_first_use.name, by_first_use.id = existing.name, existing.id
    if existing != by_first_use or not _read_settings(found, group, brokers, findings, former=True):
        group.CopyFrom(existing)
        return group
    if group.fifo != existing.fifo:
        what = "its order was another one, and stays as it is now: popwheel admin group update"
        findings.append(Finding("group", found.name, what))
        group.fifo = existing.fifo
    group.name = existing.name
    return group


def _read_settings(
    found: _Found, into: Topic | Group, brokers: Sequence[str], findings: list[Finding], *, former: bool = False
) -> bool:
    """Read the settings of the broker that has seen the latest version, or those of before the entry was created again;
    return whether any broker has them.
    """
    field_name: Literal["settings", "former_settings"] = "former_settings" if former else "settings"
    known = [
        (broker, each.former_settings if former else each.settings)
        for broker in brokers
        if (each := found.by_broker.get(broker)) is not None and each.HasField(field_name)
    ]
    if not known:
        return False
    broker, settings = known[0]
    if any(each != settings for _, each in known):
        findings.append(Finding(found.kind, found.name, f"brokers know other settings of it; those of {broker} count"))
    try:
        into.ParseFromString(settings)
    except DecodeError:
        return False
    return True


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _place(finding: Finding) -> tuple[str, str]:
    return finding.kind, finding.name
