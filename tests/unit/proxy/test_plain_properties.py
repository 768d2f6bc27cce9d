"""What is read by hand of system properties is what protobuf reads in them; all else is left to protobuf."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract.times import NANOS_PER_S, is_time
from popwheel_common.contract.wire_format import field
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_proxy.protocol.plain_properties import plain_properties

ascii_texts = st.text(st.characters(max_codepoint=127), max_size=40)
timestamps = st.builds(Timestamp, seconds=st.integers(0, 2**35), nanos=st.integers(0, 999_999_999))
ordinary = st.builds(
    d.SystemProperties,
    tag=st.none() | ascii_texts,
    keys=st.lists(ascii_texts, max_size=3),
    message_id=ascii_texts,
    body_digest=st.none() | st.builds(d.Digest, type=st.sampled_from([0, 1, 2, 3]), checksum=ascii_texts),
    body_encoding=st.sampled_from([0, 1, 2]),
    message_type=st.sampled_from([0, 1]),
    born_timestamp=st.none() | timestamps,
    born_host=ascii_texts,
    queue_id=st.integers(0, 100),
)


def agrees(data: bytes) -> bool:
    """Whether they were read by hand; then nothing of them may be read otherwise by protobuf."""
    found = plain_properties(data)
    if found is None:
        return False
    meant = d.SystemProperties.FromString(data)
    assert found.message_id == meant.message_id
    assert found.tag == (meant.tag if meant.HasField("tag") else None)
    assert (found.keys or []) == list(meant.keys)
    assert found.has_digest == meant.HasField("body_digest")
    assert found.body_encoding == meant.body_encoding
    assert found.message_type == meant.message_type
    assert found.has_birth == meant.HasField("born_timestamp")
    assert found.born_host == meant.born_host
    assert is_time(meant.born_timestamp), "what is no time is left to protobuf, to be refused"
    for name in ("tag", "keys", "message_id", "body_digest", "body_encoding", "message_type", "born_timestamp"):
        meant.ClearField(name)
    meant.ClearField("born_host")
    meant.ClearField("queue_id")
    assert meant == d.SystemProperties()  # there was nothing else, unknown fields included
    assert not meant.SerializeToString()
    return True


@given(ordinary)
def test_ordinary_ones_are_read_by_hand(properties: d.SystemProperties) -> None:
    assert agrees(properties.SerializeToString()) or properties.born_timestamp.seconds >= 2**35


@given(st.integers(-(2**31), 2**31 - 1) | st.integers(NANOS_PER_S - 300, NANOS_PER_S + 300))
def test_any_nanoseconds_of_a_second_are_read_by_hand_and_no_others(nanos: int) -> None:
    data = d.SystemProperties(born_timestamp=Timestamp(seconds=1, nanos=nanos)).SerializeToString()
    assert agrees(data) is (0 <= nanos < NANOS_PER_S)


@given(ordinary, ordinary, st.data())
def test_damaged_and_odd_ones_are_read_alike_or_left(
    first: d.SystemProperties, second: d.SystemProperties, data: st.DataObject
) -> None:
    whole = first.SerializeToString() + second.SerializeToString()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3)) if whole else 0):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    agrees(bytes(changed[: data.draw(st.integers(0, len(changed)))]))


@given(st.binary(max_size=40))
def test_garbage_is_left_or_read_alike(data: bytes) -> None:
    agrees(data)
    agrees(field(4, data))
    agrees(field(7, data))


@pytest.mark.parametrize(
    "special",
    [
        d.SystemProperties(message_type=d.FIFO, message_group="g"),
        d.SystemProperties(message_type=d.TRANSACTION),
        d.SystemProperties(delivery_timestamp=Timestamp(seconds=1)),
        d.SystemProperties(receipt_handle="forged"),
        d.SystemProperties(store_host="elsewhere"),
        d.SystemProperties(priority=0),
        d.SystemProperties(trace_context="t"),
        d.SystemProperties(lite_topic="l"),
        d.SystemProperties(message_id="ä"),
        d.SystemProperties(message_id="m" * 128),
    ],
)
def test_special_ones_are_left(special: d.SystemProperties) -> None:
    assert plain_properties(special.SerializeToString()) is None
