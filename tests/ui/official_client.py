"""The official Python client fills a cluster, says what it knows, and holds on until its standard input ends.

A program of its own (`python -m tests.ui.official_client ENDPOINT [plain]`): the client registers the same protocol
names as our code, and one process can have them only once. It writes one line of JSON: a `Known`. With `plain` it
sends nothing hostile.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
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

from tests.ui.known import HOSTILE, TYPES, Known

PATIENCE_S = 30.0
LONG_S = 1800
"""Held for longer than any test takes."""
SHORT_S = 1
ORDERS, PAYMENTS, STEPS, URGENT, REFUSED = 12, 8, 4, 3, 2
DUE_IN_S = (300, 7200, 7200, 3 * 86400, 3 * 86400, 20 * 86400)


class Undecided(TransactionChecker):  # type: ignore[misc]
    """Never knows what became of a transaction."""

    def check(self, message: Any) -> Any:
        return TransactionResolution.UNKNOWN


class Done(MessageListener):  # type: ignore[misc]
    """Counts what it is given."""

    def __init__(self, count: int) -> None:
        self.all = threading.Event()
        self._left = count

    def consume(self, message: Any) -> ConsumeResult:
        self._left -= 1
        if self._left == 0:
            self.all.set()
        return ConsumeResult.SUCCESS


class Work:
    """All that the client does, one thing after the other.

    Args:
        endpoint: of a proxy.
        is_plain: send nothing hostile.
    """

    def __init__(self, endpoint: str, *, is_plain: bool = False) -> None:
        self._hostile = ("c-17", "c-4") if is_plain else HOSTILE
        self._configuration = ClientConfiguration(endpoint, Credentials(), request_timeout=10)
        self.known = Known()
        self._open: list[Any] = []

    def do(self) -> None:
        """Send all, then have each group take what it takes."""
        self._send()
        self._push("ledger", "Payments", PAYMENTS)
        held = self._take("billing", "Orders", 9)
        for message in held[:4]:
            self._open[-1].ack(message)
        self.known.acked = held[0].message_id
        self.known.held["billing"] = [message.message_id for message in held[4:]]
        self.known.waiting["billing"] = ORDERS - len(held)
        self.known.held["steps"] = [message.message_id for message in self._take("steps", "Steps", 1)]
        self.known.waiting["steps"] = STEPS - 1
        self._take("fussy", "Refused", REFUSED, SHORT_S)
        self.known.dead["fussy"] = REFUSED
        self.known.held["undecided"] = [
            each.message_id for each in self._take("undecided", "Hostile", len(self._hostile))
        ]

    def close(self) -> None:
        """End all clients."""
        for each in self._open:
            each.shutdown()

    def _send(self) -> None:
        producer = Producer(self._configuration, [name for name in TYPES if name != "Transfers"])
        self._start(producer)
        for number in range(ORDERS):
            self._put(producer, "Orders", f"order {number}", tag="paid", keys=f"order-{number}")
        for number in range(PAYMENTS):
            self._put(producer, "Payments", f"payment {number}")
        for number in range(REFUSED):
            self._put(producer, "Refused", f"refused {number}")
        for number in range(STEPS):
            self._put(producer, "Steps", f"step {number}", message_group="cart-1")
        self.known.blocked = "cart-1"
        for number in range(URGENT):
            self._put(producer, "Urgent", f"urgent {number}", priority=number)
        for name in ("anna", "bert"):
            self._put(producer, "Chats", f"to {name}", lite_topic=name)
        for number, seconds in enumerate(DUE_IN_S):
            due_s = int(time.time()) + seconds
            self._put(producer, "Reminders", f"reminder {number}", keys="remind", delivery_timestamp=due_s)
        self.known.delayed = len(DUE_IN_S)
        for text in self._hostile:
            # No client sends a tag that has a bar, or is as long as a key may be.
            facts = {"tag": text[:100], "keys": text, "properties": {"what": text[:1000]}}
            self.known.hostile.append(self._put(producer, "Hostile", text, **facts))
        transactions = Producer(self._configuration, ["Transfers"], checker=Undecided())
        self._start(transactions)
        for end in ("commit", "rollback", ""):
            transaction = transactions.begin_transaction()
            transactions.send(self._made("Transfers", f"transfer, {end or 'open'}"), transaction)
            if end:
                getattr(transaction, end)()
        self.known.sent["Transfers"] = 1

    def _put(self, producer: Any, topic: str, body: str, **facts: Any) -> str:
        self.known.sent[topic] = self.known.sent.get(topic, 0) + 1
        return str(producer.send(self._made(topic, body, **facts)).message_id)

    def _made(self, topic: str, body: str, *, properties: dict[str, str] | None = None, **facts: Any) -> Any:
        message = Message()
        message.topic = topic
        message.body = body.encode()
        for name, value in facts.items():
            setattr(message, name, value)
        for name, value in (properties or {}).items():
            message.add_property(name, value)
        return message

    def _take(self, group: str, topic: str, count: int, invisible_s: int = LONG_S) -> list[Any]:
        """Receive a number of messages, and acknowledge none."""
        consumer = SimpleConsumer(self._configuration, group, await_duration=1)
        self._start(consumer)
        consumer.subscribe(topic, FilterExpression())
        self.known.holders[group] = consumer.client_id
        received: list[Any] = []

        def take() -> bool:
            received.extend(consumer.receive(count - len(received), invisible_s) or ())
            return len(received) == count

        wait_until(take, f"{group} was given {count}")
        return received

    def _push(self, group: str, topic: str, count: int) -> None:
        done = Done(count)
        consumer = PushConsumer(self._configuration, group, done, {topic: FilterExpression()})
        self._start(consumer)
        assert done.all.wait(PATIENCE_S), f"{group} was not pushed {count}"
        self.known.waiting[group] = 0

    def _start(self, client: Any) -> None:
        client.startup()
        self._open.append(client)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, f"not in time: {what}"


def main() -> None:
    """Work, tell, and stay."""
    work = Work(sys.argv[1], is_plain=sys.argv[2:] == ["plain"])
    work.do()
    sys.stdout.write(json.dumps(work.known.as_json()) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    work.close()


if __name__ == "__main__":
    main()
