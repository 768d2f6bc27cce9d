"""A run of the fuzzer: frames, calls and admin requests by turns, until its time is over or something is found."""

import asyncio
import gc
import random
import resource
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_proxy.protocol.client_methods import SERVICE
from tests.fuzz.admin import AdminFuzzer
from tests.fuzz.calls import FILTERING, GROUPS, OF_KINDS, TOPICS, CallFuzzer
from tests.fuzz.filters import FilterFuzzer
from tests.fuzz.http_socket import HttpFuzzer
from tests.fuzz.memory_socket import MemoryClient
from tests.fuzz.sequences import Sequences
from tests.fuzz.subject import FoundError, Subject
from tests.harness.client import make_message
from tests.harness.loop_turns import LoopTurns

_CONNECTIONS_PER_ROUND = 40
_CALLS_PER_ROUND = 150
_CALLS_PER_STORM = 60
_FILTERING_PER_ROUND = 40
_REQUESTS_PER_ROUND = 60
_EXCHANGES_PER_ROUND = 4
_ROUNDS_TO_WARM_UP = 5
GROWTH_BYTES_MAX = 128 * 2**20
"""What memory may grow by after the first rounds: the messages that are stored on the way are on disk."""


@dataclass
class Report:
    """What was done.

    Args:
        rounds: of frames and calls.
        connections: that sent frames.
        calls: that were made.
        statuses: how often each call was answered how.
        growth_bytes: what the process grew by.
        asked: messages that were acknowledged, and were there after a restart.
        requests: of the admin API.
        answered: how often each of those calls was answered with which HTTP status.
        turns: the longest of the loop, without the steps of the fuzzer itself.
        exchanges: over sockets of HTTP.
    """

    rounds: int
    connections: int
    calls: int
    statuses: dict[str, int]
    growth_bytes: int
    asked: int = 0
    requests: int = 0
    answered: dict[str, int] = field(default_factory=dict)
    turns: LoopTurns = field(default_factory=LoopTurns)
    exchanges: int = 0


class InputFoundError(Exception):
    """Something was found; the text holds the seed and the input."""


async def run(seed: int, data_dir: Path, *, seconds: float = 1e9, rounds: int = 10**9) -> Report:
    """Fuzz with one seed.

    Args:
        seed: decides all that is sent.
        data_dir: of the services.
        seconds: when to end.
        rounds: after how many rounds to end, if that comes first.

    Raises:
        InputFoundError: something was found.
    """
    dice = random.Random(seed)
    report = Report(0, 0, 0, {}, 0)
    until = time.monotonic() + seconds
    start_bytes = 0
    where = "the start"
    guarded = seed % 2 == 1
    subject = Subject(data_dir, random.Random(seed), guarded=guarded)
    try:
        async with subject:
            calls = CallFuzzer(subject, dice)
            filters = FilterFuzzer(subject, dice)
            admin = AdminFuzzer(subject, dice, calls.garbage)
            http = HttpFuzzer(subject, dice)
            await http.start()
            await _make_topics(subject)
            while report.rounds < rounds and time.monotonic() < until:
                where = "frames"
                for _ in range(_CONNECTIONS_PER_ROUND):
                    where = await _connection(subject, dice, report)
                    subject.check_turns()
                await subject.quiet()
                await asyncio.sleep(0.05)
                for _ in range(_CALLS_PER_ROUND):
                    where = "calls"
                    await calls.one()
                    subject.check_turns()
                where = "admin"
                for _ in range(_REQUESTS_PER_ROUND):
                    await admin.one()
                    subject.check_turns()
                where = "filters"
                await filters.run(TOPICS, FILTERING, _FILTERING_PER_ROUND)
                where = "HTTP"
                await http.some(_EXCHANGES_PER_ROUND)
                where = "a storm"
                await calls.close()
                await calls.storm(_CALLS_PER_STORM)
                where = "the end of a round"
                await subject.quiet()
                subject.check_turns()
                subject.check_logs()
                subject.check_bounds()
                gc.collect()  # not by itself while turns are measured
                report.rounds += 1
                if report.rounds == _ROUNDS_TO_WARM_UP:
                    start_bytes = _resident_bytes()
            await admin.close()
            await http.close()
            report.exchanges = http.exchanges
            report.calls = calls.calls
            report.requests = admin.requests
            report.answered = dict(admin.answered)
            report.statuses = dict(subject.statuses)
            report.turns = subject.turns
            folder = data_dir
            if dice.random() < 0.5:
                # As after a kill: what was written is there, and nothing was brought to an end.
                folder = shutil.copytree(data_dir, data_dir.with_name("killed"))
            if start_bytes:
                report.growth_bytes = _resident_bytes() - start_bytes
                if report.growth_bytes > GROWTH_BYTES_MAX:
                    raise FoundError(f"memory has grown by {report.growth_bytes} bytes")
        where = "a restart"
        async with Subject(folder, random.Random(seed), guarded=guarded) as again:
            await calls.accepted.ask(again, GROUPS[0])
        report.asked = calls.accepted.count
    except Exception as error:
        last = calls.last if where in ("calls", "a storm", "the end of a round") else where
        if where == "filters":
            last = filters.last
        if where == "admin":
            last = admin.last
        elif where == "HTTP":
            last = http.last
        raise InputFoundError(
            f"seed {seed}, round {report.rounds}: {type(error).__name__}: {error}\ninput: {last}"
        ) from error
    return report


async def _make_topics(subject: Subject) -> None:
    """The topics and groups that good requests name, of all kinds."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(subject.http), base_url="http://fuzz") as http:
        for path, body in (
            *(("topics", {"name": name, "type": kind}) for name, kind in OF_KINDS.items()),
            ("groups", {"name": GROUPS[1], "fifo": True}),
        ):
            assert (await http.post(f"/api/v1/{path}", json=body)).status_code == 201
    client = MemoryClient(subject.server)
    await client.begin()
    for topic in TOPICS:
        request = pb.SendMessageRequest(messages=[make_message(topic, b"body", tag="a") for _ in range(32)])
        answer = await client.call(
            f"/{SERVICE}/SendMessage", request.SerializeToString(), subject.headers("fuzz"), b"5S"
        )
        assert answer.grpc_status == 0, answer
    await client.gone()


async def _connection(subject: Subject, dice: random.Random, report: Report) -> str:
    """One connection that sends what nobody should; gives a description of what it sent."""
    sequences = Sequences(dice)
    data = sequences.make()
    pieces = sequences.cut(data)
    where = f"frames, in pieces of {len(pieces[0]) if pieces else 0} bytes and so on: {data[:20_000].hex()}"
    client = MemoryClient(subject.server)
    report.connections += 1
    try:
        for number, piece in enumerate(pieces):
            await client.feed(piece)
            subject.check_connection(client.connection)
            if number % 64 == 63:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        subject.check_connection(client.connection)
        client.connection.check(client.connection.now + dice.choice((0.0, 1.0, 100.0, 200.0)))
        if client.goaway is not None and not client.goaway[1]:
            raise FoundError("GOAWAY without a word")
        await client.gone()
    except FoundError as error:
        raise FoundError(f"{error}\n{where}") from error
    except Exception as error:
        raise FoundError(f"{type(error).__name__}: {error}\n{where}") from error
    return where


def _resident_bytes() -> int:
    """What the process takes; where the machine does not say, the most it ever took."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
