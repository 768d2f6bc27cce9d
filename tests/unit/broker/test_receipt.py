"""Receipt handles: what was delivered is read, and nothing else passes for it (P3, P7)."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract import receipt
from popwheel_common.contract.receipt import BrokerNameReader, HandleMaker, HandleReader, ReceiptHandle
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

KEY = b"a key of the tests"
NAMES = st.text(alphabet="%abcXYZ_-019", min_size=1, max_size=60)
NUMBERS = st.integers(0, 2**63)
HANDLES = st.builds(
    ReceiptHandle,
    delivery_id=NUMBERS,
    pop_time_ms=NUMBERS,
    invisible_ms=NUMBERS,
    revive_queue=st.integers(0, 7),
    origin=st.integers(0, 1),
    broker_name=st.text(alphabet=string.ascii_letters + "-_", min_size=1, max_size=64),
    queue_id=st.integers(0, 2**16),
    queue_offset=NUMBERS,
)
EXAMPLE = ReceiptHandle(81, 1_800_000_000_000, 30_000, 1, 0, "broker-0", 3, 12345)


def made(handle: ReceiptHandle, key: bytes = KEY, group: str = "g", topic: str = "t") -> str:
    return HandleMaker(key, group, topic, handle).handle(handle.queue_offset)


def refused(text: str, key: bytes = KEY, group: str = "g", topic: str = "t") -> None:
    with pytest.raises(StatusError) as caught:
        receipt.decode(key, group, topic, text)
    assert caught.value.code == Code.INVALID_RECEIPT_HANDLE
    # Neither first nor after one that is good.
    for reader in (HandleReader(key, group, topic), reader_of(EXAMPLE, key, group, topic)):
        with pytest.raises(StatusError) as caught:
            reader.read(text)
        assert caught.value.code == Code.INVALID_RECEIPT_HANDLE


def reader_of(handle: ReceiptHandle, key: bytes, group: str, topic: str) -> HandleReader:
    """A reader that has just read a good handle."""
    reader = HandleReader(key, group, topic)
    assert reader.read(made(handle, key, group, topic)) == (handle.delivery_id, handle.queue_offset)
    return reader


@given(handle=HANDLES, group=NAMES, topic=NAMES)
def test_what_was_delivered_is_read(handle: ReceiptHandle, group: str, topic: str) -> None:
    text = made(handle, KEY, group, topic)
    assert receipt.decode(KEY, group, topic, text) == handle
    reader = reader_of(EXAMPLE, KEY, group, topic)
    for _ in range(2):
        assert reader.read(text) == (handle.delivery_id, handle.queue_offset)
    assert receipt.broker_name(text) == handle.broker_name
    assert len(text.split(" ")) == 9


@given(handle=HANDLES, data=st.data())
def test_a_garbled_handle_is_refused_or_is_of_the_same_pop(handle: ReceiptHandle, data: st.DataObject) -> None:
    """All messages of a pop went to the same consumer, so the offset alone is not signed."""
    text = made(handle)
    at = data.draw(st.integers(0, len(text) - 1))
    garbled = text[:at] + data.draw(st.characters().filter(lambda each: each != text[at])) + text[at + 1 :]
    try:
        found = receipt.decode(KEY, "g", "t", garbled)
    except StatusError as error:
        assert error.code == Code.INVALID_RECEIPT_HANDLE
    else:
        assert found[:-1] == handle[:-1]
        offset_end = text.rindex(" ")
        assert text.rindex(" ", 0, offset_end) < at < offset_end


def test_every_garbled_character_but_the_offset_is_refused() -> None:
    text = made(EXAMPLE)
    offset_end = text.rindex(" ")
    offset_start = text.rindex(" ", 0, offset_end) + 1
    for at in range(len(text)):
        for other in "0a \x00-":
            if other != text[at] and not (offset_start <= at < offset_end and other == "0"):
                refused(text[:at] + other + text[at + 1 :])


def test_every_cut_but_within_the_offset_is_refused() -> None:
    text = made(EXAMPLE)
    for length in range(len(text)):
        refused(text[:length])
        refused(text[length + 1 :])


@given(text=st.text(max_size=600))
def test_any_text_is_refused(text: str) -> None:
    refused(text)


@given(parts=st.lists(st.text(alphabet="0123456789abc\ud800²", max_size=20), min_size=9, max_size=9))
def test_anything_of_the_right_shape_is_refused(parts: list[str]) -> None:
    refused(" ".join(parts))


def test_it_is_for_one_group_topic_and_key() -> None:
    text = made(EXAMPLE)
    refused(text, key=b"another")
    refused(text, group="h")
    refused(text, topic="u")
    refused(made(EXAMPLE, group="ab", topic="c"), group="a", topic="bc")


def test_an_overlong_one_is_refused_unread() -> None:
    refused(made(EXAMPLE) + " " * 600)
    for text in (" 1 ", "1", "\n1\n"):
        refused(text)
    with pytest.raises(StatusError):
        receipt.broker_name(made(EXAMPLE) + "0" * 600)


@pytest.mark.parametrize("text", ["", "a", "a b c d e f g h", "a b c d e f g h i j"])
def test_the_broker_is_read_from_the_shape_alone(text: str) -> None:
    with pytest.raises(StatusError):
        receipt.broker_name(text)


SHAPES = st.one_of(
    HANDLES.map(made),
    st.just(EXAMPLE).map(made).map(lambda text: text + " more"),
    st.just(EXAMPLE).map(made).map(lambda text: text + "0" * 600),
    st.just(EXAMPLE).map(made).map(lambda text: text.rpartition(" ")[0]),
    st.builds(lambda offset: made(EXAMPLE._replace(queue_offset=offset)), NUMBERS),
    st.text(max_size=20),
)


@given(texts=st.lists(SHAPES, max_size=4))
def test_brokers_of_handles_in_turn_are_those_of_each_alone(texts: list[str]) -> None:
    reader = BrokerNameReader()
    for text in (made(EXAMPLE), *texts):
        try:
            expected = receipt.broker_name(text)
        except StatusError:
            with pytest.raises(StatusError):
                reader.read(text)
        else:
            assert reader.read(text) == expected
