"""What is not acked comes again, as often as the group allows, and then is a dead letter (P1, P2, P5, P7)."""

import asyncio
import time

import httpx

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.standalone import StandaloneProcess

LATE_S = 2.0
"""How much later than due something may come on a busy machine."""


def create_group(server: StandaloneProcess, name: str, **settings: object) -> None:
    answer = httpx.post(f"{server.http_url}/api/v1/groups", json={"name": name, **settings})
    assert answer.status_code == 201, answer.text


async def test_a_message_that_is_not_acked_comes_again_when_it_is_due(client: MessagingClient) -> None:
    await client.send("Again", b"one")
    (first,) = await client.receive_all("again", "Again", 1, invisible_s=1.0)
    popped_at = time.monotonic()
    assert (await client.receive("again", "Again")).code == Code.MESSAGE_NOT_FOUND
    (second,) = await client.receive_all("again", "Again", 1, invisible_s=30.0)
    assert 0.9 <= time.monotonic() - popped_at <= 1.0 + LATE_S
    assert [each.system_properties.delivery_attempt for each in (first, second)] == [1, 2]
    assert second.system_properties.message_id == first.system_properties.message_id
    assert second.body == b"one"

    late = await client.ack("again", "Again", [first])
    assert late.status.code == late.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await client.ack("again", "Again", [second])).status.code == Code.OK


async def test_a_nack_brings_it_back_at_once(client: MessagingClient) -> None:
    await client.send("Nack", b"one")
    (message,) = await client.receive_all("nack", "Nack", 1, invisible_s=60.0)
    waiting = asyncio.create_task(client.receive("nack", "Nack", poll_s=10.0))
    started = time.monotonic()
    assert (await client.change_invisible("nack", "Nack", message, 0)).status.code == Code.OK
    (again,) = (await waiting).messages
    assert time.monotonic() - started <= LATE_S
    assert again.system_properties.delivery_attempt == 2
    assert (await client.ack("nack", "Nack", [again])).status.code == Code.OK


async def test_a_changed_invisible_duration_voids_the_old_handle(client: MessagingClient) -> None:
    await client.send("Change", b"one")
    (message,) = await client.receive_all("change", "Change", 1, invisible_s=60.0)
    old = definition.Message()
    old.CopyFrom(message)
    assert (await client.change_invisible("change", "Change", message, 60.0)).status.code == Code.OK
    assert message.system_properties.receipt_handle != old.system_properties.receipt_handle
    assert (await client.change_invisible("change", "Change", old, 1.0)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await client.ack("change", "Change", [old])).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await client.ack("change", "Change", [message])).status.code == Code.OK


async def test_a_back_off_that_grows_is_notified_and_applied(
    client: MessagingClient, server: StandaloneProcess
) -> None:
    grows = {"initial_ms": 300, "max_ms": 500, "multiplier": 2}
    create_group(server, "grows", exponential_backoff=grows)
    reported = httpx.get(f"{server.http_url}/api/v1/groups/grows").json()
    assert (reported["backoff_ms"], reported["exponential_backoff"]) == ([], grows)
    subscription = definition.Subscription(group=definition.Resource(name="grows"))
    said = definition.Settings(client_type=definition.PUSH_CONSUMER, subscription=subscription)
    policy = (await client.agree_on_settings(said)).backoff_policy.exponential_backoff
    assert (policy.initial.ToMilliseconds(), policy.max.ToMilliseconds(), policy.multiplier) == (300, 500, 2)

    await client.send("Growing", b"one")
    (message,) = await client.receive_all("grows", "Growing", 1)
    for attempt, wait_s in ((2, 0.3), (3, 0.5)):
        failed_at = time.monotonic()
        assert (await client.change_invisible("grows", "Growing", message, None)).status.code == Code.OK
        (message,) = await client.receive_all("grows", "Growing", 1)
        assert message.system_properties.delivery_attempt == attempt
        assert wait_s - 0.1 <= time.monotonic() - failed_at <= wait_s + LATE_S


async def test_the_back_off_of_the_group_is_notified_and_kept(
    client: MessagingClient, server: StandaloneProcess
) -> None:
    create_group(server, "patient", backoff_ms=[600, 1200], max_attempts=5)
    subscription = definition.Subscription(group=definition.Resource(name="patient"))
    said = definition.Settings(client_type=definition.PUSH_CONSUMER, subscription=subscription)
    policy = (await client.agree_on_settings(said)).backoff_policy
    assert policy.max_attempts == 5
    steps_s = [step.ToMilliseconds() / 1000 for step in policy.customized_backoff.next]
    assert steps_s == [0.6, 1.2]

    await client.send("Patience", b"one")
    (message,) = await client.receive_all("patient", "Patience", 1)
    for attempt, step_s in enumerate(steps_s, 2):
        failed_at = time.monotonic()
        assert (await client.change_invisible("patient", "Patience", message, step_s)).status.code == Code.OK
        (message,) = await client.receive_all("patient", "Patience", 1)
        assert message.system_properties.delivery_attempt == attempt
        assert step_s - 0.1 <= time.monotonic() - failed_at <= step_s + LATE_S
    assert (await client.ack("patient", "Patience", [message])).status.code == Code.OK


async def test_the_last_attempt_ends_in_the_dead_letter_queue(
    client: MessagingClient, server: StandaloneProcess
) -> None:
    create_group(server, "two-tries", max_attempts=2)
    await client.send("Poison", b"one")
    for attempt in (1, 2):
        (message,) = await client.receive_all("two-tries", "Poison", 1, invisible_s=0.5)
        assert message.system_properties.delivery_attempt == attempt
    (dead,) = await client.receive_all("undertaker", "%DLQ%two-tries", 1)
    assert dead.body == b"one"
    assert dead.system_properties.message_id == message.system_properties.message_id
    assert dead.system_properties.dead_letter_queue.topic == "Poison"
    assert (await client.ack("undertaker", "%DLQ%two-tries", [dead])).status.code == Code.OK
    assert (await client.receive("two-tries", "Poison")).code == Code.MESSAGE_NOT_FOUND


async def test_forwarding_to_the_dead_letter_queue(client: MessagingClient) -> None:
    await client.send("Forward", b"one")
    (message,) = await client.receive_all("forward", "Forward", 1, invisible_s=60.0)
    assert (await client.forward_to_dead_letters("forward", "Forward", message)).code == Code.OK
    (dead,) = await client.receive_all("undertaker", "%DLQ%forward", 1)
    assert dead.system_properties.message_id == message.system_properties.message_id
    assert (await client.ack("forward", "Forward", [message])).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_acks_of_many_have_a_status_each(client: MessagingClient) -> None:
    await client.send("Many", b"a", b"b", b"c")
    messages = await client.receive_all("many", "Many", 3)
    assert bodies(messages) == [b"a", b"b", b"c"]
    messages[1].system_properties.receipt_handle += "0"
    answer = await client.ack("many", "Many", messages)
    assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE, Code.OK]
    assert answer.status.code == Code.MULTIPLE_RESULTS


async def test_two_groups_get_everything_each(client: MessagingClient) -> None:
    await client.send("Shared", b"a", b"b")
    for group in ("left", "right"):
        messages = await client.receive_all(group, "Shared", 2)
        assert bodies(messages) == [b"a", b"b"]
        assert (await client.ack(group, "Shared", messages)).status.code == Code.OK
