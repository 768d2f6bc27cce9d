"""`python -m bench`: measure our own server, and another one beside it (docs/internals/performance.md)."""

import argparse
import asyncio
import contextlib
import gc
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench import failover, growth, many, streams
from bench.cluster import ClusterServer
from bench.measure import CASES, OWN_ONLY, TOPICS, warm_up
from bench.report import Run, table
from bench.server import OwnServer, PeerServer, Server
from bench.steps import TINY, Figures, Scale
from bench.valkey import KEEPS, MISSING, ValkeyServer
from tests.harness.redis import bundled_server

FLUSHES = ("async", "sync")
WRONG = ("errors", "missing", "early")
"""Figures that must be zero."""


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--case", action="append", choices=list(CASES), help="only this; may be repeated (default: all but growth-...)"
    )
    parser.add_argument("--flush", action="append", choices=FLUSHES, help="only this broker.flush; may be repeated")
    parser.add_argument(
        "--compiled", type=Path, metavar="FOLDER", help="beside each server the same one on these modules"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="beside each server the same one with N proxy processes"
    )
    parser.add_argument(
        "--brokers", type=int, default=1, metavar="N", help="beside that of --workers the same one with N brokers"
    )
    parser.add_argument("--way", action="append", choices=many.WAYS, help="only this poll_mode; may be repeated")
    parser.add_argument("--failovers", type=int, default=Scale.failovers, help="in one run of failover-...")
    parser.add_argument("--runs", type=int, default=3, help="of each case; the table shows their median")
    parser.add_argument("--seconds", type=float, default=Scale.seconds, help="of each measured stretch of sends")
    parser.add_argument("--drain-messages", type=int, default=Scale.drain_messages)
    parser.add_argument("--memory-messages", type=int, default=Scale.memory_messages)
    parser.add_argument("--bulk-messages", type=int, default=Scale.bulk_messages, help="of revive-burst, cold-drain")
    parser.add_argument("--timers-seconds", type=float, default=Scale.timers_s, help="over which timers are spread")
    parser.add_argument("--part", type=float, default=Scale.part, help="of what a server of growth-... is filled with")
    parser.add_argument("--tiny", action="store_true", help="hardly anything of everything: shows that it works")
    parser.add_argument("--data-dir", type=Path, help="where our server keeps its data (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="append the JSON lines to this file (default: standard output)")
    parser.add_argument(
        "--valkey",
        action="append",
        choices=list(KEEPS),
        default=[],
        help="Redis Streams beside it, with its data kept so",
    )
    parser.add_argument("--peer", metavar="HOST:PORT", help=f"another server, with topics {', '.join(TOPICS)}")
    parser.add_argument("--peer-warm-up", type=float, default=30.0, help="seconds of load on the peer before all cases")
    parser.add_argument("--peer-pids", default="", metavar="PID,...", help="its processes, for CPU and memory")
    parser.add_argument("--peer-pause", action="store_true", help="SIGSTOP them while ours are measured")
    parser.add_argument(
        "--peer-kill-master",
        type=shlex.split,
        default=[],
        metavar="COMMAND",
        help="kills the master of the peer's replicas (kill -9) and has it start again; for failover-kill",
    )
    parser.add_argument(
        "--peer-in-sync",
        type=shlex.split,
        default=[],
        metavar="COMMAND",
        help="ends with 0 when all of the peer's replicas are in sync; for failover-kill",
    )
    options = parser.parse_args(words)
    if options.valkey and bundled_server() is None:
        parser.error(f"--valkey: {MISSING}")
    return options


def peers_of(options: argparse.Namespace) -> list[PeerServer]:
    """The other server, if there is one."""
    if not options.peer:
        return []
    pids = [int(pid) for pid in options.peer_pids.split(",") if pid]
    return [PeerServer(options.peer, pids, options.peer_kill_master, options.peer_in_sync)]


async def measure(options: argparse.Namespace, folder: Path, console: Console) -> list[Run]:
    """Run the cases: each as often as asked for, and each time on all servers in turn."""
    scale = (
        TINY
        if options.tiny
        else replace(
            Scale(),
            seconds=options.seconds,
            drain_messages=options.drain_messages,
            memory_messages=options.memory_messages,
            bulk_messages=options.bulk_messages,
            timers_s=options.timers_seconds,
            failovers=options.failovers,
            part=options.part,
        )
    )
    names = options.case or [name for name in CASES if name not in growth.FILLS]
    alone = [name for name in names if not {name} & {*many.CASES, *failover.CASES, *growth.FILLS}]
    codes = [None, options.compiled] if options.compiled else [None]
    counts = dict.fromkeys(((1, 1), (options.workers, 1), (options.workers, options.brokers)))
    own = [
        OwnServer(flush, folder, (), code, workers, brokers, forks=options.tiny)
        for flush in (options.flush or FLUSHES if alone else ())
        for code in codes
        for workers, brokers in counts
    ]
    peers = peers_of(options)
    valkeys = [ValkeyServer(keeps, folder) for keeps in options.valkey if alone]
    for name in names:
        if valkeys and name not in streams.CASES:
            console.print(f"{name} leaves Valkey out: it has no such case")
        if name in failover.SIDE_BY_SIDE and not all(peer.has_replicas for peer in peers):
            console.print(f"{name} leaves the peer out: it needs --peer-kill-master and --peer-in-sync")
    runs: list[Run] = []
    async with contextlib.AsyncExitStack() as stack:
        lines = stack.enter_context(options.json.open("a")) if options.json else sys.stdout
        started: list[OwnServer | ValkeyServer] = [*own, *valkeys]
        for each in started:
            await each.start()
            stack.push_async_callback(each.stop)
        for peer in peers if options.peer_warm_up > 0 else ():
            console.print(f"warming {peer.name} up", style="dim")
            warm = replace(scale, warm_up_s=options.peer_warm_up)
            if alone:
                await warm_up(peer, warm)
            elif many.SIDE_BY_SIDE.intersection(names):
                await many.warm_up(peer, warm)
            elif peer.has_replicas:
                await failover.warm_up(peer, warm)
        for name in names:
            if name in growth.FILLS:
                console.print(f"filling a server for {name}", style="dim")
            async with _servers(name, options, folder, scale, own, valkeys, peers) as servers:
                for number in range(1, options.runs + 1):
                    for server in servers:
                        if name in OWN_ONLY and server in peers:
                            continue
                        if name == "memory" and not server.pids:
                            continue
                        console.print(f"{name} on {server.name}, run {number} of {options.runs}", style="dim")
                        if isinstance(server, OwnServer):
                            await server.loaded()
                        async with _running(server):
                            with _stopped(peers if options.peer_pause and server not in peers else ()):
                                figures = await _figures(name, server, scale)
                        gc.collect()
                        runs.append(Run(name, server.name, number, figures, server.words))
                        runs[-1].write(lines)
    return runs


@contextlib.asynccontextmanager
async def _servers(
    name: str,
    options: argparse.Namespace,
    folder: Path,
    scale: Scale,
    own: Sequence[OwnServer],
    valkeys: Sequence[ValkeyServer],
    peers: Sequence[PeerServer],
) -> AsyncIterator[Sequence[Server]]:
    """Return the servers on which a case is measured, in their order; some cases have servers of their own."""
    flushes = options.flush or FLUSHES
    if name in growth.FILLS:
        async with growth.servers_of(name, folder, flushes[0], options.compiled, scale) as pair:
            yield pair
    elif name in many.CASES:
        clusters = many.servers_of(name, folder, flushes, options.way or many.WAYS, scale)
        yield [*clusters, *(peers if name in many.SIDE_BY_SIDE else ())]
    elif name in failover.CASES:
        beside = [peer for peer in peers if peer.has_replicas and name in failover.SIDE_BY_SIDE]
        yield [*failover.servers_of(name, folder, flushes, forks=scale.forks), *beside]
    else:
        yield [*own, *(valkeys if name in streams.CASES else ()), *peers]


async def _figures(name: str, server: Server, scale: Scale) -> Figures:
    """Run a case on a server, by the protocol of that server."""
    if isinstance(server, ValkeyServer):
        return await streams.CASES[name](server, scale)
    return await CASES[name](server, scale)


@contextlib.asynccontextmanager
async def _running(server: Server) -> AsyncIterator[None]:
    """A cluster lives for one run; others run all the time."""
    if isinstance(server, ClusterServer):
        try:
            await server.start()
            yield
        finally:
            await server.stop()
    else:
        yield


@contextlib.contextmanager
def _stopped(peers: Sequence[PeerServer]) -> Iterator[None]:
    """Suspend the peers, so that an idle peer takes no CPU from the measured server."""
    pids = [pid for peer in peers for pid in peer.pids]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def main(words: Sequence[str]) -> int:
    """Measure and report."""
    options = arguments(words)
    gc.disable()  # a pause of the load generator would be taken for one of the server
    with tempfile.TemporaryDirectory(prefix="popwheel-bench-") as scratch:
        runs = asyncio.run(measure(options, options.data_dir or Path(scratch), Console(stderr=True)))
    table(runs, Console(width=None if sys.stdout.isatty() else 160))
    return 1 if any(run.figures.get(name) for run in runs for name in _wrong(run)) else 0


def _wrong(run: Run) -> tuple[str, ...]:
    """Figures that must be zero: the other ways of waiting are there to show what they leave undelivered."""
    return (*WRONG, "undelivered") if run.server == "notify" else WRONG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
