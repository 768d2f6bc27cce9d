"""What a sender left out is added, and nothing that he said is changed."""

from hashlib import md5

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendMessageRequest
from popwheel_proxy.protocol.payload import ClientMessage, messages_of
from popwheel_proxy.send.system_properties import missing_properties

PEER = "127.0.0.1:40000"


def cut(message: d.Message) -> ClientMessage:
    (only,) = messages_of(SendMessageRequest(messages=[message]).SerializeToString(), 128)
    return only


def completed(message: d.Message) -> d.SystemProperties:
    client_message = cut(message)
    return d.SystemProperties.FromString(
        client_message.system_properties + missing_properties(client_message, PEER, 5_000)
    )


def test_all_that_is_missing_is_added() -> None:
    properties = completed(d.Message(topic=d.Resource(name="t"), body=b"body"))
    assert properties.body_digest.type == d.MD5
    assert properties.body_digest.checksum == md5(b"body").hexdigest().upper()
    assert properties.body_encoding == d.IDENTITY
    assert properties.born_timestamp.ToMilliseconds() == 5_000
    assert properties.born_host == "127.0.0.1"


def test_what_the_sender_said_stays() -> None:
    said = d.SystemProperties(
        message_id="m", body_digest=d.Digest(type=d.CRC32, checksum="1"), body_encoding=d.GZIP, born_host="there"
    )
    said.born_timestamp.FromMilliseconds(1)
    message = d.Message(topic=d.Resource(name="t"), body=b"body", system_properties=said)
    assert missing_properties(cut(message), PEER, 5_000) == b""
    said.ClearField("born_host")
    message = d.Message(topic=d.Resource(name="t"), body=b"body", system_properties=said)
    said.born_host = "127.0.0.1"
    assert completed(message) == said
