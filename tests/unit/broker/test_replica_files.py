"""What a replica knows of itself and of its group outlives its process."""

import random
from pathlib import Path

import pytest

from services.broker.files import replica_files
from services.common.errors import CorruptDataError
from services.common.pb.popwheel.v1.controller_pb2 import BrokerGroup, Replica
from tests.harness.memory_disk import MemoryDisk

FOLDER = Path("/broker")


def disk() -> MemoryDisk:
    made = MemoryDisk(random.Random(0))
    made.make_folder(FOLDER)
    return made


async def test_an_identity_is_drawn_once_for_each_folder() -> None:
    first, second = disk(), disk()
    drawn = await replica_files.identity(first, FOLDER, random.Random(1))
    first.crash("power")
    assert await replica_files.identity(first, FOLDER, random.Random(2)) == drawn
    assert await replica_files.identity(second, FOLDER, random.Random(2)) != drawn
    first.open(FOLDER / "identity").truncate(3)
    with pytest.raises(CorruptDataError, match="identity"):
        await replica_files.identity(first, FOLDER, random.Random(3))


async def test_the_group_is_kept_and_heard_again_if_its_file_is_damaged() -> None:
    kept = disk()
    assert replica_files.load_group(kept, FOLDER) == BrokerGroup()
    group = BrokerGroup(name="b", version=3, epoch=2, master=1, sync_state_set=[0, 1], replicas=[Replica(number=1)])
    await replica_files.save_group(kept, FOLDER, group)
    kept.crash("power")
    assert replica_files.load_group(kept, FOLDER) == group
    kept.flip_bit(FOLDER / "group", 8 * 14)
    assert replica_files.load_group(kept, FOLDER) == BrokerGroup()
    kept.open(FOLDER / "group").truncate(4)
    assert replica_files.load_group(kept, FOLDER) == BrokerGroup()
