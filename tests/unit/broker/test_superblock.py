"""The superblock: what a replica must know before it touches its log outlives whatever strikes one of its slots."""

import itertools
import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from google_crc32c import value

from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.replication.epochs import EPOCHS_MAX, EpochStart
from popwheel_broker.replication.superblock import NAME, SLOT_BYTES, Contents, Superblock, decode, encode
from popwheel_common.errors import CorruptDataError, UnknownFormatError
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, Replica
from tests.harness.memory_disk import MemoryDisk, MemoryFile
from tests.harness.stopping_disk import StoppedError, StoppingDisk

FOLDER = Path("/broker")
PATH = FOLDER / NAME
SEEDS = range(20)
EPOCHS = EpochStart(1, 0), EpochStart(3, 700)
FULL = Contents(bytes(range(16)), b"the group", EPOCHS, 700, is_installing=True, is_suspect=True)


def made(seed: int = 0) -> MemoryDisk:
    disk = MemoryDisk(random.Random(seed), 1 << 30)
    disk.make_folder(FOLDER)
    return disk


async def loaded(disk: MemoryDisk, seed: int = 1) -> Superblock:
    """As a new process finds it."""
    superblock = Superblock(disk, FOLDER)
    await superblock.load(CommitLog(disk, FOLDER / "commitlog", 4096), random.Random(seed))
    return superblock


def has_log(disk: MemoryDisk, position: int = 0) -> None:
    CommitLog(disk, FOLDER / "commitlog", 4096).reset(position)


def put(disk: MemoryDisk, name: str, data: bytes) -> None:
    file = disk.open(FOLDER / name)
    file.truncate(0)
    file.write(0, [data])


def rot(disk: MemoryDisk, *slots: int) -> None:
    for slot in slots:
        disk.flip_bit(PATH, 8 * (slot * SLOT_BYTES + 1000))


async def test_an_identity_is_drawn_once_for_each_folder() -> None:
    first, second = made(), made()
    drawn = (await loaded(first)).contents
    assert len(drawn.identity) == 16 and drawn == Contents(drawn.identity)
    first.crash("power")
    assert (await loaded(first, seed=2)).contents == drawn
    assert (await loaded(second, seed=2)).contents != drawn


async def test_what_is_said_outlives_the_machine_and_leaves_the_rest() -> None:
    disk = made()
    superblock = await loaded(disk)
    identity = superblock.contents.identity
    group = BrokerGroup(name="b", version=3, epoch=2, master=1, sync_state_set=[0, 1], replicas=[Replica(number=1)])
    await superblock.change(group=group.SerializeToString())
    await superblock.change(is_suspect=True)
    await superblock.change(epochs=EPOCHS, log_start=700)
    disk.crash("power")
    found = (await loaded(disk)).contents
    assert found == Contents(identity, group.SerializeToString(), EPOCHS, 700, is_suspect=True)
    assert BrokerGroup.FromString(found.group) == group


async def test_it_takes_no_space_once_it_is_there() -> None:
    disk = made()
    superblock = await loaded(disk)
    disk.fill(0)
    await superblock.change(group=b"g" * 20_000, epochs=EPOCHS)
    disk.crash("power")
    assert (await loaded(disk)).contents == superblock.contents


async def test_what_is_said_already_is_not_written_again() -> None:
    disk = made()
    superblock = await loaded(disk)
    await superblock.change(log_start=700)
    before = disk.files()
    await superblock.change(log_start=700)
    assert disk.files() == before
    assert (await loaded(disk)).contents == superblock.contents and disk.files() == before


async def test_a_power_loss_on_the_way_leaves_one_of_both() -> None:
    for seed in SEEDS:
        disk = made(seed)
        superblock = await loaded(disk)
        before = superblock.contents
        has_log(disk)
        for each in range(4):
            disk.fail_syncs(1)
            if (seed + each) % 2:
                disk.fail_writes(1)
            with pytest.raises(OSError, match="Input/output error"):
                await superblock.change(log_start=700 + each, is_suspect=True)
        disk.crash("power")
        found = (await loaded(disk)).contents
        assert found == before or found in [
            Contents(before.identity, log_start=700 + each, is_suspect=True) for each in range(4)
        ]


async def test_what_could_not_be_said_is_said_by_the_next_try() -> None:
    for seed in SEEDS:
        disk = made(seed)
        superblock = await loaded(disk)
        disk.fail_syncs(1 + seed % 3)
        for _ in range(1 + seed % 3):
            with pytest.raises(OSError, match="Input/output error"):
                await superblock.change(log_start=700)
            assert superblock.contents.log_start == 0
        await superblock.change()  # the device may have it, though nobody counts on it
        disk.crash("power")
        assert (await loaded(disk)).contents.log_start == 0
        await superblock.change(log_start=700)
        disk.crash("power")
        assert (await loaded(disk)).contents.log_start == 700


async def test_what_was_read_is_on_the_device_before_anything_counts_on_it() -> None:
    """A process that was killed has written one slot, and nobody has synced it."""
    for seed in SEEDS:
        disk = made(seed)
        superblock = await loaded(disk)
        put_in = encode(Contents(superblock.contents.identity, is_suspect=True), superblock._sequence + 1)
        disk.open(PATH).write(0, [put_in])
        disk.crash("process")
        assert (await loaded(disk)).contents.is_suspect
        disk.crash("power")
        assert (await loaded(disk)).contents.is_suspect


async def test_a_power_loss_after_a_process_that_died_as_it_wrote_leaves_one_slot() -> None:
    """The next process finds both slots good, and can't know which of them the device has."""
    at = [(seed, 3, 1) for seed in range(400)]  # both are in memory alone, and few losses of power tear both
    at += itertools.product(SEEDS, range(4), range(9))
    for seed, died_at, lost_at in at:
        disk = StoppingDisk(random.Random(seed))
        disk.make_folder(FOLDER)
        groups = [each * 20_000 for each in (b"a", b"b", b"c")]
        superblock = await loaded(disk)
        await superblock.change(group=groups[0])
        if seed % 2:  # each change begins with the slot that the one before has ended with
            await superblock.change(is_suspect=True)
        disk.stop_at = disk.steps + died_at
        with pytest.raises(StoppedError):
            await superblock.change(group=groups[1])
        disk.crash("process")
        disk.stop_at = disk.steps + lost_at
        with suppress(StoppedError):
            await (await loaded(disk)).change(group=groups[2])
        disk.crash("power")
        assert (await loaded(disk)).contents.group in groups


async def test_a_start_that_misses_the_logs_beginning_changes_nothing() -> None:
    """A slot that was put back is of a moment when one slot was ahead of the other."""
    disk = made()
    superblock = await loaded(disk)
    ahead = encode(replace(superblock.contents, log_start=300), superblock._sequence + 1)
    has_log(disk, 700)
    disk.open(PATH).write(0, [ahead])
    before = disk.files()
    with pytest.raises(CorruptDataError, match="begins at 700, though nothing from 300 on"):
        await loaded(disk)
    assert disk.files() == before


@pytest.mark.parametrize("byte", [0, 5, 9, 12, 30_000, SLOT_BYTES, SLOT_BYTES + 9, 2 * SLOT_BYTES - 1])
async def test_one_bit_that_rots_hides_nothing_and_is_mended(byte: int) -> None:
    disk = made()
    superblock = await loaded(disk)
    await superblock.change(is_suspect=True, epochs=EPOCHS)
    disk.flip_bit(PATH, 8 * byte)
    assert (await loaded(disk)).contents == superblock.contents
    assert decode(disk.files()[PATH][:SLOT_BYTES]) == decode(disk.files()[PATH][SLOT_BYTES:]) is not None


@pytest.mark.parametrize("rotten", [0, 1])
async def test_a_power_loss_as_a_rotten_slot_is_mended_leaves_the_other(rotten: int) -> None:
    for seed in SEEDS:
        disk = made(seed)
        superblock = await loaded(disk)
        await superblock.change(is_suspect=True)
        rot(disk, rotten)
        disk.fail_syncs(1)
        with pytest.raises(OSError, match="Input/output error"):
            await loaded(disk)
        disk.crash("power")
        assert (await loaded(disk)).contents == superblock.contents


@pytest.mark.parametrize("rotten", [0, 1])
async def test_the_rotten_slot_is_written_before_the_good_one(rotten: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = made()
    await loaded(disk)
    rot(disk, rotten)
    offsets: list[int] = []
    write = MemoryFile.write

    def noted(self: MemoryFile, offset: int, buffers: Sequence[bytes]) -> None:
        offsets.append(offset)
        write(self, offset, buffers)

    monkeypatch.setattr(MemoryFile, "write", noted)
    await loaded(disk)
    assert offsets == [rotten * SLOT_BYTES, (1 - rotten) * SLOT_BYTES]


async def test_after_a_change_that_failed_halfway_the_next_begins_where_it_failed() -> None:
    """Or a loss of power could tear the only good slot. What changes is of many sectors, so it can tear."""
    for seed in SEEDS:
        disk = made(seed)
        superblock = await loaded(disk)
        has_log(disk)
        groups = [each * 20_000 for each in (b"a", b"b", b"c")]
        await superblock.change(group=groups[0])
        syncs = itertools.count()
        disk.fail_syncs(1, lambda _, syncs=syncs: next(syncs) == 1)  # type: ignore[misc]
        with pytest.raises(OSError, match="Input/output error"):
            await superblock.change(group=groups[1])
        disk.fail_syncs(1)
        with pytest.raises(OSError, match="Input/output error"):
            await superblock.change(group=groups[2])
        disk.crash("power")
        assert (await loaded(disk)).contents.group in groups


@pytest.mark.parametrize("how", ["lost", "short", "empty", "as long as an identity", "damaged"])
async def test_a_superblock_that_says_nothing_is_refused_with_nothing_changed(how: str) -> None:
    """What it said was said nowhere else: who the replica is, and what it is in doubt of."""
    disk = made()
    await loaded(disk)
    has_log(disk)
    if how == "lost":
        disk.remove(PATH)
    elif how == "damaged":
        rot(disk, 0, 1)
    else:
        disk.open(PATH).truncate({"short": 1000, "empty": 0}.get(how, 16))
    before = disk.files()
    with pytest.raises(CorruptDataError, match="stored nowhere else" if how == "lost" else "both of its slots"):
        await loaded(disk)
    assert disk.files() == before


@pytest.mark.parametrize("slot", [0, 1])
async def test_a_superblock_of_a_later_release_is_refused(slot: int) -> None:
    disk = made()
    await loaded(disk)
    later = bytearray(encode(FULL, 9))
    later[9] = 2
    struct.pack_into(">I", later, 4, value(bytes(later[8:])))
    disk.open(PATH).write(slot * SLOT_BYTES, [bytes(later)])
    with pytest.raises(UnknownFormatError, match="format version 2"):
        await loaded(disk)


def test_a_slot_releases_what_was_put_in_and_holds_the_largest_group() -> None:
    assert decode(encode(FULL, 7)) == (7, FULL)
    address = "h" * 253 + ":65535"
    replicas = [Replica(number=63, address=address, identity=bytes(64), alive=True) for _ in range(64)]
    group = BrokerGroup(name="n" * 64, version=2**63 - 1, epoch=2**63 - 1, master=63, replicas=replicas)
    group.sync_state_set.extend(range(64))
    epochs = tuple(EpochStart(2**60 + each, 2**62 + each) for each in range(EPOCHS_MAX))
    largest = Contents(bytes(16), group.SerializeToString(), epochs, 2**63 - 1)
    assert decode(encode(largest, 2**63)) == (2**63, largest)
