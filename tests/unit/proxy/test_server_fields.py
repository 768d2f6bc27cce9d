"""Senders can't say what is the server's to say."""

import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import DeadLetterQueue, SystemProperties
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.send.system_properties import has_server_fields, without_server_fields


def _forged() -> SystemProperties:
    forged = SystemProperties(
        receipt_handle="h",
        delivery_attempt=7,
        queue_offset=9,
        store_host="elsewhere",
        dead_letter_queue=DeadLetterQueue(topic="t", message_id="m"),
    )
    forged.store_timestamp.FromMilliseconds(1)
    forged.invisible_duration.FromMilliseconds(1)
    return forged


@pytest.mark.parametrize("field", [field.name for field, _ in _forged().ListFields()])
def test_each_is_noticed_and_dropped_and_the_rest_stays(field: str) -> None:
    said = SystemProperties(tag="a", keys=["k"], message_id="m", queue_id=3, message_group="g", priority=1)
    assert not has_server_fields(said)
    kept = said.SerializeToString()
    forged = SystemProperties()
    for each, value in _forged().ListFields():
        if each.name == field:
            if each.message_type is None:
                setattr(forged, field, value)
            else:
                getattr(forged, field).CopyFrom(value)
    added = forged.SerializeToString()
    for data in (kept + added, added + kept, added + kept + added):
        assert has_server_fields(SystemProperties.FromString(data))
        assert without_server_fields(data) == kept


def test_thousands_of_fields_are_not_gone_over() -> None:
    with pytest.raises(LimitError, match="more than 512 system properties"):
        without_server_fields(SystemProperties(receipt_handle="h", keys=["k"] * 512).SerializeToString())
    few = SystemProperties(receipt_handle="h", keys=["k"] * 511).SerializeToString()
    assert len(SystemProperties.FromString(without_server_fields(few)).keys) == 511
