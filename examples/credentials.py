"""One user sends, and another one receives: each may do only that, if the server goes by examples/access.yaml."""

import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

TOPIC = "Orders"
GROUP = "billing-with-credentials"


def main(address: str) -> None:
    """Send and receive at the server of this `host:port`."""
    order_service = ClientConfiguration(address, Credentials("order-service", "change me, please"))
    producer = Producer(order_service, [TOPIC])
    producer.startup()
    message = Message()
    message.topic = TOPIC
    message.tag = "signed"
    message.body = b"order 1"
    producer.send(message)
    producer.shutdown()

    billing = ClientConfiguration(address, Credentials("billing", "change me, as well"))
    consumer = SimpleConsumer(billing, GROUP, {TOPIC: FilterExpression("signed")})
    consumer.startup()
    received = False
    while not received:
        for message in consumer.receive(1, 30):
            print("received", message.body.decode())
            consumer.ack(message)
            received = True
    consumer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081")
