"""Applies the controller's changes of topics and groups, and records in the log that they are applied."""

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence

from popwheel_broker.consume.delivery import Delivery, close_records
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.consume.pops import Pops
from popwheel_broker.core.notification import Interest, Interests, notify_again
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.lite.subscriptions import LiteSubscriptions
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.topics.system_topics import SystemTopics
from popwheel_broker.topics.topic_registry import Names, TopicRegistry
from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate

_AT_ONCE_MAX = 512
"""Limit of open deliveries that are dropped at once with a group or a topic, and of lite topics with a topic."""
_WAITING_READERS_MAX = 1_000
"""Limit of tracked readers of names that the log does not know.

New ones replace the oldest, as the names may never come. Proxies report those again that are polled for.
"""
_STEP = 128
"""The number of deliveries that each step drops before that."""
_RETRY_TOPICS_STEP = 64
"""The number of retry topics that are dropped together with a topic, and by each step before that."""
_PAIRS_STEP = 50_000
"""The number of pairs of a group and a queue that are looked up at once: a millisecond or two.

The lookup finds whether the group has read the queue.
"""


class ClusterChanges:
    """Drops the state of topics and groups that are gone, and records new ones.

    Args:
        store: the messages.
        state: messages in flight.
        known: topics and groups that the log knows.
        view: those that the controller has.
        topics: where changes are recorded.
        pops: deliveries; counts waiting messages.
        interests: notified of messages that become visible.
        subscriptions: which clients read lite topics.
    """

    def __init__(
        self,
        store: MessageStore,
        state: PopState,
        known: TopicRegistry,
        view: ClusterView,
        topics: SystemTopics,
        pops: Pops,
        interests: Interests,
        subscriptions: LiteSubscriptions,
    ) -> None:
        self._store = store
        self._state = state
        self._names = known
        self._view = view
        self._topics = topics
        self._pops = pops
        self._interests = interests
        self._subscriptions = subscriptions
        self._left_group = ""
        self._left: list[Delivery] = []
        """Deliveries left of the group that is dropped in steps."""
        self._left_topic = ""
        self._left_readers: list[str] | None = None
        """Groups that may have progress in the topic that is dropped in steps; None before they are looked up."""
        self._waiting_readers: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Groups and topics that were polled for before the log knew both."""
        self._grown: dict[str, int] = {}
        """Topics that are polled here and get more queues: their number of queues."""
        self._resumed_topics: set[str] = set()
        self._resumed_groups: set[str] = set()
        """Groups that were paused and are resumed, until the view has it."""

    def receive(self, update: ClusterUpdate) -> None:
        """Receive changed topics and groups, which are in the view soon."""
        self._names.stage(update)
        view = self._view
        self._resumed_topics.update(
            each.name for each in update.topics if each.name in view.paused_topics and not each.paused_ms
        )
        self._resumed_groups.update(
            each.name for each in update.groups if each.name in view.paused_groups and not each.paused_ms
        )
        for topic in update.topics:
            popped = self._view.topics.get(topic.name)
            # Only as many queues of a topic are popped as it has by the view: messages in a further queue are visible
            # only then.
            if topic.queues > (1 if popped is None else popped.queues) and self._interests.of_topic(topic.name):
                self._grown[topic.name] = topic.queues

    def apply(self, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        """Drop the state of topics and groups that were deleted, also if they were made again since.

        To be called before anything is read from or put into a topic, so that no client gets a message of a deleted
        one. The log has the changes before their consequences: after a crash in between, it knows what is gone. Of many
        new or deleted topics or groups, some are handled, and the rest by later calls. The same holds for the
        deliveries of a deleted group, and the state of a deleted topic.

        Args:
            topics, groups: are needed now, so they are not left to later calls; nor is the group of a dead letter
            topic.

        Raises:
            StatusError: the disk is full, or much is left to drop of a former topic or group of a needed name; it is to
                be tried again.
        """
        if self._resumed_topics or self._resumed_groups:
            self._notify_resumed()
        if not self._names.can_apply_changes:
            return
        anew = self._names.new_store()
        if anew is not None:
            self._record_names(anew)
        topics = list(topics)
        owners = (
            each.removeprefix(names.DEAD_LETTER_PREFIX) for each in topics if each.startswith(names.DEAD_LETTER_PREFIX)
        )
        needed = {*groups, *owners}
        changes = self._names.changes(topics, needed)
        for name in changes.gone_groups:
            if self._is_large_group(name):
                if name in needed:
                    raise StatusError(
                        Code.TOO_MANY_REQUESTS,
                        f"a group {name} was deleted, and its deliveries are being revoked; try again later",
                    )
                self._revoke_some(name)
                return
        for name in changes.gone_topics:
            if self._is_large(name):
                if name in topics:
                    raise _being_dropped(name)
                self._drop_some_of_topic(name)
                return
        seen_version = self._view.named if self._names.knows_all_of_view else self._names.applied_version
        if changes.gone_topics or changes.gone_groups:
            self._record_changes(self._view.named, {}, {})
        for name in changes.gone_topics:
            self.forget_topic(name)
        for name in changes.gone_groups:
            self.forget_group(name)
        if changes.new_topics or changes.new_groups:
            self._record_changes(seen_version, changes.new_topics, changes.new_groups)
        self._names.applied()
        if self._waiting_readers and self._view.ready:
            self._record_waiting_readers()
        self._notify_visible(changes.new_groups)

    def refusal_of_sends(self, topic: str, topic_id: int) -> StatusError | None:
        """Return why nothing can be put into a topic for a while; None if messages can.

        The reason is that the former topic of its name has much that is to be dropped.

        Args:
            topic: the topic.
            topic_id: which one of that name the sender means; 0 if unknown.
        """
        known = self._names.topic_ids.get(topic)
        if known is None or not (self._names.has_pending_changes or topic_id not in (0, known)):
            return None
        is_deleted = self._names.is_deleted_topic(topic) or (topic_id > 0 and self._names.is_later(topic, topic_id))
        return _being_dropped(topic) if is_deleted and self._is_large(topic) else None

    def record_reader(self, group: str, topic: str) -> bool:
        """Record that a group reads a topic here, whether or not it finds anything: its lag counts from now on. If the
        log does not know both yet, that is recorded as soon as it does.

        Returns:
            Whether it is new and was written.
        """
        readers = self._names.readers
        if readers.knows(group, topic) or not readers.room(group):
            return False
        if self._names.knows_group(group) and self._names.knows_topic(topic) and self._view.ready:
            return self._record_readers({group: [topic]})
        waiting = self._waiting_readers
        waiting[group, topic] = None
        waiting.move_to_end((group, topic))
        if len(waiting) > _WAITING_READERS_MAX:
            waiting.popitem(last=False)
        return False

    def _record_waiting_readers(self) -> None:
        """Record the readers whose group and topic the log knows now, as far as there is room."""
        known = [
            (group, topic)
            for group, topic in self._waiting_readers
            if self._names.knows_group(group) and self._names.knows_topic(topic)
        ]
        reads: dict[str, list[str]] = {}
        coming = 0
        for group, topic in known:
            if self._names.readers.room(group, coming, len(reads.get(group, ()))):
                reads.setdefault(group, []).append(topic)
                coming += 1
            else:
                del self._waiting_readers[group, topic]
        if reads:
            self._record_readers(reads)

    def _record_readers(self, reads: Mapping[str, list[str]]) -> bool:
        try:
            self._record_names(Names(reads=reads))
        except StatusError:  # the disk is full: the next poll tries again
            return False
        self._no_more_waiting([(group, topic) for group, topics in reads.items() for topic in topics])
        return True

    def _no_more_waiting(self, readers: Iterable[tuple[str, str]]) -> None:
        for each in readers:
            self._waiting_readers.pop(each, None)

    def apply_topic_id(self, topic: str, topic_id: int) -> None:
        """Apply a topic id that came with a Put.

        A topic made after the last seen change of the cluster is known here from then on, and the former one of its
        name is gone. Both are recorded, so `apply` finds nothing to change later.

        Raises:
            StatusError: HA_NOT_AVAILABLE before there is any state of the cluster: then it is unknown which topic is
                the later one, and where such records go. Or the disk is full, or much of the former topic is to be
                dropped; it is to be tried again.
        """
        if not self._view.ready:
            raise StatusError(Code.HA_NOT_AVAILABLE, "the broker has no topics from the controller yet; try again")
        if self._names.is_later(topic, topic_id):
            if self._names.topic_ids.get(topic):
                if self._is_large(topic):
                    raise _being_dropped(topic)  # it is dropped as soon as the controller reports its deletion
                self.forget_topic(topic)
            self._record_names(Names({topic: topic_id}, applied_version=self._names.applied_version))

    def _notify_visible(self, new_groups: Container[str]) -> None:
        """Notify polls of messages that became visible by the controller's change alone, without an arrival.

        A group that is made again begins at the first message stored. Only as many queues of a topic are popped as it
        has by the controller, so messages in further queues are visible only now.
        """
        for name, queues in list(self._grown.items()):
            topic = self._view.topics.get(name)
            if topic is not None and topic.queues == queues:  # else the view does not have it yet
                del self._grown[name]
                notify_again(self._interests.of_topic(name), self._waiting)
        if new_groups:
            notify_again(self._interests.of_groups(new_groups), self._waiting)

    def _notify_resumed(self) -> None:
        """Notify polls that were paused of waiting messages."""
        topics = self._resumed_topics - self._view.paused_topics
        groups = self._resumed_groups - self._view.paused_groups
        if topics or groups:
            self._resumed_topics -= topics
            self._resumed_groups -= groups
            notify_again(self._interests.of_resumed(topics, groups), self._waiting)

    def _record_changes(self, version: int, topic_ids: dict[str, int], group_ids: dict[str, int]) -> None:
        """Record new topics and groups before anything is put into them, so that no message survives without; and the
        version up to which the controller's changes are applied.
        """
        seen_version = max(self._names.applied_version, version)
        if topic_ids or group_ids or seen_version > self._names.applied_version:
            self._record_names(self._names.with_settings(topic_ids, group_ids, seen_version))

    def record_settings(self) -> bool:
        """Record some of the changed settings of topics and groups; return whether there are more.

        Raises:
            StatusError: the disk is full; it is to be tried again.
        """
        unwritten = self._names.unwritten_settings()
        if unwritten is not None:
            self._record_names(unwritten)
        return self._names.has_unwritten_settings

    def _record_names(self, noted: Names) -> None:
        self._store.put([Record(RecordKind.NAMES, self._topics.revive, 0, noted.encode())])

    def forget_topic(self, topic: str) -> None:
        """Drop a deleted topic: its messages, and all progress of groups in it."""
        # The topic's own name also when it has no messages: recovery must know that this deletion was applied, or it
        # would drop messages of a topic that was made again.
        # Its lite topics go with its own name, but for those with lasting deliveries.
        table = self._state.table
        lite_topics = [
            each for each in self._store.queues.lite_names(topic, "", _AT_ONCE_MAX) if table.count_of_lasting(each)
        ]
        forgotten = sorted([topic, *self._store.queues.retry_topics(topic), *lite_topics])
        revive_topic = self._topics.revive
        records = [Record(RecordKind.FORGET_TOPIC, revive_topic, 0, name.encode()) for name in forgotten]
        lasting = [each for name in (topic, *lite_topics) for each in table.lasting_of(name)]
        self._store.put(records + close_records(revive_topic, lasting))
        self._pops.forget(forgotten)
        self._interests.forget(forgotten)
        self._subscriptions.forget(topic=topic)
        self._no_more_waiting([pair for pair in self._waiting_readers if pair[1] == topic])
        self._left_topic, self._left_readers = "", None

    def _is_large_group(self, group: str) -> bool:
        """Return whether a group has too much state to be dropped at once."""
        return (
            self._state.table.count_of_group(group) > _AT_ONCE_MAX
            or len(self._retries_of_group(group)) > self._retries_max()
        )

    def _retries_of_group(self, group: str) -> list[str]:
        """Return some of the retry topics that go with a group: its own, and those of all readers of its dead
        letters.
        """
        queues = self._store.queues
        count = self._retries_max() + 1
        own = queues.retry_topics_of_group(group, count)
        return own + queues.retry_topics(names.dead_letter_topic(group), count)

    def _revoke_some(self, group: str) -> None:
        """Close some deliveries of a deleted group, or drop some of its retries. The rest, and the group, go with later
        calls; so do all other changes. Nothing of the deletion is recorded before that: after a crash in between, a
        group is still known, and is dropped again.
        """
        retry_topics = self._retries_of_group(group)
        if len(retry_topics) > self._retries_max():
            self._drop(retry_topics)
            return
        if self._left_group != group or not self._left:
            self._left_group, self._left = group, self._state.table.of_group(group)
        some = self._left[-_STEP:]
        del self._left[-_STEP:]
        there = [found for each in some if (found := self._state.table.get(each.id)) is not None]
        if there:
            self._store.put(close_records(self._topics.revive, there))

    def _is_large(self, topic: str) -> bool:
        """Return whether a topic has too much state to be dropped at once."""
        queues = self._store.queues
        if (
            queues.lite_count(topic) > min(_AT_ONCE_MAX, self.lite_ends_max())
            or len(queues.retry_topics(topic, self._retries_max() + 1)) > self._retries_max()
            or self._state.table.count_of_lasting(topic) > _AT_ONCE_MAX
        ):
            return True
        if self._left_topic == topic and self._left_readers == []:
            return False  # those were dropped
        return len(queues.of_topic(topic)) * len(self._state.merge_buffer.groups) > _PAIRS_STEP

    def _drop_some_of_topic(self, topic: str) -> None:
        """Drop some of the state of a deleted topic: its lite topics, its retries, copied or blocked messages, and the
        progress of groups in it. The rest, and the topic, go with later calls. As with a group, nothing of the deletion
        itself is recorded before that.
        """
        queues, table, buffer = self._store.queues, self._state.table, self._state.merge_buffer
        if self._left_topic != topic:
            self._left_topic, self._left_readers = topic, None
        if queues.lite_count(topic):
            self.end_lite_topics(queues.lite_names(topic, "", min(_AT_ONCE_MAX, self.lite_ends_max())))
        elif retry_topics := queues.retry_topics(topic, self._retries_max()):
            self._drop(retry_topics)
        elif table.count_of_lasting(topic) > _AT_ONCE_MAX:
            some = table.lasting_of(topic)[:_STEP]
            self._store.put(close_records(self._topics.revive, some))
        else:
            if self._left_readers is None:
                self._left_readers = list(buffer.groups)
            of_topic = queues.of_topic(topic)
            some_groups = self._left_readers[-max(1, _PAIRS_STEP // len(of_topic)) :]
            buffer.forget_queues(of_topic, some_groups)
            del self._left_readers[-len(some_groups) :]

    def _drop(self, stored: Sequence[str]) -> None:
        """Drop topics by their stored names: their messages, and copied or blocked messages of them.

        Raises:
            StatusError: the disk is full; nothing has changed.
        """
        revive_topic = self._topics.revive
        records = [Record(RecordKind.FORGET_TOPIC, revive_topic, 0, name.encode()) for name in stored]
        lasting = [each for name in stored for each in self._state.table.lasting_of(name)]
        self._store.put(records + close_records(revive_topic, lasting))
        self._pops.forget(frozenset(stored))
        self._interests.forget(stored)

    def lite_ends_max(self) -> int:
        """Return the number of lite topics that may be ended at once."""
        return self._dropped_max(_AT_ONCE_MAX)

    def _retries_max(self) -> int:
        """Return the number of retry topics that may be dropped at once."""
        return self._dropped_max(_RETRY_TOPICS_STEP)

    def _dropped_max(self, limit: int) -> int:
        """Return the number of topics of one queue that may be dropped at once: each is looked up for all groups."""
        return max(1, min(limit, _PAIRS_STEP // max(1, len(self._state.merge_buffer.groups))))

    def end_lite_topics(self, stored: Sequence[str]) -> None:
        """End lite topics: drop their messages, and all progress of groups in them.

        Args:
            stored: the names under which they are stored.

        Raises:
            StatusError: the disk is full; nothing has changed.
        """
        self._drop(stored)

    def forget_group(self, group: str) -> None:
        """Drop a deleted group: its progress, its retries, its dead letters and the retries of those."""
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
        open_deliveries = self._state.table.of_group(group)
        copied = [each for each in self._state.table.lasting_of(dead_letters) if each.group != group]
        records = [
            Record(RecordKind.FORGET_GROUP, topic, 0, group.encode()),
            *close_records(topic, open_deliveries + copied),
        ]
        records += [Record(RecordKind.FORGET_TOPIC, topic, 0, name.encode()) for name in stored]
        self._store.put(records)
        self._pops.forget(stored)
        self._interests.forget(stored)
        self._subscriptions.forget(group=group)
        self._no_more_waiting([pair for pair in self._waiting_readers if pair[0] == group])

    def _waiting(self, interest: Interest) -> int:
        if interest.client_id:
            return self._subscriptions.count_ready(ClientKey(interest.group, interest.topic, interest.client_id))
        return self._pops.waiting(interest.group, interest.topic, interest.wanted)


def _being_dropped(topic: str) -> StatusError:
    return StatusError(
        Code.TOO_MANY_REQUESTS, f"a topic {topic} was deleted, and its messages are being dropped; try again later"
    )
