"""Timers of a master and a slave through failovers, crashes and lost files, in any order (T1, T2, T3, T4)."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from popwheel_common.errors import StatusError
from tests.harness.memory_disk import CrashKind
from tests.unit.broker.timer_pair import TimerPair

TOPICS = ("orders", "bills")
DUES_MS = st.one_of(st.integers(1, 4_000), st.integers(1, 30_000))
PICK = st.integers(0, 1_000_000)
KIND: st.SearchStrategy[CrashKind] = st.sampled_from(["process", "power"])


@dataclass
class Sent:
    """A delayed message that both have."""

    position: int
    body: bytes
    due_ms: int
    topic: str
    recalled: bool = False


class TimerPairMachine(RuleBasedStateMachine):
    """Drives a `TimerPair`; all that is acknowledged is at both before anything else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = TimerPair(topics=TOPICS, body_bytes=6)
        self.sent: list[Sent] = []
        self.deleted: set[str] = set()
        self.latest_ms = 0
        """The latest that the clock has shown."""

    @rule(after_ms=DUES_MS, topic=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def send(self, after_ms: int, topic: str, count: int) -> None:
        """Take in delayed messages."""
        if topic in self.deleted:
            return
        for _ in range(count):
            due_ms = self.pair.clock.wall_ms() - self.pair.begin_ms + after_ms
            body = b"%06d" % len(self.sent)
            position = self.pair.send(body, due_ms, topic)
            self.sent.append(Sent(position, body, due_ms, topic))
        self.pair.replicate()

    @rule(pick=PICK)
    def recall(self, pick: int) -> None:
        """Take one back, or be told that it is too late."""
        if not self.sent:
            return
        sent = self.sent[pick % len(self.sent)]
        try:
            self.pair.recall(sent.position, sent.body, sent.due_ms, sent.topic)
        except StatusError:
            return
        self.pair.replicate()
        sent.recalled = True

    @rule(pick=PICK)
    def delete_topic(self, pick: int) -> None:
        """One of the topics goes, now and then."""
        if pick % 4 == 0:
            self.deleted.add("bills")
            self.pair.delete_topic("bills")

    @rule(time_ms=st.integers(1, 3_000))
    def pass_time(self, time_ms: int) -> None:
        """All goes its way for a while."""
        self.pair.pass_to(self.pair.clock.wall_ms() - self.pair.begin_ms + time_ms)

    @rule(time_ms=st.integers(1, 3_000), steps=st.integers(1, 3), records=st.integers(0, 3))
    def hang(self, time_ms: int, steps: int, records: int) -> None:
        """Time passes, the master does a little, and the slave learns of less."""
        self.pair.clock.advance(time_ms)
        for _ in range(steps):
            self.pair.master.timer.step()
        self.pair.replicate(records)

    @rule(back_ms=st.integers(1, 5_000))
    def set_clock_back(self, back_ms: int) -> None:
        """An operator, or NTP."""
        self.latest_ms = max(self.latest_ms, self.pair.clock.wall_ms() - self.pair.begin_ms)
        self.pair.clock.set_wall_ms(self.pair.clock.wall_ms() - back_ms)

    @rule(steps=st.integers(1, 4))
    def follow(self, steps: int) -> None:
        """The slave's timer does something."""
        for _ in range(steps):
            self.pair.slave.timer.step()

    @rule()
    def report_progress(self) -> None:
        """Checkpoint sync."""
        self.pair.report_progress()

    @rule(core=st.booleans())
    def save_slave(self, core: bool) -> None:
        """The slave saves its timer, or all but that."""
        if core:
            self.pair.slave.save()
        else:
            self.pair.slave.save_timer()

    @rule(core=st.booleans())
    def save_master(self, core: bool) -> None:
        """The master saves its timer, or all but that."""
        self.pair.replicate()
        if core:
            self.pair.master.save()
        else:
            self.pair.master.save_timer()

    @rule(kind=KIND, lose=st.booleans(), pick=PICK)
    def crash_slave(self, kind: CrashKind, lose: bool, pick: int) -> None:
        """The slave dies and comes back, at times without its timer's files."""
        if lose and pick % 4 == 0:
            self.pair.slave.remove_timer_files()
        self.pair.slave.crash(kind)
        self.pair.replicate()

    @precondition(lambda self: self.sent)
    @rule(kind=KIND)
    def fail_over(self, kind: CrashKind) -> None:
        """The master dies; the slave leads, and the old master follows it."""
        self.pair.fail_over(kind)

    @invariant()
    def nothing_twice_and_nothing_early(self) -> None:
        """T1, T2, T4, of what can be read."""
        by_body = {sent.body: sent for sent in self.sent}
        for topic in TOPICS:
            fired = self.pair.fired(topic)
            assert all(count == 1 for count in Counter(body for body, _ in fired).values()), fired
            for body, at_ms in fired:
                sent = by_body[body]
                assert at_ms >= sent.due_ms
                assert not sent.recalled

    @invariant()
    def the_slave_knows_what_pends(self) -> None:
        """Counts, once all is told and met."""
        pair = self.pair
        if pair.slave.end_position != pair.master.end_position or not pair.slave.timer.has_begun:
            return
        pair.follow()
        master, slave = pair.master.timer.state, pair.slave.timer.state
        if not (master.done or slave.done):
            # What is left out without a record, each lets go in its own time.
            extra = slave.pending.total - master.pending.total
            assert abs(extra) <= sum(sent.topic in self.deleted for sent in self.sent)
        self.latest_ms = max(self.latest_ms, pair.clock.wall_ms() - pair.begin_ms)
        # A slot is begun, and may be done, half a second before its time.
        ahead = {sent.position for sent in self.sent if sent.recalled and sent.due_ms > self.latest_ms + 1_000}
        assert ahead & set(master.recalled) == ahead & set(slave.recalled)

    def teardown(self) -> None:
        """All that is left fires in time (T3), and nothing is held on to."""
        pair = self.pair
        latest_ms = max([sent.due_ms for sent in self.sent], default=0)
        pair.pass_to(max(latest_ms, pair.clock.wall_ms() - pair.begin_ms) + 20_000)
        for topic in TOPICS:
            fired = {body for body, _ in pair.fired(topic)}
            wanted = {sent.body for sent in self.sent if sent.topic == topic and not sent.recalled}
            assert fired <= wanted if topic in self.deleted else fired == wanted
        self.nothing_twice_and_nothing_early()
        for _ in range(2):
            pair.pass_to(pair.clock.wall_ms() - pair.begin_ms + 2_000)
            pair.save_master()
            pair.report_progress()
            pair.follow()
        for replica in (pair.master, pair.slave):
            if replica.timer.has_begun:
                state = replica.timer.state
                assert (state.pending.total, state.wheel.units_total) == (0, 0)
                assert not (state.done or state.awaited or state.recalled or state.due_heap or state.handed)


TestTimerPairs = TimerPairMachine.TestCase
TestTimerPairs.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
