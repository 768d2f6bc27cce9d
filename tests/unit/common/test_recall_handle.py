"""A recall handle proves which delayed message it is for; nobody else can make one."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract import recall_handle
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

KEY = b"k" * 32
HANDLE = recall_handle.encode(KEY, "orders", RecallHandle("broker-a", 4096, 1_700_000_000_123, "01ABCDEF"))


def spelt(data: bytes) -> str:
    """Any bytes in the spelling of handles."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@given(
    broker=st.text(alphabet="abc-_1", min_size=1, max_size=40),
    position=st.integers(0, 2**63 - 1),
    due_ms=st.integers(0, 2**63 - 1),
    message_id=st.text(max_size=256),
    epoch=st.integers(0, 2**63 - 1),
    topic_id=st.integers(0, 2**63 - 1),
)
def test_a_handle_is_read_as_it_was_made(
    broker: str, position: int, due_ms: int, message_id: str, epoch: int, topic_id: int
) -> None:
    message = RecallHandle(broker, position, due_ms, message_id, epoch, topic_id)
    handle = recall_handle.encode(KEY, "orders", message)
    assert recall_handle.decode(KEY, "orders", handle) == message
    assert recall_handle.broker_name(handle) == broker
    assert handle.isascii()
    assert handle[0] not in "-_", "a command line would take it for an option"
    assert handle.replace("-", "").replace("_", "").isalnum()


def test_a_handle_is_good_for_its_topic_and_key_only() -> None:
    for key, topic in ((b"x" * 32, "orders"), (KEY, "payments"), (KEY, "")):
        with pytest.raises(StatusError, match="was not issued for this topic") as refused:
            recall_handle.decode(key, topic, HANDLE)
        assert refused.value.code == Code.BAD_REQUEST


@pytest.mark.parametrize("index", range(len(HANDLE)))
def test_no_other_character_will_do(index: int) -> None:
    other = "A" if HANDLE[index] != "A" else "B"
    with pytest.raises(StatusError):
        recall_handle.decode(KEY, "orders", HANDLE[:index] + other + HANDLE[index + 1 :])


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "A",
        "garbled",
        HANDLE + "=",
        HANDLE + "\n",
        HANDLE + "!!!!",
        HANDLE[:-4],
        "ä" * 8,
        "\ud800" * 8,
        "A" * 100_000,
        spelt(b"broker-a x 1 id" + b"s" * 12),
        spelt(b"broker-a 1 1" + b"s" * 12),
        spelt(b" 1 1 id" + b"s" * 12),
        spelt(b"\xff\xfe 1 1 id" + b"s" * 12),
    ],
)
def test_garbled_handles_are_refused(handle: str) -> None:
    with pytest.raises(StatusError) as refused:
        recall_handle.decode(KEY, "orders", handle)
    assert refused.value.code == Code.BAD_REQUEST
    if handle != HANDLE[:-4]:  # cut short it still names its broker, which finds out
        with pytest.raises(StatusError):
            recall_handle.broker_name(handle)
