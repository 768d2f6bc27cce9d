"""A simple consumer of the official Python client that tells what comes and when, until its standard input ends.

A program of its own (`python -m tests.interop.timer_consumer ENDPOINT TOPIC GROUP`) for the same reason as
`tests.interop.scenarios`. One JSON line for each message: its body, its delivery attempt, and when `receive` gave it,
in milliseconds since 1970. It goes on while the server is away.
"""

import json
import sys
import threading
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

POLL_S = 2
INVISIBLE_S = 10
PAUSE_S = 0.1


def main() -> None:
    """Receive and ack."""
    endpoint, topic, group = sys.argv[1:]
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    configuration = ClientConfiguration(endpoint, Credentials(), request_timeout=5)
    consumer = SimpleConsumer(configuration, group, await_duration=POLL_S)
    consumer.startup()
    consumer.subscribe(topic, FilterExpression("*"))
    while not ended.is_set():
        try:
            messages = consumer.receive(32, INVISIBLE_S)
        except Exception as error:  # noqa: BLE001 - the client raises whatever gRPC raised; a killed server is expected
            sys.stderr.write(f"receive: {error!r}\n")
            ended.wait(PAUSE_S)
            continue
        at_ms = time.time() * 1000
        for message in messages:
            facts = {"body": message.body.decode(), "attempt": message.delivery_attempt, "at_ms": at_ms}
            sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        for message in messages:
            try:
                consumer.ack(message)
            except Exception as error:  # noqa: BLE001 - likewise; it comes again
                sys.stderr.write(f"ack: {error!r}\n")
    consumer.shutdown()


if __name__ == "__main__":
    main()
