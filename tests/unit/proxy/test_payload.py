"""Cutting messages: what is stored reads as what was sent, and garbage is refused with a status."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract.wire_format import field, varint
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendMessageRequest
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.payload import ClientMessage, messages_of

texts = st.text(max_size=20)
system_properties = st.builds(
    d.SystemProperties,
    tag=st.none() | texts,
    keys=st.lists(texts, max_size=3),
    message_id=texts,
    born_host=texts,
    queue_id=st.integers(0, 100),
    message_group=st.none() | texts,
    body_digest=st.none() | st.builds(d.Digest, checksum=texts),
)
heads = st.builds(
    d.Message,
    topic=st.builds(d.Resource, name=texts, resource_namespace=texts),
    user_properties=st.dictionaries(texts, texts, max_size=4),
)
unknown_fields = st.one_of(
    st.tuples(st.integers(5, 3000), st.integers(0, 2**64 - 1)).map(lambda at: varint(at[0] << 3) + varint(at[1])),
    st.tuples(st.integers(5, 3000), st.binary(max_size=20)).map(
        lambda at: varint(at[0] << 3 | 2) + varint(len(at[1])) + at[1]
    ),
    st.tuples(st.integers(5, 3000), st.binary(min_size=8, max_size=8)).map(lambda at: varint(at[0] << 3 | 1) + at[1]),
    st.tuples(st.integers(5, 3000), st.binary(min_size=4, max_size=4)).map(lambda at: varint(at[0] << 3 | 5) + at[1]),
    st.sampled_from([3, 4]).map(lambda number: varint(number << 3) + b"\x07"),  # of another wire type: unknown too
)


@st.composite
def encoded_messages(draw: st.DrawFn) -> bytes:
    """A message's fields in any order, its system properties and bodies any number of times, unknown fields between."""
    head = draw(heads)
    parts = [d.Message(topic=head.topic).SerializeToString()]
    parts += [
        d.Message(user_properties={name: value}).SerializeToString() for name, value in head.user_properties.items()
    ]
    parts += [field(3, one.SerializeToString()) for one in draw(st.lists(system_properties, max_size=3))]
    parts += [field(4, body) for body in draw(st.lists(st.binary(max_size=300), max_size=2))]
    parts += draw(st.lists(unknown_fields, max_size=3))
    random.Random(draw(st.integers(0, 1000))).shuffle(parts)
    return b"".join(parts)


def stored(message: ClientMessage) -> bytes:
    return message.payload + field(3, message.system_properties)


@given(st.lists(encoded_messages(), max_size=3))
def test_what_is_stored_reads_as_what_was_sent(messages: list[bytes]) -> None:
    cut = messages_of(b"".join(field(1, message) for message in messages), 128)
    assert len(cut) == len(messages)
    for one, sent in zip(cut, messages, strict=True):
        meant = d.Message.FromString(sent)
        meant.system_properties.SetInParent()
        assert d.Message.FromString(stored(one)) == meant
        assert one.properties == meant.system_properties
        assert one.head.topic == meant.topic
        assert one.head.user_properties == meant.user_properties
        assert len(one.body) == len(meant.body)
        assert one.head_bytes >= sum(
            len(name.encode()) + len(value.encode()) for name, value in meant.user_properties.items()
        )


@given(st.binary(max_size=200))
def test_garbage_is_refused_with_a_status(data: bytes) -> None:
    for request in (data, field(1, data), field(1, field(3, data))):
        try:
            for message in messages_of(request, 128):
                d.Message.FromString(stored(message))
        except StatusError as error:
            assert error.code == Code.BAD_REQUEST


@given(encoded_messages(), st.data())
def test_a_message_that_is_cut_off_or_changed_is_refused_or_still_readable(message: bytes, data: st.DataObject) -> None:
    request = bytearray(field(1, message))
    for _ in range(data.draw(st.integers(0, 3))):
        request[data.draw(st.integers(0, len(request) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(request[: data.draw(st.integers(0, len(request)))])
    try:
        found = messages_of(cut, 128)
    except StatusError as error:
        assert error.code == Code.BAD_REQUEST
    else:
        for one in found:
            d.Message.FromString(stored(one))  # a consumer can read all that is stored


@pytest.mark.parametrize(
    "inside",
    [
        b"\x0a",  # no length
        b"\x22\x05abc",  # cut off
        b"\x0b\x0c",  # a group
        b"\x00\x00",  # field 0
        b"\xff" * 11,  # a number of more than 64 bits
        field(1, b"\x12\x02\xff\xfe"),  # a topic that is not UTF-8
        field(2, b"\x0a\x02\xff\xfe"),  # a property's name that is not UTF-8
        field(3, b"\x1a\x02\xff\xfe"),  # a message id that is not UTF-8
        b"\x22\x81\x80\x80\x80\x80\x00a",  # a body whose length has more bytes than protobuf reads
        field(1, b"") + field(3, b"") + b"\x22\x81\x80\x80\x80\x80\x00a",  # the same in the usual order
        b"\xa2\x80\x80\x80\x80\x00\x01a",  # a body whose tag has
    ],
)
def test_each_kind_of_damage(inside: bytes) -> None:
    with pytest.raises(StatusError) as refused:
        messages_of(field(1, inside), 128)
    assert refused.value.code == Code.BAD_REQUEST


def test_a_length_may_have_more_bytes_than_it_needs() -> None:
    for start in (b"", field(1, b"") + field(3, b"")):
        inside = start + b"\x22\x81\x80\x80\x80\x00a"
        (message,) = messages_of(field(1, inside), 128)
        assert bytes(message.body) == b"a" == d.Message.FromString(stored(message)).body


def test_messages_in_the_usual_order_are_read_as_protobuf_reads_them() -> None:
    for seed in range(1500):
        rng = random.Random(seed)
        # A head may be the beginning of the next one's, or be that of all.
        starts = [b""]
        for _ in range(2):
            more = d.Message(topic=d.Resource(name=rng.choice("ab")), user_properties={rng.choice("cd"): "e"})
            starts.append(starts[-1] + more.SerializeToString())
        request = b""
        for _ in range(4):
            properties = d.SystemProperties(message_id=rng.choice(["", "m", "\xe4"]), born_host=rng.choice(["", "h"]))
            parts = [rng.choice(starts), field(3, properties.SerializeToString()), field(4, b"b" * rng.randrange(200))]
            inside = bytearray(b"".join(parts[: rng.choice([2, 3, 3, 3])]))
            if inside and rng.random() < 0.2:
                inside[rng.randrange(len(inside))] = rng.choice([0, 1, 0x0A, 0x12, 0x1A, 0x22, 0x7F, 0x80, 0xFF])
            request += field(1, bytes(inside))
        try:
            cut = messages_of(request, 128)
        except StatusError as error:
            assert error.code == Code.BAD_REQUEST
            continue
        for one, meant in zip(cut, SendMessageRequest.FromString(request).messages, strict=True):
            meant.system_properties.SetInParent()
            assert d.Message.FromString(stored(one)) == meant
            assert (bytes(one.body), one.head.topic) == (meant.body, meant.topic)
            assert one.head.user_properties == meant.user_properties
            assert one.message_id == meant.system_properties.message_id


def test_a_body_is_not_decoded() -> None:
    request = SendMessageRequest(messages=[d.Message(body=b"\xff" * 1000)]).SerializeToString()
    (message,) = messages_of(request, 128)
    assert len(message.body) == 1000
    assert message.head == d.Message()


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (field(1, b"") * 129, Code.PAYLOAD_TOO_LARGE),
        (field(1, field(2, b"") * 4097), Code.BAD_REQUEST),
        (field(1, field(2, b"") * 4097 + field(3, b"") + field(4, b"b")), Code.BAD_REQUEST),
        (field(1, field(9, b"") * 4097), Code.BAD_REQUEST),
        (field(9, b"") * 4097, Code.BAD_REQUEST),
    ],
)
def test_millions_of_empty_fields_are_refused_before_they_are_read(request_bytes: bytes, code: int) -> None:
    with pytest.raises(LimitError) as refused:
        messages_of(request_bytes + bytes(1), 128)  # the last byte is garbage, and must not be come to
    assert refused.value.code == code


@pytest.mark.parametrize("head", [b"", field(1, b"")])
def test_messages_of_many_fields_are_refused_before_all_of_them_are_read(head: bytes) -> None:
    own, body = field(3, field(3, b"m")), field(4, b"b")
    messages = [
        head + field(1, b"\x12\x01t") + (b"" if head else own) + body + field(9, b"") * 4_000 for _ in range(128)
    ]
    began_s = time.thread_time()
    with pytest.raises(LimitError, match="send them in several requests"):
        messages_of(b"".join(field(1, each) for each in messages), 128)
    assert time.thread_time() - began_s < 0.05
    few = field(1, messages[0]) * 8
    assert len(messages_of(few, 128)) == 8


def test_messages_with_as_many_properties_as_are_taken_are_read() -> None:
    sent = d.Message(body=b"b", user_properties={str(number): "v" for number in range(128)})
    data = field(3, field(3, b"m")) + sent.SerializeToString()  # out of the usual order
    assert len(messages_of(field(1, data) * 128, 128)) == 128


def test_long_system_properties_are_read_by_protobuf() -> None:
    properties = d.SystemProperties(message_id="m", keys=["k"] * 400)
    (message,) = messages_of(
        SendMessageRequest(messages=[d.Message(system_properties=properties)]).SerializeToString(), 1
    )
    assert (message.plain, message.message_id, list(message.keys)) == (None, "m", ["k"] * 400)
