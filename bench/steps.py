"""Steps of the cases: sizes, topics, filling, and how figures are put together."""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench import requests
from bench.client import CallFailedError, Client
from bench.load import Outcome, SendLoop
from bench.process import Usage
from bench.server import OwnServer, Server
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition

BODY_BYTES = 1024
BATCH = 32
BATCH_CONCURRENCY = 16
POLLERS = 16
CONNECTIONS = 4
ARRIVAL_TIMEOUT_S = 15.0
E2E_RATE = 50.0
QUIET_S = 2.0

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of a run.

    Args:
        seconds: of sending that are measured.
        warm_up_s: of sending before that.
        drain_messages: how many are received and acked.
        e2e_s: of steady sends.
        idle_s: of watching an idle server.
        polls: open on an idle server.
        memory_messages: sent before memory is read.
        bulk_messages: that come due at once, or are read from a cold disk.
        crash_s: of sends before the kill.
        timers_s: over which delayed messages are spread.
        timers_max: how many delayed messages at the most, whatever the case's name says.
        calm_s: of steady sends before many timers fire at once.
        late_s: how long after the last send a message may still come, with many brokers.
        brokers: of a cluster of many.
        many_polls: open there.
        failovers: in one run.
        part: of what a whole server of `growth-...` is filled with.
        forks: servers are forked from one that has loaded their modules: a quicker start, whose figures mean nothing.
    """

    seconds: float = 5.0
    warm_up_s: float = 2.0
    drain_messages: int = 200_000
    e2e_s: float = 20.0
    idle_s: float = 20.0
    polls: int = 2000
    memory_messages: int = 2_000_000
    bulk_messages: int = 300_000
    crash_s: float = 2.0
    timers_s: float = 60.0
    timers_max: int = 100_000_000
    calm_s: float = 5.0
    late_s: float = 30.0
    brokers: int = 8
    many_polls: int = 10_000
    failovers: int = 10
    part: float = 1.0
    forks: bool = False


TINY = Scale(
    seconds=1.0,
    warm_up_s=0.1,
    drain_messages=640,
    e2e_s=0.5,
    idle_s=0.3,
    polls=20,
    memory_messages=3200,
    bulk_messages=640,
    crash_s=0.2,
    timers_s=0.5,
    timers_max=200,
    calm_s=0.3,
    late_s=1.0,
    brokers=2,
    many_polls=40,
    failovers=1,
    part=0.0005,
    forks=True,
)
"""Shows that all of it works, not how fast."""


Case = Callable[[Server, Scale], Awaitable[Figures]]


def own_server(server: Server) -> OwnServer:
    """A server as one that was started here.

    Raises:
        TypeError: it was not.
    """
    if not isinstance(server, OwnServer):
        raise TypeError(f"{server.name} was not started here")
    return server


async def make_topic(client: Client, topic: str) -> None:
    """Topics come into being with their first message, where they may."""
    await client.send(requests.SendTemplate(topic, BODY_BYTES).make())


async def prime(client: Client, topic: str, group: str, queues: Sequence[definition.MessageQueue]) -> None:
    """Receive all there is: a group exists from its first poll on, and on some servers begins behind what was sent."""
    request = requests.receive(topic, group, queues[0], BATCH, 0.0)
    while True:
        messages, error = requests.received(await client.call(requests.RECEIVE, request))
        if error:
            raise CallFailedError(error)
        if not messages:
            return
        await client.call(requests.ACK, requests.ack(topic, group, messages))


async def fill(
    clients: Sequence[Client],
    topic: str,
    count: int,
    batch: int = BATCH,
    template: Callable[[str, int, int], requests.SendTemplate] = requests.SendTemplate,
) -> Outcome:
    """Send a number of messages in batches."""
    loop = SendLoop(clients, template(topic, BODY_BYTES, batch), batch, BATCH_CONCURRENCY, count)
    loop.start()
    return await loop.finished()


def percentiles(name: str, values_ms: Sequence[float]) -> Figures:
    """Median, 99th hundredth and greatest, as figures of that name."""
    if len(values_ms) < 2:
        return {}
    hundredths = statistics.quantiles(values_ms, n=100, method="inclusive")
    return {f"{name}_p50_ms": hundredths[49], f"{name}_p99_ms": hundredths[98], f"{name}_max_ms": max(values_ms)}


def cpu(server: Server, used: Usage, messages: int, took_s: float) -> Figures:
    """CPU per message and in all; `others` is what disturbed the run."""
    count = max(1, messages)
    figures = {
        "loader_cpu_us": used.loader_s / count * 1e6,
        "loader_cpu_cores": used.loader_s / took_s,
        "others_cpu_cores": used.others_s / took_s,
    }
    if server.pids:
        figures["server_cpu_us"] = used.server_s / count * 1e6
        figures["server_cpu_cores"] = used.server_s / took_s
    if isinstance(server, OwnServer) and not server.is_one_process:
        parent_s, brokers_s, workers_s = (
            used.each_s[0],
            used.each_s[1 : 1 + server.brokers],
            used.each_s[1 + server.brokers :],
        )
        figures["proxy_cpu_us"] = sum(workers_s) / count * 1e6
        figures["brokers_cpu_us"] = sum(brokers_s) / count * 1e6
        figures["parent_cpu_us"] = parent_s / count * 1e6
    return figures
