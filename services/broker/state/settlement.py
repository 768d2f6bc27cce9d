"""Takes in what the controller changed of topics and groups, and writes into the log that it did."""

from collections.abc import Container, Iterable, Sequence

from services.broker.lite.subscriptions import LiteSubscriptions
from services.broker.names.known_names import KnownNames, Names
from services.broker.names.own_topics import OwnTopics
from services.broker.pop.pops import Pops
from services.broker.progress.check_point import CheckPoint, ack_records
from services.broker.progress.pop_state import PopState
from services.broker.quarantine.quarantine import Quarantine
from services.broker.records.record import Record, RecordKind
from services.broker.state.notification import Interest, Interests, tell_again
from services.broker.store.message_store import MessageStore
from services.broker.transactions.table import TransactionTable
from services.common.contract import names
from services.common.contract.cluster_view import ClusterView
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.controller_pb2 import ClusterUpdate

_AT_ONCE_MAX = 512
"""So many open check points of a group go together with it."""
_STEP = 128
"""So many by each step before."""


class Settlement:
    """Drops what belongs to topics and groups that are gone, and knows those that are new.

    Args:
        store: the messages.
        state: who has what.
        known: topics and groups that the log knows.
        view: those that the controller has.
        topics: where this is written down.
        pops: what is given out; counts what waits.
        interests: who is told of messages that become visible.
        quarantine: what is set aside.
        transactions: those that are open.
        subscriptions: which clients read lite topics.
    """

    def __init__(
        self,
        store: MessageStore,
        state: PopState,
        known: KnownNames,
        view: ClusterView,
        topics: OwnTopics,
        pops: Pops,
        interests: Interests,
        quarantine: Quarantine,
        transactions: TransactionTable,
        subscriptions: LiteSubscriptions,
    ) -> None:
        self._store = store
        self._state = state
        self._names = known
        self._view = view
        self._topics = topics
        self._pops = pops
        self._interests = interests
        self._quarantine = quarantine
        self._transactions = transactions
        self._subscriptions = subscriptions
        self._left_group = ""
        self._left: list[CheckPoint] = []
        """What is still given out to the group that goes step by step."""
        self._grown: dict[str, int] = {}
        """Topics that are polled for here and get more queues: how many."""

    def names_told(self, update: ClusterUpdate) -> None:
        """The controller tells of topics and groups, which are in the view soon."""
        self._names.tell(update)
        for topic in update.topics:
            popped = self._view.topics.get(topic.name)
            # Only as many queues of a topic are popped as it has by the view: what came into another one before this
            # is visible only then.
            if topic.queues > (1 if popped is None else popped.queues) and self._interests.of_topic(topic.name):
                self._grown[topic.name] = topic.queues

    def settle(self, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        """Drop what belongs to topics and groups that were deleted, also if they were made again since.

        To be called before anything is read from or put into a topic: nobody gets a message of one that was deleted.
        That changes were dealt with stands in front of what they led to: cut off in between, the log knows what is
        gone. Where many topics or groups are new or gone, some of them are dealt with, and the rest by later calls.
        Likewise what is given out to a group that is gone.

        Args:
            topics, groups: are needed now, so they are not left to later calls; nor is the group of dead letters.

        Raises:
            StatusError: the disk is full, or much is given out to a former group of a name that is needed; it is to be
                tried again.
        """
        if not self._names.can_be_settled:
            return
        anew = self._names.new_incarnation()
        if anew is not None:
            self._note_names(anew)
        topics = list(topics)
        owners = (
            each.removeprefix(names.DEAD_LETTER_PREFIX) for each in topics if each.startswith(names.DEAD_LETTER_PREFIX)
        )
        needed = {*groups, *owners}
        changes = self._names.changes(topics, needed)
        for name in changes.gone_groups:
            if self._state.table.count_of_group(name) > _AT_ONCE_MAX:
                if name in needed:
                    raise StatusError(
                        Code.TOO_MANY_REQUESTS,
                        f"a group {name} was deleted, and what was given out to it is being taken back; try again",
                    )
                self._take_back_some(name)
                return
        heard = self._view.named if self._names.knows_all_of_view else self._names.heard
        if changes.gone_topics or changes.gone_groups:
            self._hear_up_to(self._view.named, {}, {})
        for name in changes.gone_topics:
            self.forget_topic(name)
        for name in changes.gone_groups:
            self.forget_group(name)
        if changes.new_topics or changes.new_groups:
            self._hear_up_to(heard, changes.new_topics, changes.new_groups)
        self._names.settled()
        self._tell_of_what_became_visible(changes.new_groups)

    def hear_of_topic(self, topic: str, topic_id: int) -> None:
        """Whoever puts into a topic knows its id: one that was made after all that was heard of the cluster is heard of
        here, and what had its name before is gone. Both are written down, so `settle` finds nothing to change later.

        Raises:
            StatusError: HA_NOT_AVAILABLE before anything was heard of the cluster: then it can't be told which topic is
                the later one, nor where such records go. Or the disk is full; it is to be tried again.
        """
        if not self._view.ready:
            raise StatusError(
                Code.HA_NOT_AVAILABLE, "the controller has not told the broker yet which topics there are; try again"
            )
        if self._names.is_later(topic, topic_id):
            if self._names.topic_ids.get(topic):
                self.forget_topic(topic)
            self._note_names(Names({topic: topic_id}, heard=self._names.heard))

    def _tell_of_what_became_visible(self, new_groups: Container[str]) -> None:
        """Tell of messages that nothing but the controller's word made visible, as no arrival does.

        A group that is made again begins at the first message stored. Only as many queues of a topic are popped as it
        has by the controller, so what came into another one before this was heard of is visible only now.
        """
        for name, queues in list(self._grown.items()):
            topic = self._view.topics.get(name)
            if topic is not None and topic.queues == queues:  # else the view does not have it yet
                del self._grown[name]
                tell_again(self._interests.of_topic(name), self._waiting)
        if new_groups:
            tell_again(self._interests.of_groups(new_groups), self._waiting)

    def _hear_up_to(self, version: int, topic_ids: dict[str, int], group_ids: dict[str, int]) -> None:
        """Write down new topics and groups before anything is put into them, so that no message survives without; and
        that the controller's changes of them are dealt with up to a version.
        """
        heard = max(self._names.heard, version)
        if topic_ids or group_ids or heard > self._names.heard:
            self._note_names(Names(topic_ids, group_ids, heard))

    def _note_names(self, noted: Names) -> None:
        self._store.put([Record(RecordKind.NAMES, self._topics.revive, 0, noted.encode())])
        self._names.note(noted)

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: its messages are gone, and no group has any progress in it."""
        # The topic's own name also when it holds nothing: recovery must know that this deletion was dealt with, or it
        # would drop what was put into a topic that was made again.
        # Its lite topics go with its own name, but for what is said of those with lasting CKs.
        table = self._state.table
        lite_topics = table.lasting_lite_topics(topic) if self._store.queues.lite_count(topic) else []
        forgotten = sorted([topic, *self._store.queues.retry_topics(topic), *lite_topics])
        revive_topic = self._topics.revive
        records = [Record(RecordKind.FORGET_TOPIC, revive_topic, 0, name.encode()) for name in forgotten]
        lasting = [each for name in (topic, *lite_topics) for each in table.lasting_of(name)]
        self._store.put(records + ack_records(revive_topic, lasting))
        for name in forgotten:
            self._store.forget_topic(name)
            self._state.forget_topic(name)
        self._pops.forget(forgotten)
        self._quarantine.table.forget(topic=topic)
        self._transactions.forget(topic)
        self._subscriptions.forget(topic=topic)
        self._names.forget_topic(topic)

    def _take_back_some(self, group: str) -> None:
        """Close some of what is given out to a group that was deleted. The rest, and the group, go with later calls; so
        does all else that has changed. Nothing is written of the deletion before that: cut off in between, a group is
        still known, and goes once more.
        """
        if self._left_group != group or not self._left:
            self._left_group, self._left = group, self._state.table.of_group(group)
        some = self._left[-_STEP:]
        del self._left[-_STEP:]
        there = [found for each in some if (found := self._state.table.get(each.id)) is not None]
        if there:
            self._store.put(ack_records(self._topics.revive, there))
        for each in there:
            self._state.close(each.id, each.open_bits)

    def end_lite_topics(self, stored: Sequence[str]) -> None:
        """Lite topics have ended: their messages are gone, and no group has any progress in them.

        Args:
            stored: the names under which they are stored.

        Raises:
            StatusError: the disk is full; nothing has changed.
        """
        revive_topic = self._topics.revive
        records = [Record(RecordKind.FORGET_TOPIC, revive_topic, 0, name.encode()) for name in stored]
        lasting = [each for name in stored for each in self._state.table.lasting_of(name)]
        self._store.put(records + ack_records(revive_topic, lasting))
        self._store.forget_topics(stored)
        for name in stored:
            self._state.forget_topic(name)
            if len(self._quarantine.table):
                self._quarantine.table.forget(topic=name)
        self._pops.forget(frozenset(stored))

    def forget_group(self, group: str) -> None:
        """A group was deleted: its progress, its retries, its dead letters and the retries of those are gone."""
        queues = self._store.queues
        dead_letters = names.dead_letter_topic(group)
        stored = sorted(
            {
                *queues.retry_topics_of_group(group),
                *queues.retry_topics(dead_letters),
                *([dead_letters] if dead_letters in queues.system_topics else []),
            }
        )
        topic = self._topics.revive
        held = self._state.table.of_group(group)
        copied = [each for each in self._state.table.lasting_of(dead_letters) if each.group != group]
        records = [Record(RecordKind.FORGET_GROUP, topic, 0, group.encode()), *ack_records(topic, held + copied)]
        records += [Record(RecordKind.FORGET_TOPIC, topic, 0, name.encode()) for name in stored]
        self._store.put(records)
        self._state.forget_group(group)
        for each in copied:
            self._state.close(each.id, each.open_bits)
        self._quarantine.table.forget(group=group)
        for name in stored:
            self._store.forget_topic(name)
            self._state.forget_topic(name)  # of other groups, which read its dead letters
            self._quarantine.table.forget(topic=name)  # likewise
        self._pops.forget(stored)
        self._subscriptions.forget(group=group)
        self._names.forget_group(group)

    def _waiting(self, interest: Interest) -> int:
        return self._pops.waiting(interest.group, interest.topic, interest.wanted)
