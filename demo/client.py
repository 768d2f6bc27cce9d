"""The official Python client at work, told as JSON lines on standard output (run by demo/run.py).

It sends ten messages, receives them, acks nine, waits until the tenth comes again, and acks that too. Meanwhile it
sends two more with a delivery time, and notes when each comes.
"""

import json
import sys
import threading
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

REMINDERS = "Reminders"
"""A topic for messages with a delivery time."""
READERS = "readers"
AHEAD_S = (3.0, 7.5)


def report(event: str, **facts: object) -> None:
    """Tell one thing that happened, and when."""
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n")
    sys.stdout.flush()


def main(endpoint: str) -> None:
    """Send, receive and ack at the server of this `host:port`."""
    configuration = ClientConfiguration(endpoint, Credentials())
    reminders = threading.Thread(target=remind, args=[configuration])
    reminders.start()
    consume_orders(configuration)
    reminders.join()


def consume_orders(configuration: ClientConfiguration) -> None:
    """Send messages, and consume each; one of them in the second attempt only."""
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


def remind(configuration: ClientConfiguration) -> None:
    """Send messages ahead of their time, and wait for each."""
    consumer = SimpleConsumer(configuration, READERS, {REMINDERS: FilterExpression()}, await_duration=POLL_S)
    consumer.startup()
    producer = Producer(configuration, [REMINDERS])
    producer.startup()
    for ahead_s in AHEAD_S:
        due_s = wait_until_whole_second(ahead_s)
        message = Message()
        message.topic = REMINDERS
        message.keys = f"in {ahead_s:g} s"
        message.body = b"it is time"
        message.delivery_timestamp = due_s
        producer.send(message)
        report("delayed", key=f"in {ahead_s:g} s", due_s=due_s)
    left = len(AHEAD_S)
    until = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < until:
        for message in consumer.receive(len(AHEAD_S), INVISIBLE_S):
            came_s = time.time()
            (key,) = message.keys
            report("came", key=key, came_s=came_s)
            consumer.ack(message)
            left -= 1
    producer.shutdown()
    consumer.shutdown()


def wait_until_whole_second(ahead_s: float) -> int:
    """Wait until it is a whole second so far ahead; that second. This client writes delivery times in whole seconds."""
    due_s = int(time.time() + ahead_s) + 1
    time.sleep(max(0.0, due_s - ahead_s - time.time()))
    return due_s


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
