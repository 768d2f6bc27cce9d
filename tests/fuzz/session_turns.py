"""Large requests of each kind in a client's session, by themselves and many at once.

The longest turn of the loop is the finding.

`python -m tests.fuzz.session_turns --seed N --rounds 20`
"""

import argparse
import asyncio
import gc
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from google.protobuf.message import Message

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_proxy.protocol.client_methods import REQUEST_BYTES_MAX, SERVICE
from tests.fuzz.memory_socket import MemoryClient
from tests.fuzz.subject import FoundError, Subject
from tests.harness.client import make_message
from tests.harness.loop_turns import TURN_S_MAX, measured_turns

_TOPIC = d.Resource(name="fuzz-a")
_GROUP = d.Resource(name="fuzz-g")
_QUEUE = d.MessageQueue(topic=_TOPIC, id=-1, broker=d.Broker(name="broker-0"))
_AT_ONCE_MAX = 12
_TRIES = 4
"""What takes long takes long each time."""
_ANSWER_WITHIN_S = 60.0


@dataclass
class Turns:
    """The findings.

    Args:
        calls: that were made.
        longest_s: CPU time of the longest turn, by kind of request.
    """

    calls: int = 0
    longest_s: dict[str, float] = field(default_factory=dict)


class LargeRequests:
    """Makes requests that are as large as they may be, or larger.

    Args:
        dice: decides.
        terms_max: terms of one SQL filter.
    """

    def __init__(self, dice: random.Random, terms_max: int) -> None:
        self._dice = dice
        self._terms_max = terms_max
        self.kinds: dict[str, Callable[[], Message | bytes]] = {
            "Telemetry filters": self._filters,
            "Telemetry topics": self._topics,
            "Telemetry subscriptions": self._subscriptions,
            "Telemetry parts": lambda: self._parts(b"\x0a\x04\x22\x02\x0a\x00"),
            "AckMessage": self._acks,
            "AckMessage parts": lambda: self._parts(b"\x1a\x00", REQUEST_BYTES_MAX),
            "AckMessage more parts": lambda: self._parts(b"\x1a\x00", 4 * 2**20),
            "SyncLiteSubscription": self._lite,
            "SyncLiteSubscription parts": lambda: self._parts(b"\x22\x00"),
            "ReceiveMessage": self._receive,
            "ReceiveMessage tags": self._tags,
            "SendMessage": self._send,
            "SendMessage parts": lambda: self._parts(b"\x0a\x00", 4 * 2**20),
            "QueryRoute": lambda: pb.QueryRouteRequest(topic=_TOPIC, endpoints=self._endpoints()),
            "QueryRoute parts": lambda: self._parts(b"\x12\x02\x12\x00"),
            "QueryAssignment": lambda: pb.QueryAssignmentRequest(
                topic=_TOPIC, group=_GROUP, endpoints=self._endpoints()
            ),
            "Heartbeat": lambda: pb.HeartbeatRequest(group=d.Resource(name=self._text(200_000))),
            "EndTransaction": lambda: pb.EndTransactionRequest(
                topic=_TOPIC, transaction_id=self._text(200_000), resolution=d.TransactionResolution.COMMIT
            ),
            "ChangeInvisibleDuration": lambda: pb.ChangeInvisibleDurationRequest(
                topic=_TOPIC, group=_GROUP, receipt_handle=self._text(200_000)
            ),
            "RecallMessage": lambda: pb.RecallMessageRequest(topic=_TOPIC, recall_handle=self._text(200_000)),
        }

    def _text(self, length: int) -> str:
        return self._dice.choice(("1", "9 ", "a|", "%", "'", "é")) * self._dice.randint(1, length)

    def _sql(self) -> str:
        number = self._dice.randrange(10**6)
        terms = self._dice.randint(1, self._terms_max)
        term = self._dice.choice(("a < {0}", "b{0} IS NULL", "c = 'x{0}'", "d IN ('{0}', 'y')"))
        return self._dice.choice((" OR ", " AND ")).join([term.format(number)] * terms)

    def _settings(self, **given: Message) -> pb.TelemetryCommand:
        return pb.TelemetryCommand(settings=d.Settings(**given))  # type: ignore[arg-type]

    def _filters(self) -> pb.TelemetryCommand:
        """The seen fault: each filter was read, one after the other, in one turn."""
        subscription = d.Subscription(group=_GROUP)
        for _ in range(self._dice.randint(1, 150)):
            expression = d.FilterExpression(type=d.FilterType.SQL, expression=self._sql())
            subscription.subscriptions.add(topic=_TOPIC, expression=expression)
        return self._settings(subscription=subscription)

    def _subscriptions(self) -> pb.TelemetryCommand:
        count = self._dice.choice((999, 1_000, 1_001, 8_000))
        entries = [d.SubscriptionEntry(topic=d.Resource(name=f"topic{number}")) for number in range(count)]
        return self._settings(subscription=d.Subscription(group=_GROUP, subscriptions=entries))

    def _topics(self) -> pb.TelemetryCommand:
        count = self._dice.choice((999, 1_000, 1_001, 20_000))
        topics = [d.Resource(name=f"topic{self._dice.randrange(10**6)}") for _ in range(count)]
        return self._settings(publishing=d.Publishing(topics=topics))

    def _parts(self, part: bytes, bytes_max: int = REQUEST_BYTES_MAX) -> bytes:
        """The most of the smallest parts that there may be."""
        return part * (self._dice.choice((bytes_max, bytes_max + 100)) // len(part))

    def _acks(self) -> pb.AckMessageRequest:
        handle = f"{'1 ' * 4}{self._dice.choice(('0', 'x'))} broker-0 0 0 {'f' * self._dice.randint(1, 400)}"
        entries = [pb.AckMessageEntry(message_id=str(number), receipt_handle=handle) for number in range(1_024)]
        return pb.AckMessageRequest(topic=_TOPIC, group=_GROUP, entries=entries)

    def _lite(self) -> pb.SyncLiteSubscriptionRequest:
        names = [f"{number:x>64}" for number in range(self._dice.choice((1_999, 2_000, 2_001, 3_500)))]
        return pb.SyncLiteSubscriptionRequest(
            topic=d.Resource(name="fuzz-lite"),
            group=_GROUP,
            lite_topic_set=names,
            action=self._dice.choice(list(d.LiteSubscriptionAction.values())),
        )

    def _receive(self) -> pb.ReceiveMessageRequest:
        wanted = d.FilterExpression(type=d.FilterType.SQL, expression=self._sql())
        return pb.ReceiveMessageRequest(message_queue=_QUEUE, group=_GROUP, filter_expression=wanted, batch_size=32)

    def _tags(self) -> pb.ReceiveMessageRequest:
        wanted = d.FilterExpression(type=d.FilterType.TAG, expression=self._dice.choice(("a||", " ||", "a ")) * 2_700)
        return pb.ReceiveMessageRequest(message_queue=_QUEUE, group=_GROUP, filter_expression=wanted, batch_size=32)

    def _send(self) -> pb.SendMessageRequest:
        messages = [make_message("fuzz-a", b"body", tag="a") for _ in range(128)]
        for each in messages:
            for number in range(self._dice.choice((1, 128))):
                each.user_properties[f"property {number}"] = "x" * 50
        return pb.SendMessageRequest(messages=messages)

    def _endpoints(self) -> d.Endpoints:
        addresses = [d.Address(host="h" * 255, port=1)] * self._dice.choice((1, 64, 65))
        return d.Endpoints(scheme=d.AddressScheme.IPv4, addresses=addresses)


async def run(seed: int, data_dir: Path, rounds: int, terms_max: int = 60, turn_s_max: float = TURN_S_MAX) -> Turns:
    """Send large requests, and measure the turns of the loop.

    Args:
        seed: decides what is sent; an odd one has users and rules checked.
        data_dir: of the services.
        rounds: how often each kind is sent.
        terms_max: terms of one SQL filter.
        turn_s_max: what a turn may take, in seconds of CPU time.

    Raises:
        FoundError: a turn took longer.
    """
    dice = random.Random(seed)
    seen = Turns()
    requests = LargeRequests(dice, terms_max)
    async with Subject(data_dir, random.Random(seed), guarded=seed % 2 == 1) as subject:
        for name, kind in (("fuzz-a", "NORMAL"), ("fuzz-lite", "LITE")):
            await _make_topic(subject, name, kind)
        for _ in range(rounds):
            kinds = list(requests.kinds)
            dice.shuffle(kinds)
            for kind in kinds:
                count = dice.choice((1, 2, _AT_ONCE_MAX))
                made = [requests.kinds[kind]() for _ in range(count)]
                sent = [each if isinstance(each, bytes) else each.SerializeToString() for each in made]
                del made
                gc.disable()  # services collect when nobody waits, by a rule of their own
                try:
                    longest_s, step = await _measure(subject, kind, sent)
                    for _ in range(_TRIES - 1):
                        if longest_s > turn_s_max:  # for a moment the machine may have been slow
                            longest_s, step = min((longest_s, step), await _measure(subject, kind, sent))
                finally:
                    gc.enable()
                seen.calls += count
                seen.longest_s[kind] = max(longest_s, seen.longest_s.get(kind, 0.0))
                if longest_s > turn_s_max:
                    raise FoundError(f"seed {seed}: {count} x {kind}: a turn of {longest_s * 1000:.0f} ms; {step}")
        await subject.quiet()
    return seen


async def _make_topic(subject: Subject, name: str, kind: str) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(subject.http), base_url="http://fuzz") as http:
        assert (await http.post("/api/v1/topics", json={"name": name, "type": kind})).status_code == 201


async def _measure(subject: Subject, kind: str, requests: Sequence[bytes]) -> tuple[float, str]:
    """Send requests at once, each on a connection of its own; the longest turn, and what took longest in it."""
    method = kind.partition(" ")[0]
    clients = [MemoryClient(subject.server) for _ in requests]
    for client in clients:
        await client.begin()
    with measured_turns() as turns:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            sends = (
                _send(client, method, request, subject.headers(f"client {number}"))
                for number, (client, request) in enumerate(zip(clients, requests, strict=True))
            )
            await asyncio.gather(*sends)
    for client in clients:
        await client.gone()
    return turns.longest_s, turns.longest_step


async def _send(client: MemoryClient, method: str, request: bytes, headers: dict[str, str]) -> None:
    stream_id = await client.open(f"/{SERVICE}/{method}", headers, b"30S")
    await client.send(stream_id, request)
    await client.answer(stream_id)


def main() -> int:
    """Run; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.session_turns", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="the same seed sends the same; drawn if not given")
    parser.add_argument("--terms", type=int, default=60, help="terms of one SQL filter at the most")
    parser.add_argument("--limit", type=float, default=TURN_S_MAX, help="seconds of CPU time that a turn may take")
    arguments = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "big") if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as scratch:
        seen = asyncio.run(run(seed, Path(scratch) / "data", arguments.rounds, arguments.terms, arguments.limit))
    for kind, longest_s in sorted(seen.longest_s.items(), key=lambda each: -each[1]):
        print(f"{longest_s * 1000:7.1f} ms {kind}")
    print(f"seed {seed}: {seen.calls} calls, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
