"""The commit log: segments, torn tails, damage, full disks and devices that fail (S1, S2, S7)."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_broker.log import record
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.record import HEADER_BYTES, Record, RecordKind, StoredRecord
from popwheel_broker.log.refusals import WriterStoppedError
from popwheel_common.errors import CorruptDataError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.memory_disk import CrashKind, MemoryDisk

FOLDER = Path("/log")
SEGMENT_BYTES = 1000
SIZE = HEADER_BYTES + 1
"""Bytes of a record without payload."""


class World:
    """A log on a disk with a memory of what was appended.

    Args:
        seed: of the disk's faults.
    """

    def __init__(self, seed: int = 0) -> None:
        self.disk = MemoryDisk(random.Random(seed))
        self.log = CommitLog(self.disk, FOLDER, SEGMENT_BYTES)
        self.appended: list[bytes] = []

    def append(self, *payloads: bytes) -> None:
        """Append a batch."""
        position = self.log.end_position
        lengths: list[int] = []
        batch: list[bytes] = []
        for number, payload in enumerate(payloads):
            each = Record(RecordKind.MESSAGE, "t", 0, payload)
            length, buffers = record.encode(each, position, 1, 0, len(self.appended) + number)
            lengths.append(length)
            batch += buffers
            position += length
        self.log.append(lengths, batch)
        self.appended += payloads

    def restart(self, synced_position: int = 0, may_cut: bool = True) -> list[StoredRecord]:
        """A new process finds the files and reads them."""
        self.log = CommitLog(self.disk, FOLDER, SEGMENT_BYTES)
        self.log.check_contiguous(synced_position)
        return list(self.log.scan(self.log.start_position, synced_position, lambda position: may_cut))

    def path(self, start: int) -> Path:
        return FOLDER / f"{start:020d}.log"


def payloads(found: list[StoredRecord]) -> list[bytes]:
    return [each.payload for each in found]


async def with_three_segments(seed: int = 0) -> World:
    """Nine records of 300 bytes, three to a segment, all synced."""
    world = World(seed)
    for number in range(9):
        world.append(bytes([number]) * (300 - SIZE))
    await world.log.sync()
    assert world.log.segments() == [(0, 900), (900, 1800), (1800, 2700)]
    return world


@given(sizes=st.lists(st.lists(st.integers(0, 1500), min_size=1, max_size=5), max_size=12), chunk=st.integers(60, 3000))
def test_what_was_appended_is_scanned_and_read(sizes: list[list[int]], chunk: int) -> None:
    world = World()
    for batch in sizes:
        world.append(*(bytes([size % 256]) * size for size in batch))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("popwheel_broker.log.commit_log._SCAN_BYTES", chunk)
        found = world.restart(world.log.end_position)
    assert payloads(found) == world.appended
    assert [each.position for each in found] == [sum(e.length for e in found[:n]) for n in range(len(found))]
    for each in found:
        data = world.log.read(each.position, each.length)
        assert record.decode(data, 0, each.position) == each
    for start, end in world.log.segments():
        assert end - start <= SEGMENT_BYTES or sum(start <= each.position < end for each in found) == 1


async def test_a_read_ends_with_its_segment() -> None:
    world = await with_three_segments()
    assert len(world.log.read(600, 1000)) == 300
    assert record.decode(world.log.read(900, 300), 0, 900).payload[:1] == b"\x03"
    assert world.log.read(2700, 10) == b""


async def test_what_is_not_stored_any_more_cannot_be_read() -> None:
    world = await with_three_segments()
    assert world.log.remove_before(1799) == 1
    assert world.log.start_position == 900
    assert world.disk.list(FOLDER) == [world.path(900).name, world.path(1800).name]
    with pytest.raises(ValueError, match="position 899 is not in the commit log, which begins at 900"):
        world.log.read(899, 10)
    assert payloads(world.restart(2700)) == world.appended[3:]


async def test_the_last_segment_always_stays() -> None:
    world = await with_three_segments()
    for removed in (1, 1, 0):
        assert world.log.remove_before(10_000) == removed
        await world.log.sync()
    assert world.log.segments() == [(1800, 2700)]


@pytest.mark.parametrize("lost", range(1, 2 * SIZE + len("second" + "third, torn") + 1))
def test_a_torn_tail_is_cut_off_wherever_it_is_torn(lost: int) -> None:
    world = World()
    world.append(b"first" * 10)
    kept_position = world.log.end_position
    world.append(b"second", b"third, torn")
    file = world.disk.open(world.path(0))
    file.truncate(world.log.end_position - lost)
    found = world.restart(kept_position)
    whole = 2 if lost <= SIZE + len(b"third, torn") else 1
    assert payloads(found) == world.appended[:whole]
    assert world.log.end_position == sum(each.length for each in found)
    assert not world.disk.files()[world.path(0)][world.log.end_position :].strip(b"\0")
    world.append(b"after")
    assert payloads(world.restart()) == [*world.appended[:whole], b"after"]


@pytest.mark.parametrize("zeros", [1, 59, 60, 61, 5000, 9 * 1024 * 1024])
def test_a_tail_of_zeros_is_cut_off(zeros: int) -> None:
    """A file that was made longer, of whose bytes nothing reached the device."""
    world = World()
    world.append(b"first")
    end = world.log.end_position
    world.disk.open(world.path(0)).write(end, [bytes(zeros)])
    assert payloads(world.restart(end)) == [b"first"]
    assert world.log.end_position == end


@pytest.mark.parametrize("quick", [False, True])
async def test_a_log_of_lone_syncs_is_filled_ahead(quick: bool) -> None:
    """Few syncs write the length of a file then."""
    world = World()
    world.log.fills_ahead, world.disk.quick = True, quick
    sizes = []
    for _ in range(20):
        world.append(bytes(200 - SIZE))
        if not world.log.sync_quickly():  # or a segment is new
            await world.log.sync()
        sizes.append(sum(map(len, world.disk.files().values())))
    assert sizes == [SEGMENT_BYTES * (1 + number // 5) for number in range(20)]
    assert payloads(world.restart()) == world.appended


async def test_a_log_is_not_filled_ahead_for_many_or_for_nobody_who_waits() -> None:
    for fills_ahead, count in ((True, 20), (False, 1)):
        world = World()
        world.log = CommitLog(world.disk, FOLDER, 1 << 20)
        world.log.fills_ahead = fills_ahead
        world.append(*[bytes(1000)] * count)
        await world.log.sync()
        assert len(world.disk.files()[world.path(0)]) == world.log.end_position


@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=9),
    unsynced=st.lists(st.integers(0, 400), max_size=3),
    kind=st.sampled_from(["process", "power"]),
)
def test_zeros_that_were_filled_ahead_are_no_torn_tail(
    seed: int, sizes: list[int], unsynced: list[int], kind: CrashKind
) -> None:
    """Nobody is asked whether they may go, as nothing goes; appends go on over them, and a read ends before them."""
    world = World(seed)
    world.log.fills_ahead = True
    for size in sizes:
        world.append(bytes(size))
        asyncio.run(world.log.sync())
    for size in unsynced:
        world.append(b"x" * size)
    if kind == "process" or not unsynced:
        world.disk.crash(kind)
        found = world.restart(may_cut=False)
        assert payloads(found) == world.appended
    else:
        world.disk.crash(kind)
        found = world.restart()
        assert payloads(found) == world.appended[: len(found)] and len(found) >= len(sizes)
        del world.appended[len(found) :]
    assert world.log.end_position == sum(each.length for each in found)
    last = found[-1]
    assert world.log.read(last.position, 10_000) == world.log.read(last.position, last.length)
    world.append(b"after")
    assert payloads(world.restart()) == world.appended


@pytest.mark.parametrize("chunk", [HEADER_BYTES, 100, 701])
async def test_zeros_are_found_in_a_file_that_is_read_in_parts(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    world = World()
    world.log.fills_ahead = True
    for size in (0, 1, 250, 90, 300):
        world.append(bytes(size))
        await world.log.sync()
    end = world.log.end_position
    monkeypatch.setattr("popwheel_broker.log.commit_log._SCAN_BYTES", chunk)
    assert CommitLog(world.disk, FOLDER, SEGMENT_BYTES).end_position == end


async def test_bytes_behind_zeros_are_a_torn_tail() -> None:
    """The first of the records that were not synced is missing, and others may have it."""
    world = World()
    world.log.fills_ahead = True
    world.append(b"first")
    await world.log.sync()
    end = world.log.end_position
    world.append(b"second" * 20)
    world.disk.open(world.path(0)).write(end, [bytes(80)])
    with pytest.raises(CorruptDataError):
        world.restart(may_cut=False)
    assert payloads(world.restart()) == [b"first"]


async def test_zeros_are_found_once_a_record_before_them_is_mended() -> None:
    world = World()
    world.log.fills_ahead = True
    for number in range(3):
        world.append(b"%d" % number * 20)
        await world.log.sync()
    whole = world.disk.files()[world.path(0)]
    world.disk.flip_bit(world.path(0), 8 * 3 + 1)  # of the first length: the records behind it cannot be found
    with pytest.raises(CorruptDataError, match="at 0"):
        world.restart(SIZE)
    assert world.log.end_position == SEGMENT_BYTES
    await world.log.mend(0, whole[: SIZE + 19])
    assert payloads(list(world.log.scan(0, SIZE, lambda position: False))) == world.appended


async def test_a_log_that_cannot_be_filled_ahead_goes_on() -> None:
    world = World()
    world.log.fills_ahead = True
    world.append(b"first")
    world.disk.fill(100)
    await world.log.sync()
    world.append(b"second")
    await world.log.sync()
    with pytest.raises(OSError, match="No space"):
        world.append(bytes(500))
    assert payloads(world.restart()) == [b"first", b"second"]


async def test_a_torn_segment_takes_the_later_ones_with_it() -> None:
    world = await with_three_segments()
    world.disk.flip_bit(world.path(900), 8 * 400)
    assert payloads(world.restart(900)) == world.appended[:4]
    assert world.log.segments() == [(0, 900), (900, 1200)]
    assert world.disk.list(FOLDER) == [world.path(0).name, world.path(900).name]


@pytest.mark.parametrize("position", [0, 1, 59, 299, 300, 1000, 2399])
async def test_damage_of_what_was_synced_is_refused_and_nothing_changed(position: int) -> None:
    world = await with_three_segments()
    start = position // 900 * 900
    world.disk.flip_bit(world.path(start), 8 * (position - start))
    before = world.disk.files()
    damaged = position // 300 * 300
    with pytest.raises(CorruptDataError, match=rf"at {damaged}\b.*known to be good up to 2700; nothing was changed"):
        world.restart(2700)
    assert world.disk.files() == before


@pytest.mark.parametrize("missing", [0, 900, 1800])
async def test_a_missing_segment_is_refused_and_nothing_changed(missing: int) -> None:
    world = await with_three_segments()
    world.disk.remove(world.path(missing))
    before = world.disk.files()
    if missing == 0:
        # It looks like a log whose beginning is past its time; what was in it is known to the checkpoint.
        assert payloads(list(CommitLog(world.disk, FOLDER, SEGMENT_BYTES).scan(900, 2700))) == world.appended[3:]
    else:
        with pytest.raises(CorruptDataError, match=r"hole from 900 to 1800|ends at 1800.*good up to 2700"):
            world.restart(2700)
    assert world.disk.files() == before


@pytest.mark.parametrize(("size", "said"), [(899, "hole from 899 to 900"), (0, "hole from 0 to 900")])
async def test_a_short_segment_is_refused(size: int, said: str) -> None:
    world = await with_three_segments()
    world.disk.open(world.path(0)).truncate(size)
    with pytest.raises(CorruptDataError, match=said):
        world.restart(2700)


async def test_a_record_of_a_newer_release_is_refused_and_nothing_changed() -> None:
    world = await with_three_segments()
    data = bytearray(world.log.read(600, 300))
    data[9] = 9
    data[4:8] = value(bytes(data[8:])).to_bytes(4, "big")
    world.disk.open(world.path(0)).write(600, [bytes(data)])
    before = world.disk.files()
    for synced in (0, 2700):
        with pytest.raises(UnknownFormatError, match="at 600 has format version 9"):
            world.restart(synced)
    assert world.disk.files() == before


@given(
    seed=st.integers(0, 10_000), free=st.integers(0, 2200), sizes=st.lists(st.integers(0, 900), min_size=1, max_size=6)
)
def test_a_batch_that_does_not_fit_the_disk_is_truncated(seed: int, free: int, sizes: list[int]) -> None:
    world = World(seed)
    world.append(b"before")
    end = world.log.end_position
    world.disk.fill(free)
    batch = [b"x" * size for size in sizes]
    if sum(SIZE + size for size in sizes) <= free:
        world.append(*batch)
        return
    with pytest.raises(OSError, match="No space left"):
        world.append(*batch)
    assert world.log.end_position == end
    world.disk.crash("process")
    assert payloads(world.restart(0)) == [b"before"]
    world.disk.fill(10_000)
    world.append(b"after")
    assert payloads(world.restart(0)) == [b"before", b"after"]


@given(seed=st.integers(0, 10_000), sizes=st.lists(st.integers(0, 900), min_size=1, max_size=6))
def test_a_failed_write_leaves_no_stale_bytes(seed: int, sizes: list[int]) -> None:
    """The next batch is shorter than the failed one: what that left must not be read as records after it."""
    world = World(seed)
    world.append(b"before")
    world.disk.fail_writes(1)
    with pytest.raises(OSError, match="Input/output"):
        world.append(*(b"x" * size for size in sizes))
    world.append(b"after")
    assert payloads(world.restart(0)) == [b"before", b"after"]


def test_a_failed_write_that_cannot_be_truncated_stops_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.append(b"before")

    def refuse(file: object, size: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tests.harness.memory_disk.MemoryFile.truncate", refuse)
    world.disk.fail_writes(1)
    with pytest.raises(WriterStoppedError, match=r"could not be rolled back.*the broker stops") as caught:
        world.append(b"failed")
    assert caught.value.code == Code.SLAVE_PERSISTENCE_TIMEOUT  # it may be found whole at the next start
    monkeypatch.undo()
    with pytest.raises(WriterStoppedError) as caught:
        world.append(b"later")
    assert caught.value.code == Code.HA_NOT_AVAILABLE


async def test_a_failed_sync_stops_the_writer_for_good() -> None:
    world = World()
    world.append(b"before")
    await world.log.sync()
    synced = world.log.synced_position
    world.append(b"lost, perhaps")
    world.disk.fail_syncs(1)
    with pytest.raises(OSError, match="Input/output"):
        await world.log.sync()
    assert world.log.synced_position == synced
    with pytest.raises(WriterStoppedError, match="could not be synced"):
        world.append(b"later")


async def test_a_sync_covers_what_was_there_when_it_began() -> None:
    world = World()
    world.append(b"first")
    covered = world.log.end_position
    world.disk.hold_syncs()
    syncing = asyncio.create_task(world.log.sync())
    await world.disk.until_stored()
    world.append(b"second")
    world.disk.release_syncs()
    await syncing
    assert world.log.synced_position == covered
    await world.log.sync()
    assert world.log.synced_position == world.log.end_position


async def given_up(world: World, work: Coroutine[Any, Any, None]) -> None:
    """Begin something, and cancel it while it waits for the device."""
    world.disk.hold_syncs()
    task = asyncio.create_task(work)
    await world.disk.until_stored()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    world.disk.release_syncs()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_sync_that_was_given_up_is_done_to_its_end() -> None:
    world = World()
    world.append(b"first")
    await given_up(world, world.log.sync())
    assert world.log.synced_position == world.log.end_position
    assert world.disk.unsynced_bytes == 0


@pytest.mark.parametrize("seed", range(20))
async def test_an_error_of_a_sync_that_was_given_up_is_taken_in(seed: int) -> None:
    """The device says it once: the next sync would take for good what never reached it (S1)."""
    world = World(seed)
    world.append(b"first")
    world.disk.fail_syncs(1)
    await given_up(world, world.log.sync())
    with pytest.raises(OSError, match="Input/output"):
        await world.log.sync()
    with pytest.raises(WriterStoppedError):
        world.append(b"second")
    assert (world.log.synced_position, world.disk.syncs_begun) == (0, 1)


@pytest.mark.parametrize("gives_up", [False, True])
async def test_a_mend_that_the_device_refuses_stops_the_writer(gives_up: bool) -> None:
    """What the sync has lost may be others' bytes: who waits for these must not hear that they are there (S1)."""
    world = World()
    world.append(b"first")
    await world.log.sync()
    world.append(b"second")
    good = world.log.read(0, SIZE + 4)
    world.disk.fail_syncs(1)
    if gives_up:
        await given_up(world, world.log.mend(0, good))
    else:
        with pytest.raises(OSError, match="Input/output"):
            await world.log.mend(0, good)
    with pytest.raises(OSError, match="Input/output"):
        await world.log.sync()
    assert world.log.stopped is not None and world.log.synced_position < world.log.end_position
    assert world.disk.exists(FOLDER / "sync-failed")


async def test_a_segment_stays_while_it_is_being_synced() -> None:
    world = await with_three_segments()
    world.disk.hold_syncs()
    mending = asyncio.create_task(world.log.mend(0, world.log.read(0, SIZE)))
    await world.disk.until_stored()
    assert world.log.remove_before(world.log.end_position) == 0
    world.disk.release_syncs()
    await mending
    assert world.log.remove_before(world.log.end_position) == 1
    mending = asyncio.create_task(world.log.mend(world.log.start_position, b""))
    assert world.log.remove_before(world.log.end_position) == 0  # until the next sync
    await mending


def after_power_loss(seed: int, act: Callable[[World], Awaitable[None]]) -> tuple[World, list[bytes]]:
    """What a log holds, after something was done to it and the power failed."""
    world = World(seed)
    asyncio.run(act(world))  # type: ignore[arg-type]
    synced = world.log.synced_position
    world.disk.crash("power")
    return world, payloads(world.restart(synced))


@settings(max_examples=200)
@given(seed=st.integers(0, 100_000), sizes=st.lists(st.integers(0, 900), max_size=8), synced=st.integers(0, 8))
def test_power_loss_takes_the_end_only_and_nothing_that_was_synced(seed: int, sizes: list[int], synced: int) -> None:
    async def act(world: World) -> None:
        world.append(b"first")
        await world.log.sync()
        for number, size in enumerate(sizes):
            if number == synced:
                await world.log.sync()
            world.append(bytes([number]) * size)

    world, found = after_power_loss(seed, act)
    assert found == world.appended[: len(found)]
    assert len(found) >= 1 + (synced if synced < len(sizes) else 0)
    world.append(b"after")
    assert payloads(world.restart(0)) == [*found, b"after"]


@settings(max_examples=200)
@given(seed=st.integers(0, 100_000), sizes=st.lists(st.integers(300, 900), min_size=1, max_size=5))
def test_what_a_dead_process_left_is_safe_once_its_successor_has_synced(seed: int, sizes: list[int]) -> None:
    """Also the names of segments that the dead one made."""

    async def act(world: World) -> None:
        for number, size in enumerate(sizes):
            world.append(bytes([number]) * size)
        world.disk.crash("process")
        world.restart(0)
        await world.log.sync()

    world, found = after_power_loss(seed, act)
    assert found == world.appended


@settings(max_examples=200)
@given(seed=st.integers(0, 100_000), sizes=st.lists(st.integers(300, 900), min_size=2, max_size=5))
def test_segments_that_were_truncated_do_not_come_again(seed: int, sizes: list[int]) -> None:
    async def act(world: World) -> None:
        world.append(b"before")
        await world.log.sync()
        world.disk.fill(600)
        with pytest.raises(OSError, match="No space left"):
            world.append(*(b"failed" + bytes(size) for size in sizes))
        world.disk.fill(100_000)
        for number in range(len(sizes)):
            world.append(bytes([number]) * 500)
        await world.log.sync()

    world, found = after_power_loss(seed, act)
    assert found == world.appended


@settings(max_examples=200)
@given(seed=st.integers(0, 100_000), lost=st.integers(0, 3))
def test_removed_segments_leave_no_hole_when_they_come_again(seed: int, lost: int) -> None:
    async def act(world: World) -> None:
        for number in range(12):
            world.append(bytes([number]) * (300 - SIZE))
        await world.log.sync()
        for _ in range(lost):
            assert world.log.remove_before(900 * 3) == 1
            await world.log.sync()
        assert world.log.remove_before(900 * 3) == (1 if lost < 3 else 0)
        assert world.log.remove_before(900 * 3) == 0

    world, found = after_power_loss(seed, act)
    assert found in [world.appended[3 * kept :] for kept in (lost, lost + 1)]
