"""The cases of growth: sends to a server that has very much of something, beside one that has nothing of it.

Both run all the time and are measured in turn. Filling takes minutes, and is done once for all runs of a case.
"""

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx

from bench import contents, process, timer_data
from bench.server import OwnServer, Server
from bench.steps import Case, Figures, Scale, own_server
from tests.harness.standalone import READY

TOPICS = 100_000
OPEN = 1_000_000
TIMERS = 10_000_000

_HOLDERS = 10
"""Groups that hold; each holds its share of the messages of one topic."""
_OPEN = "growth-open"
_SETTINGS = (
    "controller.topics_max=200000",
    "broker.pop.open_messages_max=20000000",
)
_SAMPLE = re.compile(r"^([a-z_]+) (\S+)$", re.MULTILINE)
"""A metric without labels."""
_HTTP_S = 120.0
_RECOVERED_IN_S = 600.0
_POLL_S = 0.1

Fill = Callable[[OwnServer, float], Awaitable[None]]
"""Starts a server that has nothing yet, and fills it; the number is the part of a whole one."""


def of(whole: int, part: float, least: int = 1) -> int:
    """Return a part of a whole number."""
    return max(least, round(whole * part))


async def with_topics(server: OwnServer, part: float) -> None:
    """Topics, with a message in each."""
    await server.start()
    names = [f"growth-{number:06}" for number in range(of(TOPICS, part))]
    async with _admin(server) as http:
        await contents.define(http, "topics", [{"name": name, "type": "NORMAL"} for name in names])
    await contents.send_to_each(server.address, names)


async def with_open_deliveries(server: OwnServer, part: float) -> None:
    """Messages that groups have received and not acknowledged."""
    await server.start()
    groups = [f"growth-{number}" for number in range(_HOLDERS)]
    async with _admin(server) as http:
        await contents.define(http, "topics", [{"name": _OPEN, "type": "NORMAL"}])
        await contents.define(http, "groups", [{"name": group} for group in groups])
    await contents.hold(server.address, _OPEN, groups, of(OPEN, part, _HOLDERS))


async def with_timers(server: OwnServer, part: float) -> None:
    """Delayed messages, the first of which is due in an hour; they are written into its files."""
    if not server.data_dir.exists():
        await asyncio.to_thread(timer_data.build, server.data_dir, of(TIMERS, part))
    await server.start(within_s=_RECOVERED_IN_S)


@contextlib.asynccontextmanager
async def _admin(server: OwnServer) -> AsyncIterator[httpx.AsyncClient]:
    """The HTTP API of a server: one that was just started takes sends a little before it serves it."""
    async with httpx.AsyncClient(base_url=server.http_url, timeout=_HTTP_S) as http:
        async with asyncio.timeout(_HTTP_S):
            while not await _is_ready(http):
                await asyncio.sleep(_POLL_S)
        yield http


async def _is_ready(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get(READY)).status_code == httpx.codes.OK
    except httpx.ConnectError:
        return False


FILLS: dict[str, Fill] = {
    "growth-topics": with_topics,
    "growth-open": with_open_deliveries,
    "growth-timers": with_timers,
}
"""Steps by the name of their case."""


@contextlib.asynccontextmanager
async def servers_of(
    name: str, folder: Path, flush: str, compiled: Path | None, scale: Scale
) -> AsyncIterator[list[OwnServer]]:
    """The empty server and the filled one of a case; it rests first, as filling leaves it work for a while."""
    servers = []
    for kind in ("empty", "filled"):
        server = OwnServer(flush, folder / name / kind, _SETTINGS, compiled, forks=scale.forks)
        server.name = kind
        server.words += f" --part {scale.part:g}"
        servers.append(server)
    empty, filled = servers
    try:
        await empty.start()
        await FILLS[name](filled, scale.part)
        await asyncio.sleep(scale.idle_s)
        yield servers
    finally:
        for server in servers:
            await server.stop()
        shutil.rmtree(folder / name, ignore_errors=True)


async def grown(send: Case, server: Server, scale: Scale) -> Figures:
    """Sends as fast as 64 callers go; memory then, and what the server says that it has."""
    own = own_server(server)
    figures = await send(own, scale)
    async with _admin(own) as http:
        text = (await http.get("/metrics")).text
    shown = {name: float(value) for name, value in _SAMPLE.findall(text)}
    return {
        **figures,
        "anonymous_mib": process.anonymous_mib(own.pids),
        "turn_max_ms": shown["popwheel_loop_turn_max_seconds"] * 1000,
        "topics": shown["popwheel_controller_topics"],
        "open": shown["popwheel_pop_open_messages"],
        "timers": shown["popwheel_timers_pending"],
    }


def cases(send: Case) -> dict[str, Case]:
    """Results of all cases.

    Args:
        send: the case `send-64`.
    """
    return {name: partial(grown, send) for name in FILLS}
