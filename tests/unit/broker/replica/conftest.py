"""What the tests of replication share."""

import random

import pytest

from tests.harness.memory_disk import MemoryDisk


@pytest.fixture
def memory_disk() -> MemoryDisk:
    return MemoryDisk(random.Random(7))
