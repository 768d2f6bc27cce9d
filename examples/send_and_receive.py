"""Send five orders, receive those that are paid, and acknowledge each.

What is not acknowledged within the 30 seconds comes again, to any consumer of the group.
"""

import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

TOPIC = "Orders"
GROUP = "billing"


def main(address: str) -> None:
    """Send and receive at the server of this `host:port`."""
    server = ClientConfiguration(address, Credentials())

    producer = Producer(server, [TOPIC])
    producer.startup()
    for number in range(5):
        message = Message()
        message.topic = TOPIC
        message.tag = "paid" if number % 2 == 0 else "open"
        message.keys = f"order-{number}"
        message.body = f"order {number}".encode()
        producer.send(message)
    producer.shutdown()

    consumer = SimpleConsumer(server, GROUP, {TOPIC: FilterExpression("paid")})
    consumer.startup()
    left = 3
    while left:
        for message in consumer.receive(32, 30):  # up to 32 messages, hidden from the other consumers for 30 seconds
            print("received", message.body.decode(), "attempt", message.delivery_attempt)
            consumer.ack(message)
            left -= 1
    consumer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081")
