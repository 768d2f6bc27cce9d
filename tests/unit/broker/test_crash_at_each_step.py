"""A replica's files after a crash between any two steps on its device: it starts by itself, and has what it had.

What is changed in two places is changed in an order that leaves each state between sound: the log and the superblock,
the log and the checkpoint, index files, the timer's files.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from popwheel_broker.delay.service import TimerService
from popwheel_broker.log.raw_records import checked_records
from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.log.timer_record import TIMER_QUEUE, TIMER_TOPIC, Delay
from popwheel_broker.replication.epochs import EpochHistory, LogOutline, join_plan
from tests.harness.memory_disk import CrashKind
from tests.harness.stopping_disk import StoppedError, StoppingDisk
from tests.unit.broker.files_world import Store

EPOCHS = 4
RECORDS = 30
HOUR_MS = 3_600_000


class Master:
    """A master of some epochs, and how a replica gets onto its log."""

    def __init__(self) -> None:
        self.store = Store()
        self.data = b""
        self.positions: list[int] = []
        self.checkpoint = b""
        self.ends: list[int] = []
        """The end of each epoch."""
        self.start = 0
        """The beginning of its log; what stands before it is there no more."""

    async def write(self) -> None:
        """Messages, and delayed ones of which some have fired."""
        store, files = self.store, self.store.files
        await store.start(alone=True)
        for epoch in range(1, EPOCHS + 1):
            await files.finish(epoch)
            for number in range(RECORDS):
                files.core.store.put([Record(RecordKind.MESSAGE, "t", number % 2, b"x" * 100, b"")])
                if number % 5 == 0:
                    due_ms = store.clock.wall_ms() + (1000 if epoch < 3 else HOUR_MS)
                    delay = Delay("t", 0, 0, due_ms).encode()
                    files.core.store.put([Record(RecordKind.TIMER, TIMER_TOPIC, TIMER_QUEUE, b"", b"", origin=delay)])
            await files.sync()
            files.core.store.commit(files.end_position)
            step_timer(store)
            store.clock.advance(2000)
            step_timer(store)
            await files.sync()
            files.core.store.commit(files.end_position)
            self.ends.append(files.end_position)
        await files.save(files.sync)
        self.checkpoint = b"".join(files.checkpoint_file())
        self.data = b"".join(files.log.read(start, end - start) for start, end in files.log.segments())
        self.positions = [each.position for each in checked_records(0, self.data)] + [len(self.data)]

    def outline(self) -> LogOutline:
        return LogOutline(self.start, len(self.data), self.store.files.epochs)

    async def join(self, store: Store) -> None:
        """As a stream begins: the replica drops what is not of this log, or everything."""
        files = store.files
        plan = join_plan(self.outline(), LogOutline(files.start_position, files.end_position, files.epochs))
        if plan.anew:
            epochs = EpochHistory(self.outline().epochs).up_to(plan.position)
            await files.install(self.checkpoint, plan.position, epochs)
        elif plan.position < files.end_position or files.epochs != files.epochs.up_to(plan.position):
            await files.cut(plan.position)

    async def give(self, store: Store, end: int) -> None:
        """Give the replica what it lacks up to a position, confirmed."""
        begin = store.files.end_position
        if begin < end:
            await store.take(self.data[begin:end], end)
        elif store.files.high_watermark < end:
            await store.take(b"", end)
        step_timer(store)

    def repair(self, store: Store) -> Callable[[int], Coroutine[Any, Any, bool]]:
        """As `Repairer` does it, with this master as the only other replica."""

        async def repair(position: int) -> bool:
            epochs = store.files.epochs
            if position not in self.positions[:-1] or position < self.start:
                return False
            end = self.positions[self.positions.index(position) + 1]
            if self.store.files.epochs.epoch_at(position) != epochs.epoch_at(position):
                return False
            if end > store.files.end_position:
                return False
            await store.files.mend(position, self.data[position:end])
            return True

        return repair


def step_timer(store: Store) -> None:
    timer = store.files.core.timer
    while timer.step().busy:
        pass


def timer_service(store: Store) -> TimerService:
    files = store.files
    return TimerService(files.core.timer, store.disk, store.clock, files.sync, lambda: None, store.failures.append)


async def save(store: Store) -> None:
    """The timer and the rest, as a follower does."""
    await timer_service(store).save()
    await store.files.save(store.files.sync)


@dataclass
class Life:
    """One replica's life with a master.

    Args:
        master: whose log it follows.
        store: its files.
    """

    master: Master
    store: Store

    @property
    def disk(self) -> StoppingDisk:
        disk = self.store.disk
        assert isinstance(disk, StoppingDisk)
        return disk

    async def start(self) -> None:
        """A new process."""
        self.store.make()
        await self.store.load()
        await self.store.files.start(alone=False, repair=self.master.repair(self.store), is_nowhere=no)

    async def check(self, kept: int) -> None:
        """It has what it had, or says that it has nothing; and gets to where its master is.

        Args:
            kept: of the master's log: up to there the replica had said that it has it on its device.
        """
        files, master = self.store.files, self.master
        assert files.end_position >= kept
        self.check_log(min(kept, files.end_position))
        await master.join(self.store)
        await master.give(self.store, len(master.data))
        self.check_log(len(master.data))
        begun = [each for each in master.store.files.epochs if each.position >= files.start_position]
        assert list(files.epochs)[-len(begun) :] == begun
        self.check_state()
        await save(self.store)
        self.disk.crash("power")
        await self.start()
        assert self.store.files.end_position == len(master.data)
        await master.give(self.store, len(master.data))
        self.check_state()
        assert not self.store.failures

    def check_log(self, end: int) -> None:
        """It is the master's up to a position."""
        log = self.store.files.log
        held = b"".join(log.read(start, upto - start) for start, upto in log.segments() if upto > start)
        begin = log.start_position
        assert held[: max(0, end - begin)] == self.master.data[begin : max(begin, end)]

    def check_state(self) -> None:
        core, theirs = self.store.files.core, self.master.store.files.core
        start = self.store.files.start_position
        for queue in theirs.store.queues:
            mine = core.store.queue(queue.topic, queue.queue_id)
            entries = [each for each in queue.read(0, queue.max_offset) if each.position >= start]
            if mine is None:
                assert not entries
                continue
            assert mine.max_offset == queue.max_offset
            held = mine.read(mine.min_offset, mine.max_offset - mine.min_offset) if entries else []
            assert held[len(held) - len(entries) :] == entries
        assert core.timer.state.pending.total == theirs.timer.state.pending.total > 0


async def no(position: int) -> bool:
    return False


async def life(seed: int, master: Master, given: int) -> Life:
    """A replica that has some of a master's log and has saved it."""
    master.start = 0
    store = Store(disk=StoppingDisk(random.Random(seed)))
    store.clock = master.store.clock
    made = Life(master, store)
    await made.start()
    for end in (given // 2, given):
        await master.give(store, end)
        await save(store)
    return made


# What is done, step by step


async def saves(of: Life) -> None:
    """Some saves that add to the checkpoint, and some that write it anew."""
    ends = of.master.positions[len(of.master.positions) // 2 :: 30]
    for end in ends:
        await of.master.give(of.store, end)
        await save(of.store)


async def retention(of: Life) -> None:
    """The oldest segments go, while more is saved."""
    files, master = of.store.files, of.master
    for end in master.positions[len(master.positions) // 2 :: 30]:
        await master.give(of.store, end)
        await save(of.store)
        await files.delete_before(master.ends[1])


async def installs(of: Life) -> None:
    """The master has deleted what comes next."""
    master = of.master
    master.start = max(start for start, _ in master.store.files.log.segments() if start <= master.ends[1])
    if of.store.files.start_position < master.start:
        await of.store.files.install(master.checkpoint, master.start, master.outline().epochs.up_to(master.start))
    await master.give(of.store, len(master.data))
    await save(of.store)


async def leads(of: Life) -> None:
    """It leads in an epoch that the others know nothing of, as after an unclean election, and follows again."""
    files = of.store.files
    await files.finish(max(EPOCHS, files.epochs.latest) + 1)
    for _ in range(25):
        files.core.store.put([Record(RecordKind.MESSAGE, "u", 0, b"y" * 100, b"")])
    await files.sync()
    files.core.store.commit(files.end_position)
    await files.save(files.sync)
    await files.unfinish()
    await of.master.join(of.store)
    await of.master.give(of.store, len(of.master.data))
    await save(of.store)


async def cuts(of: Life) -> None:
    """Cut off what is not confirmed, above what was saved."""
    files = of.store.files
    await files.finish(max(EPOCHS, files.epochs.latest) + 1)
    await files.unfinish()
    await of.master.join(of.store)
    files.append_raw(files.end_position, of.master.data[files.end_position : of.master.ends[-1]])
    await files.sync()
    await files.cut(of.master.ends[2])


async def deletes_and_leads(of: Life) -> None:
    """Cut off what was saved, where the log's beginning is gone: it begins with nothing."""
    for _ in range(2):
        await of.store.files.delete_before(of.master.ends[1])
    await leads(of)


BEGIN_ANEW = [installs, deletes_and_leads]
"""In these a replica drops all that it has, on the way."""
SCENARIOS = [saves, retention, installs, leads, cuts, deletes_and_leads]


@pytest.fixture(scope="module")
def master() -> Master:
    made = Master()
    asyncio.run(made.write())
    return made


@pytest.mark.parametrize("kind", ["process", "power"])
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_crash_between_any_two_steps(
    scenario: Callable[[Life], Awaitable[None]], kind: CrashKind, master: Master
) -> None:
    for step in count():
        of = await life(step, master, master.ends[2])
        of.disk.stop_at = of.disk.steps + step
        try:
            await scenario(of)
        except StoppedError:
            of.disk.crash(kind)
            await of.start()
            await of.check(0 if scenario in BEGIN_ANEW else master.ends[2])
        else:
            break
    assert step > 20


async def test_what_a_process_had_removed_before_it_died_does_not_come_back(master: Master) -> None:
    """A timer's checkpoint counts on what the next process cuts off."""
    came_back = []
    for seed in range(20):
        of = await life(seed, master, len(master.data))
        path = of.store.files.core.timer.path_of_checkpoint()
        of.disk.remove(path)
        of.disk.crash("process")
        await of.start()
        await of.store.files.cut(master.ends[2])
        of.disk.crash("power")
        came_back += [seed] if of.disk.exists(path) else []
    assert not came_back


@pytest.mark.parametrize("seed", range(25))
async def test_crashes_one_after_the_other(seed: int, master: Master) -> None:
    """A start finds what the process before had written, and the device may not have: so some are ended, too."""
    chance = random.Random(seed)
    of = await life(seed, master, master.ends[2])
    kept = master.ends[2]
    for _ in range(6):
        scenario = chance.choice(SCENARIOS)
        kept = 0 if scenario in (*BEGIN_ANEW, retention) else kept
        of.disk.stop_at = of.disk.steps + chance.randrange(100)
        try:
            await of.start()
            await master.join(of.store)
            await master.give(of.store, len(master.data))  # what a checkpoint covers that it was given
            await scenario(of)
        except StoppedError:
            of.disk.crash(chance.choice(("process", "process", "power")))
    of.disk.crash("power")
    await of.start()
    await of.check(kept)
