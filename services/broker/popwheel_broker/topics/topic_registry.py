"""Registry of the topics and groups in a broker's log, and the changes that follow from the controllers' state (pure).

Its id distinguishes a topic or group from an earlier one of the same name. An id is the version of the controllers'
state that the topic was made in. Versions only grow within one store. A store that was lost and made anew has another
store id, which each version contains (`popwheel_common.contract.cluster_view.store_id_of`). The core records the
changes (records NAMES) before it acts on them, so that replicas and restarts agree.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.topics.known_ids import NOT_PLACED, KnownIds
from popwheel_broker.topics.known_settings import KnownSettings
from popwheel_broker.topics.readers import Readers
from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView, store_id_of
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic

_KINDS: Final = frozenset((RecordKind.NAMES, RecordKind.FORGET_TOPIC, RecordKind.FORGET_GROUP))
_FORMER_IDS_MAX = 16
_FORMER_STATES_MAX = 16
_SETTINGS_AT_ONCE = 250
_NEW_AT_ONCE = 1000
"""Limit of new topics, and of new groups, that are recorded at once; those that a call needs are first."""
_DELETED_AT_ONCE = 4
"""Limit of deleted topics, and of deleted groups, dropped at once; a call that needs other names drops none"""


@dataclass(frozen=True, slots=True)
class Names:
    """The body of a record NAMES.

    Args:
        topics: ids of topics that are new, by name.
        groups: likewise of groups.
        applied_version: version up to which the controllers' changes of topics and groups are applied. If it is of
            another store than the log, the controllers have lost the log's store.
        reads: topics that groups have begun to read, by group.
        topic_settings: settings of topics that are new or changed, by name (`known_settings.written_settings`).
        group_settings: likewise of groups.
    """

    topics: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    applied_version: int = 0
    reads: Mapping[str, list[str]] = field(default_factory=dict)
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    group_settings: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the record's payload."""
        body = {"topics": self.topics, "groups": self.groups, "heard": self.applied_version}
        seldom = {
            "reads": self.reads,
            "topic_settings": self.topic_settings,
            "group_settings": self.group_settings,
        }
        return json.dumps({**body, **{key: value for key, value in seldom.items() if value}}).encode()

    @staticmethod
    def decode(payload: bytes) -> "Names":
        """Read it back."""
        body = json.loads(payload)
        return Names(
            body["topics"],
            body["groups"],
            body.get("heard", 0),
            body.get("reads", {}),
            body.get("topic_settings", {}),
            body.get("group_settings", {}),
        )


@dataclass(frozen=True, slots=True)
class SavedNames:
    """Names of a snapshot.

    Args:
        topic_ids: ids of topics, to detect one that was deleted and made again meanwhile.
        group_ids: likewise of groups.
        former_topic_ids: ids that topics had in stores that the controllers have lost, by name.
        applied_version: version up to which the controllers' changes of topics and groups were applied.
        reads: topics that groups read, by group.
        former_group_ids: ids that groups had in stores that the controllers have lost, by name.
        former_states: versions of those stores (`TopicRegistry.former_states`).
        topic_settings: of topics, as the log has them, by name.
        group_settings: likewise of groups.
        former_topic_settings: earlier settings of topics that were made again after the controllers lost a store.
        former_group_settings: likewise of groups.
    """

    topic_ids: dict[str, int] = field(default_factory=dict)
    group_ids: dict[str, int] = field(default_factory=dict)
    former_topic_ids: dict[str, list[int]] = field(default_factory=dict)
    applied_version: int = 0
    reads: dict[str, list[str]] = field(default_factory=dict)
    former_group_ids: dict[str, list[int]] = field(default_factory=dict)
    former_states: list[tuple[int, int]] = field(default_factory=list)
    topic_settings: dict[str, str] = field(default_factory=dict)
    group_settings: dict[str, str] = field(default_factory=dict)
    former_topic_settings: dict[str, str] = field(default_factory=dict)
    former_group_settings: dict[str, str] = field(default_factory=dict)


class ChangedNames:
    """Names that have changed since the last call of `take`."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        """New, with another id, or gone."""
        self.groups: set[str] = set()
        """Likewise."""

    def take(self) -> "ChangedNames":
        """Return the changes so far, and start with none."""
        taken = ChangedNames()
        taken.topics, self.topics = self.topics, taken.topics
        taken.groups, self.groups = self.groups, taken.groups
        return taken


@dataclass(frozen=True, slots=True)
class NameChanges:
    """Changes that follow from the controllers' state.

    Args:
        gone_topics: topics that were deleted, also if they were made again since.
        gone_groups: likewise groups.
        new_topics: ids of new topics.
        new_groups: likewise of groups.
    """

    gone_topics: list[str]
    gone_groups: list[str]
    new_topics: dict[str, int]
    new_groups: dict[str, int]


class TopicRegistry:
    """Topics and groups in the log (a fold over it), and those of the view that are not in the log yet.

    Args:
        view: topics and groups of the controllers.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._topics = KnownIds(lambda: view.topics)
        self._groups = KnownIds(lambda: view.groups)
        self.topic_settings = KnownSettings(lambda: view.topics)
        self.group_settings = KnownSettings(lambda: view.groups)
        self.readers = Readers()
        self.applied_version = 0
        """Version up to which the controllers' changes are applied."""
        self._largest_id = NOT_PLACED
        self._former_topic_ids: dict[str, list[int]] = {}
        """Ids that topics had in stores that the controllers have lost: delayed messages contain them. The latest
        few."""
        self._former_group_ids: dict[str, list[int]] = {}
        self.former_states: list[tuple[int, int]] = []
        """Latest few stores that the controllers have lost.

        Each is the last version that the log has seen, and the version up to which changes were applied.
        """
        self.has_pending_changes = True
        """True if changes were received that are not applied."""
        self._is_set_back = False
        self._awaits_snapshot = False
        self._has_first_part = False
        """True if the first part of the snapshot that is arriving was staged here."""
        self._watched: list[ChangedNames] = []

    @property
    def topic_ids(self) -> Mapping[str, int]:
        """Ids of topics by name, without deleted ones; or `NOT_PLACED`."""
        return self._topics.ids

    @property
    def group_ids(self) -> Mapping[str, int]:
        """Likewise of consumer groups."""
        return self._groups.ids

    # From the log

    def restore(self, saved: SavedNames) -> None:
        """Start with the names of a snapshot."""
        self._topics.restore(saved.topic_ids)
        self._groups.restore(saved.group_ids)
        self._former_topic_ids = dict(saved.former_topic_ids)
        self._former_group_ids = dict(saved.former_group_ids)
        self.former_states = list(saved.former_states)
        self.topic_settings.restore(saved.topic_settings, saved.former_topic_settings)
        self.group_settings.restore(saved.group_settings, saved.former_group_settings)
        self.readers.restore(saved.reads)
        self.applied_version = saved.applied_version
        self._largest_id = max((*saved.topic_ids.values(), *saved.group_ids.values()), default=NOT_PLACED)

    def former_ids(self, topic: str) -> list[int]:
        """Return the ids that a topic had in stores that the controllers have lost."""
        return self._former_topic_ids.get(topic, [])

    def former_group_ids(self, group: str) -> list[int]:
        """Likewise of a group."""
        return self._former_group_ids.get(group, [])

    def watch(self) -> ChangedNames:
        """Return a collector of the changes from now on; its owner takes them from time to time."""
        changed = ChangedNames()
        self._watched.append(changed)
        return changed

    def _has_changed(self, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        for changed in self._watched:
            changed.topics.update(topics)
            changed.groups.update(groups)

    @property
    def kinds(self) -> frozenset[RecordKind]:
        """See `Fold`."""
        return _KINDS

    def concerns(self, kind: int, origin: bytes) -> bool:
        """See `Fold`."""
        return True

    def apply(self, found: StoredRecord) -> None:
        """See `Fold`."""
        if found.kind == RecordKind.NAMES:
            self._record(Names.decode(found.payload))
        elif found.kind == RecordKind.FORGET_TOPIC:
            self._forget_topic(found.payload.decode())
        else:
            self._forget_group(found.payload.decode())

    def _record(self, names: Names) -> None:
        if self.known_version and names.applied_version and store_id_of(names.applied_version) != self.store_id:
            self._begin_anew()
        self.applied_version = max(self.applied_version, names.applied_version)
        for ids, known, settings, recorded in (
            (names.topics, self.topic_ids, self.topic_settings, names.topic_settings),
            (names.groups, self.group_ids, self.group_settings, names.group_settings),
        ):
            for name in ids:
                if known.get(name) == NOT_PLACED:
                    settings.made_again(name, recorded.get(name))
        self._topics.record(names.topics)
        self._groups.record(names.groups)
        self._largest_id = max(self._largest_id, *names.topics.values(), *names.groups.values(), NOT_PLACED)
        self.readers.record(names.reads)
        self.topic_settings.record(names.topic_settings)
        self.group_settings.record(names.group_settings)
        self._has_changed((*names.topics, *names.topic_settings), (*names.groups, *names.reads, *names.group_settings))

    def _forget_topic(self, topic: str) -> None:
        was_known = topic in self._topics.ids or topic in self._former_topic_ids
        self._topics.forget(topic)
        self._former_topic_ids.pop(topic, None)
        self.topic_settings.forget(topic)
        self._has_changed((topic,) if was_known else (), self.readers.forget_topic(topic))

    def _forget_group(self, group: str) -> None:
        self._groups.forget(group)
        self._former_group_ids.pop(group, None)
        self.group_settings.forget(group)
        self._has_changed(groups=(group, *self.readers.forget_group(group)))

    def _begin_anew(self) -> None:
        self.former_states = [*self.former_states, (self.known_version, self.applied_version)][-_FORMER_STATES_MAX:]
        self.applied_version = 0
        self._largest_id = NOT_PLACED
        self._is_set_back = False
        for ids, all_former in (
            (self.topic_ids, self._former_topic_ids),
            (self.group_ids, self._former_group_ids),
        ):
            for name, known in ids.items():
                former = all_former.get(name, [])
                if known != NOT_PLACED and known not in former:
                    all_former[name] = [*former, known][-_FORMER_IDS_MAX:]
        self._topics.forget_ids()
        self._groups.forget_ids()
        self._has_changed(self.topic_ids, self.group_ids)

    @property
    def known_version(self) -> int:
        """Latest version of the controllers' state that is known to be in the log."""
        return max(self.applied_version, self._largest_id)

    @property
    def store_id(self) -> int:
        """Id of the controllers' store that the log is of."""
        return store_id_of(self.known_version)

    def ids_of(self, topic: str) -> list[int]:
        """Return all ids by which records may mean the topic of this name; none if there is no such topic."""
        known = self.topic_ids.get(topic)
        return [] if known is None else [*self._former_topic_ids.get(topic, ()), known]

    def is_topic(self, topic: str, topic_id: int) -> bool:
        """Return whether a recorded id is of the present topic of a name; 0 stands for any."""
        return topic_id in (0, self.topic_ids.get(topic)) or topic_id in self._former_topic_ids.get(topic, ())

    # From the controllers

    def stage(self, update: ClusterUpdate) -> None:
        """Add topics and groups that were received and are in the view soon, maybe with others of the same snapshot."""
        if update.snapshot and update.HasField("cluster"):
            self._has_first_part = True
        self._stage(update.topics, update.groups)

    def _stage(self, topics: Iterable[Topic], groups: Iterable[Group]) -> None:
        topics, groups = list(topics), list(groups)
        self._topics.stage(topics)
        self._groups.stage(groups)
        self.topic_settings.stage(topics)
        self.group_settings.stage(groups)

    def view_changed(self, update: ClusterUpdate) -> None:
        """Apply a change of the controllers' state that the view has now.

        Args:
            update: the change, or the last part of a snapshot.
        """
        self.has_pending_changes = True
        if update.snapshot:
            self._awaits_snapshot = False
            if not self._has_first_part:  # this registry was made in the middle of it
                self._stage(self._view.topics.values(), self._view.groups.values())
                self.topic_settings.compare_all()
                self.group_settings.compare_all()
            self._has_first_part = False
        if self._view.named >= self.known_version:
            self._is_set_back = False
        elif update.snapshot:
            self._is_set_back = True  # not a late update: the controllers themselves are behind the log
        topics = {**update.gone_topics, **dict.fromkeys(update.deleted_topics, update.version)}
        groups = {**update.gone_groups, **dict.fromkeys(update.deleted_groups, update.version)}
        self._topics.view_changed(topics, update.snapshot)
        self._groups.view_changed(groups, update.snapshot)
        self.topic_settings.view_changed()
        self.group_settings.view_changed()

    def inherit(self, before: "TopicRegistry") -> None:
        """Take over the changes that another registry received and did not apply."""
        self._topics.deleted.update(before._topics.deleted)
        self._groups.deleted.update(before._groups.deleted)
        self._is_set_back = before._is_set_back

    def begin_to_lead(self) -> None:
        """Distrust a view of another store than the log's until the next snapshot arrives.

        The log may be of the later store, and numbers do not say which one is later.
        """
        self._awaits_snapshot = self._view.ready and self._is_of_another_store

    @property
    def can_apply_changes(self) -> bool:
        """True if changes were received that are not applied, and may be."""
        return self.has_pending_changes and not self._awaits_snapshot

    @property
    def _is_of_another_store(self) -> bool:
        return self.known_version > 0 and self.store_id != self._view.store_id

    def knows_topic(self, topic: str) -> bool:
        """Return whether a topic exists by the log; retry, dead letter and lite topics go by topic and group."""
        if topic.startswith(names.DEAD_LETTER_PREFIX):
            return self.knows_group(topic.removeprefix(names.DEAD_LETTER_PREFIX))
        if topic.startswith(names.RETRY_PREFIX):
            group, topic = names.group_of_retry_topic(topic), names.topic_of_retry_topic(topic)
            return self.knows_group(group) and self.knows_topic(topic)
        return names.client_topic(topic) in self.topic_ids

    def knows_group(self, group: str) -> bool:
        """Return whether a group exists by the log."""
        return group in self.group_ids

    def is_deleted_group(self, group: str, group_id: int) -> bool:
        """Return whether a caller means a deleted group, and no other has its name.

        A group that may be newer than this view does not count, nor one of a store that the controllers have lost.

        Args:
            group: its name.
            group_id: its id; 0 if the caller does not know it.
        """
        view = self._view
        of_view = 0 < group_id <= view.named and store_id_of(group_id) == view.store_id
        return of_view and group not in view.groups

    def applied(self) -> None:
        """Accept that the log has what `changes` returned last; other changes may be pending still."""
        self._topics.applied(self._dropped_up_to)
        self._groups.applied(-1)
        self.has_pending_changes = not self.knows_all_of_view

    @property
    def knows_all_of_view(self) -> bool:
        """True if the log has all topics and groups of the view, with what `changes` returned last."""
        return self._topics.is_complete and self._groups.is_complete

    def new_store(self) -> Names | None:
        """Return the record to write first if the log is of a store that the controllers have lost and replaced, else
        None.

        The names of the old store remain, and get the next ids that the controllers give them.
        """
        return Names(applied_version=self._view.named) if self._view.ready and self._is_of_another_store else None

    def changes(self, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> NameChanges:
        """Return some deleted and some new names, by the controllers' state. Names that are needed come before
        deletions.

        Names that the controllers do not know at all remain: controllers without their store must not cost messages.
        Names that are newer than the view remain, too: the view of a new master may be behind that of the old one, and
        have an earlier topic of the same name. A topic that only such a view has was deleted, if it is older than the
        last change that the log's writer applied.

        Args:
            topics, groups: names that are needed now.
        """
        topics, groups = list(topics), list(groups)
        limits = _NEW_AT_ONCE, 0 if topics or groups else _DELETED_AT_ONCE
        gone_topics, new_topics = self._topics.changes(self._deleted, self._dropped_up_to, topics, *limits)
        # Also groups that were dropped: their state goes when the deletion arrives.
        gone_groups, new_groups = self._groups.changes(self._deleted, -1, groups, *limits)
        return NameChanges(gone_topics, gone_groups, new_topics, new_groups)

    def with_settings(self, topics: Mapping[str, int], groups: Mapping[str, int], applied_version: int) -> Names:
        """Return the record of new topics and groups: their ids and settings."""
        return Names(
            topics,
            groups,
            applied_version,
            topic_settings=self.topic_settings.of(topics),
            group_settings=self.group_settings.of(groups),
        )

    def unwritten_settings(self) -> Names | None:
        """Return some settings that have changed, or that an older release did not record; None if there are none.

        The caller repeats this while `has_unwritten_settings`.
        """
        topics = self.topic_settings.unwritten(self.topic_ids, _SETTINGS_AT_ONCE)
        groups = self.group_settings.unwritten(self.group_ids, _SETTINGS_AT_ONCE)
        return Names(topic_settings=topics, group_settings=groups) if topics or groups else None

    @property
    def has_unwritten_settings(self) -> bool:
        """True if settings are to be compared or recorded."""
        return self.topic_settings.has_unwritten or self.group_settings.has_unwritten

    def is_deleted_topic(self, topic: str) -> bool:
        """Return whether the topic that the log has by a name was deleted, also if a new one has the name."""
        return self.can_apply_changes and self._topics.is_deleted(topic, self._deleted)

    def _deleted(self, version: int) -> int:
        """Return the version of a deletion if it is of the view's store, else 0."""
        return version if store_id_of(version) == self._view.store_id else 0

    @property
    def _dropped_up_to(self) -> int:
        """Id up to which topics that the log lacks were deleted, as the view is behind; -1 if the view decides."""
        return -1 if self._is_set_back or self._view.named >= self.applied_version else self.applied_version

    def is_later(self, topic: str, topic_id: int) -> bool:
        """Return whether a Put's topic id is of a topic that is newer than all that this broker knows of the cluster.

        An id of another store of the controllers is not: only they know which of two stores is the later one.
        """
        newest = max(self.topic_ids.get(topic, NOT_PLACED), self._view.named, self._dropped_up_to)
        return store_id_of(topic_id) == self._view.store_id and topic_id > newest

    def is_current(self, topic: str, topic_id: int) -> bool:
        """Return whether a Put's topic id is that of the present topic of the name; 0 stands for any topic."""
        known = self.topic_ids.get(topic)
        if topic_id in (0, known):
            return True
        current = self._view.topics.get(topic)
        if known is None or current is None or current.id != topic_id:
            return False
        # Controllers that were restored from a backup give smaller ids than the log has; else the view is behind.
        return self._is_set_back or known <= self._view.named
