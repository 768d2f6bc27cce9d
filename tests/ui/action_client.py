"""The official Python client does what a test tells it, so that effects of forms are seen through it.

A program of its own (`python -m tests.ui.action_client ENDPOINT`), as `official_client` is. It reads one order a line,
in JSON, and answers each with a line: `{"answer": ...}`, or `{"error": ...}` with the client's words.
"""

import json
import sys
import time
from typing import Any

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer


class Orders:
    """One client of each kind that is needed, kept until the end.

    Args:
        endpoint: of a proxy.
    """

    def __init__(self, endpoint: str) -> None:
        self._configuration = ClientConfiguration(endpoint, Credentials(), request_timeout=10)
        self._producers: dict[str, Any] = {}
        self._consumers: dict[tuple[str, str], Any] = {}
        self._taken: dict[str, tuple[Any, Any]] = {}

    def send(self, topic: str, body: str, *, anew: bool = False, **facts: Any) -> str:
        """Send a message; its id. `anew`: by a producer that has asked for the topic's route just before."""
        if anew and topic in self._producers:
            self._producers.pop(topic).shutdown()
        if topic not in self._producers:
            self._producers[topic] = Producer(self._configuration, [topic])
            self._producers[topic].startup()
        message = Message()
        message.topic = topic
        message.body = body.encode()
        for name, value in facts.items():
            setattr(message, name, value)
        return str(self._producers[topic].send(message).message_id)

    def take(
        self, group: str, topic: str, count: int = 1, within_s: float = 15.0, invisible_s: int = 1800, ack: bool = False
    ) -> list[dict[str, Any]]:
        """Receive messages up to a count, or until the time is over; fewer are no error."""
        consumer = self._consumers.get((group, topic))
        if consumer is None:
            consumer = SimpleConsumer(self._configuration, group, await_duration=1)
            consumer.startup()
            consumer.subscribe(topic, FilterExpression())
            self._consumers[group, topic] = consumer
        found: list[dict[str, Any]] = []
        until = time.monotonic() + within_s
        while len(found) < count and time.monotonic() < until:
            for message in consumer.receive(count - len(found), invisible_s) or ():
                if ack:
                    consumer.ack(message)
                else:
                    self._taken[message.message_id] = (consumer, message)
                found.append(
                    {
                        "id": message.message_id,
                        "body": message.body.decode(),
                        "tag": message.tag,
                        "keys": list(message.keys or ()),
                        "properties": dict(message.properties or {}),
                        "attempt": message.delivery_attempt,
                    }
                )
        return found

    def ack(self, message_id: str) -> None:
        """Acknowledge a message that was taken."""
        consumer, message = self._taken.pop(message_id)
        consumer.ack(message)

    def close(self) -> None:
        """End all clients."""
        for each in (*self._producers.values(), *self._consumers.values()):
            each.shutdown()


def main() -> None:
    """Do what each line says."""
    orders = Orders(sys.argv[1])
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"answer": getattr(orders, order.pop("do"))(**order)}
        except Exception as error:  # noqa: BLE001 - the test sees it, whatever it is
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    orders.close()


if __name__ == "__main__":
    main()
