"""The cases of Spark: reads and writes beside a plain script, beside Parquet, and beside the bench's own sender.

Each side is a process of its own, one after the other, on the same server and the same messages.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from bench.client import close_all, connect_all
from bench.requests import RandomTemplate, SendTemplate
from bench.server import Server
from bench.steps import BATCH, CONNECTIONS, Case, Figures, Scale, fill, make_topic

READ_TOPIC = "bench-spark"
ALIKE_TOPIC = "bench-spark-alike"
WRITE_TOPIC = "bench-spark-write"
STREAM_TOPIC = "bench-spark-stream"
QUEUES_TOPIC = "bench-spark-small"
_SMALL_TOPICS = 125
_SMALL_MESSAGES = 80
"""Messages of a topic, which is made with 8 queues."""
_TRIGGERS = 20
_FEW_BATCHES = 8
"""Messages of a topic that has hardly any: what a read of it takes, any read takes before its first row."""


class SideFailedError(Exception):
    """A process that had to measure something ended with an error."""


async def _side(module: str, *words: str) -> Figures:
    """Run a side that prints its figures as JSON in its last line.

    Raises:
        SideFailedError: it failed.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise SideFailedError(f"{module} {' '.join(words)} ended with {process.returncode}:\n{errors.decode()[-4000:]}")
    figures: Figures = json.loads(output.decode().splitlines()[-1])
    return figures


async def _filled(
    server: Server, topic: str, count: int, batch: int = BATCH, template: type[SendTemplate] = SendTemplate
) -> float:
    """Fill a topic; how many messages a second the bench's sender sent, from its first connection on."""
    began = asyncio.get_running_loop().time()
    clients = await connect_all(server.address, CONNECTIONS, topic)
    try:
        await make_topic(clients[0], topic)
        outcome = await fill(clients, topic, count, batch, template)
        return outcome.messages / (asyncio.get_running_loop().time() - began)
    finally:
        close_all(clients)


async def read(server: Server, scale: Scale) -> Figures:
    """Messages into Parquet, by Spark and by a plain script; and Spark's own read of that Parquet.

    No two bodies are alike, and none can be packed: Parquet holds, and reads, as many bytes as the topic.
    """
    return await _read(server, READ_TOPIC, scale.drain_messages, RandomTemplate)


async def read_alike(server: Server, scale: Scale) -> Figures:
    """The same with bodies that are all alike, which Parquet holds once for all rows."""
    return await _read(server, ALIKE_TOPIC, scale.drain_messages, SendTemplate)


async def _read(server: Server, topic: str, count: int, template: type[SendTemplate]) -> Figures:
    await _filled(server, topic, count, template=template)
    few_topic = f"{topic}-few"
    await _filled(server, few_topic, _FEW_BATCHES * BATCH, template=template)
    with tempfile.TemporaryDirectory(prefix="popwheel-bench-spark-") as folder:
        plain = await _side("bench.plain_archive", server.address, topic, str(Path(folder) / "plain.parquet"))
        spark = await _side("bench.spark_side", "read", server.address, topic, few_topic, folder)
    return {
        "messages_per_s": spark["archived_per_s"],
        "plain_per_s": plain["archived_per_s"],
        "to_plain": spark["archived_per_s"] / plain["archived_per_s"],
        "read_per_s": spark["read_per_s"],
        "parquet_per_s": spark["parquet_per_s"],
        "to_parquet": spark["read_per_s"] / spark["parquet_per_s"],
        "read_start_ms": spark["read_start_ms"],
        "parquet_start_ms": spark["parquet_start_ms"],
        "missing": plain["rows"] - spark["rows"],
    }


async def write(server: Server, scale: Scale) -> Figures:
    """Rows from Parquet as messages, by Spark; and as many by the bench's sender, as many in a request.

    Both times begin before the first connection. Spark's includes the start of its job, reported separately as well:
    `running_to_sender` is the rate without it.
    """
    count = scale.drain_messages
    with tempfile.TemporaryDirectory(prefix="popwheel-bench-spark-") as folder:
        await _filled(server, WRITE_TOPIC, count // 10)
        spark = await _side("bench.spark_side", "write", server.address, WRITE_TOPIC, folder, str(count))
    sender_per_s = await _filled(server, WRITE_TOPIC, count, int(spark["request_messages"]))
    return {
        "messages_per_s": count / spark["job_s"],
        "sender_per_s": sender_per_s,
        "to_sender": count / spark["job_s"] / sender_per_s,
        "job_start_s": spark["job_start_s"],
        "running_to_sender": count / (spark["job_s"] - spark["job_start_s"]) / sender_per_s,
    }


async def trigger(server: Server, scale: Scale) -> Figures:
    """Measure a micro-batch with nothing or hardly anything to do."""
    await _filled(server, STREAM_TOPIC, 1)
    with tempfile.TemporaryDirectory(prefix="popwheel-bench-spark-") as folder:
        return await _side("bench.spark_side", "trigger", server.address, STREAM_TOPIC, folder, str(_TRIGGERS))


async def queues(server: Server, scale: Scale) -> Figures:
    """Measure a read of a thousand queues of ten messages, the first time and then."""
    topics = [f"{QUEUES_TOPIC}-{number}" for number in range(_SMALL_TOPICS)]
    clients = await connect_all(server.address, CONNECTIONS, topics[0])
    try:
        for topic in topics:
            await make_topic(clients[0], topic)
            await fill(clients, topic, _SMALL_MESSAGES, 1)
    finally:
        close_all(clients)
    return await _side("bench.spark_side", "queues", server.address, ",".join(topics))


CASES: dict[str, Case] = {
    "spark-read": read,
    "spark-read-alike": read_alike,
    "spark-write": write,
    "spark-trigger": trigger,
    "spark-queues": queues,
}
"""Cases by name."""
