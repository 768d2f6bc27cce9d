"""The official Python client at work at one proxy until its standard input ends, written as JSON lines on standard
output.

A program of its own (`python -m tests.integration.cluster_client ENDPOINT NAME`), as the client registers the same
protocol names as our code. One thread sends, one receives and acks. It judges nothing; tests do.
"""

import json
import sys
import threading
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

TOPIC = "Load"
GROUP = "load"
SEND_EVERY_S = 0.03
POLL_S = 5
INVISIBLE_S = 4

_writing = threading.Lock()


def report(event: str, **facts: object) -> None:
    """Tell one thing that happened, and when, in seconds of the monotonic clock."""
    with _writing:
        sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n")
        sys.stdout.flush()


def send(endpoint: str, name: str, ending: threading.Event) -> None:
    """Send one message after the other."""
    producer = Producer(configuration(endpoint), [TOPIC])
    producer.startup()
    number = 0
    while not ending.wait(SEND_EVERY_S):
        number += 1
        message = Message()
        message.topic = TOPIC
        message.body = f"{name}-{number}".encode()
        began = time.monotonic()
        try:
            producer.send(message)
            report("sent", body=f"{name}-{number}", took=time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test judges it
            report("send failed", error=repr(error), took=time.monotonic() - began)
    producer.shutdown()


def consume(endpoint: str, ending: threading.Event) -> None:
    """Receive and ack."""
    consumer = SimpleConsumer(configuration(endpoint), GROUP, await_duration=POLL_S)
    consumer.startup()
    consumer.subscribe(TOPIC, FilterExpression())
    while not ending.is_set():
        began = time.monotonic()
        try:
            messages = consumer.receive(16, INVISIBLE_S)
            report("polled", count=len(messages), took=time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - as above
            report("poll failed", error=repr(error), took=time.monotonic() - began)
            ending.wait(0.1)
            continue
        for message in messages or ():
            try:
                consumer.ack(message)
                report("acked", body=message.body.decode())
            except Exception as error:  # noqa: BLE001 - as above
                report("ack failed", body=message.body.decode(), error=repr(error))
    consumer.shutdown()


def configuration(endpoint: str) -> ClientConfiguration:
    """How to reach the proxy."""
    return ClientConfiguration(endpoint, Credentials(), request_timeout=5)


def main() -> None:
    """Work until standard input ends."""
    endpoint, name = sys.argv[1:]
    ending = threading.Event()
    threads = [
        threading.Thread(target=send, args=(endpoint, name, ending)),
        threading.Thread(target=consume, args=(endpoint, ending)),
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ending.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
