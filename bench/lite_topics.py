"""Cost of a million lite topics at one broker, without network: memory, checkpoints, a restart, and their end.

python -m bench.lite_topics [--lite-topics 1000000] [--data-dir FOLDER]
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
from pathlib import Path

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.put import MessageRun
from popwheel_common.disk import SystemDisk
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Group, Topic, TopicType

_AT_ONCE = 256
_SAVED_EVERY = 100_000
_READ = 100_000
_OF_A_CLIENT = 1000
_OPTIONS = BrokerOptions()


class _Broker:
    """A replica's store on a folder."""

    def __init__(self, folder: Path, count: int) -> None:
        self.names = [f"session-{number:08}" for number in range(count)]
        self.disk, self.clock, self.view = SystemDisk(), SystemClock(), ClusterView()
        self.folder = folder
        self.view.apply(
            ClusterUpdate(
                version=2,
                snapshot=True,
                cluster=Cluster(name="bench", receipt_key=b"key"),
                topics=[Topic(name="Sessions", queues=1, id=1, type=TopicType.LITE, lite_expiration_ms=1)],
                groups=[Group(name="readers", max_attempts=16, id=2)],
                named=2,
            )
        )
        self.store = ReplicaStore(
            self.disk, folder, self.clock, self._core, self._failed, _OPTIONS.checkpoint_changes_bytes, lambda: None
        )

    def _core(self, log: CommitLog | None) -> BrokerCore:
        return BrokerCore(
            *(_OPTIONS, self.disk, self.folder, self.clock, random.Random(0), self.view),
            *(lambda topic, late_ms: None, log),
        )

    def _failed(self, error: Exception) -> None:
        raise error

    async def start(self) -> None:
        async def nobody(position: int) -> bool:
            return False

        await self.store.superblock.load(self.store.log, random.Random(0))
        await self.store.start(alone=True, repair=nobody, is_nowhere=nobody)
        await self.store.finish(1)
        self.core.cluster_changes.apply()
        self.commit()

    @property
    def core(self) -> BrokerCore:
        return self.store.core

    def commit(self) -> None:
        self.core.store.commit(self.core.store.log.end_position)

    async def send(self) -> None:
        for at in range(0, len(self.names), _AT_ONCE):
            runs = [
                MessageRun("Sessions", 0, [bytes(100)], [b""], [""], lite_topic=name)
                for name in self.names[at : at + _AT_ONCE]
            ]
            self.core.store.put_runs(runs)
            self.commit()
            if at % _SAVED_EVERY < _AT_ONCE:
                await self.save()
        await self.save()

    async def save(self) -> None:
        await self.store.save(self.store.sync)

    def read(self) -> None:
        """Clients read some of them: subscribe, pop and acknowledge."""
        core = self.core
        for at in range(0, min(_READ, len(self.names)), _OF_A_CLIENT):
            names = self.names[at : at + _OF_A_CLIENT]
            key = ClientKey("readers", "Sessions", f"client-{at}")
            client, new = core.lite.subscriptions.begin(key, names, 0)
            core.lite.record_waiting(client, new)
            request = pb.PopRequest(
                group="readers", topic="Sessions", max_messages=32, invisible_ms=30_000, client_id=key.client_id
            )
            request.lite = True
            while (answer := core.lite.pops.pop(request, 0)).handles:
                for handle in answer.handles:
                    core.acks.ack("readers", "Sessions", [handle])
                self.commit()


def _resident_mib() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


class _Figures(dict[str, float]):
    """Measurements."""

    async def take(self, name: str, work: object) -> None:
        began_s = time.monotonic()
        if asyncio.iscoroutine(work):
            await work
        self[name] = round(time.monotonic() - began_s, 2)


async def _first(folder: Path, count: int) -> _Figures:
    figures = _Figures()
    broker = _Broker(folder, count)
    await broker.start()
    before = figures["MiB before"] = _resident_mib()
    await figures.take("s to send and save", broker.send())
    figures["MiB for them"] = _resident_mib() - before
    before = _resident_mib()
    began_s = time.process_time()
    broker.read()
    figures["us CPU for each message read"] = (time.process_time() - began_s) * 1e6 / min(_READ, count)
    figures["MiB for those that are read"] = _resident_mib() - before
    await figures.take("s to save what was read", broker.save())
    figures["index files"] = sum(1 for each in (folder / "queueindex").iterdir())
    return figures


async def _second(folder: Path, count: int) -> _Figures:
    figures = _Figures()
    broker = _Broker(folder, count)
    before = _resident_mib()
    await figures.take("s to start", broker.start())
    figures["MiB for them after a start"] = _resident_mib() - before
    assert broker.core.store.queues.lite_topics == count
    await figures.take("s to save without changes", broker.save())
    longest_s, total_s, is_through = 0.0, 0.0, False
    broker.view.topics["Sessions"].lite_expiration_ms = 10**12
    broker.core.lite.step(broker.clock.wall_ms())
    while not is_through:
        began_s = time.process_time()
        is_through = broker.core.lite.step(broker.clock.wall_ms())
        longest_s = max(longest_s, time.process_time() - began_s)
        total_s += time.process_time() - began_s
    figures["s CPU to look at all of them"], figures["ms CPU of the longest step"] = total_s, longest_s * 1000
    broker.view.topics["Sessions"].lite_expiration_ms = 1
    began_s = time.process_time()
    longest_s = 0.0
    while broker.core.store.queues.lite_topics > count // 2:
        step_s = time.process_time()
        broker.core.lite.step(broker.clock.wall_ms())
        longest_s = max(longest_s, time.process_time() - step_s)
    figures["s CPU to end half of them"], figures["ms CPU of its longest step"] = (
        time.process_time() - began_s,
        longest_s * 1000,
    )
    began_s = time.process_time()
    longest_s = 0.0
    update = ClusterUpdate(version=1_000, deleted_topics=["Sessions"])
    broker.view.apply(update)
    broker.core.cluster_changed(update)
    while broker.core.topic_registry.can_apply_changes:
        step_s = time.process_time()
        broker.core.cluster_changes.apply()
        longest_s = max(longest_s, time.process_time() - step_s)
        broker.commit()
    assert not broker.core.store.queues.lite_topics
    figures["s CPU to delete the topic with the other half"] = time.process_time() - began_s
    figures["ms CPU of its own longest step"] = longest_s * 1000
    return figures


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lite-topics", type=int, default=1_000_000)
    parser.add_argument("--data-dir")
    parser.add_argument("--part", choices=("first", "second"))
    arguments = parser.parse_args()
    if arguments.part:
        part = _first if arguments.part == "first" else _second
        print(json.dumps(asyncio.run(part(Path(arguments.data_dir), arguments.lite_topics))))
        return
    with tempfile.TemporaryDirectory(dir=arguments.data_dir) as folder:
        for name in ("first", "second"):
            command = [sys.executable, "-m", "bench.lite_topics", "--part", name, "--data-dir", folder]
            command += ["--lite-topics", str(arguments.lite_topics)]
            for figure, value in json.loads(
                subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]
            ).items():
                print(f"{figure:45} {value:12,.2f}")


if __name__ == "__main__":
    _main()
