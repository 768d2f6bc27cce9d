"""Two push consumers of one group: each message goes to one of them, and a failure comes again.

A listener that answers FAILURE, or raises, has its message again after the group's back-off.
"""

import sys
import threading

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

TOPIC = "Parcels"
GROUP = "couriers"
PARCELS = 6


class Courier(MessageListener):  # type: ignore[misc]  # the client has no types
    """Notes what it was given.

    Args:
        delivered: shared by all couriers: which parcel each message was, once for each delivery.
        all_delivered: set when every parcel was delivered.
    """

    def __init__(self, delivered: set[str], all_delivered: threading.Event) -> None:
        self._delivered = delivered
        self._all_delivered = all_delivered

    def consume(self, message: Message) -> ConsumeResult:
        """Called by the client in a thread of its own; the answer acknowledges the message, or has it come again."""
        self._delivered.add(message.body.decode())
        if len(self._delivered) == PARCELS:
            self._all_delivered.set()
        return ConsumeResult.SUCCESS


def main(address: str) -> None:
    """Send and consume at the server of this `host:port`."""
    server = ClientConfiguration(address, Credentials())
    delivered: set[str] = set()
    all_delivered = threading.Event()
    couriers = [
        PushConsumer(server, GROUP, Courier(delivered, all_delivered), {TOPIC: FilterExpression()}) for _ in range(2)
    ]
    producer = Producer(server, [TOPIC])
    producer.startup()
    for number in range(PARCELS):
        message = Message()
        message.topic = TOPIC
        message.body = f"parcel {number}".encode()
        producer.send(message)
    producer.shutdown()

    for courier in couriers:
        courier.startup()
    if not all_delivered.wait(timeout=60):
        sys.exit(f"only {sorted(delivered)} came within a minute")
    for courier in couriers:
        courier.shutdown()
    for parcel in sorted(delivered):
        print("delivered", parcel)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081")
