"""The case of timers at a failover: how long a new master with many pending takes, and a slave to keep up with them.

python -m bench.promotion COUNT
"""

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bench import timer_data
from bench.server import Server
from bench.steps import Case, Figures, Scale
from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_broker.core.checkpoint import Checkpoint
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.message_store import StoreCheckpoint
from popwheel_broker.options import BrokerOptions
from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.disk import SystemDisk

_FOLDED_AT_ONCE = 512


async def promotion(count: int, server: Server, scale: Scale) -> Figures:
    """A broker's core with pending delayed messages; no server is used."""
    words = [sys.executable, "-m", "bench.promotion", str(min(count, scale.timers_max))]
    done = await asyncio.to_thread(subprocess.run, words, stdout=subprocess.PIPE, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _core(folder: Path) -> BrokerCore:
    return BrokerCore(
        BrokerOptions(),
        SystemDisk(),
        folder,
        SystemClock(),
        random.Random(1),
        ClusterView(),
        on_fired=lambda _topic, _late_ms: None,
    )


def _follow(core: BrokerCore) -> None:
    while core.timer.step().busy:
        pass


def _promote(core: BrokerCore) -> float:
    began_s = time.perf_counter()
    core.finish()
    core.timer.step()
    return (time.perf_counter() - began_s) * 1000


def _measure(count: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="popwheel-bench-") as scratch:
        timer_data.build(Path(scratch) / "data", count)
        folder = Path(scratch) / "data" / "broker"
        core = _core(folder)
        began_s = time.perf_counter()
        core.begin(checkpoint_file.decode((folder / "checkpoint").read_bytes()))
        figures: Figures = {"from_files_s": time.perf_counter() - began_s, "promotion_ms": _promote(core)}
        core.timer.close()
        core.store.close()
        # The same as a slave that has nothing and takes record after record.
        for name in ("timer", "queueindex"):
            shutil.rmtree(folder / name)
        core = _core(folder)
        end = core.store.log.end_position
        began_s = time.process_time()
        begin = core.begin(Checkpoint(store=StoreCheckpoint(synced_position=end)))
        for number, found in enumerate(core.store.log.scan(begin, end), 1):
            core.fold(found)
            if number % _FOLDED_AT_ONCE == 0:
                _follow(core)
        _follow(core)
        figures["follow_cpu_us"] = (time.process_time() - began_s) / count * 1e6
        figures["pending"] = float(core.timer.state.pending.total)
        figures["promotion_ms"] = max(figures["promotion_ms"], _promote(core))
        return figures


CASES: dict[str, Case] = {"timers-promotion-1m": partial(promotion, 1_000_000)}


def main() -> None:
    """Measure in this process, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.promotion", description=__doc__)
    parser.add_argument("count", type=int, help="how many messages are pending")
    print(json.dumps(_measure(parser.parse_args().count)))


if __name__ == "__main__":
    main()
