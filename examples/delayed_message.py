"""Send two messages that are due in a few seconds, take one of them back, and wait for the other."""

import sys
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

TOPIC = "Reminders"
GROUP = "reminded"
AHEAD_S = 3


def main(address: str) -> None:
    """Send, recall and receive at the server of this `host:port`."""
    server = ClientConfiguration(address, Credentials())
    due_s = int(time.time()) + AHEAD_S

    producer = Producer(server, [TOPIC])
    producer.startup()
    receipts = {}
    for body in ("tea is ready", "dinner is ready"):
        message = Message()
        message.topic = TOPIC
        message.body = body.encode()
        message.delivery_timestamp = due_s
        receipts[body] = producer.send(message)
    producer.recall_message(TOPIC, receipts["dinner is ready"].recall_handle)
    producer.shutdown()

    consumer = SimpleConsumer(server, GROUP, {TOPIC: FilterExpression()})
    consumer.startup()
    left = 1
    while left > 0:
        for message in consumer.receive(32, 30):
            print("received", message.body.decode(), "in time" if time.time() >= due_s else "too early")
            consumer.ack(message)
            left -= 1
    consumer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081")
