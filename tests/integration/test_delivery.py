"""What a delivered message bears: all that the official clients read, whatever the sender left out."""

import hashlib

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, make_message


async def deliver(client: MessagingClient, message: definition.Message) -> definition.Message:
    request = service.SendMessageRequest(messages=[message])
    answer = await client.call("SendMessage", request, service.SendMessageResponse)
    assert answer.status.code == answer.entries[0].status.code == Code.OK, answer
    assert answer.entries[0].message_id == message.system_properties.message_id
    topic = message.topic.name
    (delivered,) = await client.receive_all("delivery", topic, 1)
    assert (await client.ack("delivery", topic, [delivered])).status.code == Code.OK
    return delivered


async def test_all_that_was_sent_comes_out_and_what_clients_need_is_added(client: MessagingClient) -> None:
    sent = make_message("Delivery", b"body", tag="tag")
    sent.user_properties.update({"a": "1", "b": "2"})
    sent.system_properties.keys.extend(["k1", "k2"])
    sent.system_properties.trace_context = "trace"
    sent.system_properties.body_digest.type = definition.MD5
    sent.system_properties.body_digest.checksum = hashlib.md5(b"body").hexdigest().upper()
    delivered = await deliver(client, sent)

    added = delivered.system_properties
    assert added.receipt_handle
    assert added.delivery_attempt == 1
    assert added.invisible_duration.seconds == 30
    assert added.HasField("queue_offset")
    assert 0 <= added.queue_id < 8
    assert added.store_timestamp.seconds >= sent.system_properties.born_timestamp.seconds
    assert added.store_host
    added.ClearField("receipt_handle")
    added.ClearField("delivery_attempt")
    added.ClearField("invisible_duration")
    added.ClearField("queue_offset")
    added.ClearField("queue_id")
    added.ClearField("store_timestamp")
    added.ClearField("store_host")
    assert delivered == sent


async def test_a_digest_and_an_encoding_are_added_where_the_sender_gave_none(client: MessagingClient) -> None:
    sent = make_message("Bare", b"body")
    sent.system_properties.ClearField("body_encoding")
    properties = (await deliver(client, sent)).system_properties
    assert properties.body_encoding == definition.IDENTITY
    assert properties.body_digest.type == definition.MD5
    assert properties.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()


async def test_a_header_that_no_client_sends_is_not_asked_for(client: MessagingClient) -> None:
    client.metadata = tuple(pair for pair in client.metadata if pair[0] == "x-mq-client-id")
    assert (await client.send("Headers", b"body")).status.code == Code.OK


async def test_a_client_without_an_id_is_notified_so(client: MessagingClient) -> None:
    client.metadata = ()
    assert (await client.send("Headers", b"body")).status.code == Code.CLIENT_ID_REQUIRED
