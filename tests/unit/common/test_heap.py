"""Freed memory is used again."""

import subprocess
import sys

_ANSWERS = """
import resource
from popwheel_common.heap import reuse_freed_memory
reuse_freed_memory()
def answers():
    for _ in range(50):
        pieces = [bytes(2**20) for _ in range(5)]
answers()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
answers()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_large_pieces_do_not_come_from_the_kernel_each_time() -> None:
    said = subprocess.run([sys.executable, "-c", _ANSWERS], capture_output=True, check=True, text=True)
    assert int(said.stdout) < 1280, "not even those of a single answer"
