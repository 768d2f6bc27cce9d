"""The official Python client with some credentials: sends a message, receives and acks it, and says how far it came.

A program of its own (`python -m tests.interop.access_client ENDPOINT TOPIC GROUP CONSUMER [ACCESS_KEY SECRET]`), as
`scenarios.py` is. CONSUMER is `simple`, or `push`, which speaks TLS, as does its producer.
"""

import sys
import threading
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)

from tests.interop.scenarios import make, receive, report

POLL_S = 2
PATIENCE_S = 10.0


class Listener(MessageListener):  # type: ignore[misc]
    """Tells of a message, which is acked then."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def consume(self, message: Any) -> ConsumeResult:
        report("acked", id=message.message_id)
        self.done.set()
        return ConsumeResult.SUCCESS


def main(endpoint: str, topic: str, group: str, kind: str, access_key: str = "", secret: str = "") -> None:
    """Send, then receive; a refusal of either is told."""
    credentials = Credentials(access_key, secret) if access_key else Credentials()
    configuration = ClientConfiguration(endpoint, credentials, request_timeout=5)
    patience_s = 2.0  # with a wrong secret this client starts all the same
    try:
        producer = Producer(configuration, (topic,), tls_enable=kind == "push")
        producer.startup()
        report("sent", id=producer.send(make(topic, b"with a key")).message_id)
        patience_s = PATIENCE_S
        producer.shutdown()
    except Exception as error:  # noqa: BLE001 - the client raises several kinds
        report("refused", what="send", kind=type(error).__name__, text=str(error))
    try:
        if kind == "push":
            listener = Listener()
            consumer = PushConsumer(configuration, group, listener, {topic: FilterExpression()}, tls_enable=True)
            consumer.startup()
            listener.done.wait(patience_s)
        else:
            consumer = SimpleConsumer(configuration, group, await_duration=POLL_S)
            consumer.startup()
            consumer.subscribe(topic, FilterExpression("*"))
            for message in receive(consumer, 1):
                consumer.ack(message)
                report("acked", id=message.message_id)
        consumer.shutdown()
    except Exception as error:  # noqa: BLE001 - the same
        report("refused", what="receive", kind=type(error).__name__, text=str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
