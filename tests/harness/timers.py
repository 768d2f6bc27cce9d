"""Delayed messages by the tens of thousands: senders, consumers that outlive their server, and the account of it."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import requests
from bench.client import CallFailedError, Client
from bench.connection import ConnectionFailedError
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from tests.harness.standalone import ROOT

BODY_BYTES = 32
BATCH = 32

_POLL_S = 2.0
_INVISIBLE_S = 10
_PAUSE_S = 0.05
_GONE = (CallFailedError, ConnectionFailedError)
"""What calls fail with when the server is killed."""


@dataclass
class TimerLedger:
    """What was sent and what came, by number.

    Args:
        due_ms: of each message that anybody tried to send.
        sent: answered with OK.
        received: of each message how often it was delivered for the first time, by the server's own count.
        early: number, due time and time of receipt of what came before it was due.
    """

    due_ms: dict[int, int] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    received: dict[int, int] = field(default_factory=dict)
    early: list[tuple[int, int, float]] = field(default_factory=list)

    def receive(self, body: bytes, attempt: int, at_ms: float) -> None:
        """Take down a delivery. One that only comes again because its ack was lost does not count twice."""
        number = int(body[: requests.SEQUENCE_DIGITS])
        self.received[number] = self.received.get(number, 0) + (attempt == 1)
        if at_ms < self.due_ms.get(number, 0):
            self.early.append((number, self.due_ms[number], at_ms))

    @property
    def missing(self) -> int:
        """How many were sent with OK and have not come."""
        return len(self.sent - self.received.keys())

    def check(self) -> None:
        """Assert T1 and T2, and that nothing came that nobody sent."""
        assert not self.early, f"before they were due (T1): {self.early[:10]}"
        lost = self.sent - self.received.keys()
        assert not lost, f"{len(lost)} sent with OK and lost (T2): {sorted(lost)[:10]}"
        twice = sorted(number for number, count in self.received.items() if count > 1)
        assert not twice, f"{len(twice)} fired twice (T2): {twice[:10]}"
        assert self.received.keys() <= self.due_ms.keys(), "delivered though nobody sent it (S2)"


class TimerSender:
    """Sends delayed messages, `BATCH` in a call.

    Args:
        topic: where to.
        ledger: where it writes.
        first: number of its first message.
        due_ms: tells of a number when it is due.
    """

    def __init__(self, topic: str, ledger: TimerLedger, first: int, due_ms: Callable[[int], int]) -> None:
        self._topic = topic
        self._ledger = ledger
        self._next = first
        self._due_ms = due_ms
        self._template = requests.DelayedTemplate(topic, BODY_BYTES, self._due, first, BATCH)

    def _due(self, number: int) -> int:
        due_ms = self._ledger.due_ms[number] = self._due_ms(number)
        return due_ms

    async def send(self, address: str, count: int | None) -> None:
        """Send a number of messages, rounded up to whole calls, or until the server goes away."""
        sent = 0
        try:
            client = await Client.connect(address, self._topic)
        except _GONE:
            return
        try:
            while count is None or sent < count:
                numbers = range(self._next, self._next + BATCH)
                self._next += BATCH
                await client.send(self._template.make())
                self._ledger.sent.update(numbers)
                sent += BATCH
        except _GONE:
            if count is not None:
                raise
        finally:
            client.close()


async def consume(address: str, topic: str, group: str, ledger: TimerLedger) -> None:
    """Receive and ack until it is cancelled, while the server comes and goes."""
    while True:
        try:
            client = await Client.connect(address, topic, group)
        except _GONE:
            await asyncio.sleep(_PAUSE_S)
            continue
        try:
            request = requests.receive(topic, group, (await client.queues())[0], BATCH, _POLL_S, _INVISIBLE_S)
            while True:
                messages, error = requests.received(await client.call(requests.RECEIVE, request))
                at_ms = time.time() * 1000
                if error:
                    await asyncio.sleep(_PAUSE_S)
                for message in messages:
                    ledger.receive(message.body, message.system_properties.delivery_attempt, at_ms)
                if messages:
                    answer = await client.call(requests.ACK, requests.ack(topic, group, messages))
                    assert not requests.refusal(service.AckMessageResponse, answer)
        except _GONE:
            await asyncio.sleep(_PAUSE_S)
        finally:
            client.close()


class OfficialConsumer:
    """`tests.interop.timer_consumer` as a process; use as a context manager, which ends it.

    Args:
        address: of the server.
        topic: what it receives.
        group: for whom.
        scratch: a folder of its own, taken for its home, where the client writes its log.
    """

    def __init__(self, address: str, topic: str, group: str, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._output = scratch / "output"
        self._errors = scratch / "errors"
        self._seen = 0
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.interop.timer_consumer", address, topic, group],
                cwd=ROOT,
                env={**os.environ, "HOME": str(scratch)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
            )

    def read(self, ledger: TimerLedger) -> None:
        """Take down what it has received since the last time."""
        with self._output.open("rb") as output:
            output.seek(self._seen)
            for line in output:
                if not line.endswith(b"\n"):
                    break
                self._seen += len(line)
                facts = json.loads(line)
                ledger.receive(facts["body"].encode(), facts["attempt"], facts["at_ms"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
            error.add_note(f"errors of the official client:\n{self._errors.read_text()[-2000:]}")
        self._process.communicate(timeout=20)
