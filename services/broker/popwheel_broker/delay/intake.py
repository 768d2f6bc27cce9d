"""Intake of the timer: it accepts delayed messages from senders, within limits, and recalls them."""

from collections import Counter, OrderedDict

from popwheel_broker.consume.quarantine_table import QuarantineTable
from popwheel_broker.delay.timer_state import SLOT_MS, TimerState
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind, hash_tag
from popwheel_broker.log.timer_record import NONE, TIMER_QUEUE, TIMER_TOPIC, Delay, decode_delay, recall_record
from popwheel_broker.options import TimerOptions
from popwheel_broker.topics.topic_registry import TopicRegistry
from popwheel_common.clock import Clock
from popwheel_common.contract.put import MessageRun
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, SystemProperties
from popwheel_common.shares import room

_SECONDS_MAX = 1000


class CrowdedSeconds:
    """Shares of topics in the second half of a second's limit: the first half is free for all.

    Only that half is counted by topic, or there would be a count for each second of a year. Past a thousand seconds the
    one unused for longest is forgotten, as all are by a start: then its topics count as new ones.

    Args:
        limit: how many messages may be due within one second.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free_for_all = limit // 2
        self._crowded: OrderedDict[int, Counter[str]] = OrderedDict()

    def has_room(self, topic: str, second: int, due: int, taken: int) -> bool:
        """Return whether one more message of a topic may be due in a second.

        Args:
            topic: the topic.
            second: since 1970.
            due: number of messages due in it, with those that `taken` counts.
            taken: number of those that the topic is about to take.
        """
        crowd = due - self._free_for_all
        if crowd < 0:
            return True
        counts = self._crowded.get(second)
        of_topic = min(taken, crowd) if counts is None else counts[topic] + min(taken, crowd)
        return room(self._limit - self._free_for_all, crowd, of_topic) > 0

    def take(self, topic: str, second: int, due: int) -> None:
        """Count a message of a topic that arrived, for a second in which `due` messages are due."""
        if due < self._free_for_all:
            return
        self._crowded.setdefault(second, Counter())[topic] += 1
        self._crowded.move_to_end(second)
        if len(self._crowded) > _SECONDS_MAX:
            self._crowded.popitem(last=False)


class IntakeBatch:
    """Delayed runs that are to be appended in one write. They count in the limits of those behind them.

    Args:
        intake: the limits.

    Attributes:
        records: records to append: of the timer queue, or of the topic itself if they are due already.
        delays: of the records; None for those that are not delayed any more.
        of_topics, in_seconds, of_topics_in_seconds: numbers of delayed messages.
    """

    def __init__(self, intake: "TimerIntake") -> None:
        self._intake = intake
        self.of_topics = Counter[str]()
        self.in_seconds = Counter[int]()
        self.of_topics_in_seconds = Counter[tuple[str, int]]()
        self.records: list[Record] = []
        self.delays: list[Delay | None] = []

    def accept(self, run: MessageRun) -> None:
        """Add a run.

        Raises:
            StatusError: ILLEGAL_DELIVERY_TIME or TOO_MANY_REQUESTS; nothing was changed.
        """
        delays = self._intake.delays(run, self)
        records = [
            Record(RecordKind.MESSAGE, run.topic, run.queue_id, payload, properties, hash_tag(tag))
            if delay is None
            else Record(
                RecordKind.TIMER,
                TIMER_TOPIC,
                TIMER_QUEUE,
                payload,
                properties,
                hash_tag(tag),
                origin=delay.encode(),
                decoded=delay,
            )
            for payload, properties, tag, delay in zip(
                run.payloads, run.system_properties, run.tags, delays, strict=True
            )
        ]
        # Only now: a run that fails is not part of the batch.
        seconds = [delay.due_ms // SLOT_MS for delay in delays if delay is not None]
        self.of_topics[run.topic] += len(seconds)
        self.in_seconds.update(seconds)
        self.of_topics_in_seconds.update((run.topic, second) for second in seconds)
        self.records += records
        self.delays += delays


class TimerIntake:
    """Makes the records for delayed messages and recalls, within the limits.

    Args:
        state: what the stages share.
        store: where all messages are.
        options: limits.
        clock: the time.
        topics: which topics are known.
        quarantine: poison messages, which can't be recalled.
    """

    def __init__(
        self,
        state: TimerState,
        store: MessageStore,
        options: TimerOptions,
        clock: Clock,
        topics: TopicRegistry,
        quarantine: QuarantineTable,
    ) -> None:
        self._state = state
        self._store = store
        self._options = options
        self._clock = clock
        self._topics = topics
        self._quarantine = quarantine
        self._crowded = CrowdedSeconds(options.timers_per_slot_max)

    def batch(self) -> IntakeBatch:
        """Begin a write of delayed runs; to be followed by `stored`, if it succeeds."""
        return IntakeBatch(self)

    def delays(self, run: MessageRun, batch: IntakeBatch) -> list[Delay | None]:
        """Return the delays of a run's messages in their order; None for those that are due already.

        Args:
            run: messages of one topic.
            batch: others that are about to be stored.

        Raises:
            StatusError: ILLEGAL_DELIVERY_TIME or TOO_MANY_REQUESTS.
        """
        now_ms = self._clock.wall_ms()
        options, pending = self._options, self._state.pending
        topic_id = self.topic_id(run.topic)
        delays: list[Delay | None] = []
        delayed = 0
        in_second: dict[int, int] = {}
        total = pending.total + batch.of_topics.total()
        before = pending.of_topic(run.topic) + batch.of_topics[run.topic]
        for due_ms in run.times_ms:
            if due_ms <= now_ms:
                delays.append(None)
                continue
            if due_ms - now_ms > options.delay_ms_max:
                raise StatusError(
                    Code.ILLEGAL_DELIVERY_TIME,
                    f"the delivery time is {due_ms - now_ms} ms ahead, at most {options.delay_ms_max} ms are possible "
                    "(broker.timer.delay_ms_max)",
                )
            of_topic = before + delayed
            if not room(options.timers_max, total + delayed, of_topic):
                raise StatusError(
                    Code.TOO_MANY_REQUESTS,
                    f"{total} delayed messages are pending, {of_topic} of the topic {run.topic}: that is its share "
                    f"of {options.timers_max} (broker.timer.timers_max); send later",
                )
            second = due_ms // SLOT_MS
            before = in_second.get(second, 0)
            due = pending.at(due_ms) + batch.in_seconds[second]
            taken = batch.of_topics_in_seconds[run.topic, second] + before
            if not self._crowded.has_room(run.topic, second, due + before, taken):
                raise StatusError(
                    Code.TOO_MANY_REQUESTS,
                    f"{due} messages are due within that second, {options.timers_per_slot_max} may be, and the topic "
                    f"{run.topic} has its share of them (broker.timer.timers_per_slot_max); choose another delivery "
                    "time",
                )
            in_second[second] = before + 1
            delayed += 1
            delays.append(Delay(run.topic, run.queue_id, topic_id, due_ms))
        return delays

    def topic_id(self, topic: str) -> int:
        """Return the id of the topic that has this name now; 0 if none is known."""
        return self._topics.topic_ids.get(topic, 0)

    def stored(self, batch: IntakeBatch) -> None:
        """Count an appended batch in the seconds of its topics."""
        left = Counter(each.due_ms // SLOT_MS for each in batch.delays if each is not None)
        for each in batch.delays:
            if each is not None:
                second = each.due_ms // SLOT_MS
                self._crowded.take(each.topic, second, self._state.pending.at(each.due_ms) - left[second])
                left[second] -= 1

    def recall(self, topic: str, handle: RecallHandle) -> Record | None:
        """Return the record that recalls a message, to be appended. None if it is recalled already.

        Args:
            topic: of the message.
            handle: of the message.

        Raises:
            StatusError: PRECONDITION_FAILED: it is too late. MESSAGE_NOT_FOUND: there is no such message.
                TOO_MANY_REQUESTS. UNSUPPORTED.
            CorruptDataError: its first record is damaged, so it is unknown.
        """
        state = self._state
        root, due_ms = handle.position, handle.due_ms
        if not self._options.recall:
            raise StatusError(Code.UNSUPPORTED, "recalling delayed messages is switched off (broker.timer.recall)")
        if root in state.recalled:
            return None
        if due_ms <= max(self._clock.wall_ms(), state.fired_until_ms):
            raise StatusError(
                Code.PRECONDITION_FAILED,
                "it is too late, its delivery time has come: the message has been delivered or is being delivered, "
                "unless it was recalled before",
            )
        if self._quarantine.holds_message(root):
            raise StatusError(
                Code.MESSAGE_NOT_FOUND,
                "the message is in quarantine, as it always fails; popwheel admin quarantine drop removes it",
            )
        if not self._holds(topic, handle):
            raise StatusError(Code.MESSAGE_NOT_FOUND, "the broker has no such delayed message (any more)")
        if not state.recalls.room(topic, self._options.recalls_max):
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"{state.recalls.total} recalls are remembered, {state.recalls.share(topic)} of the topic {topic}: "
                "that is its share of the limit (broker.timer.recalls_max); try again later",
            )
        return recall_record(Delay(topic, 0, 0, due_ms, root=root))

    def _holds(self, topic: str, handle: RecallHandle) -> bool:
        """Return whether the message of a handle is pending.

        A power loss may have taken it, with flush=async, or its topic may be gone. Its first record shows that, unless
        retention has deleted it, which no undurable message lives to see. Then it must be of the topic that has the
        name now: a message that rolled as its topic was gone left no trace, and its recall would wait for it.
        """
        log, root = self._store.log, handle.position
        if root < log.start_position:
            is_alive = self._topics.is_topic(topic, handle.topic_id)
            return is_alive and self._state.pending.may_hold(topic, handle.due_ms)
        if root >= log.end_position:
            return False
        try:
            stored = self._store.records.record_at(root)
        except CorruptDataError:
            if not self._stands_at(root):
                return False
            log.record_damage(root)
            raise
        if stored.kind != RecordKind.TIMER:
            return False
        delay = decode_delay(stored.origin)
        return (
            (delay.topic, delay.due_ms, delay.root) == (topic, handle.due_ms, NONE)
            and self._topics.is_topic(topic, delay.topic_id)
            and SystemProperties.FromString(stored.system_properties).message_id == handle.message_id
        )

    def _stands_at(self, position: int) -> bool:
        """Return whether a record of the timer queue begins there.

        After a power loss others may have been written over it.
        """
        queue = self._store.queue(TIMER_TOPIC, TIMER_QUEUE)
        if queue is None:
            return False
        entries = queue.read(queue.first_at_or_after(position), 1)
        return bool(entries) and entries[0].position == position
