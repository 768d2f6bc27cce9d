"""The id of a send stands behind stored system properties and is not seen by clients."""

from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract.send_id import SEND_ID_BYTES, encode_send_id, send_id_of, without_send_id
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties


@given(st.binary(max_size=40), st.integers(0, 2**64 - 1))
def test_an_id_is_found_and_cut_off_again(properties: bytes, send_id: int) -> None:
    stored = properties + encode_send_id(send_id)
    assert (send_id_of(stored), without_send_id(stored)) == (send_id, properties)
    assert len(stored) == len(properties) + SEND_ID_BYTES


@given(st.text(max_size=40), st.lists(st.text(max_size=20)))
def test_properties_without_an_id_stay_as_they_are(message_id: str, keys: list[str]) -> None:
    stored = SystemProperties(message_id=message_id, keys=keys).SerializeToString()
    assert (send_id_of(stored), without_send_id(stored)) == (None, stored)


def test_clients_can_read_properties_with_an_id() -> None:
    stored = SystemProperties(message_id="m", priority=3).SerializeToString() + encode_send_id(7)
    read = SystemProperties.FromString(stored)
    assert (read.message_id, read.priority) == ("m", 3)
