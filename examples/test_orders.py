"""A test of your own program with a real server: `.venv/bin/python -m pytest examples/test_orders.py`.

docs/use/testing.md says more. In a project with several files of tests the next assignment stands in the topmost
conftest.py.
"""

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

from popwheel_testing import PopwheelServer

pytest_plugins = ["popwheel_testing.plugin"]


def test_an_order_is_received(popwheel: PopwheelServer, popwheel_topic: str, popwheel_group: str) -> None:
    server = ClientConfiguration(popwheel.endpoints, Credentials())
    producer = Producer(server, [popwheel_topic])
    producer.startup()
    order = Message()
    order.topic = popwheel_topic
    order.body = b"order 1"
    producer.send(order)
    producer.shutdown()

    consumer = SimpleConsumer(server, popwheel_group, {popwheel_topic: FilterExpression()})
    consumer.startup()
    received: list[bytes] = []
    while not received:
        for message in consumer.receive(32, 30):
            received.append(message.body)
            consumer.ack(message)
    consumer.shutdown()
    assert received == [b"order 1"]


def test_each_test_has_a_topic_of_its_own(popwheel_topic: str) -> None:
    assert popwheel_topic.startswith("test-each-test-has-a-topic-of-its-own-")
