"""Store, pop state and core together against a simple model, through crashes, power losses and deletions.

The model knows of each message and group only where it is: ready, invisible, acked, dead or gone. After every step the
broker must say the same (P1), whatever it went through.
"""

from collections import Counter, deque
from dataclasses import dataclass, replace
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from popwheel_broker.core import offset_reset
from popwheel_broker.log.record import Record, RecordKind, hash_tag
from popwheel_broker.options import TimerOptions
from popwheel_common.contract import names, receipt
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from tests.harness.memory_disk import CrashKind
from tests.unit.broker.world import KEY, OPTIONS, World, run_now, wire_message

TOPICS = {"t": 2, "u": 1}
"""Topics and how many queues they have."""

FILTERS = {"g": "*", "h": "a || b"}
ATTEMPTS_MAX = {"g": 3, "h": 2}
NO_TIMER = OPTIONS.model_copy(
    update={
        "timer": TimerOptions(slots=16, roll_window_ms=5_000, delay_ms_max=30_000, log_file_bytes=4096),
    }
)
"""Nothing is delayed here, and each start would make the files of a larger wheel."""
RETENTION_MS = 72 * 3_600_000

GROUPS = st.sampled_from(sorted(FILTERS))
SOME_TOPIC = st.sampled_from(sorted(TOPICS))
PICK = st.integers(0, 1_000_000)
TAGS = st.sampled_from(["", "a", "b", "c"])


@dataclass(frozen=True)
class Sent:
    """A message that was sent and confirmed."""

    number: int
    topic: str
    queue_id: int
    offset: int
    tag: str


@dataclass(frozen=True)
class State:
    """Where a message is, for one group.

    Args:
        kind: ready, invisible, acked, dead or gone.
        attempts: how often it was delivered before this.
        handle: the one that is good now, if it is invisible.
        due_ms: when it comes again, if it is invisible.
        stored_ms: when the record was stored that holds it now, wall clock.
        held: whether that record is still there; what is invisible of a deleted topic lapses when it is due.
    """

    kind: str
    attempts: int = 0
    handle: str = ""
    due_ms: int = 0
    stored_ms: int = 0
    held: bool = True


@dataclass(frozen=True)
class Given:
    """A receipt handle that was delivered at some time."""

    group: str
    sent: Sent
    handle: str


Key = tuple[str, Sent]


class PopMachine(RuleBasedStateMachine):
    """Drives a `BrokerCore` and keeps the model of it."""

    @initialize(seed=st.integers(0, 2**32), puts=st.lists(st.tuples(SOME_TOPIC, PICK, TAGS), min_size=1, max_size=4))
    def begin(self, seed: int, puts: list[tuple[str, int, str]]) -> None:
        """There are messages from the beginning on: steps without any show nothing."""
        self.world = World(seed, NO_TIMER)
        self.states: dict[Key, State] = {}
        self.since_sync: dict[Key, list[State]] = {}
        self.given: list[Given] = []
        self.committed: dict[tuple[str, str, int], int] = {}
        self.number = 0
        for topic, queues in TOPICS.items():
            self.world.add_topic(topic, queues)
        for group, attempts_max in ATTEMPTS_MAX.items():
            self.world.add_group(group, attempts_max)
        for topic, pick, tag in puts:
            self.put(topic, pick, tag, 1 + pick % 6)

    # What is done

    @rule(topic=SOME_TOPIC, pick=PICK, tag=TAGS, count=st.integers(1, 6))
    def put(self, topic: str, pick: int, tag: str, count: int) -> None:
        for step in range(count):
            self.number += 1
            queue_id = (pick + step) % TOPICS[topic]
            offset = self.world.put(topic, b"%d" % self.number, tag, queue_id)
            sent = Sent(self.number, topic, queue_id, offset, tag)
            for group in FILTERS:
                if self.wants(group, tag):
                    self.states[group, sent] = State("ready", stored_ms=self.world.clock.wall_ms())
        self.synced()

    @rule(topic=SOME_TOPIC, free=st.integers(0, 150))
    def put_on_a_full_disk(self, topic: str, free: int) -> None:
        """A definite failure stays failed (S2)."""
        payload, properties = wire_message(topic, b"never sent")
        self.world.disk.fill(free)
        try:
            record = Record(RecordKind.MESSAGE, topic, 0, payload + bytes(200), properties)
            self.world.core.store.put([record])
        except StatusError as error:
            assert error.code == Code.INTERNAL_ERROR
        else:
            raise AssertionError("there was no room for it")
        self.world.disk.fill(1 << 30)
        self.flush()

    @rule(group=GROUPS, topic=SOME_TOPIC, count=st.sampled_from([1, 2, 3, 32]), invisible_ms=st.integers(1, 60_000))
    def pop(self, group: str, topic: str, count: int, invisible_ms: int) -> None:
        world = self.world
        readable = self.readable(group, topic)
        answer = world.answer(group, topic, count, FILTERS[group], invisible_ms=invisible_ms)
        messages = [Message.FromString(each) for each in answer.messages]
        now_ms = world.core.pop_clock.now_ms()
        for message in messages:
            sent = self.sent_of(group, message)
            state = self.states[group, sent]
            handle = message.system_properties.receipt_handle
            assert state.kind == "ready", f"{sent} was given out and is {state} (P2, P3)"
            assert message.system_properties.delivery_attempt == state.attempts + 1, "P5"
            assert message.system_properties.tag == sent.tag
            self.move((group, sent), replace(state, kind="invisible", handle=handle, due_ms=now_ms + invisible_ms))
            self.given.append(Given(group, sent, handle))
        # A read ends with the entries in memory or in one file, so there may be less than was asked for, but not none.
        assert min(1, len(readable)) <= len(messages) <= count
        left = len(readable) - len(messages)
        assert answer.waiting == left if FILTERS[group] == "*" else (answer.waiting > 0) >= (left > 0)

    @rule(pick=PICK, count=st.sampled_from([1, 3, 32]), invisible_ms=st.integers(1, 60_000))
    @precondition(lambda self: self.pairs("ready"))
    def pop_what_is_ready(self, pick: int, count: int, invisible_ms: int) -> None:
        pairs = self.pairs("ready")
        self.pop(*pairs[pick % len(pairs)], count, invisible_ms)

    @rule(pick=PICK)
    @precondition(lambda self: self.given)
    def ack(self, pick: int) -> None:
        given = self.pick(pick)
        (result,) = self.world.ack(given.group, given.sent.topic, given.handle)
        if self.is_good(given):
            assert result == Code.OK
            self.move((given.group, given.sent), State("acked"))
        else:
            assert result == Code.INVALID_RECEIPT_HANDLE
        assert self.world.ack(given.group, given.sent.topic, given.handle) == [Code.INVALID_RECEIPT_HANDLE]

    @rule(group=GROUPS, topic=SOME_TOPIC, share=st.sampled_from([1, 2]))
    def ack_many(self, group: str, topic: str, share: int) -> None:
        wanted = [given for given in self.given if (given.group, given.sent.topic) == (group, topic)][::share]
        if not wanted:
            return
        codes = self.world.ack(group, topic, *(given.handle for given in wanted))
        for given, code in zip(wanted, codes, strict=True):
            assert (code == Code.OK) == self.is_good(given)
        for given in wanted:
            if self.is_good(given):
                self.move((group, given.sent), State("acked"))

    @rule(pick=PICK)
    @precondition(lambda self: self.given)
    def ack_for_another_group(self, pick: int) -> None:
        given = self.pick(pick)
        other = "h" if given.group == "g" else "g"
        assert self.world.ack(other, given.sent.topic, given.handle) == [Code.INVALID_RECEIPT_HANDLE]

    @rule(pick=PICK, invisible_ms=st.integers(0, 60_000))
    @precondition(lambda self: self.given)
    def change_invisible(self, pick: int, invisible_ms: int) -> None:
        given = self.pick(pick)
        good = self.is_good(given)
        try:
            handle = self.world.core.acks.change_invisible(given.group, given.sent.topic, given.handle, invisible_ms)
        except StatusError as error:
            assert (error.code, good) == (Code.INVALID_RECEIPT_HANDLE, False)
            return
        assert good
        key = (given.group, given.sent)
        due_ms = self.world.core.pop_clock.now_ms() + invisible_ms
        self.move(key, replace(self.states[key], handle=handle, due_ms=due_ms))
        self.given.append(Given(given.group, given.sent, handle))

    @rule(picks=st.lists(PICK, min_size=1, max_size=4), invisible_ms=st.integers(1, 60_000))
    @precondition(lambda self: self.given)
    def renew(self, picks: list[int], invisible_ms: int) -> None:
        wanted = list({given.handle: given for given in map(self.pick, picks)}.values())
        entries = [
            pb.RenewEntry(group=given.group, topic=given.sent.topic, receipt_handle=given.handle) for given in wanted
        ]
        results = self.world.core.acks.renew(entries, invisible_ms)
        due_ms = self.world.core.pop_clock.now_ms() + invisible_ms
        for given, result in zip(wanted, results, strict=True):
            assert (result.code == Code.OK) == self.is_good(given)
            if self.is_good(given):
                key = (given.group, given.sent)
                self.move(key, replace(self.states[key], due_ms=due_ms))

    @rule(pick=PICK, attempted=st.booleans())
    @precondition(lambda self: self.given)
    def release(self, pick: int, attempted: bool) -> None:
        given = self.pick(pick)
        good = self.is_good(given)
        (result,) = self.world.core.acks.release(given.group, given.sent.topic, [given.handle], attempted)
        assert (result.code == Code.OK) == good
        if good:
            self.comes_again((given.group, given.sent), attempted=attempted)

    @rule(pick=PICK)
    @precondition(lambda self: self.given)
    def dead_letter(self, pick: int) -> None:
        given = self.pick(pick)
        good = self.is_good(given)
        key = (given.group, given.sent)
        try:
            self.world.core.acks.dead_letter(given.group, given.sent.topic, given.handle)
        except StatusError as error:
            assert (error.code, good) == (Code.INVALID_RECEIPT_HANDLE, False)
            return
        assert good
        self.move(key, self.state_now("dead", 0) if self.states[key].held else State("gone"))

    @rule(milliseconds=st.sampled_from([1, 10, 999, 5000, 30_000, 60_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.world.clock.advance(milliseconds)
        self.world.core.state.merge_buffer.evict(self.world.core.pop_clock.now_ms())
        self.revive()

    @rule(hours=st.sampled_from([1, 71, 73]))
    def pass_days(self, hours: int) -> None:
        """Segments go when they are past their time, but not what is invisible."""
        self.world.clock.advance(hours * 3_600_000)
        if hours == 1:
            self.revive()
        # A server deletes no segment that its checkpoint needs, so one that covers all comes first.
        self.save()
        self.world.retain()
        self.flush()
        too_old_ms = self.world.clock.wall_ms() - RETENTION_MS
        for (group, sent), state in list(self.states.items()):
            if state.kind in ("ready", "dead") and not self.is_there(group, sent, state):
                assert state.stored_ms < too_old_ms
                self.states[group, sent] = State("gone")
        self.synced()

    @rule()
    def flush(self) -> None:
        self.world.flush()
        self.synced()

    @rule()
    def rewrite(self) -> None:
        self.world.core.rewrite_lagging()

    @rule()
    def save(self) -> None:
        self.world.core.rewrite_lagging()
        self.world.save()
        self.synced()

    @rule(kind=st.sampled_from(["process", "power"]), is_written=st.booleans())
    def crash_while_saving(self, kind: CrashKind, is_written: bool) -> None:
        self.world.begin_save()
        if is_written:
            run_now(self.world.core.store.write_index())
        self.crash(kind)

    @rule(kind=st.sampled_from(["process", "process", "power"]), is_recorded=st.booleans())
    def crash(self, kind: CrashKind, is_recorded: bool = False) -> None:
        world = self.world
        if is_recorded:
            deque(world.core.record_progress(), 0)
        before, progress = world.deliveries(), world.progress()
        world.crash(kind)
        if kind == "process":
            assert world.deliveries() == before, "S6"
            assert world.progress() == progress or not is_recorded, "S6"
            for key, committed in self.committed.items():
                if not is_recorded and FILTERS.get(key[0]) != "*":
                    # What a filter has passed is recorded later; it is looked at once more.
                    self.committed[key] = min(committed, self.committed_now().get(key, 0))
        else:
            self.committed.clear()
            self.find_out_what_power_loss_took()
        self.synced()

    @rule(topic=SOME_TOPIC)
    def delete_topic(self, topic: str) -> None:
        """And make it again. What was copied for retention ends with its topic, as it would not lapse."""
        copied = {each.id for each in self.world.core.state.table.lasting_of(topic)}
        self.world.delete_topic(topic)
        self.world.add_topic(topic, TOPICS[topic])
        for key, state in list(self.states.items()):
            if key[1].topic == topic:
                if state.kind == "ready":
                    self.move(key, State("gone"))
                elif state.kind == "invisible":
                    ends = self.place(*key, state.handle)[0] in copied
                    self.move(key, State("gone") if ends else replace(state, held=False))
        for progress in list(self.committed):
            if progress[1] == topic or progress[1].endswith(f"+{topic}"):
                del self.committed[progress]
        self.flush()

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        """And make it again: it begins with the first message that is still there."""
        self.world.delete_group(group)
        self.world.add_group(group, ATTEMPTS_MAX[group])
        for key in list(self.states):
            if key[0] == group:
                del self.states[key]
        stored = self.stored_messages()
        for sent, stored_ms in stored.items():
            if self.wants(group, sent.tag):
                self.states[group, sent] = State("ready", stored_ms=stored_ms)
        self.committed = {key: each for key, each in self.committed.items() if key[0] != group}
        self.flush()

    @rule(group=GROUPS, topic=SOME_TOPIC, pick=PICK, is_cut_off=st.booleans())
    def reset(self, group: str, topic: str, pick: int, is_cut_off: bool) -> None:
        """All that stands at the new offsets or behind comes as if it had never been read, and nothing else."""
        if any(
            (owner, sent.topic, state.kind) == (group, topic, "dead") for (owner, sent), state in self.states.items()
        ):
            return  # it would be in two places, which this model does not know
        offsets = {
            queue: queue.min_offset + pick % (queue.max_offset - queue.min_offset + 1)
            for queue in self.world.core.store.queues.of_topic(topic)
        }
        plan = self.world.core.offset_reset.plan(group, topic, offsets)
        assert plan.in_flight == sum(
            (owner, sent.topic, state.kind) == (group, topic, "invisible")
            for (owner, sent), state in self.states.items()
        )
        with patch.multiple(offset_reset, _AT_ONCE_MAX=1, _STEP=1):  # so that it takes several steps
            self.world.carry_out(plan)
        at = {queue.queue_id: offset for queue, offset in offsets.items()}
        stored = self.stored_messages()
        for key in [(owner, sent) for owner, sent in self.states if (owner, sent.topic) == (group, topic)]:
            self.states[key] = State("gone")
        for sent, stored_ms in stored.items():
            if sent.topic == topic and sent.offset >= at[sent.queue_id] and self.wants(group, sent.tag):
                self.states[group, sent] = State("ready", stored_ms=stored_ms)
        for progress in list(self.committed):
            if progress[0] == group and progress[1] in (topic, names.retry_topic(group, topic)):
                del self.committed[progress]
        if is_cut_off:
            self.crash("process")
        self.flush()

    @rule(pick=PICK, is_cut_off=st.booleans())
    @precondition(lambda self: self.pairs("invisible"))
    def reset_what_is_delivered(self, pick: int, is_cut_off: bool) -> None:
        pairs = self.pairs("invisible")
        self.reset(*pairs[pick % len(pairs)], pick, is_cut_off)

    @rule(pick=PICK, is_cut_off=st.booleans())
    @precondition(lambda self: self.pairs("dead"))
    def redrive_what_is_dead(self, pick: int, is_cut_off: bool) -> None:
        pairs = self.pairs("dead")
        self.redrive(pairs[pick % len(pairs)][0], 1 + pick % 3, is_cut_off)

    @rule(group=GROUPS, limit=st.integers(1, 3), is_cut_off=st.booleans())
    def redrive(self, group: str, limit: int, is_cut_off: bool) -> None:
        """Dead letters come to their group as if for the first time, the oldest first."""
        self.flush()
        dead = self.found_dead(group)
        result = self.world.core.dead_letters.redrive(group, limit, 1 << 40, 1 << 20)
        assert (result.redriven, result.kept) == (min(limit, len(dead)), 0)
        for number in dead[:limit]:
            (key,) = (key for key in self.states if key[0] == group and key[1].number == number)
            assert self.states[key].kind == "dead"
            self.states[key] = self.state_now("ready", 0)
        if is_cut_off:
            self.crash("process")
        self.flush()

    # What must hold

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        """P1; with it P3: what was acked is nowhere."""
        if not hasattr(self, "world"):
            return
        for group in FILTERS:
            for topic in TOPICS:
                expected = Counter(
                    (sent.number, state.attempts)
                    for (owner, sent), state in self.states.items()
                    if owner == group and sent.topic == topic and state.kind == "ready"
                )
                assert Counter(self.found_ready(group, topic)) == expected
            dead = Counter(
                sent.number for (owner, sent), state in self.states.items() if owner == group and state.kind == "dead"
            )
            assert Counter(self.found_dead(group)) == dead

    @invariant()
    def what_is_invisible_has_one_open_delivery(self) -> None:
        """With its due time (P2, P7)."""
        if not hasattr(self, "world"):
            return
        table = self.world.core.state.table
        invisible = {key: state for key, state in self.states.items() if state.kind == "invisible"}
        assert {self.place(*key, state.handle): state.due_ms for key, state in invisible.items()} == self.found_open()
        assert table.open_messages == len(invisible)
        first_due = table.next_due_ms()
        assert not invisible or (first_due is not None and first_due <= min(s.due_ms for s in invisible.values()))

    @invariant()
    def committed_offsets_do_not_go_back(self) -> None:
        """C4."""
        if not hasattr(self, "world"):
            return
        now = self.committed_now()
        for (group, topic, queue_id), committed in self.committed.items():
            queue = self.world.core.store.queue(topic, queue_id)
            beginning = 0 if queue is None else queue.min_offset
            assert now.get((group, topic, queue_id), beginning) >= committed, (group, topic, queue_id)
        self.committed = now
        buffer = self.world.core.state.merge_buffer
        assert len(buffer) <= self.world.options.pop.buffer_deliveries_max

    # How the model moves

    def wants(self, group: str, tag: str) -> bool:
        return FILTERS[group] == "*" or tag in FILTERS[group].split(" || ")

    def move(self, key: Key, state: State) -> None:
        self.since_sync.setdefault(key, [self.states[key]]).append(state)
        self.states[key] = state

    def synced(self) -> None:
        self.since_sync.clear()

    def state_now(self, kind: str, attempts: int) -> State:
        return State(kind, attempts, stored_ms=self.world.clock.wall_ms())

    def comes_again(self, key: Key, *, attempted: bool) -> None:
        state = self.states[key]
        attempts = state.attempts + (1 if attempted else 0)
        if not state.held:
            self.move(key, State("gone"))
        elif attempts >= ATTEMPTS_MAX[key[0]]:
            self.move(key, self.state_now("dead", 0))
        else:
            self.move(key, self.state_now("ready", attempts))

    def revive(self) -> None:
        now_ms = self.world.core.pop_clock.now_ms()
        due = [key for key, state in self.states.items() if state.kind == "invisible" and state.due_ms <= now_ms]
        assert self.world.revive() == len(due)
        for key in due:
            self.comes_again(key, attempted=True)

    def pairs(self, kind: str) -> list[tuple[str, str]]:
        """Groups and topics of which messages are somewhere."""
        return sorted({(group, sent.topic) for (group, sent), state in self.states.items() if state.kind == kind})

    def pick(self, pick: int) -> Given:
        """One of the latest more often than an old one."""
        recent = self.given[-12:] if pick % 3 else self.given
        return recent[pick % len(recent)]

    def is_good(self, given: Given) -> bool:
        state = self.states.get((given.group, given.sent))
        return state is not None and state.kind == "invisible" and state.handle == given.handle

    def find_out_what_power_loss_took(self) -> None:
        """Each message is as it was at the last sync or after one of the steps since."""
        ready = {
            group: Counter(each for topic in TOPICS for each in self.found_ready(group, topic)) for group in FILTERS
        }
        dead = {group: Counter(self.found_dead(group)) for group in FILTERS}
        opened = self.found_open()
        for key, history in self.since_sync.items():
            group, sent = key

            def fits(state: State, group: str = group, sent: Sent = sent) -> bool:
                place = self.place(group, sent, state.handle) if state.kind == "invisible" else None
                return {
                    "ready": ready[group][sent.number, state.attempts] == 1,
                    "dead": dead[group][sent.number] == 1,
                    "invisible": opened.get(place, -1) == state.due_ms,
                }.get(state.kind, True)

            self.states[key] = next(state for state in sorted(history, key=_rank, reverse=True) if fits(state))

    # What the broker says

    def sent_of(self, group: str, message: Message) -> Sent:
        number = int(message.body)
        (sent,) = {sent for owner, sent in self.states if owner == group and sent.number == number}
        assert message.topic.name == sent.topic
        return sent

    def place(self, group: str, sent: Sent, handle: str) -> tuple[int, int]:
        decoded = receipt.decode(KEY, group, sent.topic, handle)
        return decoded.delivery_id, decoded.queue_offset

    def found_open(self) -> dict[tuple[int, int] | None, int]:
        return {
            (each.id, each.offsets[index]): each.due_of(index)
            for each in self.world.core.state.table
            for index in each.open_indexes()
        }

    def found_ready(self, group: str, topic: str) -> list[tuple[int, int]]:
        """Number and attempts of all that a group has ahead of it."""
        found = []
        buffer = self.world.core.state.merge_buffer
        places = [(topic, number) for number in range(TOPICS[topic])] + [(names.retry_topic(group, topic), 0)]
        for name, queue_id in places:
            queue = self.world.core.store.queue(name, queue_id)
            if queue is None:
                continue
            progress = buffer.get(group, queue)
            begin = queue.min_offset if progress is None else progress.next_offset
            for offset, stored in self.world.held(name, queue_id):
                number = int(Message.FromString(stored.payload).body)
                wanted = name != topic or FILTERS[group] == "*" or stored.tag_hash in WANTED
                if offset >= begin and wanted:
                    found.append((number, stored.attempts))
        return found

    def found_dead(self, group: str) -> list[int]:
        letters = self.world.core.dead_letters
        queue = letters.queue(group)
        first = 0 if queue is None else letters.first_offset(group, queue)
        dead = self.world.held(names.dead_letter_topic(group))
        return [int(Message.FromString(stored.payload).body) for offset, stored in dead if offset >= first]

    def readable(self, group: str, topic: str) -> list[tuple[int, int]]:
        """What can be popped now: not what was made ready since the last sync."""
        unreadable = Counter(
            (sent.number, history[-1].attempts)
            for (owner, sent), history in self.since_sync.items()
            if owner == group and sent.topic == topic and history[-1].kind == "ready"
        )
        return list((Counter(self.found_ready(group, topic)) - unreadable).elements())

    def is_there(self, group: str, sent: Sent, state: State) -> bool:
        if state.kind == "dead":
            return sent.number in self.found_dead(group)
        return (sent.number, state.attempts) in self.found_ready(group, sent.topic)

    def stored_messages(self) -> dict[Sent, int]:
        """What the topics hold, and since when."""
        by_place = {(given.sent.topic, given.sent.queue_id, given.sent.offset): given.sent for given in self.given}
        by_place |= {(sent.topic, sent.queue_id, sent.offset): sent for _, sent in self.states}
        found = {}
        tags = {hash_tag(tag): tag for tag in ("", "a", "b", "c")}
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                for offset, stored in self.world.held(topic, queue_id):
                    number = int(Message.FromString(stored.payload).body)
                    sent = Sent(number, topic, queue_id, offset, tags[stored.tag_hash])
                    assert by_place.get((topic, queue_id, offset), sent) == sent, "S3"
                    found[sent] = stored.store_time_ms
        return found

    def committed_now(self) -> dict[tuple[str, str, int], int]:
        return {
            (progress.group, progress.queue.topic, progress.queue.queue_id): progress.committed
            for progress in self.world.core.state.merge_buffer
        }


WANTED = frozenset(hash_tag(tag) for tag in ("a", "b"))


def _rank(state: State) -> bool:
    """Those that leave a trace are looked for first."""
    return state.kind in ("ready", "dead", "invisible")


TestPopMachine = PopMachine.TestCase
TestPopMachine.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
