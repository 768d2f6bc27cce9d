"""What the simulators' clients make of what they are told."""

import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Status
from tests.sim.tools import is_definite


@pytest.mark.parametrize(
    ("code", "message", "definite"),
    [
        (Code.ILLEGAL_DELIVERY_TIME, "the delivery time is too far ahead", True),
        (Code.INTERNAL_ERROR, "the broker's disk is nearly full, so it takes no messages", True),
        (Code.INTERNAL_ERROR, "the broker has stopped", False),
        (Code.HA_NOT_AVAILABLE, "no broker has a master now", False),
        # What the second try was told says nothing of the first one.
        (Code.PROXY_TIMEOUT, "the disk is nearly full, so it takes no messages; an earlier try had no answer", False),
    ],
)
def test_a_refusal_is_definite_if_it_says_that_nothing_was_stored(
    code: Code.ValueType, message: str, definite: bool
) -> None:
    assert is_definite(Status(code=code, message=message)) is definite
