"""Ordered pops against a simple model, through crashes and power losses: each line in its order, nothing lost (P1, P6).

The model keeps each line as a list. Its head may be delivered; what is not the head never comes.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from popwheel_broker.options import BrokerOptions, LogOptions, PopOptions
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from tests.harness.memory_disk import CrashKind
from tests.unit.broker.world import World

LINES = ("a", "b", "c", "")
QUEUES = 2
ATTEMPTS_MAX = 3
BLOCKED_MAX = 24


@dataclass
class Waiting:
    """A message that the group is not done with."""

    body: bytes
    attempts: int = 0
    handle: str = ""
    due_ms: int = 0


@dataclass
class Line:
    """What is left of a message group."""

    messages: list[Waiting] = field(default_factory=list)


class OrderedMachine(RuleBasedStateMachine):
    """Drives a `BrokerCore` and keeps the model of it."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        options = BrokerOptions(
            log=LogOptions(segment_bytes=65_536, index_entries_max=16, queue_entries_in_memory=4),
            pop=PopOptions(buffer_deliveries_max=5, rewrite_after_records=16, held_messages_max=BLOCKED_MAX),
        )
        self.world = World(seed, options)
        self.world.add_topic("t", QUEUES)
        self.world.add_group("g", ATTEMPTS_MAX, fifo=True)
        self.lines: dict[str, Line] = {}
        self.number = 0
        self.handles: list[str] = []
        self.dead = 0

    def queue_of(self, line: str) -> int:
        return ord(line[0]) % QUEUES if line else self.number % QUEUES

    @rule(lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=6))
    def put(self, lines: list[str]) -> None:
        for line in lines:
            self.number += 1
            body = b"%d" % self.number
            self.world.put("t", body, queue_id=self.queue_of(line), message_group=line)
            # A message without a message group is a line of its own.
            self.lines.setdefault(line or f"-{self.number}", Line()).messages.append(Waiting(body))

    def heads(self) -> dict[bytes, Waiting]:
        """What a pop may deliver."""
        return {
            line.messages[0].body: line.messages[0]
            for line in self.lines.values()
            if line.messages and not line.messages[0].handle
        }

    def waiting_of(self, handle: str) -> tuple[Line, Waiting] | None:
        for line in self.lines.values():
            for each in line.messages:
                if each.handle == handle:
                    return line, each
        return None

    @rule(count=st.sampled_from([1, 2, 3, 32]), invisible_ms=st.integers(1, 60_000))
    def pop(self, count: int, invisible_ms: int) -> None:
        heads = self.heads()
        answer = self.world.answer("g", "t", count, invisible_ms=invisible_ms)
        now_ms = self.world.core.pop_clock.now_ms()
        assert len(answer.messages) <= count
        for data in answer.messages:
            message = Message.FromString(data)
            waiting = heads.pop(message.body, None)
            assert waiting is not None, f"{message.body!r} is not the first of its line (P6)"
            assert message.system_properties.delivery_attempt == waiting.attempts + 1, "P5"
            waiting.handle = message.system_properties.receipt_handle
            waiting.due_ms = now_ms + invisible_ms
            self.handles.append(waiting.handle)

    @rule()
    def drain(self) -> None:
        """All that may come comes, if one asks for as long as there may be more."""
        for _ in range(100):
            before = len(self.handles)
            self.pop(32, 30_000)
            if len(self.handles) == before:
                break
        left = self.heads()
        held = self.world.core.state.table.message_group_queues.blocked.total
        assert not left or held * 2 >= BLOCKED_MAX - 2, f"{sorted(left)} do not come, and only {held} are held (L1)"
        if not self.world.core.state.table.message_group_queues.paused:
            assert not left
            assert self.world.core.pops.waiting("g", "t", None) == 0

    @rule(pick=st.integers(0, 1_000_000))
    @precondition(lambda self: self.handles)
    def ack(self, pick: int) -> None:
        handle = self.handles[pick % len(self.handles)]
        (result,) = self.world.ack("g", "t", handle)
        found = self.waiting_of(handle)
        assert (result == Code.OK) == (found is not None), "P3, P7"
        if found is not None:
            line, waiting = found
            line.messages.remove(waiting)
        self.world.flush()

    @rule(pick=st.integers(0, 1_000_000), invisible_ms=st.integers(0, 5_000))
    @precondition(lambda self: any(self.waiting_of(handle) for handle in self.handles))
    def change(self, pick: int, invisible_ms: int) -> None:
        good = [handle for handle in self.handles if self.waiting_of(handle)]
        handle = good[pick % len(good)]
        found = self.waiting_of(handle)
        assert found is not None
        found[1].handle = self.world.core.acks.change_invisible("g", "t", handle, invisible_ms)
        found[1].due_ms = self.world.core.pop_clock.now_ms() + invisible_ms
        self.handles.append(found[1].handle)
        self.world.flush()

    @rule(pick=st.integers(0, 1_000_000), attempted=st.booleans())
    @precondition(lambda self: any(self.waiting_of(handle) for handle in self.handles))
    def release(self, pick: int, attempted: bool) -> None:
        good = [handle for handle in self.handles if self.waiting_of(handle)]
        handle = good[pick % len(good)]
        self.world.core.acks.release("g", "t", [handle], attempted)
        self.world.flush()
        self.failed(handle, attempted)

    def failed(self, handle: str, attempted: bool) -> None:
        found = self.waiting_of(handle)
        assert found is not None
        line, waiting = found
        waiting.handle = ""
        waiting.attempts += attempted
        if waiting.attempts == ATTEMPTS_MAX:
            line.messages.remove(waiting)
            self.dead += 1

    @rule(ms=st.integers(0, 40_000))
    def time_passes(self, ms: int) -> None:
        self.world.clock.advance(ms)
        self.world.revive()
        self.world.flush()
        now_ms = self.world.core.pop_clock.now_ms()
        for line in list(self.lines.values()):
            for each in list(line.messages):
                if each.handle and each.due_ms <= now_ms:
                    self.failed(each.handle, True)

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule()
    def rewrite(self) -> None:
        self.world.core.rewrite_lagging()
        self.world.flush()

    @rule(kind=st.sampled_from(["process", "power"]))
    def crash(self, kind: CrashKind) -> None:
        self.world.flush()
        lines = sorted(self.world.core.state.table.message_group_queues.members())
        blocked_of = dict(self.world.core.state.table.message_group_queues.blocked_of)
        self.world.crash(kind)
        table = self.world.core.state.table
        assert sorted(table.message_group_queues.members()) == lines, "S6"
        assert table.message_group_queues.blocked_of == blocked_of, "S6"
        self.world.deliveries()

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "world"):
            return
        table = self.world.core.state.table
        delivered = sum(bool(each.handle) for line in self.lines.values() for each in line.messages)
        assert table.open_messages == delivered
        held = sum(each.open_bits.bit_count() for each in table if each.is_blocked)
        assert table.message_group_queues.blocked.total == held <= BLOCKED_MAX
        assert len(self.world.held("%DLQ%g")) == self.dead
        assert table.message_group_queues.ready("g", "t") <= held


TestOrderedMachine = OrderedMachine.TestCase
TestOrderedMachine.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
