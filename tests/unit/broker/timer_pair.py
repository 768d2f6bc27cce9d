"""A master and a slave with their timers, moved on step by step: what the slave has is reported by hand."""

import random
from pathlib import Path

from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_broker.core.checkpoint import Checkpoint
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.delay.service import TimerService
from popwheel_broker.delay.timer_state import slot_of
from popwheel_broker.log.message_store import StoreCheckpoint
from popwheel_broker.log.record import RecordKind
from popwheel_broker.options import BrokerOptions
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.pb.popwheel.v1.broker_pb2 import TimerProgress
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Topic
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import CrashKind, MemoryDisk
from tests.unit.broker.timer_world import timer_options
from tests.unit.broker.world import FOLDER, KEY, run_now, saved_after, wire_message

_LONGEST_STEP_MS = 500


class PairReplica:
    """One broker of a pair.

    Args:
        options: its settings.
        clock: of both.
        view: of both.
        seed: of its disk's faults.
    """

    def __init__(self, options: BrokerOptions, clock: ManualClock, view: ClusterView, seed: int) -> None:
        self.options = options
        self.clock = clock
        self.view = view
        self.random = random.Random(seed)
        self.disk = MemoryDisk(self.random)
        self.saved: bytes | None = None
        self.failures: list[Exception] = []
        self.begin()

    def begin(self) -> None:
        """Load what is there, and wait for records."""
        self.core = BrokerCore(
            self.options,
            self.disk,
            FOLDER,
            self.clock,
            self.random,
            self.view,
            lambda topic, late_ms: None,
        )
        log = self.core.store.log
        saved = Checkpoint() if self.saved is None else checkpoint_file.decode(self.saved)
        if self.saved is None:
            saved = Checkpoint(store=StoreCheckpoint(synced_position=log.end_position))
        begin = self.core.begin(saved)
        for found in log.scan(begin, saved.store.synced_position):
            if found.position < saved.store.position:
                self.core.fold(found)
        run_now(log.sync())
        self.service = TimerService(self.timer, self.disk, self.clock, self._sync, lambda: None, self.failures.append)

    @property
    def timer(self) -> MessageTimer:
        """Its timer."""
        return self.core.timer

    @property
    def end_position(self) -> int:
        """Where its log ends."""
        return self.core.store.log.end_position

    async def _sync(self) -> None:
        run_now(self.core.store.log.sync())

    def take(self, data: bytes, lengths: list[int]) -> None:
        """Append what the master has written, durably."""
        self.core.store.log.append_raw(lengths, data)
        run_now(self.core.store.log.sync())

    def fold_to(self, position: int) -> None:
        """Fold in what is confirmed."""
        log = self.core.store.log
        for found in list(log.records(self.core.folded_position, min(position, log.end_position))):
            self.core.fold(found)

    def lead(self) -> None:
        """Take the role over: all of the log counts."""
        self.fold_to(self.end_position)
        self.core.finish()
        self.core.cluster_changes.apply()

    def cut_and_follow(self, position: int) -> None:
        """Drop what only this broker has, and what was made of it, and follow another."""
        run_now(self.timer.cut_off(position))
        self.core.store.log.cut(position)
        run_now(self.core.store.log.sync())
        self.timer.close()
        self.begin()

    def crash(self, kind: CrashKind) -> None:
        """End the process, or the machine, and begin again as a slave."""
        self.disk.crash(kind)
        self.begin()

    def save(self) -> None:
        """Save the core; all that it was made of is at both."""
        changes = self.core.checkpoint()
        run_now(self.core.store.log.sync())
        run_now(self.core.store.write_index())
        self.saved = saved_after(self.saved, changes.rows(), self.core.synced(changes.head))

    def save_timer(self) -> None:
        """Save the timer; all that it was made of is at both."""
        run_now(self.service.save())

    def remove_timer_files(self) -> None:
        """Lose them, between two lives."""
        for path in list(self.disk.files()):
            if FOLDER / "timer" in path.parents:
                self.disk.remove(Path(path))


class TimerPair:
    """Two brokers, of which one leads. Whatever it writes counts when the other has it.

    Args:
        options: of both.
        topics: names of topics that are there.
        body_bytes: how long all bodies are.
    """

    def __init__(
        self, options: BrokerOptions | None = None, topics: tuple[str, ...] = ("orders",), body_bytes: int = 1
    ) -> None:
        self.body_bytes = body_bytes
        self.clock = ManualClock()
        self.begin_ms = slot_of(self.clock.wall_ms())
        self.view = ClusterView()
        self._version = 1
        self.view.apply(ClusterUpdate(version=1, snapshot=True, cluster=Cluster(name="test", receipt_key=KEY)))
        options = timer_options() if options is None else options
        self.master, self.slave = (PairReplica(options, self.clock, self.view, seed) for seed in (1, 2))
        self.master.lead()
        for topic in topics:
            self.make_topic(topic)

    # What the master is asked

    def make_topic(self, name: str) -> None:
        """The controller says that there is a topic."""
        self._version += 1
        update = ClusterUpdate(version=self._version, topics=[Topic(name=name, queues=1, id=self._version)])
        self.master.core.cluster_changes.receive(update)
        self.view.apply(update)
        self.master.core.cluster_changed(ClusterUpdate(version=self._version))
        self.master.core.cluster_changes.apply()
        self.replicate()

    def delete_topic(self, name: str) -> None:
        """The controller says that a topic is no more."""
        self._version += 1
        self.view.apply(ClusterUpdate(version=self._version, deleted_topics=[name]))
        self.master.core.cluster_changed(ClusterUpdate(version=self._version, deleted_topics=[name]))
        self.master.core.cluster_changes.apply()
        self.replicate()

    def send(self, body: bytes, due_ms: int, topic: str = "orders") -> int:
        """Send a message that is due so long after the beginning; the position of its record."""
        payload, properties = wire_message(topic, body)
        run = MessageRun(topic, 0, [payload], [properties], [""], PutKind.AT_TIME, [self.begin_ms + due_ms])
        batch = self.master.timer.intake.batch()
        batch.accept(run)
        appended = self.master.core.store.put(batch.records)
        self.master.timer.intake.stored(batch)
        return appended.positions[0]

    def recall(self, position: int, body: bytes, due_ms: int, topic: str = "orders") -> None:
        """Take a message back; raises as `TimerIntake.recall` does."""
        timer = self.master.timer
        topic_id = timer.intake.topic_id(topic)
        handle = RecallHandle("b", position, self.begin_ms + due_ms, body.hex(), topic_id=topic_id)
        record = timer.intake.recall(topic, handle)
        if record is not None:
            self.master.core.store.put([record])

    # What happens between them

    def replicate(self, records_max: int = 1_000_000) -> int:
        """Give the slave some of what it lacks; how many records. What it has is confirmed, and folded by both."""
        log = self.master.core.store.log
        count = 0
        for found in list(log.records(self.slave.end_position, log.end_position))[:records_max]:
            self.slave.take(log.read(found.position, found.length), [found.length])
            count += 1
        run_now(log.sync())
        confirmed = min(self.slave.end_position, log.synced_position)
        self.master.core.store.commit(confirmed)
        self.slave.fold_to(confirmed)
        return count

    def follow(self) -> None:
        """Let the slave's timer do all that there is to do."""
        while self.slave.timer.step().busy:
            pass

    def report_progress(self) -> None:
        """Give the slave what the master has saved."""
        saved = self.master.timer.saved
        if saved is not None:
            progress = TimerProgress(
                last_read_time_ms=saved.last_read_time_ms, master_timer_queue_offset=saved.last_timer_queue_offset
            )
            self.slave.timer.progress(saved.log_position, progress)

    def turn(self) -> None:
        """Let the master do all that there is to do now, and the slave have all of it."""
        while self.master.timer.step().busy or self.replicate():
            pass

    def pass_to(self, time_ms: int) -> None:
        """Let time pass to so long after the beginning, stopping wherever there is something to do."""
        self.turn()
        while (left_ms := self.begin_ms + time_ms - self.clock.wall_ms()) > 0:
            next_ms = self.master.timer.next_time_ms()
            wait_ms = left_ms if next_ms is None else next_ms - self.clock.wall_ms()
            self.clock.advance(max(1, min(left_ms, wait_ms, _LONGEST_STEP_MS)))
            self.turn()

    def save_master(self) -> None:
        """Save the master's timer when the slave has all of it."""
        self.replicate()
        self.master.save_timer()

    def fail_over(self, kind: CrashKind = "process") -> None:
        """The master dies, the slave takes over; the old master comes back and follows."""
        old, new = self.master, self.slave
        new.lead()
        position = new.core.store.log.end_position
        common = min(position, old.end_position)
        old.disk.crash(kind)
        old.begin()
        # What the old one alone had is cut off; as the new one has begun to write, its log may be longer already.
        shared = _shared_end(old, new, common)
        old.cut_and_follow(shared)
        self.master, self.slave = new, old
        self.replicate()

    # What is there

    def fired(self, topic: str = "orders") -> list[tuple[bytes, int]]:
        """Body of each message delivered, and when, after the beginning, in order."""
        return [
            (found.payload[-self.body_bytes :], found.store_time_ms - self.begin_ms)
            for found in self.master.core.store.log.records(
                self.master.core.store.log.start_position, self.master.core.store.high_watermark
            )
            if found.kind == RecordKind.MESSAGE and found.topic == topic
        ]


def _shared_end(old: PairReplica, new: PairReplica, end: int) -> int:
    """Up to where two logs are the same."""
    log, other = old.core.store.log, new.core.store.log
    for found in log.records(log.start_position, end):
        if log.read(found.position, found.length) != other.read(found.position, found.length):
            return found.position
    return min(end, log.end_position)
