"""The case of access: sends to a server that checks who calls, and to one that does not, in turns."""

import asyncio
import json
import tempfile
from pathlib import Path

from bench import requests
from bench.client import close_all, connect_all
from bench.load import SendLoop
from bench.process import Usage
from bench.server import OwnServer, Server
from bench.steps import BODY_BYTES, CONNECTIONS, Case, Figures, Scale, own_server
from popwheel_common.contract.credentials import Credentials

_TOPIC = "bench-access"
_CALLERS = 64
_TURNS = 4
_USER = Credentials("bench", "bench and nothing else")
_NOBODY = Credentials("", "")


async def access(server: Server, scale: Scale) -> Figures:
    """Sends of one message by 64 callers; the other server has ten users, of whom each has ten rules."""
    own = own_server(server)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "access.json"
        file.write_text(json.dumps({"users": [_user(number) for number in range(10)]}))
        guarded = OwnServer(
            own.flush,
            Path(folder),
            [f"access.file={file}", "access.clock_skew_ms=86400000"],
            own.compiled,
            forks=own.forks,
        )
        await guarded.start(_USER)
        try:
            each: dict[str, list[tuple[float, float]]] = {"open": [], "access": []}
            for _ in range(_TURNS):
                each["open"].append(await _send(own, _NOBODY, scale))
                each["access"].append(await _send(guarded, _USER, scale))
        finally:
            await guarded.stop()
    figures: Figures = {}
    for name, turns in each.items():
        messages, seconds = zip(*turns, strict=True)
        figures[f"{name}_per_s"] = sum(messages) / (scale.seconds * _TURNS)
        figures[f"{name}_cpu_us"] = sum(seconds) / sum(messages) * 1e6
    figures["rate_ratio"] = figures["access_per_s"] / figures["open_per_s"]
    figures["checks_cpu_us"] = figures["access_cpu_us"] - figures["open_cpu_us"]
    return figures


async def _send(server: OwnServer, credentials: Credentials, scale: Scale) -> tuple[float, float]:
    """Send for a while: how many messages, and seconds of the server's CPU."""
    clients = await connect_all(server.address, CONNECTIONS, _TOPIC, credentials=credentials)
    try:
        loop = SendLoop(clients, requests.SendTemplate(_TOPIC, BODY_BYTES, 1), 1, _CALLERS)
        loop.start()
        await asyncio.sleep(scale.warm_up_s)
        before, usage = loop.outcome.messages, Usage.now(server.pids)
        await asyncio.sleep(scale.seconds)
        used, sent = Usage.now(server.pids).since(usage), loop.outcome.messages - before
        await loop.stop()
    finally:
        close_all(clients)
    return float(sent), used.server_s


def _user(number: int) -> dict[str, object]:
    """Return a user with its rules; number 0 is the bench's."""
    rules = [{"topic": f"other-{rule}-*", "allow": ["publish"]} for rule in range(8)]
    rules += [{"topic": "bench-*", "allow": ["admin"]}, {"group": "*", "allow": ["admin"]}]
    return {"access_key": f"user-{number}" if number else _USER.access_key, "secret": _USER.secret, "rules": rules}


CASES: dict[str, Case] = {"access": access}
