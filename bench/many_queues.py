"""The case of many queues: what a broker with very many topics costs, on its own, with few open files.

python -m bench.many_queues [--topics 100000] [--queues 8] [--data-dir FOLDER]
"""

import argparse
import asyncio
import gc
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from asyncio.events import Handle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.steps import Figures
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.delay.service import TimerService
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.put import MessageRun
from popwheel_common.disk import File, SystemDisk
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Topic

_OPEN_FILES = 1024
_TOPICS_AT_ONCE = 64
_SAVED_EVERY = 10_000
_GROWN = 15_000
_DELETED = 1_000
_OPTIONS = BrokerOptions.model_validate(
    {"log": {"segment_bytes": 16 << 20, "queues_max": 2_000_000}, "retention": {"hours": 1e-7}}
)


class _CountedFile:
    """A file whose written bytes are counted."""

    def __init__(self, file: File, disk: "_CountingDisk") -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        self._disk.written += sum(map(len, buffers))
        self._file.write(offset, buffers)


class _CountingDisk(SystemDisk):
    """The disk of this machine, and how many bytes were written."""

    written = 0

    def open(self, path: Path) -> File:
        return _CountedFile(super().open(path), self)


class _Broker:
    """A replica's store on a folder, and the loop's steps."""

    def __init__(self, folder: Path, topics: int, queues: int) -> None:
        self.disk = _CountingDisk()
        self.clock = SystemClock()
        self.view = ClusterView()
        self.names = [f"topic-{number:06}" for number in range(topics)]
        self.queues = queues
        self._longest_s = 0.0
        definitions = [Topic(name=name, queues=queues, id=number + 1) for number, name in enumerate(self.names)]
        self.view.apply(
            ClusterUpdate(
                version=topics + 1, snapshot=True, cluster=Cluster(name="bench"), topics=definitions, named=topics
            )
        )
        self.store = ReplicaStore(
            self.disk, folder, self.clock, self._core, self._failed, _OPTIONS.checkpoint_changes_bytes, lambda: None
        )
        self._watch()

    def _core(self, log: CommitLog | None) -> BrokerCore:
        folder = self.store_folder
        return BrokerCore(
            _OPTIONS,
            self.disk,
            folder,
            self.clock,
            random.Random(0),
            self.view,
            lambda topic, late_ms: None,
            log,
        )

    store_folder = Path()

    def _failed(self, error: Exception) -> None:
        raise error

    def _watch(self) -> None:
        run = Handle._run

        def timed(handle: Handle) -> None:
            began_s = time.thread_time()
            run(handle)
            self._longest_s = max(self._longest_s, time.thread_time() - began_s)

        Handle._run = timed  # type: ignore[method-assign, assignment]

    async def longest_ms(self) -> float:
        """CPU of the longest step of the loop since the last call; a busy machine would add its own to the time."""
        await asyncio.sleep(0)
        longest_s, self._longest_s = self._longest_s, 0.0
        await asyncio.sleep(0)
        self._longest_s = 0.0
        return longest_s * 1000

    async def start(self) -> None:
        async def nobody(position: int) -> bool:
            return False

        await self.store.superblock.load(self.store.log, random.Random(0))
        await self.store.start(alone=True, repair=nobody, is_nowhere=nobody)
        await self.store.finish(1)

    async def send(self, names: Sequence[str]) -> None:
        """A message into each queue of some topics."""
        store = self.store.core.store
        for at in range(0, len(names), _TOPICS_AT_ONCE):
            runs = [
                MessageRun(name, queue_id, [bytes(100)], [b""], [""])
                for name in names[at : at + _TOPICS_AT_ONCE]
                for queue_id in range(self.queues)
            ]
            store.put_runs(runs)
            store.commit(store.log.end_position)
            await asyncio.sleep(0)

    async def save_timer(self) -> None:
        timer = self.store.core.timer
        await TimerService(timer, self.disk, self.clock, self.store.sync, lambda: None, self._failed).save()

    async def save(self) -> int:
        """Save a checkpoint; how many bytes were written."""
        before = self.disk.written
        await self.store.save(self.store.sync)
        return self.disk.written - before


async def _make(folder: Path, topics: int, queues: int) -> Figures:
    broker = _Broker(folder, topics, queues)
    await broker.start()
    broker.store.core.cluster_changed(ClusterUpdate(version=broker.view.version, snapshot=True))
    broker.store.core.cluster_changes.apply()
    for at in range(0, topics, _SAVED_EVERY):
        await broker.send(broker.names[at : at + _SAVED_EVERY])
        await broker.save()
    await broker.save_timer()
    await broker.save()
    broker.store.close()
    return {}


async def _measure(folder: Path, topics: int, queues: int) -> Figures:
    before_bytes = _resident_bytes()
    began_s = time.perf_counter()
    broker = _Broker(folder, topics, queues)
    await asyncio.sleep(0)
    await broker.start()
    figures: Figures = {"start_s": time.perf_counter() - began_s}
    core = broker.store.core
    gc.collect()
    figures["queues"] = float(len(core.store.queues))
    figures["bytes_a_queue"] = (_resident_bytes() - before_bytes) / len(core.store.queues)
    figures["index_files"] = float(len(core.store.index.files))
    gc.freeze()
    await broker.longest_ms()
    await broker.send(broker.names[:1])
    await broker.save()
    core.store.put_runs([MessageRun(broker.names[0], 0, [bytes(100)], [b""], [""])])
    core.store.commit(core.store.log.end_position)
    await broker.longest_ms()
    figures["checkpoint_bytes"] = float(await broker.save())
    figures["checkpoint_step_ms"] = await broker.longest_ms()
    grown = min(topics, _GROWN // queues)
    await broker.send(broker.names[-grown:])
    await broker.longest_ms()
    figures["grown_queues"] = float(grown * queues)
    figures["grown_bytes"] = float(await broker.save())
    figures["grown_step_ms"] = await broker.longest_ms()
    await broker.send(broker.names[:1])
    await broker.longest_ms()
    deleted = 0
    while await broker.store.delete_expired():
        deleted += 1
        await broker.store.sync()
    figures["segments_deleted"] = float(deleted)
    figures["retention_step_ms"] = await broker.longest_ms()
    for name in broker.names[: min(topics, _DELETED)]:
        core.cluster_changes.forget_topic(name)
        await asyncio.sleep(0)
    figures["deletion_step_ms"] = await broker.longest_ms()
    figures["queues_left"] = float(len(core.store.queues))
    broker.store.close()
    return figures


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    """Make the data in one process, measure in another, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_queues", description=__doc__)
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--data-dir", type=Path, help="where the data is (default: a temporary folder)")
    parser.add_argument("--step", choices=("make", "measure"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
        _Broker.store_folder = options.data_dir
        step = _make if options.step == "make" else _measure
        print(json.dumps(asyncio.run(step(options.data_dir, options.topics, options.queues))))
        return
    with tempfile.TemporaryDirectory(prefix="popwheel-bench-", dir=options.data_dir) as scratch:
        words = ["--topics", str(options.topics), "--queues", str(options.queues), "--data-dir", scratch]
        for step_name in ("make", "measure"):
            done = subprocess.run(
                [sys.executable, "-m", "bench.many_queues", *words, "--step", step_name],
                stdout=subprocess.PIPE,
                check=True,
            )
        print(done.stdout.decode().splitlines()[-1])


if __name__ == "__main__":
    main()
