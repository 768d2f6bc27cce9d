"""The official Python client at work, told as JSON lines on standard output (run by demo/run.py).

It sends ten messages, receives them, acks nine, waits until the tenth comes again, and acks that too.
"""

import json
import sys
import time
from typing import Any

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

TOPIC = "Orders"
GROUP = "billing"
MESSAGES = 10
LEFT_UNACKED = "order-4"
INVISIBLE_S = 10
POLL_S = 15
PATIENCE_S = 40.0


def report(event: str, **facts: object) -> None:
    """Tell one thing that happened, and when."""
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n")
    sys.stdout.flush()


def main(endpoint: str) -> None:
    """Send, receive and ack at the server of this `host:port`."""
    configuration = ClientConfiguration(endpoint, Credentials())
    producer = Producer(configuration, [TOPIC])
    producer.startup()
    for number in range(MESSAGES):
        receipt = producer.send(order(number))
        report("sent", key=f"order-{number}", id=receipt.message_id)
    producer.shutdown()

    consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression("paid")}, await_duration=POLL_S)
    consumer.startup()
    left = MESSAGES
    until = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < until:
        for message in consumer.receive(MESSAGES, INVISIBLE_S):
            (key,) = message.keys
            report(
                "received",
                key=key,
                id=message.message_id,
                tag=message.tag,
                properties=dict(message.properties),
                body=message.body.decode(),
                attempt=message.delivery_attempt,
            )
            if key == LEFT_UNACKED and message.delivery_attempt == 1:
                continue
            consumer.ack(message)
            report("acked", key=key)
            left -= 1
    consumer.shutdown()


def order(number: int) -> Any:
    """A message that bears all a plain message may bear."""
    message = Message()
    message.topic = TOPIC
    message.tag = "paid"
    message.keys = f"order-{number}"
    message.add_property("amount", str(100 + number))
    message.body = f"order {number} paid".encode()
    return message


if __name__ == "__main__":
    main(sys.argv[1])
