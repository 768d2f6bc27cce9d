"""The cases of delayed messages: how late they fire, what taking them costs, many at once, recovery, rest."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from bench import process, requests, timer_data
from bench.client import Client, close_all, connect_all
from bench.load import ReceiveLoop, SendLoop, SteadySends, send_steadily
from bench.process import Usage
from bench.server import OwnServer, Server
from bench.steps import (
    BATCH,
    BODY_BYTES,
    CONNECTIONS,
    POLLERS,
    Case,
    Figures,
    Scale,
    cpu,
    make_topic,
    own_server,
    percentiles,
    prime,
)
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition

TOPICS = ("bench-later", "bench-burst")

_SENDERS = 64
FILL_RATE = 4000.0
"""Delayed messages a second that any server is thought to take."""
_ARRIVAL_TIMEOUT_S = 60.0
_QUIET_S = 2.0
_HOUR_MS = 3_600_000
_ACCEPT_TURNS = 2
_BURST_COUNT = 100_000
_STEADY_RATE = 200.0
_SLOT_LEAD_S = 0.6
"""A server may begin to read what is due so long before its time."""
_DRAIN_RATE = 8000.0
"""Messages that fire in a second while others go on sending; a slower server is measured for as long as that takes."""
_MANY = 10_000_000


def _now_ms() -> float:
    return time.time() * 1000


@dataclass
class Arrivals:
    """Arrival times of delayed messages, by their numbers.

    Args:
        first: number of the first; what comes with another number was left from before.
        due_ms: when each is due, milliseconds since 1970.
        late_ms: by how much each was late; None if it has not come.
        stored_ms: when each was put into its topic, as the server says.
        duplicates: how many came more than once.
    """

    first: int
    due_ms: list[int]
    late_ms: list[float | None] = field(default_factory=list)
    stored_ms: list[int] = field(default_factory=list)
    duplicates: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        self.late_ms = [None] * len(self.due_ms)

    def due(self, number: int) -> int:
        """Return when the message of that number is due."""
        return self.due_ms[number - self.first]

    def arrived(self, message: definition.Message) -> None:
        """A message has come."""
        if self.came(message.body):
            self.stored_ms.append(message.system_properties.store_timestamp.ToMilliseconds())

    def came(self, body: bytes) -> bool:
        """A message with that body has come; whether it is one of these, for the first time."""
        index = int(body[: requests.SEQUENCE_DIGITS]) - self.first
        if not 0 <= index < len(self.due_ms):
            return False
        if self.late_ms[index] is not None:
            self.duplicates += 1
            return False
        self.late_ms[index] = _now_ms() - self.due_ms[index]
        self.count += 1
        return True

    async def all_came(self, timeout_s: float) -> None:
        """Wait until none is missing, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.count < len(self.due_ms):
                    await asyncio.sleep(0.01)

    def figures(self) -> Figures:
        """Return how late they came, and what went wrong."""
        late = [each for each in self.late_ms if each is not None]
        return {
            **percentiles("late", late),
            "early": float(sum(each < 0 for each in late)),
            "missing": float(len(self.due_ms) - self.count),
            "duplicates": float(self.duplicates),
        }


def _numbers() -> int:
    """A number from which on none was ever given."""
    return time.time_ns() // 1000


async def lateness(count: int, server: Server, scale: Scale) -> Figures:
    """Delayed messages whose due times are spread evenly, with consumers that wait for them."""
    topic = group = "bench-later"
    count = min(count, scale.timers_max)
    producers = await connect_all(server.address, CONNECTIONS, topic)
    consumers = await connect_all(server.address, CONNECTIONS, topic, group)
    try:
        await _make_delay_topic(producers[0], topic)
        queues = await consumers[0].queues()
        await prime(consumers[0], topic, group, queues)
        begin_ms = int(_now_ms() + (count / FILL_RATE + _QUIET_S) * 1000)
        spread_ms = scale.timers_s * 1000
        arrivals = Arrivals(_numbers(), [begin_ms + int(number * spread_ms / count) for number in range(count)])
        loop = ReceiveLoop(consumers, topic, group, queues, POLLERS, BATCH, arrivals.arrived)
        loop.start()
        errors = await _send_all(producers, topic, arrivals)
        behind_ms = max(0.0, _now_ms() - begin_ms)
        await asyncio.sleep((begin_ms - _now_ms()) / 1000)
        usage, began = Usage.now(server.pids), perf_counter()
        await asyncio.sleep(scale.timers_s)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        await arrivals.all_came(_ARRIVAL_TIMEOUT_S)
        loop.stop()
    finally:
        close_all(producers)
        close_all(consumers)
    return {
        **arrivals.figures(),
        "sent_too_late_ms": behind_ms,
        **cpu(server, used, count, took),
        "errors": float(errors + loop.outcome.errors.total()),
    }


async def accept(server: Server, scale: Scale) -> Figures:
    """Measure a delayed send beside a normal one, in turns: sends by 64 callers."""
    later_ms = int(_now_ms()) + _HOUR_MS
    normal, delayed = "bench-send", "bench-later"
    clients = {topic: await connect_all(server.address, CONNECTIONS, topic) for topic in (normal, delayed)}
    used_s = {normal: 0.0, delayed: 0.0}
    took_s = {normal: 0.0, delayed: 0.0}
    sent = {normal: 0, delayed: 0}
    errors, others_s = 0, 0.0
    try:
        await make_topic(clients[normal][0], normal)
        await _make_delay_topic(clients[delayed][0], delayed)
        for topic in (normal, delayed) * _ACCEPT_TURNS:
            template: requests.Template = requests.SendTemplate(topic, BODY_BYTES)
            if topic == delayed:
                # No second gets many of them.
                template = requests.DelayedTemplate(
                    topic, BODY_BYTES, lambda number: later_ms + number * 977 % _HOUR_MS, _numbers()
                )
            loop = SendLoop(clients[topic], template, 1, _SENDERS)
            loop.start()
            await asyncio.sleep(scale.warm_up_s)
            before, usage, began = loop.outcome.messages, Usage.now(server.pids), perf_counter()
            await asyncio.sleep(scale.seconds)
            used = Usage.now(server.pids).since(usage)
            took_s[topic] += perf_counter() - began
            sent[topic] += loop.outcome.messages - before
            used_s[topic] += used.server_s
            others_s += used.others_s
            errors += (await loop.stop()).errors.total()
            await asyncio.sleep(min(_QUIET_S, scale.seconds))
    finally:
        for each in clients.values():
            close_all(each)
    figures = {
        "messages_per_s": sent[delayed] / took_s[delayed],
        "normal_messages_per_s": sent[normal] / took_s[normal],
        "others_cpu_cores": others_s / sum(took_s.values()),
        "errors": float(errors),
    }
    if server.pids:
        figures["server_cpu_us"] = used_s[delayed] / max(1, sent[delayed]) * 1e6
        figures["normal_server_cpu_us"] = used_s[normal] / max(1, sent[normal]) * 1e6
        figures["delayed_to_normal"] = figures["server_cpu_us"] / max(1e-9, figures["normal_server_cpu_us"])
    return figures


async def burst(server: Server, scale: Scale) -> Figures:
    """Many messages due at the same millisecond: how fast they are put into their topic, and what others feel of it.

    Meanwhile others send to another topic at a steady pace, and receive. The burst's own messages are received
    afterwards; when each was put into its topic is what the server says.
    """
    topic = group = "bench-burst"
    steady = "bench-e2e"
    count = min(_BURST_COUNT, scale.timers_max)
    producers = await connect_all(server.address, CONNECTIONS, topic)
    consumers = await connect_all(server.address, CONNECTIONS, topic, group)
    producer = await Client.connect(server.address, steady)
    receivers = await connect_all(server.address, CONNECTIONS, steady, steady)
    try:
        await _make_delay_topic(producers[0], topic)
        await make_topic(producer, steady)
        queues, steady_queues = await consumers[0].queues(), await receivers[0].queues()
        await prime(consumers[0], topic, group, queues)
        await prime(receivers[0], steady, steady, steady_queues)
        due_ms = int(_now_ms() + (count / FILL_RATE + _QUIET_S + scale.calm_s + _SLOT_LEAD_S) * 1000)
        arrivals = Arrivals(_numbers(), [due_ms] * count)
        errors = await _send_all(producers, topic, arrivals)
        await asyncio.sleep(due_ms / 1000 - scale.calm_s - _SLOT_LEAD_S - time.time())
        sends = SteadySends.plan(int((scale.calm_s + _SLOT_LEAD_S + count / _DRAIN_RATE) * _STEADY_RATE))
        steady_loop = ReceiveLoop(receivers, steady, steady, steady_queues, POLLERS, BATCH, sends.arrived)
        steady_loop.start()
        due_at = perf_counter() + due_ms / 1000 - time.time()
        await send_steadily(producer, steady, BODY_BYTES, _STEADY_RATE, sends)
        await asyncio.sleep(min(_QUIET_S, scale.calm_s))
        steady_loop.stop()
        loop = ReceiveLoop(consumers, topic, group, queues, POLLERS, BATCH, arrivals.arrived)
        loop.start()
        await arrivals.all_came(_ARRIVAL_TIMEOUT_S)
        loop.stop()
    finally:
        for each in (producers, consumers, [producer], receivers):
            close_all(each)
    drained_s = (max(arrivals.stored_ms, default=due_ms) - due_ms) / 1000
    calm, fired = due_at - _SLOT_LEAD_S, due_at + drained_s
    figures = {
        "messages_per_s": arrivals.count / max(1e-3, drained_s),
        **percentiles("call_before", sends.send_ms(end_s=calm)),
        **percentiles("call", sends.send_ms(calm, fired)),
        **percentiles("e2e_before", sends.latencies_ms(end_s=calm)),
        **percentiles("e2e", sends.latencies_ms(calm, fired)),
        "early": float(sum(each < due_ms for each in arrivals.stored_ms)),
        "missing": float(count - arrivals.count + sends.missing),
        "duplicates": float(arrivals.duplicates + sends.duplicates),
        "errors": float(errors + loop.outcome.errors.total() + steady_loop.outcome.errors.total()),
    }
    for name in ("call", "e2e"):
        if figures.get(f"{name}_before_p99_ms") and f"{name}_p99_ms" in figures:
            figures[f"{name}_p99_ratio"] = figures[f"{name}_p99_ms"] / figures[f"{name}_before_p99_ms"]
    return figures


async def recovery(count: int, server: Server, scale: Scale) -> Figures:
    """Time from the start of the process to the first send answered with OK, with messages pending; memory then."""
    with_timers = await _server_with_timers(server, min(count, scale.timers_max))
    try:
        took = await with_timers.start()
        return {
            "first_send_s": took,
            "anonymous_mib": process.anonymous_mib(with_timers.pids),
            "resident_mib": process.resident_mib(with_timers.pids),
            "peak_mib": process.peak_mib(with_timers.pids),
            "data_mib": with_timers.log_mib,
        }
    finally:
        await with_timers.stop()


async def rest(server: Server, scale: Scale) -> Figures:
    """CPU of a server with many messages pending of which none is due."""
    with_timers = await _server_with_timers(server, min(_MANY, scale.timers_max))
    try:
        await with_timers.start()
        await asyncio.sleep(min(_QUIET_S, scale.idle_s))
        usage, began = Usage.now(with_timers.pids), perf_counter()
        await asyncio.sleep(scale.idle_s)
        took, used = perf_counter() - began, Usage.now(with_timers.pids).since(usage)
        return {
            "server_cpu_percent": used.server_s / took * 100,
            "others_cpu_cores": used.others_s / took,
            "anonymous_mib": process.anonymous_mib(with_timers.pids),
        }
    finally:
        await with_timers.stop()


CASES: dict[str, Case] = {
    "timers-2000": partial(lateness, 2000),
    "timers-100000": partial(lateness, 100_000),
    "timers-accept": accept,
    "timers-burst": burst,
    "timers-recovery-1m": partial(recovery, 1_000_000),
    "timers-recovery-10m": partial(recovery, _MANY),
    "timers-idle": rest,
}
"""Cases by name, in the order in which they run."""

OWN_ONLY = {"timers-recovery-1m", "timers-recovery-10m", "timers-idle"}
"""Cases that start servers of their own."""


async def _make_delay_topic(client: Client, topic: str) -> None:
    """Like `make_topic`, of a topic that takes delayed messages only: one that is due already."""
    await client.send(requests.DelayedTemplate(topic, BODY_BYTES, lambda _: int(_now_ms()), 0).make())


async def _send_all(clients: list[Client], topic: str, arrivals: Arrivals) -> int:
    """Send all messages, the first due first; how many errors there were."""
    count = len(arrivals.due_ms)
    last = arrivals.first + count - 1
    template = requests.DelayedTemplate(topic, BODY_BYTES, lambda each: arrivals.due(min(each, last)), arrivals.first)
    loop = SendLoop(clients, template, 1, min(_SENDERS, count), count)
    loop.start()
    return (await loop.finished()).errors.total()


async def _server_with_timers(server: Server, count: int) -> OwnServer:
    """A server like the one given, with messages pending; its data is made once and left as it is by each run."""
    own = own_server(server)
    found = OwnServer(own.flush, own.data_dir.parent / f"timers-{count}", (), own.compiled, forks=own.forks)
    if not found.data_dir.exists():
        await asyncio.to_thread(timer_data.build, found.data_dir, count)
    return found
