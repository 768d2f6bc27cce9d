"""Transaction ids: what they say, and that nobody can make one up."""

import pytest

from popwheel_common.contract import recall_handle, transaction_id
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.contract.transaction_id import TransactionId
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

KEY = b"k" * 32
HALF = TransactionId("broker-0", 1 << 40, 7, "01 with a blank ü")


def test_an_id_says_what_it_was_made_of() -> None:
    text = transaction_id.encode(KEY, "t", HALF)
    assert transaction_id.decode(KEY, "t", text) == HALF
    assert transaction_id.broker_name(text) == "broker-0"
    assert text.isascii()
    assert not text.startswith("-")


@pytest.mark.parametrize("text", ["", "x", "!" * 20, "A" * 70_000, "AAAA" * 10])
def test_what_is_no_id_is_refused(text: str) -> None:
    for read in (transaction_id.broker_name, lambda each: transaction_id.decode(KEY, "t", each)):
        with pytest.raises(StatusError) as caught:
            read(text)
        assert caught.value.code == Code.INVALID_TRANSACTION_ID


def test_an_id_is_good_for_its_topic_and_its_cluster_only() -> None:
    text = transaction_id.encode(KEY, "t", HALF)
    for key, topic, shown in (
        (KEY, "other", text),
        (b"x" * 32, "t", text),
        (KEY, "t", text + "="),
        (KEY, "t", recall_handle.encode(KEY, "t", RecallHandle("broker-0", 1, 2, "id"))),
    ):
        with pytest.raises(StatusError):
            transaction_id.decode(key, topic, shown)
