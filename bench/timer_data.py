"""A data folder with many delayed messages pending, written as the broker would, without going through its sends.

python -m bench.timer_data FOLDER COUNT
"""

import argparse
import asyncio
import random
import subprocess
import sys
from pathlib import Path

from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_broker.core.checkpoint import Checkpoint, CheckpointFrames
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.delay.service import TimerService
from popwheel_broker.delay.timer_state import slot_of
from popwheel_broker.delay.unit import UnitFlag, hash_topic
from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.log.timer_record import TIMER_QUEUE, TIMER_TOPIC, Delay
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.superblock import Superblock
from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.disk import SystemDisk, replace_file
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition

TOPIC = "bench-pending"

_HOUR_MS = 3_600_000
_SPAN_MS = 40 * _HOUR_MS
_STRIDE_MS = 7_654_321
"""Neighbours are due far apart, and all of them spread evenly over the span."""
_BATCH = 1000
_BODY = b"a small body"


def build(data_dir: Path, count: int) -> None:
    """Make the data folder of a `popwheel standalone` with messages due from one hour ahead on, over forty hours.

    A process of its own does it: what it says and the memory that it takes are not the load generator's.

    Args:
        data_dir: the folder; it must not be there.
        count: how many messages.
    """
    words = [sys.executable, "-m", "bench.timer_data", str(data_dir), str(count)]
    subprocess.run(words, stdout=sys.stderr, check=True)


async def _build(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    options, disk, clock = BrokerOptions(), SystemDisk(), SystemClock()
    core = BrokerCore(
        options,
        disk,
        folder,
        clock,
        random.Random(1),
        ClusterView(),
        on_fired=lambda _topic, _late_ms: None,
    )
    await Superblock(disk, folder).load(core.store.log, random.Random(1))
    core.begin(Checkpoint())
    core.finish()
    store, timer = core.store, core.timer
    service = TimerService(timer, disk, clock, store.log.sync, lambda: None, lambda _error: None)
    message_id = "01" + "0" * 32
    system_properties = definition.SystemProperties(message_id=message_id, body_encoding=definition.IDENTITY)
    properties = system_properties.SerializeToString()
    payload = definition.Message(topic=definition.Resource(name=TOPIC), body=_BODY).SerializeToString()
    base_ms = clock.wall_ms() + _HOUR_MS
    topic_hash, units, wheel = hash_topic(TOPIC), timer.state.log, timer.state.wheel
    for first in range(0, count, _BATCH):
        dues = [base_ms + number * _STRIDE_MS % _SPAN_MS for number in range(first, min(count, first + _BATCH))]
        appended = store.put(
            [
                Record(
                    RecordKind.TIMER,
                    TIMER_TOPIC,
                    TIMER_QUEUE,
                    payload,
                    properties,
                    origin=Delay(TOPIC, 0, 0, due_ms).encode(),
                )
                for due_ms in dues
            ]
        )
        store.commit(appended.end_position)
        ends = [*appended.positions[1:], appended.end_position]
        for due_ms, position, end in zip(dues, appended.positions, ends, strict=True):
            slot_ms = slot_of(due_ms)
            written_ms = appended.store_time_ms
            unit = (
                wheel.last(slot_ms),
                UnitFlag.TIMER,
                written_ms,
                due_ms,
                slot_ms,
                position,
                end - position,
                topic_hash,
            )
            wheel.add(slot_ms, units.append(unit))
        timer.state.curr_queue_offset = timer.state.commit_queue_offset = appended.queue_offsets[-1] + 1
    await service.save()
    changes = core.checkpoint()
    await store.log.sync()
    await store.write_index()
    frames = CheckpointFrames()  # all that there is has changed since nothing was there
    data = b"".join([*frames.of(changes.rows()), frames.last(core.synced(changes.head))])
    await replace_file(disk, folder / "checkpoint", checkpoint_file.slot(frames.end) * checkpoint_file.SLOTS + data)
    store.close()
    units.close()
    disk.close()


def main() -> None:
    """Make the folder that the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bench.timer_data", description=__doc__)
    parser.add_argument("folder", type=Path, help="the data folder of a server that does not run; it must not be there")
    parser.add_argument("count", type=int, help="how many messages")
    options = parser.parse_args()
    asyncio.run(_build(options.folder / "broker", options.count))


if __name__ == "__main__":
    main()
