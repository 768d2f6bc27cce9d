"""What consumers of lite topics of the official Python client do and see, written as JSON lines on standard output.

A program of its own (`python -m tests.interop.lite_client ENDPOINT`), as `scenarios.py` is.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rocketmq import ConsumeResult, MessageListener
from rocketmq.v5.consumer import LitePushConsumer, LiteSimpleConsumer
from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException

from tests.interop.scenarios import INVISIBLE_S, PATIENCE_S, SHORT_INVISIBLE_S, Client, make, receive, report

TOPIC = "InteropLite"
GROUP, ORDERED_GROUP, SIMPLE_GROUP = "interop-lite", "interop-lite-fifo", "interop-lite-simple"
USERS = 6
MESSAGES = 5
FAILS_ONCE = "u1 2"
POISON = "u3 3"


class Listener(MessageListener):  # type: ignore[misc]
    """Reports what it is given; fails once on one message, and always on another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._failed: set[str] = set()
        self._consumed: set[str] = set()
        self._changed = threading.Condition()

    def consume(self, message: Any) -> ConsumeResult:
        body = message.body.decode()
        facts = {"attempt": message.delivery_attempt, "topic": message.topic, "lite_topic": message.lite_topic}
        report("pushed", consumer=self.name, body=body, **facts)
        if body == POISON or (body == FAILS_ONCE and body not in self._failed):
            self._failed.add(body)
            return ConsumeResult.FAILURE
        with self._changed:
            self._consumed.add(body)
            self._changed.notify_all()
        return ConsumeResult.SUCCESS

    def wait(self, *bodies: str) -> bool:
        """Whether all these have been consumed, in a while."""
        with self._changed:
            return self._changed.wait_for(lambda: self._consumed.issuperset(bodies), 40.0)


@contextmanager
def reader(client: Client, kind: Any, group: str, *lite_topics: str, listener: Listener | None = None) -> Iterator[Any]:
    """A consumer of some lite topics that has started."""
    if listener is not None:
        consumer = kind(client.configuration(), group, TOPIC, listener)
    else:
        consumer = kind(TOPIC, client.configuration(), group, 2)
    consumer.startup()
    try:
        subscribe(consumer, *lite_topics)
        yield consumer
    finally:
        consumer.shutdown()


def subscribe(consumer: Any, *lite_topics: str) -> None:
    """Read these, too, as client 5.1.2 has to be used.

    A simple consumer has a quota of 0 until its settings have come, which it does not wait for.
    """
    until = time.monotonic() + PATIENCE_S
    for each in lite_topics:
        while True:
            try:
                consumer.subscribe_lite(each)
                break
            except LiteSubscriptionQuotaExceededException:
                if time.monotonic() > until:
                    raise
                threading.Event().wait(0.05)


def send(producer: Any, lite_topic: str | None, body: str) -> None:
    message = make(TOPIC, body.encode())
    if lite_topic is not None:
        message.lite_topic = lite_topic
    producer.send(message)


def attempt(what: str, do: Callable[[], object]) -> None:
    """Report what the client says of something that is refused."""
    try:
        do()
        report("not refused", what=what)
    except Exception as error:  # noqa: BLE001 - some of what the client raises has no type of its own
        report("refused", what=what, error=type(error).__name__, code=int(getattr(error, "code", 0) or 0))


def push(client: Client, producer: Any) -> None:
    """Two clients of a group that share a lite topic, and one of an ordered group."""
    anna, bert, carl = Listener("anna"), Listener("bert"), Listener("carl")
    last = MESSAGES - 1
    with (
        reader(client, LitePushConsumer, GROUP, "u0", "u1", "u2", listener=anna) as first,
        reader(client, LitePushConsumer, GROUP, "u2", "u3", listener=bert),
        reader(client, LitePushConsumer, ORDERED_GROUP, "u1", "u3", listener=carl),
    ):
        for number in range(MESSAGES):
            for user in range(USERS):
                send(producer, f"u{user}", f"u{user} {number}")
        report(
            "finished",
            anna=anna.wait(f"u0 {last}", f"u1 {last}"),
            bert=bert.wait(f"u3 {last}"),
            carl=carl.wait(f"u1 {last}", f"u3 {last}"),
        )
        first.unsubscribe_lite("u0")
        send(producer, "u0", "u0 unread")
        send(producer, "u1", "u1 after")
        report("unsubscribed", after=anna.wait("u1 after"))
        for word in ("a b", "*", "a" * 65):
            attempt(f"lite topic {word[:3]}", lambda word=word: first.subscribe_lite(word))  # type: ignore[misc]
    attempt("message without a lite topic", lambda: send(producer, None, "for none"))


def simple(client: Client) -> None:
    """What a simple consumer does not acknowledge comes again before its successors, and holds up no other."""
    with reader(client, LiteSimpleConsumer, SIMPLE_GROUP, "u4", "u5") as consumer:
        failed, consumed = False, 0
        until = time.monotonic() + PATIENCE_S
        while consumed < 2 * MESSAGES and time.monotonic() < until:
            for message in consumer.receive(32, SHORT_INVISIBLE_S):
                body = message.body.decode()
                report("received", body=body, attempt=message.delivery_attempt, lite_topic=message.lite_topic)
                if body == "u4 1" and not failed:
                    failed = True
                    continue
                consumer.ack(message)
                consumed += 1
        report("left", count=len(consumer.receive(32, INVISIBLE_S)))
    with client.consumer(SIMPLE_GROUP, {TOPIC: "*"}) as consumer:
        # At the first receive the server may not have heard yet what it is.
        attempt("ordinary consumer", lambda: [consumer.receive(1, INVISIBLE_S) for _ in range(2)])
    for group in (GROUP, ORDERED_GROUP):
        with client.consumer(f"{group}-undertaker", {f"%DLQ%{group}": "*"}) as consumer:
            for message in receive(consumer, 1):
                report("dead", group=group, body=message.body.decode())
                consumer.ack(message)


if __name__ == "__main__":
    its_server = Client(sys.argv[1])
    with its_server.producer(TOPIC) as its_producer:
        push(its_server, its_producer)
    simple(its_server)
