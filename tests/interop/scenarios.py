"""What the official Python client does and sees, one scenario per run, written as JSON lines on standard output.

A program of its own (`python -m tests.interop.scenarios ENDPOINT NAME`): the client from PyPI registers the same
protocol names as our code, and one process can have them only once. It judges nothing; tests do.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import ClientException

POLL_S = 2
INVISIBLE_S = 30
SHORT_INVISIBLE_S = 2
PATIENCE_S = 25.0
BIG_BODY_BYTES = 3 * 1024 * 1024


def report(event: str, **facts: object) -> None:
    """Tell one thing that happened, and when, in seconds of the monotonic clock."""
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n")
    sys.stdout.flush()


def facts_of(message: Any) -> dict[str, object]:
    """What the client shows of a received message."""
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode() if len(message.body) < 100 else hashlib.sha256(message.body).hexdigest(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "attempt": message.delivery_attempt,
        "corrupted": message.corrupted,
        "born_host": message.born_host,
        "born_timestamp": message.born_timestamp,
    }


class Client:
    """Makes clients of one server, and messages for it."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def configuration(self) -> ClientConfiguration:
        return ClientConfiguration(self._endpoint, Credentials(), request_timeout=5)

    @property
    def endpoint(self) -> str:
        """Of the server."""
        return self._endpoint

    @contextmanager
    def producer(self, *topics: str, checker: Any = None) -> Iterator[Any]:
        """A producer that has started."""
        producer = Producer(self.configuration(), topics, checker=checker)
        producer.startup()
        try:
            yield producer
        finally:
            producer.shutdown()

    @contextmanager
    def consumer(
        self, group: str, subscriptions: dict[str, str], poll_s: int = POLL_S, kind: int = FilterType.TAG
    ) -> Iterator[Any]:
        """A simple consumer that has started and subscribed; expressions by topic, of tags or of that kind."""
        consumer = SimpleConsumer(self.configuration(), group, await_duration=poll_s)
        consumer.startup()
        try:
            for topic, expression in subscriptions.items():
                consumer.subscribe(topic, FilterExpression(expression, kind))
            yield consumer
        finally:
            consumer.shutdown()

    @contextmanager
    def push_consumer(self, group: str, topic: str, listener: MessageListener, expression: Any = None) -> Iterator[Any]:
        """A push consumer that has started."""
        consumer = PushConsumer(self.configuration(), group, listener, {topic: expression or FilterExpression()})
        consumer.startup()
        try:
            yield consumer
        finally:
            consumer.shutdown()

    def send(self, topic: str, *bodies: str, tag: str | None = None) -> None:
        """Send plain messages one after the other by a producer of their own."""
        with self.producer(topic) as producer:
            for body in bodies:
                receipt = producer.send(make(topic, body.encode(), tag=tag))
                report("sent", body=body, id=receipt.message_id)


def make(topic: str, body: bytes, *, tag: str | None = None, message_group: str | None = None) -> Any:
    """A message of the client."""
    message = Message()
    message.topic = topic
    message.body = body
    if tag is not None:
        message.tag = tag
    if message_group is not None:
        message.message_group = message_group
    return message


def receive(consumer: Any, count: int, invisible_s: int = INVISIBLE_S, patience_s: float = PATIENCE_S) -> list[Any]:
    """Receive until `count` messages are there or patience ends."""
    received: list[Any] = []
    until = time.monotonic() + patience_s
    while len(received) < count and time.monotonic() < until:
        for message in consumer.receive(32, invisible_s):
            report("received", **facts_of(message))
            received.append(message)
    return received


def send_receive_ack(client: Client) -> None:
    """Ten messages with all that a message may bear, sent both ways, received and acked."""
    topic = "InteropFirst"
    with client.producer(topic) as producer:
        for number in range(10):
            message = make(topic, f"body {number}".encode(), tag="greeting")
            message.keys = f"key-{number}"
            message.add_property("number", str(number))
            receipt = producer.send(message) if number < 5 else producer.send_async(message).result()
            report("sent", body=f"body {number}", id=receipt.message_id, offset=receipt.offset)
    with client.consumer("interop-first", {topic: "*"}) as consumer:
        for message in receive(consumer, 10):
            consumer.ack(message)
            report("acked", id=message.message_id)
        report("left", count=len(consumer.receive(32, INVISIBLE_S)))


def redelivery(client: Client) -> None:
    """A message that is not acked in time comes again, then is acked and comes no more."""
    topic = "InteropRedelivery"
    client.send(topic, "again")
    with client.consumer("interop-redelivery", {topic: "*"}) as consumer:
        receive(consumer, 1, SHORT_INVISIBLE_S)
        for message in receive(consumer, 1):
            consumer.ack(message)
        report("left", count=len(consumer.receive(32, INVISIBLE_S)))


def changed_invisible_duration(client: Client) -> None:
    """A shorter invisible duration brings a message back sooner, and voids the receipt handle it had before."""
    topic = "InteropChange"
    client.send(topic, "sooner")
    with client.consumer("interop-change", {topic: "*"}) as consumer:
        for message in receive(consumer, 1):
            old_handle = message.receipt_handle
            consumer.change_invisible_duration(message, SHORT_INVISIBLE_S)
            report("changed", new_handle=message.receipt_handle != old_handle)
            message.receipt_handle = old_handle
            try:
                consumer.ack(message)
                report("old handle", code="OK")
            except ClientException as error:
                report("old handle", code=error.code, error=type(error).__name__)
        for message in receive(consumer, 1):
            consumer.change_invisible_duration(message, 2 * SHORT_INVISIBLE_S)
            report("changed", new_handle=True)
            consumer.ack(message)
            report("acked", id=message.message_id)
        report("left", count=len(consumer.receive(32, INVISIBLE_S)))


def tags(client: Client) -> None:
    """Three groups read the same messages by different expressions."""
    topic = "InteropTags"
    for tag in ("red", "green", "blue"):
        client.send(topic, f"{tag} 1", f"{tag} 2", tag=tag)
    client.send(topic, "none")
    for group, expression, count in (("one", "red", 2), ("two", "red || green", 4), ("all", "*", 7)):
        with client.consumer(f"interop-tags-{group}", {topic: expression}) as consumer:
            bodies = []
            for message in receive(consumer, count):
                bodies.append(message.body.decode())
                consumer.ack(message)
            report("got", expression=expression, bodies=sorted(bodies), left=len(consumer.receive(32, INVISIBLE_S)))


def sql_filters(client: Client) -> None:
    """Groups read the same messages by different conditions; what is not acked comes again; a bad one is refused."""
    topic = "InteropSql"
    with client.producer(topic) as producer:
        for number in range(12):
            message = make(topic, f"body {number}".encode(), tag="red" if number % 2 else "green")
            message.add_property("amount", str(number * 10))
            if number % 3 == 0:
                message.add_property("region", "EU")
            producer.send(message)
    for group, expression, count in (
        ("amount", "amount BETWEEN 20 AND 50", 4),
        ("region", "region IN ('EU', 'UK') AND NOT (amount = 0)", 3),
        ("tag", "TAGS = 'red' AND region IS NULL", 4),
    ):
        with client.consumer(f"interop-sql-{group}", {topic: expression}, kind=FilterType.SQL) as consumer:
            first = {message.body.decode() for message in receive(consumer, count, SHORT_INVISIBLE_S)}
            bodies: set[str] = set()
            attempts: set[int] = set()
            until = time.monotonic() + PATIENCE_S
            while len(bodies) < count and time.monotonic() < until:
                for message in consumer.receive(32, INVISIBLE_S):
                    bodies.add(message.body.decode())
                    attempts.add(message.delivery_attempt)
                    consumer.ack(message)
            left = len(consumer.receive(32, INVISIBLE_S))
            report("got", group=group, first=sorted(first), again=sorted(bodies), attempts=sorted(attempts), left=left)
    listener = _Listener(2)
    with client.push_consumer("interop-sql-push", topic, listener, FilterExpression("amount > 95", FilterType.SQL)):
        report("pushed", all=listener.done.wait(PATIENCE_S))
    with client.consumer("interop-sql-bad", {topic: "amount > 'a'"}, kind=FilterType.SQL) as consumer:
        try:
            consumer.receive(32, INVISIBLE_S)
        except ClientException as error:
            report("refused", code=error.code, text=str(error))


def dead_letters(client: Client) -> None:
    """A message that is not acked at its last attempt is found in the dead letter queue. The group allows two."""
    topic = "InteropDeadLetters"
    group = "interop-dead-letters"
    client.send(topic, "poison")
    with client.consumer(group, {topic: "*"}) as consumer:
        receive(consumer, 2, SHORT_INVISIBLE_S)
    with client.consumer("interop-undertaker", {f"%DLQ%{group}": "*"}) as consumer:
        for message in receive(consumer, 1):
            report("dead", **facts_of(message))
            consumer.ack(message)
    with client.consumer(group, {topic: "*"}) as consumer:
        report("left", count=len(consumer.receive(32, INVISIBLE_S)))


def big_bodies(client: Client) -> None:
    """Bodies of 3 MiB come out as they went in; one of more than 4 MiB is refused."""
    topic = "InteropBig"
    with client.producer(topic) as producer:
        for number in range(3):
            body = hashlib.sha512(str(number).encode()).digest() * (BIG_BODY_BYTES // 64)
            producer.send(make(topic, body))
            report("sent", digest=hashlib.sha256(body).hexdigest())
        try:
            producer.send(make(topic, b"x" * (4 * 1024 * 1024 + 1)))
            report("too big", error=None)
        except ClientException as error:
            report("too big", error=type(error).__name__)
    with client.consumer("interop-big", {topic: "*"}) as consumer:
        for message in receive(consumer, 3):
            consumer.ack(message)


def four_topics(client: Client) -> None:
    """One producer and one consumer of four topics."""
    topics = [f"InteropFour{number}" for number in range(4)]
    with client.producer(*topics) as producer:
        for topic in topics:
            producer.send(make(topic, f"for {topic}".encode()))
    with client.consumer("interop-four", dict.fromkeys(topics, "*"), poll_s=1) as consumer:
        for message in receive(consumer, 4):
            consumer.ack(message)


class _Listener(MessageListener):  # type: ignore[misc]
    """Reports what it is given, and fails on the first attempt of what it is asked to fail on."""

    def __init__(self, count: int, fails_on: str | None = None) -> None:
        self.done = threading.Event()
        self._left = count
        self._fails_on = fails_on
        self._lock = threading.Lock()

    def consume(self, message: Any) -> ConsumeResult:
        with self._lock:
            report("received", **facts_of(message))
            if message.delivery_attempt == 1 and message.body.decode() == self._fails_on:
                return ConsumeResult.FAILURE
            self._left -= 1
            if self._left == 0:
                self.done.set()
            return ConsumeResult.SUCCESS


def push(client: Client) -> None:
    """A push consumer gets all, and what it failed on once more after the first step of the back-off."""
    topic = "InteropPush"
    bodies = [f"push {number}" for number in range(20)]
    client.send(topic, *bodies)
    listener = _Listener(len(bodies), fails_on="push 7")
    with client.push_consumer("interop-push", topic, listener):
        report("finished", all=listener.done.wait(PATIENCE_S))
    with client.consumer("interop-push", {topic: "*"}) as consumer:
        report("left", count=len(consumer.receive(32, INVISIBLE_S)))


class _Checker(TransactionChecker):  # type: ignore[misc]
    """Commits what says so in its body, at the second time of asking if that is to be late; rolls back all else."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def check(self, message: Any) -> Any:
        body = message.body.decode()
        report("asked", **facts_of(message))
        if body.endswith("late") and body not in self._asked:
            self._asked.add(body)
            return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        return TransactionResolution.COMMIT if "commit" in body else TransactionResolution.ROLLBACK


def transactions(client: Client) -> None:
    """Half messages that are committed, rolled back, and left to be asked about, also by one that has died."""
    topic = "InteropTransactions"
    words = [sys.executable, "-m", "tests.interop.scenarios", client.endpoint, "dies_in_a_transaction"]
    subprocess.run(words, check=False)
    with client.producer(topic, checker=_Checker()) as producer:
        for body, end in (
            ("commit now", "commit"),
            ("roll back now", "rollback"),
            ("commit if asked", None),
            ("roll back if asked", None),
            ("commit if asked, late", None),
        ):
            transaction = producer.begin_transaction()
            receipt = producer.send(make(topic, body.encode()), transaction)
            report("half", body=body, id=receipt.message_id, transaction=receipt.transaction_id)
            if end is not None:
                getattr(transaction, end)()
        with client.consumer("interop-transactions", {topic: "*"}) as consumer:
            for message in receive(consumer, 4):
                consumer.ack(message)
            report("left", count=len(consumer.receive(32, INVISIBLE_S)))


def dies_in_a_transaction(client: Client) -> None:
    """A producer that sends a half message and is gone."""
    topic = "InteropTransactions"
    with client.producer(topic, checker=_Checker()) as producer:
        producer.send(make(topic, b"commit for the dead"), producer.begin_transaction())
        os._exit(0)


FIFO_LINES = 5
FIFO_MESSAGES = 100


def _send_in_order(client: Client, topic: str, messages: int) -> None:
    """Messages of several message groups, each group in its order, all groups at once."""
    with client.producer(topic) as producer:

        def send(line: int) -> None:
            for number in range(messages):
                producer.send(make(topic, f"{line} {number}".encode(), message_group=f"line-{line}"))

        senders = [threading.Thread(target=send, args=(line,)) for line in range(FIFO_LINES)]
        for each in senders:
            each.start()
        for each in senders:
            each.join()


class _OrderedListener(MessageListener):  # type: ignore[misc]
    """Reports what it is given; fails once on some messages, and always on the poison."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._failed: set[str] = set()
        self._left = FIFO_LINES * FIFO_MESSAGES - 1
        self._lock = threading.Lock()

    def consume(self, message: Any) -> ConsumeResult:
        with self._lock:
            body = message.body.decode()
            report("received", body=body, group=message.message_group)
            line, number = body.split()
            fails = int(number) % 50 == 7 + int(line) and body not in self._failed
            if fails or body == "2 30":
                self._failed.add(body)
                return ConsumeResult.FAILURE
            report("consumed", body=body)
            self._left -= 1
            if self._left == 0:
                self.done.set()
            return ConsumeResult.SUCCESS


def fifo_push(client: Client) -> None:
    """A push consumer gets each message group in its order, through failures, and past one message that never works."""
    topic, group = "InteropFifo", "interop-fifo"
    listener = _OrderedListener()
    with client.push_consumer(group, topic, listener):
        _send_in_order(client, topic, FIFO_MESSAGES)
        report("finished", all=listener.done.wait(60.0))
    with client.consumer("interop-fifo-undertaker", {f"%DLQ%{group}": "*"}) as consumer:
        for message in receive(consumer, 1):
            report("dead", **facts_of(message))
            consumer.ack(message)
    with client.consumer(group, {topic: "*"}) as consumer:
        report("left", count=len(consumer.receive(32, INVISIBLE_S)))


def fifo_simple(client: Client) -> None:
    """What a simple consumer does not ack comes again before its successors."""
    topic = "InteropFifoSimple"
    _send_in_order(client, topic, 10)
    failed: set[str] = set()
    with client.consumer("interop-fifo-simple", {topic: "*"}) as consumer:
        until = time.monotonic() + PATIENCE_S
        consumed = 0
        while consumed < FIFO_LINES * 10 and time.monotonic() < until:
            for message in consumer.receive(32, SHORT_INVISIBLE_S):
                body = message.body.decode()
                report("received", body=body, attempt=message.delivery_attempt, group=message.message_group)
                if body in ("1 3", "2 5", "2 6") and body not in failed:
                    failed.add(body)
                    continue
                consumer.ack(message)
                report("consumed", body=body)
                consumed += 1
        report("left", count=len(consumer.receive(32, INVISIBLE_S)))


def priorities(client: Client) -> None:
    """The highest priority comes first, to ordinary and FIFO groups; a push consumer gets all."""
    topic = "InteropPriority"
    with client.producer(topic) as producer:
        for number, priority in enumerate((0, 3, 12, 1, 3, 0, 9)):
            message = make(topic, b"body %d" % number)
            message.priority = priority
            producer.send(message)
    for group in ("interop-priority", "interop-priority-fifo"):
        with client.consumer(group, {topic: "*"}) as consumer:
            while messages := consumer.receive(1, INVISIBLE_S):
                for message in messages:
                    report("received", group=group, body=message.body.decode(), priority=message.priority)
                    consumer.ack(message)
    listener = _Listener(7)
    with client.push_consumer("interop-priority-push", topic, listener):
        report("pushed", all=listener.done.wait(PATIENCE_S))


def missing_topic(client: Client) -> None:
    """Sending to a topic that does not exist and is not made by itself. Run against a server that makes none."""
    try:
        with client.producer("InteropNoSuchTopic") as producer:
            report("started")
            producer.send(make("InteropNoSuchTopic", b"nowhere"))
            report("sent")
    except Exception as error:  # noqa: BLE001 - the client raises no type of its own here
        report("refused", text=str(error))


SCENARIOS: dict[str, Callable[[Client], None]] = {
    function.__name__: function
    for function in (
        send_receive_ack,
        redelivery,
        changed_invisible_duration,
        tags,
        sql_filters,
        dead_letters,
        big_bodies,
        four_topics,
        push,
        transactions,
        dies_in_a_transaction,
        fifo_push,
        fifo_simple,
        priorities,
        missing_topic,
    )
}


if __name__ == "__main__":
    SCENARIOS[sys.argv[2]](Client(sys.argv[1]))
