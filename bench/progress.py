"""Cost of the progress of groups: memory of a pair of a group and a queue, saves, and a start.

python -m bench.progress QUEUES GROUPS
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
import tracemalloc
from pathlib import Path

from bench.steps import Figures
from popwheel_broker.consume.pop_state import PopSnapshot
from popwheel_broker.core.checkpoint import Checkpoint
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.message_store import StoreCheckpoint
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_broker.replication.saved_checkpoint import SavedCheckpoint
from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.disk import SystemDisk

_QUEUES_PER_TOPIC = 8


class _Epochs:
    """A file of epochs that needs no saving."""

    history = EpochHistory()

    async def save(self) -> None:
        return


class _Loop:
    """Measures for how long the loop is kept busy at a time, in CPU."""

    def __init__(self) -> None:
        self.longest_ms = 0.0

    async def look(self) -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            self.longest_ms = max(self.longest_ms, (time.thread_time() - began_s) * 1000)


def _checkpoint(queues: int, groups: int) -> Checkpoint:
    topics = [f"topic-{number:06}" for number in range(queues // _QUEUES_PER_TOPIC)]
    bounds = {topic: dict.fromkeys(range(_QUEUES_PER_TOPIC), (0, 1000)) for topic in topics}
    offsets = {
        f"group-{group:04}": {topic: dict.fromkeys(range(_QUEUES_PER_TOPIC), (900, 900)) for topic in topics}
        for group in range(groups)
    }
    return Checkpoint(StoreCheckpoint(queues=bounds), PopSnapshot(offsets))


async def _measure(folder: Path, queues: int, groups: int) -> Figures:
    disk = SystemDisk()
    options = BrokerOptions.model_validate(
        {"log": {"queues_max": 10_000_000}, "pop": {"progress_max": 100_000_000}, "timer": {"slots": 4096}}
        | {"timer": {"slots": 4096, "roll_window_ms": 2_000_000, "delay_ms_max": 172_800_000}}
    )
    saved = SavedCheckpoint(disk, folder / "checkpoint", options.checkpoint_changes_bytes, lambda error: None)
    await saved.write(_checkpoint(queues, groups))
    core = BrokerCore(
        *(options, disk, folder, SystemClock(), random.Random(1), ClusterView()),
        lambda topic, late_ms: None,
    )
    figures: Figures = {}
    began_s = time.perf_counter()
    checkpoint = saved.load(core.store.log)
    figures["read_s"] = time.perf_counter() - began_s
    core.begin(checkpoint)
    figures["read_and_begun_s"] = time.perf_counter() - began_s
    del checkpoint
    buffer = core.state.merge_buffer
    figures["pairs"] = buffer.pairs
    tracemalloc.start()
    some = list(core.store.queues)[:100_000]
    before = tracemalloc.get_traced_memory()[0]
    for queue in some:
        buffer.skipped(buffer.of("new", queue), 900)
    core.take_changes()
    figures["bytes_per_idle_pair"] = (tracemalloc.get_traced_memory()[0] - before) / len(some)
    tracemalloc.stop()

    async def sync() -> None:
        return

    loop = _Loop()
    looking = asyncio.create_task(loop.look())
    await asyncio.sleep(0)
    for name in ("whole", "one_change", "hundred_thousand_changes"):
        loop.longest_ms = 0.0
        size = saved.size_bytes
        if name == "whole":
            saved._is_behind, size = True, 0
        elif name == "one_change":
            buffer.skipped(buffer.of("group-0000", some[0]), 950)
        else:
            for queue in some:
                buffer.skipped(buffer.of("group-0000", queue), 960)
            await asyncio.sleep(0)
            loop.longest_ms = 0.0
        began_s = time.perf_counter()
        await saved.save(core, _Epochs(), sync)  # type: ignore[arg-type]
        figures[f"{name}_s"] = time.perf_counter() - began_s
        figures[f"{name}_bytes"] = saved.size_bytes - size
        figures[f"{name}_longest_step_ms"] = loop.longest_ms
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    return figures


def main() -> None:
    """Measure in this process, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.progress", description=__doc__)
    for name in ("queues", "groups"):
        parser.add_argument(name, type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="popwheel-bench-") as folder:
        figures = asyncio.run(_measure(Path(folder), options.queues, options.groups))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
