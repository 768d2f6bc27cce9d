"""Topics and groups that a broker's log knows, and the changes that follow from the controllers' state (pure).

A topic or group of a name is told from an earlier one by its id: the version of the controllers' state in which it was
made. Versions only grow, as long as that state lives; one that was lost and made anew is another store_id, which
each version says (`popwheel_common.contract.cluster_view.store_id_of`). What is decided here the core writes down
(records NAMES) before it acts on it, so that replicas and restarts agree.
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
"""Limit of new topics, and of new groups, that are recorded at once; others follow, and those of a call go before."""
_GONE_AT_ONCE = 4
"""Limit of deleted topics, and of deleted groups, that are dropped at once, but by no call that needs others."""


@dataclass(frozen=True, slots=True)
class Names:
    """The body of a record NAMES.

    Args:
        topics: ids of topics that are new, by name.
        groups: likewise of groups.
        heard: up to this version the controllers' changes of topics and groups are dealt with. If it is of another
            store_id than what was known, that is of a state that the controllers have lost.
        reads: topics that groups have begun to read, by group.
        topic_settings: settings of topics that are new or changed, by name (`known_settings.written_settings`).
        group_settings: likewise of groups.
    """

    topics: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    heard: int = 0
    reads: Mapping[str, list[str]] = field(default_factory=dict)
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    group_settings: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The record's payload."""
        body = {"topics": self.topics, "groups": self.groups, "heard": self.heard}
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
    """Names as a checkpoint has them.

    Args:
        topic_ids: which topics the broker knew, to tell one that was deleted and made again meanwhile.
        group_ids: likewise of groups.
        former_topic_ids: ids that topics had in states that the controllers have lost, by name.
        heard: up to this version the controllers' changes of topics and groups were dealt with.
        reads: topics that groups read, by group.
        former_group_ids: ids that groups had in states that the controllers have lost, by name.
        former_states: what was known of those states (`TopicRegistry.former_states`).
        topic_settings: of topics, as the log has them, by name.
        group_settings: likewise of groups.
        former_topic_settings: of topics that were made again since the controllers have lost a state: those before.
        former_group_settings: likewise of groups.
    """

    topic_ids: dict[str, int] = field(default_factory=dict)
    group_ids: dict[str, int] = field(default_factory=dict)
    former_topic_ids: dict[str, list[int]] = field(default_factory=dict)
    heard: int = 0
    reads: dict[str, list[str]] = field(default_factory=dict)
    former_group_ids: dict[str, list[int]] = field(default_factory=dict)
    former_states: list[tuple[int, int]] = field(default_factory=list)
    topic_settings: dict[str, str] = field(default_factory=dict)
    group_settings: dict[str, str] = field(default_factory=dict)
    former_topic_settings: dict[str, str] = field(default_factory=dict)
    former_group_settings: dict[str, str] = field(default_factory=dict)


class ChangedNames:
    """The names of which something has changed since it was last asked for."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        """New, with another id, or gone."""
        self.groups: set[str] = set()
        """Likewise."""

    def take(self) -> "ChangedNames":
        """Return the changes up to now; the rest is gathered from here on."""
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
        new_topics: ids of topics to be known from now on.
        new_groups: likewise of groups.
    """

    gone_topics: list[str]
    gone_groups: list[str]
    new_topics: dict[str, int]
    new_groups: dict[str, int]


class TopicRegistry:
    """Names that the log knows (a fold over it), and those seen that are not in the log yet.

    Args:
        view: topics and groups as the controllers have them.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._topics = KnownIds(lambda: view.topics)
        self._groups = KnownIds(lambda: view.groups)
        self.topic_settings = KnownSettings(lambda: view.topics)
        self.group_settings = KnownSettings(lambda: view.groups)
        self.readers = Readers()
        self.heard = 0
        """Version up to which the controllers' changes are processed."""
        self._largest_id = NOT_PLACED
        self._former_topic_ids: dict[str, list[int]] = {}
        """Ids that topics had in states that the controllers have lost: delayed messages say them. The latest few."""
        self._former_group_ids: dict[str, list[int]] = {}
        self.former_states: list[tuple[int, int]] = []
        """Latest few states that the controllers have lost.

        Each has the last version that the log knew of, and that up to which changes were processed.
        """
        self.is_unsettled = True
        """True if changes were seen that are not processed."""
        self._is_set_back = False
        self._awaits_snapshot = False
        self._is_told_from_first = False
        """True if the first part of a snapshot that is arriving in parts was seen here."""
        self._watched: list[ChangedNames] = []

    @property
    def topic_ids(self) -> Mapping[str, int]:
        """Ids of the topics that were heard of, and not of their deletion; or `NOT_PLACED`."""
        return self._topics.ids

    @property
    def group_ids(self) -> Mapping[str, int]:
        """Likewise of consumer groups."""
        return self._groups.ids

    # What the log says

    def restore(self, saved: SavedNames) -> None:
        """Begin with what a checkpoint says."""
        self._topics.restore(saved.topic_ids)
        self._groups.restore(saved.group_ids)
        self._former_topic_ids = dict(saved.former_topic_ids)
        self._former_group_ids = dict(saved.former_group_ids)
        self.former_states = list(saved.former_states)
        self.topic_settings.restore(saved.topic_settings, saved.former_topic_settings)
        self.group_settings.restore(saved.group_settings, saved.former_group_settings)
        self.readers.restore(saved.reads)
        self.heard = saved.heard
        self._largest_id = max((*saved.topic_ids.values(), *saved.group_ids.values()), default=NOT_PLACED)

    def former_ids(self, topic: str) -> list[int]:
        """Ids that a topic had in states that the controllers have lost."""
        return self._former_topic_ids.get(topic, [])

    def former_group_ids(self, group: str) -> list[int]:
        """Likewise of a group."""
        return self._former_group_ids.get(group, [])

    def watch(self) -> ChangedNames:
        """Return the changes from now on, for a caller that takes them from time to time."""
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
            self._note(Names.decode(found.payload))
        elif found.kind == RecordKind.FORGET_TOPIC:
            self._forget_topic(found.payload.decode())
        else:
            self._forget_group(found.payload.decode())

    def _note(self, names: Names) -> None:
        if self.known_version and names.heard and store_id_of(names.heard) != self.store_id:
            self._begin_anew()
        self.heard = max(self.heard, names.heard)
        for ids, known, settings, told in (
            (names.topics, self.topic_ids, self.topic_settings, names.topic_settings),
            (names.groups, self.group_ids, self.group_settings, names.group_settings),
        ):
            for name in ids:
                if known.get(name) == NOT_PLACED:
                    settings.made_again(name, told.get(name))
        self._topics.note(names.topics)
        self._groups.note(names.groups)
        self._largest_id = max(self._largest_id, *names.topics.values(), *names.groups.values(), NOT_PLACED)
        self.readers.note(names.reads)
        self.topic_settings.note(names.topic_settings)
        self.group_settings.note(names.group_settings)
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
        self.former_states = [*self.former_states, (self.known_version, self.heard)][-_FORMER_STATES_MAX:]
        self.heard = 0
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
        """Version of the controllers' state that the log's writer had seen, if not later ones."""
        return max(self.heard, self._largest_id)

    @property
    def store_id(self) -> int:
        """Number of the controllers' state that the log is of."""
        return store_id_of(self.known_version)

    def ids_of(self, topic: str) -> list[int]:
        """All ids under which records may speak of the topic that has a name now; none if none has."""
        known = self.topic_ids.get(topic)
        return [] if known is None else [*self._former_topic_ids.get(topic, ()), known]

    def is_topic(self, topic: str, topic_id: int) -> bool:
        """Return whether a recorded id is that of the topic that has the name now; 0 stands for an unknown one."""
        return topic_id in (0, self.topic_ids.get(topic)) or topic_id in self._former_topic_ids.get(topic, ())

    # What the controllers say

    def tell(self, update: ClusterUpdate) -> None:
        """They tell of topics and groups that are in the view soon, maybe with others of the same snapshot."""
        if update.snapshot and update.HasField("cluster"):
            self._is_told_from_first = True
        self._tell(update.topics, update.groups)

    def _tell(self, topics: Iterable[Topic], groups: Iterable[Group]) -> None:
        topics, groups = list(topics), list(groups)
        self._topics.tell(topics)
        self._groups.tell(groups)
        self.topic_settings.tell(topics)
        self.group_settings.tell(groups)

    def hear(self, update: ClusterUpdate) -> None:
        """Their state has changed, and the view has it now.

        Args:
            update: the change, or the last part of a snapshot.
        """
        self.is_unsettled = True
        if update.snapshot:
            self._awaits_snapshot = False
            if not self._is_told_from_first:  # it has come to be in the middle
                self._tell(self._view.topics.values(), self._view.groups.values())
                self.topic_settings.look_through()
                self.group_settings.look_through()
            self._is_told_from_first = False
        if self._view.named >= self.known_version:
            self._is_set_back = False
        elif update.snapshot:
            self._is_set_back = True  # no late word of changes: the controllers themselves know less
        topics = {**update.gone_topics, **dict.fromkeys(update.deleted_topics, update.version)}
        groups = {**update.gone_groups, **dict.fromkeys(update.deleted_groups, update.version)}
        self._topics.hear(topics, update.snapshot)
        self._groups.hear(groups, update.snapshot)
        self.topic_settings.hear()
        self.group_settings.hear()

    def inherit(self, before: "TopicRegistry") -> None:
        """Take over what another one had heard and not dealt with."""
        self._topics.deleted.update(before._topics.deleted)
        self._groups.deleted.update(before._groups.deleted)
        self._is_set_back = before._is_set_back

    def begin_to_lead(self) -> None:
        """Distrust a view of another store_id than the log's until it was told anew: whoever wrote the log may have
        heard of the later one, which can't be told by the numbers.
        """
        self._awaits_snapshot = self._view.ready and self._is_of_another_store

    @property
    def can_be_settled(self) -> bool:
        """True if changes were seen that are not processed, and may be."""
        return self.is_unsettled and not self._awaits_snapshot

    @property
    def _is_of_another_store(self) -> bool:
        return self.known_version > 0 and self.store_id != self._view.store_id

    def knows_topic(self, topic: str) -> bool:
        """Return whether a topic was seen, and not its deletion; retry, dead letter and lite topics go with theirs."""
        if topic.startswith(names.DEAD_LETTER_PREFIX):
            return self.knows_group(topic.removeprefix(names.DEAD_LETTER_PREFIX))
        if topic.startswith(names.RETRY_PREFIX):
            group, topic = names.group_of_retry_topic(topic), names.topic_of_retry_topic(topic)
            return self.knows_group(group) and self.knows_topic(topic)
        return names.client_topic(topic) in self.topic_ids

    def knows_group(self, group: str) -> bool:
        """Return whether a group was seen, and not its deletion."""
        return group in self.group_ids

    def is_deleted_group(self, group: str, group_id: int) -> bool:
        """Check whether a caller means a group that was deleted, and no other has its name. A group that may be newer
        than this view does not count, nor one that was made by a state that the controllers have lost.

        Args:
            group: its name.
            group_id: its id; 0 if the caller does not say it.
        """
        view = self._view
        of_view = 0 < group_id <= view.named and store_id_of(group_id) == view.store_id
        return of_view and group not in view.groups

    def settled(self) -> None:
        """Accept that the changes of `changes` are processed; if more is new, it is still unsettled."""
        self._topics.settled(self._dropped_up_to)
        self._groups.settled(-1)
        self.is_unsettled = not self.knows_all_of_view

    @property
    def knows_all_of_view(self) -> bool:
        """True if the log knows all topics and groups of the view, with the changes that `changes` returned last."""
        return self._topics.is_settled and self._groups.is_settled

    def new_store(self) -> Names | None:
        """Return the record to write first if the log is of a state that the controllers have lost and replaced;

        None if it is not. The names of the old state are kept, and go on under the ids that the controllers give them
        next.
        """
        return Names(heard=self._view.named) if self._view.ready and self._is_of_another_store else None

    def changes(self, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> NameChanges:
        """Some of what is gone, and of what is new, by the controllers' word. While names are needed, what else is gone
        waits.

        What they do not know at all is kept: one that has lost its state must not cost messages. So is what is younger
        than what the view says of it: the view of a new master that is behind the old one's tells of a topic or group
        that was there before. What such a view has and the log does not know was deleted, if it was made before the
        last change that whoever wrote the log has dealt with.

        Args:
            topics, groups: names that are needed now.
        """
        topics, groups = list(topics), list(groups)
        limits = _NEW_AT_ONCE, 0 if topics or groups else _GONE_AT_ONCE
        gone_topics, new_topics = self._topics.changes(self._deleted, self._dropped_up_to, topics, *limits)
        # Groups that were dropped, too: what they do is gone when their deletion is heard of.
        gone_groups, new_groups = self._groups.changes(self._deleted, -1, groups, *limits)
        return NameChanges(gone_topics, gone_groups, new_topics, new_groups)

    def with_settings(self, topics: Mapping[str, int], groups: Mapping[str, int], heard: int) -> Names:
        """Names to be written down of topics and groups that are new: their ids and settings."""
        return Names(
            topics,
            groups,
            heard,
            topic_settings=self.topic_settings.of(topics),
            group_settings=self.group_settings.of(groups),
        )

    def unwritten_settings(self) -> Names | None:
        """Some of the settings that were changed, or that an older release did not write down; None if there are none.
        Whoever writes them asks again while `has_unwritten_settings`.
        """
        topics = self.topic_settings.unwritten(self.topic_ids, _SETTINGS_AT_ONCE)
        groups = self.group_settings.unwritten(self.group_ids, _SETTINGS_AT_ONCE)
        return Names(topic_settings=topics, group_settings=groups) if topics or groups else None

    @property
    def has_unwritten_settings(self) -> bool:
        """True if settings are to be processed."""
        return self.topic_settings.has_unwritten or self.group_settings.has_unwritten

    def is_gone_topic(self, topic: str) -> bool:
        """Return whether the topic that the log knows by a name was deleted, also if it was made again since."""
        return self.can_be_settled and self._topics.is_gone(topic, self._deleted)

    def _deleted(self, version: int) -> int:
        """Return the version in which a name was deleted;

        0 if its deletion was not seen, or in a state that was lost since.
        """
        return version if store_id_of(version) == self._view.store_id else 0

    @property
    def _dropped_up_to(self) -> int:
        """Topics up to this id that the log does not know were deleted, whatever the view says, which is behind; -1 if
        the view tells.
        """
        return -1 if self._is_set_back or self._view.named >= self.heard else self.heard

    def is_later(self, topic: str, topic_id: int) -> bool:
        """Return whether a Put's topic id is of a topic that was made after all that was seen of the cluster.

        Not if it is of another state of the controllers: which of two is the later one only they know.
        """
        heard_of = max(self.topic_ids.get(topic, NOT_PLACED), self._view.named, self._dropped_up_to)
        return store_id_of(topic_id) == self._view.store_id and topic_id > heard_of

    def is_current(self, topic: str, topic_id: int) -> bool:
        """Return whether a Put's topic id is that of the topic that has the name now; 0 stands for any topic."""
        known = self.topic_ids.get(topic)
        if topic_id in (0, known):
            return True
        held = self._view.topics.get(topic)
        if known is None or held is None or held.id != topic_id:
            return False
        # Controllers that were set back give smaller ids than the log knows; else the view is behind.
        return self._is_set_back or known <= self._view.named
