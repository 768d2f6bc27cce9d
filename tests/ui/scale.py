"""How long each page and route takes with very much of everything, and what an open overview costs those who send.

python -m tests.ui.scale [--part 0.1] [--json FILE] [--data-dir FOLDER] [--no-sends]

A whole one has 100,000 topics, 10,000 groups, 1,000,000 held messages and 1,000,000 timers in one standalone. Pages
are meant to answer within 300 ms, no turn of the loop to last longer than 5 ms, and sends beside an open overview to
be at most 3 % fewer. It prints tables, and judges nothing.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import httpx

from bench import contents, requests
from bench.client import close_all, connect_all
from bench.load import SendLoop
from popwheel_console.view.links import link, message_link
from tests.harness.standalone import StandaloneProcess

TOPICS: Final = 100_000
GROUPS: Final = 10_000
IN_FLIGHT: Final = 1_000_000
TIMERS: Final = 1_000_000
HOLDERS: Final = 10
"""Groups that hold; each holds its share of the messages of one topic."""

SETTINGS: Final = (
    "controller.topics_max=200000",
    "controller.groups_max=20000",
    "broker.pop.open_messages_max=20000000",
    "broker.flush=async",
)
BULK: Final = "scale-held"
DELAYED: Final = "scale-delayed"
_BODY: Final = 64
_BATCH: Final = 32
_HOUR_MS: Final = 3_600_000
_STRIDE_MS: Final = 7_654_321
"""Neighbours are due far apart."""
_QUIET_S: Final = 65.0
"""Metrics of turns are of the last minute."""
_CALLERS: Final = 4
_RUNS: Final = 5
_SENDERS: Final = 64
_SENDS_S: Final = 6.0
_ROUNDS: Final = 5
_TURN: Final = re.compile(r"^popwheel_loop_turn_max_seconds\S* (\S+)$", re.MULTILINE)


class Scene:
    """A standalone server that is filled and measured.

    Args:
        server: it runs.
        part: of a whole scene.
    """

    def __init__(self, server: StandaloneProcess, part: float) -> None:
        self._server = server
        self._http = httpx.AsyncClient(base_url=server.http_url, timeout=120)
        self._topics = max(1, round(TOPICS * part))
        self._groups = max(HOLDERS, round(GROUPS * part))
        self._held = round(IN_FLIGHT * part)
        self._timers = round(TIMERS * part)
        self.took_s: dict[str, float] = {}

    async def fill(self) -> None:
        """Make names, send, and take without acknowledging."""
        topics = [{"name": f"scale-{number:06}", "type": "NORMAL", "queues": 1} for number in range(self._topics)]
        topics += [
            {"name": DELAYED, "type": "DELAY", "queues": 4},
            {"name": BULK, "type": "NORMAL", "queues": 8},
        ]
        groups: list[dict[str, Any]] = [{"name": f"group-{number:05}"} for number in range(self._groups)]
        began = time.monotonic()
        await contents.define(self._http, "topics", topics)
        self.took_s["topics"] = time.monotonic() - began
        began = time.monotonic()
        await contents.define(self._http, "groups", groups)
        self.took_s["groups"] = time.monotonic() - began
        began = time.monotonic()
        await contents.hold(
            self._server.grpc_address, BULK, [f"group-{number:05}" for number in range(HOLDERS)], self._held
        )
        self.took_s["held"] = time.monotonic() - began
        began = time.monotonic()
        await self._delay()
        self.took_s["timers"] = time.monotonic() - began

    async def _delay(self) -> None:
        """Send what is due later, spread over forty hours from one hour ahead on."""
        clients = await connect_all(self._server.grpc_address, _CALLERS, DELAYED)
        base_ms = int(time.time() * 1000) + _HOUR_MS

        def due_ms(number: int) -> int:
            return base_ms + number * _STRIDE_MS % (40 * _HOUR_MS)

        template = requests.DelayedTemplate(DELAYED, _BODY, due_ms, 0, _BATCH)
        loop = SendLoop(clients, template, _BATCH, 16, self._timers)
        loop.start()
        await loop.finished()
        close_all(clients)

    async def routes(self) -> list[str]:
        """Addresses of pages and of routes that answer with something."""
        held = (await self._json("/inflight", topic=BULK, limit=1)).get("messages") or [{}]
        message_id = str(held[0].get("message_id", "none"))
        linked = message_link(BULK, message_id, held[0].get("born_ms"))
        clients = (await self._json("/clients", limit=1)).get("clients") or [{}]
        client_id = str(clients[0].get("id", "none"))
        topic, group = "scale-000100", "group-00001"
        pages = [
            *("/", "/topics", "/topics?prefix=scale-0001", link("topics", topic), link("topics", BULK)),
            *("/groups", link("groups", group), "/held", f"/held?group={group}", f"/held?topic={BULK}"),
            *("/messages", f"/messages?topic={BULK}&key=none", link("messages", BULK, message_id), linked),
            *("/timers", "/timers?within_ms=3600000", f"/timers?topic={DELAYED}", "/clients"),
            *(link("clients", client_id), "/replicas", "/changes", "/polls", "/trouble", "/settings"),
            *("/balance", f"/groups/{group}/dead-letters"),
        ]
        api = [
            *("/cluster", "/cluster/status", "/topics", "/topics?limit=100", "/topics?prefix=scale-09&limit=100"),
            *("/groups?limit=100", f"/topics/{topic}", f"/groups/{group}", f"/groups/{group}/progress"),
            *("/activity/overview", "/activity/topics?limit=100", "/activity/groups?limit=100"),
            *("/activity/history?kind=cluster", f"/activity/history?kind=group&name={group}"),
            *(f"/inflight?topic={BULK}", f"/inflight?topic={BULK}&group={group}&limit=100", "/inflight/summary"),
            *(f"/messages/{message_id}?topic={BULK}", f"/messages/{message_id}/events?topic={BULK}"),
            *(f"/messages?topic={BULK}&key=none", "/timers?limit=100", f"/timers?topic={DELAYED}&limit=100"),
            *("/timers/stats", "/timers/histogram?bounds_ms=60000,3600000,86400000", "/clients", "/polls"),
            *("/quarantine", "/trouble", "/settings", "/changes", "/brokers", f"/groups/{group}/balance?topic={BULK}"),
        ]
        return [*pages, *(f"/api/v1{each}" for each in api)]

    async def measure(self, address: str) -> dict[str, Any]:
        """Ask five times: the median and the longest, and the longest turn of the last minute."""
        took, status, size = [], 0, 0
        for _ in range(_RUNS):
            began = time.perf_counter()
            try:
                answer = await self._http.get(address, headers={"accept": "text/html"})
                status, size = answer.status_code, len(answer.content)
            except httpx.HTTPError as error:
                status = -1
                print(f"{address}: {error!r}", file=sys.stderr)
            took.append((time.perf_counter() - began) * 1000)
        return {
            "address": address[:70],
            "status": status,
            "bytes": size,
            "median_ms": statistics.median(took),
            "max_ms": max(took),
            "turn_ms": await self.turn_ms(),
        }

    async def turn_ms(self) -> float:
        """The longest turn of the loop within the last minute."""
        text = (await self._http.get("/metrics")).text
        return max((float(value) * 1000 for value in _TURN.findall(text)), default=0.0)

    async def sends(self, *, watched: bool) -> float:
        """Messages a second of 64 senders, beside an overview that refreshes itself every five seconds or none."""
        clients = await connect_all(self._server.grpc_address, _CALLERS, "scale-sends")
        watching = asyncio.create_task(self._watch()) if watched else None
        loop = SendLoop(clients, requests.SendTemplate("scale-sends", 1024), 1, _SENDERS)
        loop.start()
        await asyncio.sleep(1.0)
        before, began = loop.outcome.messages, time.perf_counter()
        await asyncio.sleep(_SENDS_S)
        sent, took = loop.outcome.messages - before, time.perf_counter() - began
        await loop.stop()
        if watching is not None:
            watching.cancel()
        close_all(clients)
        return sent / took

    async def _watch(self) -> None:
        while True:
            await self._http.get("/", headers={"accept": "text/html", "x-popwheel-live": "1"})
            await asyncio.sleep(5.0)

    async def _json(self, path: str, **query: Any) -> dict[str, Any]:
        answer = await self._http.get(f"/api/v1{path}", params=query)
        return dict(answer.json()) if answer.status_code == 200 else {}

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


async def run(server: StandaloneProcess, options: argparse.Namespace) -> dict[str, Any]:
    """Fill, wait for a minute that is quiet, and measure."""
    scene = Scene(server, options.part)
    try:
        await scene.fill()
        print(f"filled in {scene.took_s}", file=sys.stderr, flush=True)
        await asyncio.sleep(_QUIET_S)
        quiet_ms = await scene.turn_ms()
        addresses = await scene.routes()
        for address in addresses:
            await scene.measure(address)
        first_ms = await scene.turn_ms()
        await asyncio.sleep(_QUIET_S)
        rows = []
        print(f"longest turn of a quiet minute {quiet_ms:.1f} ms, of first requests {first_ms:.1f} ms")
        print(f"{'ms':>8} {'max':>8} {'turn':>7} {'bytes':>8} status  address")
        for address in addresses:
            row = await scene.measure(address)
            rows.append(row)
            print(
                f"{row['median_ms']:8.1f} {row['max_ms']:8.1f} {row['turn_ms']:7.1f} {row['bytes']:8} {row['status']:6}"
                f"  {row['address']}",
                flush=True,
            )
        reported: dict[str, Any] = {
            "part": options.part,
            "filled_s": scene.took_s,
            "quiet_turn_ms": quiet_ms,
            "first_turn_ms": first_ms,
            "routes": rows,
        }
        if not options.no_sends:
            # In turn, so that what changes on this machine meanwhile changes both.
            rates: dict[bool, list[float]] = {True: [], False: []}
            for number in range(2 * _ROUNDS):
                watched = number % 4 in (1, 2)
                rates[watched].append(await scene.sends(watched=watched))
            alone, beside = statistics.median(rates[False]), statistics.median(rates[True])
            reported["sends"] = {"alone": rates[False], "beside_an_overview": rates[True]}
            print(
                f"sends/s: {alone:.0f} alone, {beside:.0f} beside an open overview: {100 * (beside / alone - 1):+.1f} %"
            )
        return reported
    finally:
        await scene.close()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.ui.scale", description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="of a whole scene")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--data-dir", type=Path, help="where a folder for the server is made")
    parser.add_argument("--no-sends", action="store_true", help="leave out what an overview costs those who send")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.data_dir) as scratch:
        folder = Path(scratch) / "data"
        words = [word for setting in SETTINGS for word in ("--set", setting)]
        with StandaloneProcess(folder, words) as server:
            reported = asyncio.run(run(server, options))
    if options.json is not None:
        options.json.write_text(json.dumps(reported, indent=1) + "\n")


if __name__ == "__main__":
    main()
