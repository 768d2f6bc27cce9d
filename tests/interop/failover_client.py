"""The official Python client at work while masters come and go, written as JSON lines on standard output.

A program of its own for the same reason as `tests.interop.scenarios`:
`python -m tests.interop.failover_client ENDPOINT NAME [POLL_SECONDS SEND_EVERY_SECONDS]`.
Two threads send, one message after the other: to a topic of one queue, and to one of many; a third sends delayed
messages. Three threads receive and ack; given how long to poll, a fourth one waits where nothing comes. It judges
nothing; tests do. A line `quiet` on standard input ends the sends,
its end ends all. With KEEPALIVE in its environment it asks its proxy for signs of life, as docs/use/clients.md
says how.
"""

import functools
import json
import os
import sys
import threading
import time
from typing import Any

import grpc.aio
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

ORDERED = "FailoverOrdered"
SPREAD = "FailoverSpread"
LATER = "FailoverLater"
IDLE = "FailoverIdle"
"""Nobody sends to it: its polls are the long ones."""
GROUP = "failover"
SEND_EVERY_S = 0.02
POLL_S = 2
INVISIBLE_S = 15
"""Longer than any answer takes. What was delivered by a master that died before its answer left comes after this."""
REQUEST_TIMEOUT_S = 10
PAUSE_S = 0.1
DELAYS_S = (1, 2, 3)

KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", 3_000),  # how long a connect may take, too: 20 s without it
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
"""The client has no setting for these. Without them it does not notice a proxy that has vanished."""

_writing = threading.Lock()


def report(event: str, **facts: object) -> None:
    """Tell one thing that happened, and when, in seconds of the monotonic clock."""
    line = json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n"
    with _writing:
        sys.stdout.write(line)
        sys.stdout.flush()


def send(endpoint: str, topic: str, name: str, every_s: float, quiet: threading.Event) -> None:
    """Send one message after the other until it is to be quiet."""
    producer = Producer(configuration(endpoint), [topic])
    producer.startup()
    number = 0
    while not quiet.wait(every_s):
        number += 1
        body = f"{name}-{topic}-{number}"
        message = Message()
        message.topic = topic
        message.body = body.encode()
        due_ms = None
        if topic == LATER:
            due_s = int(time.time()) + DELAYS_S[number % len(DELAYS_S)]
            message.delivery_timestamp = due_s
            due_ms = due_s * 1000
        report("trying", body=body, sender=f"{name}-{topic}", number=number, due_ms=due_ms)
        try:
            receipt = producer.send(message)
            report("sent", body=body, offset=receipt.offset if topic == ORDERED else None)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test judges it
            report("failed", call="send", error=repr(error))
    producer.shutdown()


def consume(endpoint: str, topic: str, poll_s: int, ending: threading.Event) -> None:
    """Receive and ack until the end."""
    consumer = SimpleConsumer(configuration(endpoint), GROUP, await_duration=poll_s)
    consumer.startup()
    consumer.subscribe(topic, FilterExpression())
    while not ending.is_set():
        try:
            messages = consumer.receive(16, INVISIBLE_S) or ()
            report("polled", count=len(messages))
        except Exception as error:  # noqa: BLE001 - as above
            report("failed", call="receive", error=repr(error))
            ending.wait(PAUSE_S)
            continue
        for message in messages:
            tell(message)
            body = message.body.decode()
            report("acking", body=body)
            try:
                consumer.ack(message)
                report("acked", body=body)
            except Exception as error:  # noqa: BLE001 - as above
                report("failed", call="ack", body=body, error=repr(error))
    consumer.shutdown()


def tell(message: Any) -> None:
    """What came."""
    report(
        "delivered",
        body=message.body.decode(),
        topic=message.topic,
        attempt=message.delivery_attempt,
        handle=message.receipt_handle,
        at_ms=time.time() * 1000,
    )


def configuration(endpoint: str) -> ClientConfiguration:
    """How to reach the proxy."""
    return ClientConfiguration(endpoint, Credentials(), request_timeout=REQUEST_TIMEOUT_S)


def ask_for_signs_of_life() -> None:
    """Make channels that are opened from now on ask their server whether it is there."""
    for name in ("insecure_channel", "secure_channel"):
        setattr(grpc.aio, name, functools.partial(_with_keepalive, getattr(grpc.aio, name)))


def _with_keepalive(make: Any, *where: Any) -> Any:
    *first, options = where  # as this client calls it
    return make(*first, [*options, *KEEPALIVE])


def main() -> None:
    """Work until standard input ends."""
    if os.environ.get("KEEPALIVE"):
        ask_for_signs_of_life()
    endpoint, name, *more = sys.argv[1:]
    poll_s, every_s = (int(more[0]), float(more[1])) if more else (POLL_S, SEND_EVERY_S)
    quiet, ending = threading.Event(), threading.Event()
    topics = (ORDERED, SPREAD, LATER)
    senders = [threading.Thread(target=send, args=(endpoint, topic, name, every_s, quiet)) for topic in topics]
    polled = (*topics, IDLE) if more else topics
    consumers = [threading.Thread(target=consume, args=(endpoint, topic, poll_s, ending)) for topic in polled]
    for thread in (*senders, *consumers):
        thread.start()
    for line in sys.stdin:
        if line.strip() == "quiet":
            quiet.set()
            for thread in senders:
                thread.join()
            report("quiet")
    quiet.set()
    ending.set()
    for thread in (*senders, *consumers):
        thread.join()


if __name__ == "__main__":
    main()
