"""The files of a replica: what is done on the device goes to its end, and nothing counts on what did not reach it."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.log.timer_record import TIMER_QUEUE, TIMER_TOPIC, Delay
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_broker.replication.superblock import Superblock
from popwheel_common.errors import CorruptDataError
from tests.harness.memory_disk import MemoryFile
from tests.sim.stored import derived_state
from tests.unit.broker.files_world import COUNT, FOLDER, Store, log_of_a_master, no_repair


@pytest.mark.parametrize("seed", range(20))
async def test_what_a_save_that_was_given_up_has_written_is_on_the_device(seed: int) -> None:
    """The next checkpoint counts on it."""
    data, positions, _ = await log_of_a_master()
    store = Store(seed)
    await store.start()
    await store.take(data, positions[-1])
    await store.give_up(store.files.save(store.files.sync))
    await store.files.save(store.files.sync)
    assert store.disk.unsynced_bytes == 0
    saved = store.files.saved_position
    queue = store.files.core.store.queue("t", 0)
    assert queue is not None and saved == positions[-1]
    entries = queue.read(0, 1000)
    store.disk.crash("power")
    await store.again()
    again = store.files.core.store.queue("t", 0)
    assert again is not None and again.read(0, 1000) == entries
    assert store.files.high_watermark == saved  # nothing had to be made again
    assert not store.failures


async def test_a_failed_sync_is_notified_though_its_waiter_has_gone() -> None:
    data, positions, _ = await log_of_a_master()
    for work in ("sync", "save", "mend"):
        store = Store()
        await store.start()
        await store.take(data[: positions[10]], positions[10])
        store.files.append_raw(positions[10], data[positions[10] : positions[20]])
        store.disk.fail_syncs(1)
        files = store.files
        begin: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "sync": files.sync,
            "save": lambda files=files: files.save(files.sync),  # type: ignore[misc]
            "mend": lambda files=files: files.mend(0, data[: positions[1]]),  # type: ignore[misc]
        }
        await store.give_up(begin[work]())
        assert store.failures, work


async def test_a_cut_waits_for_a_sync_that_is_under_way() -> None:
    data, positions, _ = await log_of_a_master()
    store = Store()
    files = store.files
    await store.start()
    await store.take(data[: positions[5]])
    files.append_raw(positions[5], data[positions[5] : positions[20]])
    store.disk.hold_syncs()
    syncing = asyncio.create_task(files.sync())
    await store.disk.until_stored()
    cutting = asyncio.create_task(files.cut(positions[10]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert files.end_position == positions[20]
    store.disk.release_syncs()
    await asyncio.gather(syncing, cutting)
    assert files.end_position == files.synced_position == positions[10]
    files.append_raw(positions[10], data[positions[10] : positions[15]])
    assert files.synced_position < files.end_position
    await files.sync()
    assert files.synced_position == positions[15]
    store.disk.crash("power")
    await store.again()
    assert store.files.end_position == positions[15]


async def test_nothing_saves_beside_a_cut() -> None:
    """It would count on what is cut off."""
    data, positions, _ = await log_of_a_master()
    store = Store()
    files = store.files
    await store.start()
    await store.take(data, positions[20])
    seen: list[tuple[str, int]] = []

    class Subscriber:
        def folded(self) -> None:
            """Nothing is seen of it."""

        async def rest(self) -> None:
            seen.append(("ends", files.end_position))

        def resume(self) -> None:
            seen.append(("goes on", files.end_position))

    files.subscribe(Subscriber())
    await files.cut(positions[30])
    assert seen == [("ends", positions[-1]), ("goes on", positions[30])]
    seen.clear()
    await files.cut(positions[10])  # below what is folded
    assert seen[0] == ("ends", positions[30]) and seen[-1] == ("goes on", positions[10])
    seen.clear()
    await files.install(b"".join(files.checkpoint_file()), positions[5], EpochHistory())
    assert seen[0] == ("ends", positions[10]) and seen[-1] == ("goes on", positions[5])


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_cut_after_a_checkpoint_that_was_half_written(
    fails: bool, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device may have the new one, which knows the log to be longer."""
    data, positions, _ = await log_of_a_master()
    store = Store()
    files = store.files
    await store.start()
    await store.take(data[: positions[20]], positions[10])
    begun, goes_on = asyncio.Event(), asyncio.Event()
    sync_folder, sync = store.disk.sync_folder, MemoryFile.sync
    files._saved._is_behind = is_whole

    async def wait() -> None:
        begun.set()
        await goes_on.wait()
        if fails:
            raise OSError(errno.EIO, "no")

    async def slow_folder(path: Path) -> None:
        if path == FOLDER:
            await wait()
        await sync_folder(path)

    async def slow_file(self: MemoryFile) -> None:
        await sync(self)
        if self.path.name == "checkpoint":
            await wait()

    monkeypatch.setattr(store.disk, "sync_folder", slow_folder)
    monkeypatch.setattr(MemoryFile, "sync", slow_file)
    saving = asyncio.create_task(files.save(files.sync))
    await begun.wait()
    if not fails:
        saving.cancel()
    goes_on.set()
    await asyncio.gather(saving, return_exceptions=True)
    monkeypatch.undo()
    await files.cut(positions[15])
    assert files._saved._is_certain and files._saved.head.store.synced_position <= positions[15]
    await files.save(files.sync)
    derived = derived_state(files.core)
    store.disk.crash("process")
    await store.again()
    assert store.files.end_position == positions[15]
    assert derived_state(store.files.core) == derived


@pytest.mark.parametrize("what", ["deleted topic", "new queue"])
async def test_a_checkpoint_that_shows_what_was_cut_off_is_not_used(what: str) -> None:
    """That was not confirmed when it was taken, but when it was saved; then an unclean election took it back."""
    master, slave = Store(), Store()
    await master.start(alone=True)
    files, store = master.files, master.files.core.store
    await files.finish(1)
    put = store.put([Record(RecordKind.MESSAGE, "t", 0, b"x", b"")] * 3)
    store.commit(put.end_position)
    if what == "deleted topic":
        files.core.cluster_changes.forget_topic("t")
    else:
        store.put([Record(RecordKind.MESSAGE, "u", 0, b"x", b"")])
    await files.save(files.sync)
    saved = files._saved.head.store
    assert (saved.position, saved.reached) == (put.end_position, files.end_position)
    await slave.start()
    await slave.take(files.log.read(0, put.end_position), put.end_position)
    await files.unfinish()
    await files.cut(put.end_position)
    files.commit(put.end_position)
    while files.high_watermark < put.end_position:
        await asyncio.sleep(0)
    assert derived_state(files.core) == derived_state(slave.files.core)
    assert [queue.topic for queue in files.core.store.queues] == ["t"]


async def test_no_checkpoint_goes_beyond_an_epoch_that_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    data, positions, epochs = await log_of_a_master()
    store = Store()
    await store.start()

    async def refuse(superblock: Superblock, **changes: object) -> None:
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(Superblock, "change", refuse)
    await store.take(data, positions[-1])
    with pytest.raises(OSError, match="refused"):
        await store.files.save(store.files.sync)
    assert store.files.saved_position == 0 and not store.failures
    monkeypatch.undo()
    store.disk.crash("power")
    await store.again()
    assert list(store.files.epochs) == epochs


@pytest.mark.parametrize("known", [0, 1, 2])
async def test_an_epoch_that_began_before_the_checkpoint_is_looked_for_in_the_log(known: int) -> None:
    data, positions, epochs = await log_of_a_master()
    store = Store()
    await store.start()
    await store.take(data, positions[-10])
    await store.files.save(store.files.sync)
    await store.files.superblock.change(epochs=tuple(epochs[:known]))
    store.disk.crash("process")
    await store.again()
    assert list(store.files.epochs) == epochs
    await store.again()
    assert list(store.files.epochs) == epochs


async def test_damage_where_epochs_are_looked_for_is_not_passed_over() -> None:
    data, positions, epochs = await log_of_a_master()
    store = Store()
    await store.start()
    await store.take(data, positions[-10])
    await store.files.save(store.files.sync)
    await store.files.superblock.change(epochs=())
    at = positions[positions.index(epochs[1].position) + 1]
    segment = max(start for start, _ in store.files.log.segments() if start <= at)
    path = FOLDER / "commitlog" / f"{segment:020d}.log"
    store.disk.crash("process")
    store.disk.flip_bit(path, 8 * (at - segment + 60))
    store.make()
    asked: list[tuple[int, int]] = []

    async def repair(position: int) -> bool:
        asked.append((position, store.files.epochs.epoch_at(position)))
        if len(asked) == 1:
            store.disk.flip_bit(path, 8 * (at - segment + 60))
            return True
        return False

    await store.load()
    await store.files.start(alone=False, repair=repair, is_nowhere=no_repair)
    assert asked == [(at, 2)]  # another replica's is taken if it is of that epoch
    assert list(store.files.epochs) == epochs
    await store.files.superblock.change(epochs=())
    store.disk.flip_bit(path, 8 * (at - segment + 60))
    store.make()
    with pytest.raises(CorruptDataError):
        await store.start()


@pytest.mark.parametrize("lost_bytes", [50, 500])
async def test_a_segment_that_has_lost_its_end_while_the_next_is_there_is_mended(lost_bytes: int) -> None:
    """A loss of power takes what was not synced in no order."""
    data, positions, _ = await log_of_a_master()
    store = Store()
    await store.start()
    store.files.append_raw(0, data)
    await store.files.sync()
    start, end = store.files.log.segments()[1]
    store.files.close()
    store.disk.open(FOLDER / "commitlog" / f"{start:020d}.log").truncate(end - start - lost_bytes)
    store.make()

    async def repair(position: int) -> bool:
        length = next(each for each in positions if each > position) - position
        if store.files.log.read(position, length) != data[position : position + length]:
            await store.files.mend(position, data[position : position + length])
        return True

    await store.load()
    await store.files.start(alone=False, repair=repair, is_nowhere=no_repair)
    assert store.files.end_position == len(data)
    assert b"".join(store.files.log.read(start, end - start) for start, end in store.files.log.segments()) == data


async def cold_store() -> tuple[Store, int, list[int]]:
    """A follower whose records came long ago, and are in memory no more; no plain read may wait for the device."""
    data, positions, _ = await log_of_a_master()
    store = Store()
    await store.start()
    await store.take(data)
    store.files._fold._appended.clear()
    store.disk.may_block, store.disk.cached_bytes = False, 0
    return store, len(data), positions


@pytest.mark.parametrize("way", ["follow", "lead"])
async def test_what_is_folded_late_is_read_in_a_thread(way: str) -> None:
    store, end, _ = await cold_store()
    if way == "follow":
        store.files.commit(end)
        while store.files.high_watermark < end:
            await asyncio.sleep(0)
    else:
        await store.files.finish(4)
    assert store.files.high_watermark >= end
    assert store.disk.reads.fetched_bytes >= end
    assert not store.failures


async def test_damage_that_is_met_later_is_notified_to_the_next_who_confirms() -> None:
    store, end, positions = await cold_store()
    files = store.files
    good = (await files.read(positions[7], 1))[: positions[8] - positions[7]]
    store.disk.flip_bit(FOLDER / "commitlog" / f"{0:020}.log", 8 * (positions[8] - 10))
    files.commit(end)
    while files._fold._folding is not None:
        await asyncio.sleep(0)
    assert files.high_watermark == positions[7], "what stands before it is folded"
    with pytest.raises(CorruptDataError):
        files.commit(end)
    store.disk.may_block = True
    await files.mend(positions[7], good)
    files.commit(end)
    while files.high_watermark < end:
        await asyncio.sleep(0)
    assert not store.failures


async def test_a_fold_that_fails_later_ends_the_broker_and_not_only_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    data, positions, _ = await log_of_a_master()
    store = Store()
    await store.start()
    folded = 0

    def fold(found: StoredRecord) -> None:
        nonlocal folded
        folded += 1
        if folded > 3:
            raise KeyError("what nobody expects")
        store.clock.advance(1000)  # the rest goes to a later turn
        type(store.files.core).fold(store.files.core, found)

    monkeypatch.setattr(store.files.core, "fold", fold)
    store.files.append_raw(0, data)
    await store.files.sync()
    store.files.commit(positions[20])
    async with asyncio.timeout(5):
        while not store.failures:
            await asyncio.sleep(0)
    assert [type(each) for each in store.failures] == [KeyError]


async def test_nothing_is_deleted_before_all_is_there_that_a_masters_checkpoint_covers() -> None:
    """What the timer needs can't be told until its queue was made again: it was taken for empty, and stayed so."""
    master = Store()
    await master.start(alone=True)
    await master.files.finish(1)
    delay = Delay("t", 0, 0, master.clock.wall_ms() + 20_000).encode()
    for _ in range(3 * COUNT):
        record = Record(RecordKind.TIMER, TIMER_TOPIC, TIMER_QUEUE, b"x" * 100, b"", origin=delay)
        master.files.core.store.put([record])
    master.files.core.store.commit(master.files.end_position)
    await master.files.save(master.files.sync)
    starts = [start for start, _ in master.files.log.segments()]
    slave = Store()
    await slave.start()
    checkpoint = b"".join(master.files.checkpoint_file())
    await slave.files.install(checkpoint, starts[1], EpochHistory(master.files.epochs))
    for start, end in master.files.log.segments()[1:]:
        assert slave.files.start_position == starts[1]
        await slave.files.delete_before(starts[-1])
        await slave.take(master.files.log.read(start, end - start), end)
    queue = slave.files.core.store.queue(TIMER_TOPIC, TIMER_QUEUE)
    assert queue is not None
    assert queue.read(queue.min_offset, 1)[0].position == starts[1]
