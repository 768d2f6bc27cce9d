"""`soak`: 256 callers and a drain of what they send, side by side for long: what slow calls and memory come to.

`--seconds 600` makes it the ten minutes of docs/internals/performance.md.
"""

import asyncio
import statistics
from time import perf_counter

from bench import process, requests
from bench.client import close_all, connect_all
from bench.load import ReceiveLoop, SendLoop
from bench.process import Usage
from bench.server import Server
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
    percentiles,
    prime,
)

TOPIC = "bench-soak"
_CALLERS = 256


async def soak(server: Server, scale: Scale) -> Figures:
    """Send and receive as fast as it goes; memory at a tenth of the time and at the end, of which logs are no part."""
    producers = await connect_all(server.address, CONNECTIONS, TOPIC)
    consumers = await connect_all(server.address, CONNECTIONS, TOPIC, TOPIC)
    try:
        await make_topic(producers[0], TOPIC)
        queues = await consumers[0].queues()
        await prime(consumers[0], TOPIC, TOPIC, queues)
        sending = SendLoop(producers, requests.SendTemplate(TOPIC, BODY_BYTES, 1), 1, _CALLERS)
        receiving = ReceiveLoop(consumers, TOPIC, TOPIC, queues, POLLERS, BATCH)
        sending.start()
        receiving.start()
        await asyncio.sleep(scale.warm_up_s)
        sent, got = sending.outcome, receiving.outcome
        sent.latencies_ms.clear()
        sent_before, got_before = sent.messages, got.messages
        usage, began = Usage.now(server.pids), perf_counter()
        await asyncio.sleep(scale.seconds / 10)
        first_mib = process.anonymous_mib(server.pids)
        await asyncio.sleep(scale.seconds * 9 / 10)
        took, used = perf_counter() - began, Usage.now(server.pids).since(usage)
        last_mib = process.anonymous_mib(server.pids)
        sent_count, got_count, latencies = sent.messages - sent_before, got.messages - got_before, sent.latencies_ms[:]
        receiving.stop()
        await sending.stop()
    finally:
        close_all(producers)
        close_all(consumers)
    return {
        "messages_per_s": sent_count / took,
        "received_per_s": got_count / took,
        **percentiles("call", latencies),
        "call_p999_ms": statistics.quantiles(latencies, n=1000, method="inclusive")[998],
        "anonymous_first_mib": first_mib,
        "anonymous_mib": last_mib,
        "duplicates": float(receiving.duplicates),
        **cpu(server, used, sent_count, took),
        "errors": float(sent.errors.total() + got.errors.total()),
    }


CASES: dict[str, Case] = {"soak": soak}
