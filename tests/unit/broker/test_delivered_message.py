"""A delivered message is the sender's own, with the broker's additions, whatever he wrote (DESIGN 4, Payload)."""

from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.consume import delivered_message
from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.redelivery import dead_letter, redelivered
from popwheel_broker.log.record import StoredRecord
from popwheel_common.contract.wire_format import varint
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import (
    Encoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)

TEXT = st.text(max_size=20).filter(lambda text: not any("\ud800" <= each <= "\udfff" for each in text))
MESSAGES = st.builds(
    lambda name, namespace, properties, body: Message(
        topic=Resource(name=name, resource_namespace=namespace), user_properties=properties, body=body
    ),
    TEXT,
    TEXT,
    st.dictionaries(TEXT, TEXT, max_size=4),
    st.binary(max_size=200),
)
PROPERTIES = st.builds(
    SystemProperties,
    tag=st.none() | TEXT,
    keys=st.lists(TEXT, max_size=3),
    message_id=TEXT,
    body_encoding=st.sampled_from([Encoding.IDENTITY, Encoding.GZIP]),
    message_type=st.sampled_from([MessageType.NORMAL, MessageType.FIFO]),
    born_host=TEXT,
    # What only the broker says; a sender's word on it must not count.
    queue_id=st.integers(0, 9),
    queue_offset=st.integers(0, 9),
    delivery_attempt=st.none() | st.integers(0, 9),
    receipt_handle=st.none() | TEXT,
    store_host=TEXT,
)
UNKNOWN_FIELDS = st.lists(st.tuples(st.integers(100, 5000), st.binary(max_size=10)), max_size=2)


def with_unknown(data: bytes, fields: list[tuple[int, bytes]]) -> bytes:
    """Fields of a newer client, which this release's definition does not have."""
    return data + b"".join(varint(number << 3 | 2) + varint(len(inside)) + inside for number, inside in fields)


def top_fields(data: bytes) -> list[int]:
    """Numbers of the fields of a message that has length-delimited ones only, as they stand."""
    numbers, at = [], 0
    while at < len(data):
        tag, at = _DecodeVarint(data, at)
        assert tag & 7 == 2
        length, at = _DecodeVarint(data, at)
        at += length
        numbers.append(tag >> 3)
    return numbers


def stored(payload: bytes, system_properties: bytes, **changes: int) -> StoredRecord:
    fields = {"attempts": 0, "queue_id": 3, "queue_offset": 70_000, "store_time_ms": 1_800_000_000_123, **changes}
    return StoredRecord(
        1,
        "t",
        fields["queue_id"],
        payload,
        system_properties,
        0,
        fields["attempts"],
        b"",
        0,
        100,
        1,
        fields["store_time_ms"],
        fields["queue_offset"],
    )


@given(
    message=MESSAGES,
    properties=PROPERTIES,
    unknown=st.tuples(UNKNOWN_FIELDS, UNKNOWN_FIELDS),
    attempts=st.integers(0, 2**16 - 1),
    queue_id=st.integers(0, 2**16 - 1),
    queue_offset=st.integers(0, 2**62),
    store_time_ms=st.integers(0, 2**42),
    handle=st.text(alphabet="0123456789 abcdef", max_size=300),
    invisible_ms=st.integers(1, 10**9),
)
def test_a_popped_message(
    message: Message,
    properties: SystemProperties,
    unknown: tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]],
    attempts: int,
    queue_id: int,
    queue_offset: int,
    store_time_ms: int,
    handle: str,
    invisible_ms: int,
) -> None:
    payload = with_unknown(message.SerializeToString(), unknown[0])
    inside = with_unknown(properties.SerializeToString(), unknown[1])
    record = stored(
        payload, inside, attempts=attempts, queue_id=queue_id, queue_offset=queue_offset, store_time_ms=store_time_ms
    )
    (data,) = delivered_message.popped_messages(
        [record], delivered_message.common_properties("broker-7", invisible_ms), [handle]
    )
    assert top_fields(data).count(3) == 1
    found = Message.FromString(data)
    added = found.system_properties
    assert (added.queue_id, added.queue_offset, added.store_host) == (queue_id, queue_offset, "broker-7")
    assert (added.delivery_attempt, added.receipt_handle) == (attempts + 1, handle)
    assert added.invisible_duration.ToMilliseconds() == invisible_ms
    assert added.store_timestamp.ToMilliseconds() == store_time_ms
    expected = Message.FromString(payload)
    expected.system_properties.ParseFromString(inside)
    for field in ("queue_id", "queue_offset", "store_host", "delivery_attempt", "receipt_handle"):
        expected.system_properties.ClearField(field)
        added.ClearField(field)
    added.ClearField("invisible_duration")
    added.ClearField("store_timestamp")
    assert found == expected


@given(message=MESSAGES, properties=PROPERTIES)
def test_a_pulled_message(message: Message, properties: SystemProperties) -> None:
    properties.ClearField("receipt_handle")
    properties.ClearField("delivery_attempt")
    record = stored(message.SerializeToString(), properties.SerializeToString())
    found = Message.FromString(
        delivered_message.pulled_message(record, delivered_message.common_properties("broker-7", None))
    )
    assert (found.body, found.user_properties) == (message.body, message.user_properties)
    assert found.system_properties.queue_offset == 70_000
    assert not found.system_properties.HasField("receipt_handle")
    assert not found.system_properties.HasField("invisible_duration")


DELIVERY = Delivery(81, "g", "t", 0, 3, 70_000, 70_001, 1, 2, 3, 4, (70_000,))


@given(message=MESSAGES, properties=PROPERTIES, attempts=st.integers(0, 20))
def test_a_message_that_comes_again_is_the_same(message: Message, properties: SystemProperties, attempts: int) -> None:
    record = stored(message.SerializeToString(), properties.SerializeToString(), attempts=attempts)
    again = redelivered(DELIVERY, 0, record, attempted=True, attempts_max=50)
    assert (again.topic, again.attempts, again.payload) == ("%RETRY%g+t", attempts + 1, record.payload)
    assert again.system_properties.startswith(record.system_properties)
    if not properties.HasField("store_timestamp"):
        properties.store_timestamp.FromMilliseconds(record.store_time_ms)  # all that is added
    assert SystemProperties.FromString(again.system_properties) == properties
    assert redelivered(DELIVERY, 0, record, attempted=False, attempts_max=50).attempts == attempts


@given(message=MESSAGES, properties=PROPERTIES)
def test_a_dead_letter_says_where_it_came_from(message: Message, properties: SystemProperties) -> None:
    record = stored(message.SerializeToString(), properties.SerializeToString(), attempts=4)
    dead = redelivered(DELIVERY, 0, record, attempted=True, attempts_max=5)
    assert dead == dead_letter(DELIVERY, 0, record)
    found = Message.FromString(dead.payload)
    assert (dead.topic, dead.attempts, found.topic.name, found.body) == ("%DLQ%g", 0, "%DLQ%g", message.body)
    note = SystemProperties.FromString(dead.system_properties).dead_letter_queue
    assert (note.topic, note.message_id) == ("t", properties.message_id)


@given(payload=st.binary(max_size=40), system_properties=st.binary(max_size=40))
def test_any_bytes_can_become_a_dead_letter(payload: bytes, system_properties: bytes) -> None:
    """One way or the other it must leave the revive queue (P4)."""
    dead = dead_letter(DELIVERY, 0, stored(payload, system_properties))
    assert dead.topic == "%DLQ%g"
    assert dead.system_properties.startswith(system_properties)


@given(number=st.integers(0, 2**63))
def test_numbers(number: int) -> None:
    assert _DecodeVarint(varint(number), 0) == (number, len(varint(number)))
