"""Which topics and groups a broker's log knows, and what the controllers' word makes of that (pure).

A topic or group of a name is told from an earlier one by its id: the version of the controllers' state in which it was
made. Versions only grow, as long as that state lives; one that was lost and made anew begins another life, which each
version says (`services.common.cluster.life_of`). What is decided here the core writes down (records NAMES) before it
acts on it, so that replicas and restarts agree.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.common.cluster import ClusterView, life_of

_FORMER_IDS_MAX = 16
NOT_PLACED = 0
"""Id of what was made by a state that the controllers have lost: it takes the id that they give next under its name."""


@dataclass(frozen=True, slots=True)
class Names:
    """The body of a record NAMES.

    Args:
        topics: ids of topics that are new, by name.
        groups: likewise of groups.
        heard: up to this version the controllers' changes of topics and groups are dealt with. If it is of another life
            than what was known, that is of a state that the controllers have lost.
    """

    topics: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    heard: int = 0

    def encode(self) -> bytes:
        """The record's payload."""
        return json.dumps({"topics": self.topics, "groups": self.groups, "heard": self.heard}).encode()

    @staticmethod
    def decode(payload: bytes) -> "Names":
        """Read it back."""
        body = json.loads(payload)
        return Names(body["topics"], body["groups"], body.get("heard", 0))


@dataclass(frozen=True, slots=True)
class SavedNames:
    """What a checkpoint says of them.

    Args:
        topic_ids: which topics the broker knew, to tell one that was deleted and made again meanwhile.
        group_ids: likewise of groups.
        former_topic_ids: ids that topics had in states that the controllers have lost, by name.
        heard: up to this version the controllers' changes of topics and groups were dealt with.
    """

    topic_ids: dict[str, int] = field(default_factory=dict)
    group_ids: dict[str, int] = field(default_factory=dict)
    former_topic_ids: dict[str, list[int]] = field(default_factory=dict)
    heard: int = 0


@dataclass(frozen=True, slots=True)
class NameChanges:
    """What the controllers' word changes.

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


class KnownNames:
    """What the log knows (a fold over it), and what was heard and is not in the log yet.

    Args:
        view: topics and groups as the controllers have them.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.topic_ids: dict[str, int] = {}
        """Ids of the topics that were heard of, and not of their deletion; or `NOT_PLACED`."""
        self.group_ids: dict[str, int] = {}
        """Likewise of consumer groups."""
        self.heard = 0
        """Up to this version the controllers' changes are dealt with."""
        self._former_topic_ids: dict[str, list[int]] = {}
        """Ids that topics had in states that the controllers have lost: delayed messages say them. The latest few."""
        self.is_unsettled = True
        """Whether something was heard that is not dealt with."""
        self._is_set_back = False
        self._awaits_snapshot = False
        self._deleted_topics: dict[str, int] = {}
        self._deleted_groups: dict[str, int] = {}

    # What the log says

    def restore(self, saved: SavedNames) -> None:
        """Begin with what a checkpoint says."""
        self.topic_ids, self.group_ids = dict(saved.topic_ids), dict(saved.group_ids)
        self._former_topic_ids = dict(saved.former_topic_ids)
        self.heard = saved.heard

    def saved(self) -> SavedNames:
        """For a checkpoint."""
        return SavedNames(dict(self.topic_ids), dict(self.group_ids), dict(self._former_topic_ids), self.heard)

    def note(self, names: Names) -> None:
        """Take in a record."""
        if self.known_version and names.heard and life_of(names.heard) != self.life:
            self._begin_anew()
        self.heard = max(self.heard, names.heard)
        self.topic_ids.update(names.topics)
        self.group_ids.update(names.groups)

    def forget_topic(self, topic: str) -> None:
        """A topic is gone."""
        self.topic_ids.pop(topic, None)
        self._former_topic_ids.pop(topic, None)

    def forget_group(self, group: str) -> None:
        """A group is gone."""
        self.group_ids.pop(group, None)

    def _begin_anew(self) -> None:
        self.heard = 0
        self._is_set_back = False
        for topic, known in self.topic_ids.items():
            former = self._former_topic_ids.get(topic, [])
            if known != NOT_PLACED and known not in former:
                self._former_topic_ids[topic] = [*former, known][-_FORMER_IDS_MAX:]
        self.topic_ids = dict.fromkeys(self.topic_ids, NOT_PLACED)
        self.group_ids = dict.fromkeys(self.group_ids, NOT_PLACED)

    @property
    def known_version(self) -> int:
        """Of the controllers' state: whoever wrote the log had heard of this one, if not of later ones."""
        return max(self.heard, *self.topic_ids.values(), *self.group_ids.values(), NOT_PLACED)

    @property
    def life(self) -> int:
        """Of the controllers' state that the log is of."""
        return life_of(self.known_version)

    def ids_of(self, topic: str) -> list[int]:
        """All ids under which records may speak of the topic that has a name now; none if none has."""
        known = self.topic_ids.get(topic)
        return [] if known is None else [*self._former_topic_ids.get(topic, ()), known]

    def is_topic(self, topic: str, topic_id: int) -> bool:
        """Whether an id that was written down says the topic that has the name now; 0 was written by who knew none."""
        return topic_id in (0, self.topic_ids.get(topic)) or topic_id in self._former_topic_ids.get(topic, ())

    # What the controllers say

    def hear(
        self, version: int, deleted_topics: Iterable[str], deleted_groups: Iterable[str], is_snapshot: bool
    ) -> None:
        """Their state has changed, and these are not in it any more.

        Args:
            version: of the state.
            deleted_topics, deleted_groups: what is not in it any more.
            is_snapshot: whether all of it was told anew.
        """
        self.is_unsettled = True
        if is_snapshot:
            self._awaits_snapshot = False
        if self._view.named >= self.known_version:
            self._is_set_back = False
        elif is_snapshot:
            self._is_set_back = True  # no late word of changes: the controllers themselves know less
        # A slave settles nothing: what its log has dropped, or the view has again, need not be kept in mind for ever.
        for deleted, known, held in (
            (self._deleted_topics, self.topic_ids, self._view.topics),
            (self._deleted_groups, self.group_ids, self._view.groups),
        ):
            for name in [name for name in deleted if name in held or name not in known]:
                del deleted[name]
        self._deleted_topics.update(dict.fromkeys(deleted_topics, version))
        self._deleted_groups.update(dict.fromkeys(deleted_groups, version))

    def inherit(self, before: "KnownNames") -> None:
        """Take over what another one had heard and not dealt with."""
        self._deleted_topics.update(before._deleted_topics)
        self._deleted_groups.update(before._deleted_groups)
        self._is_set_back = before._is_set_back

    def begin_to_lead(self) -> None:
        """Doubt a view of another life than the log's until it was told anew: whoever wrote the log may have heard of
        the later one, which can't be told by the numbers.
        """
        self._awaits_snapshot = self._view.ready and self._is_of_another_life

    @property
    def can_be_settled(self) -> bool:
        """Whether anything was heard that is not dealt with, and may be."""
        return self.is_unsettled and not self._awaits_snapshot

    @property
    def _is_of_another_life(self) -> bool:
        return self.known_version > 0 and self.life != self._view.life

    def settled(self) -> None:
        """All that was heard is dealt with."""
        self._deleted_topics.clear()
        self._deleted_groups.clear()
        self.is_unsettled = False

    def new_life(self) -> Names | None:
        """What to write down first if the log is not of the controllers' state, as they have lost that one and made a
        new one; None if it is. What was there is kept, and goes on under the ids that they give its names next.
        """
        return Names(heard=self._view.named) if self._view.ready and self._is_of_another_life else None

    def changes(self) -> NameChanges:
        """What is gone, and what is new, by the controllers' word.

        What they do not know at all is kept: one that has lost its state must not cost messages. So is what is younger
        than what the view says of it: the view of a new master that is behind the old one's tells of a topic or group
        that was there before. What such a view has and the log does not know was deleted, if it was made before the
        last change that whoever wrote the log has dealt with.
        """
        topics, groups = self._view.topics, self._view.groups
        topic_ids = {name: topic.id for name, topic in topics.items()}
        group_ids = {name: group.id for name, group in groups.items()}
        dropped = self._dropped_up_to
        return NameChanges(
            [
                name
                for name, known in self.topic_ids.items()
                if _is_gone(known, topic_ids.get(name), self._deleted(self._deleted_topics, name))
            ],
            [
                name
                for name, known in self.group_ids.items()
                if _is_gone(known, group_ids.get(name), self._deleted(self._deleted_groups, name))
            ],
            {name: each for name, each in topic_ids.items() if each > max(self.topic_ids.get(name, -1), dropped)},
            # Groups that were dropped, too: what they do is gone when their deletion is heard of.
            {name: each for name, each in group_ids.items() if each > self.group_ids.get(name, -1)},
        )

    def _deleted(self, deleted: Mapping[str, int], name: str) -> int:
        """In which version a name was deleted; 0 if that was not heard, or told of a state that was lost since."""
        version = deleted.get(name, 0)
        return version if life_of(version) == self._view.life else 0

    @property
    def _dropped_up_to(self) -> int:
        """Topics up to this id that the log does not know were deleted, whatever the view says, which is behind; -1 if
        the view tells.
        """
        return -1 if self._is_set_back or self._view.named >= self.heard else self.heard

    def is_later(self, topic: str, topic_id: int) -> bool:
        """Whether a Put's word tells of a topic that was made after all that was heard of the cluster. Not if it is of
        another life of the controllers' state: which of two is the later one only they can tell.
        """
        heard_of = max(self.topic_ids.get(topic, NOT_PLACED), self._view.named, self._dropped_up_to)
        return life_of(topic_id) == self._view.life and topic_id > heard_of

    def is_current(self, topic: str, topic_id: int) -> bool:
        """Whether a Put's word says the topic that has the name now; 0 stands for whichever that is."""
        known = self.topic_ids.get(topic)
        if topic_id in (0, known):
            return True
        held = self._view.topics.get(topic)
        if known is None or held is None or held.id != topic_id:
            return False
        # Controllers that were set back give smaller ids than the log knows; else the view is behind.
        return self._is_set_back or known <= self._view.named


def _is_gone(known: int, held: int | None, deleted: int) -> bool:
    """Whether what the log knows by an id is not there any more.

    Args:
        known: the id.
        held: of what has the name by the view; None if nothing has.
        deleted: version in which the name was deleted; 0 if that was not heard.
    """
    if held is not None:
        return NOT_PLACED < known < held
    return deleted > known
