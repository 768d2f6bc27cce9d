"""The case of checkpoint sync: what it costs to bring a master's progress to a slave's disk, in all processes together.

python -m bench.checkpoints TOPICS GROUPS QUEUES CHANGED
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from bench.server import Server
from bench.steps import Case, Figures, Scale
from popwheel_broker.consume.merge_buffer import MergeBuffer
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.queue_index import QueueIndex
from popwheel_broker.log.record import Record, RecordKind, stored
from popwheel_broker.replication.checkpoint_source import CheckpointSource
from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.master_checkpoint_file import MasterCheckpointFile
from popwheel_broker.topics.topic_registry import Names, TopicRegistry
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.disk import SystemDisk
from popwheel_common.pb.popwheel.v1.broker_pb2 import ReplicaCheckpoint, TimerProgress
from popwheel_rpc.methods import FETCH_CHECKPOINT, STORE_CHECKPOINT

Result = TypeVar("Result")

_GROUPS = 10
_CHANGED_SHARE = 0.1
_SCANNED_AT_ONCE = 5000
_ROUNDS = 5


async def sync(queues: int, server: Server, scale: Scale) -> Figures:
    """A master with topics and consumer groups, the controller's part, and one slave; no server is used."""
    topics = scale.sync_topics
    changed = int(topics * _GROUPS * queues * _CHANGED_SHARE)
    words = [sys.executable, "-m", "bench.checkpoints", *map(str, (topics, _GROUPS, queues, changed))]
    done = await asyncio.to_thread(subprocess.run, words, stdout=subprocess.PIPE, check=True)
    figures: Figures = json.loads(done.stdout)
    return figures


class _Sync:
    """A master's source, a slave's file, and what the controller does between them."""

    def __init__(self, folder: Path, topics: int, groups: int, queues: int) -> None:
        disk = SystemDisk()
        index = QueueIndex(disk, folder, 2, 0)
        self.buffer = MergeBuffer(10_000, 200_000, 100_000_000)
        self.names = TopicRegistry(ClusterView())
        entries_max = ReplicationConstants().checkpoint_entries_max
        self.source = CheckpointSource("broker-0", 1, entries_max, self.buffer, self.names)
        self.file = MasterCheckpointFile(disk, folder)
        of_topics = {f"topic-{number:05}": number for number in range(topics)}
        of_groups = {f"group-{number:05}": number for number in range(groups)}
        noted = Record(RecordKind.NAMES, "revive", 0, Names(of_topics, of_groups).encode())
        self.names.apply(stored(noted, 0, 1, 1, 0, 0))
        for topic in of_topics:
            for queue_id in range(queues):
                queue = ConsumeQueue(index, topic, queue_id)
                for group in of_groups:
                    self.buffer.restore(group, queue, 0, 0)
        self.blocked_ms = 0.0

    def change(self, count: int, by: int) -> None:
        """Commit a number of offsets."""
        each = max(1, self.buffer.pairs // max(1, count))
        for progress in list(islice(self.buffer, 0, None, each)):
            self.buffer.skipped(progress, progress.popped + by)

    async def round(self) -> int:
        """Bring what has changed to the slave; how many bytes went over the wire, one way."""
        size = 0
        scan = self.source.scan()
        while self._step(lambda: sum(1 for _ in islice(scan, _SCANNED_AT_ONCE))):
            pass
        known = self.file.checkpoint.known_version
        while True:
            at_master = self._step(partial(self._answer, known))
            at_controller = FETCH_CHECKPOINT.response.decode(at_master)
            given = STORE_CHECKPOINT.request.encode(at_controller)
            size += len(given)
            at_slave = STORE_CHECKPOINT.request.decode(given)
            await self.file.store(at_slave)
            if not at_slave.rest_from:
                return size
            known = at_slave.rest_from

    def _answer(self, known: int) -> bytes:
        now_ms = int(time.time() * 1000)
        answer: ReplicaCheckpoint = self.source.checkpoint(known, now_ms, now_ms, TimerProgress(), [0] * 8)
        return FETCH_CHECKPOINT.response.encode(answer)

    def _step(self, work: Callable[[], Result]) -> Result:
        began_s = time.process_time()
        result = work()
        self.blocked_ms = max(self.blocked_ms, (time.process_time() - began_s) * 1000)
        return result


async def _measure(topics: int, groups: int, queues: int, changed: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="popwheel-bench-") as scratch:
        both = _Sync(Path(scratch), topics, groups, queues)
        gc.collect()
        gc.freeze()  # as the services do when they have started
        figures: Figures = {"offsets": float(both.buffer.pairs)}
        for name, change, rounds in (("whole", 0, 1), ("ordinary", changed, _ROUNDS), ("idle", 0, _ROUNDS)):
            cpu_s, size = 0.0, 0
            for number in range(rounds):
                if change:
                    both.change(change, number + 1)
                began_s = time.process_time()
                size += await both.round()
                cpu_s += time.process_time() - began_s
            figures[f"{name}_cpu_s"] = cpu_s / rounds
            figures[f"{name}_kib"] = size / rounds / 1024
        figures["master_blocked_max_ms"] = both.blocked_ms
        figures["file_mib"] = both.file.size_bytes / 2**20
    return figures


CASES: dict[str, Case] = {"checkpoint-sync": partial(sync, 1), "checkpoint-sync-8": partial(sync, 8)}


def main() -> None:
    """Measure in this process, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoints", description=__doc__)
    for name in ("topics", "groups", "queues", "changed"):
        parser.add_argument(name, type=int)
    options = parser.parse_args()
    figures = asyncio.run(_measure(options.topics, options.groups, options.queues, options.changed))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
