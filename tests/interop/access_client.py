"""The official Python client with some credentials: sends a message, receives and acks it, and says how far it came.

A program of its own (`python -m tests.interop.access_client ENDPOINT TOPIC GROUP [ACCESS_KEY SECRET]`), as
`scenarios.py` is.
"""

import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Producer, SimpleConsumer

from tests.interop.scenarios import make, receive, report

POLL_S = 2


def main(endpoint: str, topic: str, group: str, access_key: str = "", secret: str = "") -> None:
    """Send, then receive; a refusal of either is told."""
    credentials = Credentials(access_key, secret) if access_key else Credentials()
    configuration = ClientConfiguration(endpoint, credentials, request_timeout=5)
    try:
        producer = Producer(configuration, (topic,))
        producer.startup()
        report("sent", id=producer.send(make(topic, b"with a key")).message_id)
        producer.shutdown()
    except Exception as error:  # noqa: BLE001 - the client raises several kinds
        report("refused", what="send", kind=type(error).__name__, text=str(error))
    try:
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
