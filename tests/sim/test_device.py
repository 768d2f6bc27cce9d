"""What is done to a simulated disk from outside is done whatever the disk refuses at the moment."""

import random
from pathlib import Path
from unittest.mock import Mock

from tests.sim.device import SimDisk

PATH = Path("/data/file")


def test_a_file_is_put_back_on_a_disk_that_is_full_or_refuses_writes() -> None:
    disk = SimDisk(random.Random(0), Mock())
    disk.put(PATH, b"short")
    disk.fill(0)
    disk.put(PATH, bytes(8192))
    disk.fill(0)
    disk.fail_writes(1)
    disk.put(PATH, bytes(9000))
    disk.crash("power")
    assert disk.contents(PATH) == bytes(9000)
