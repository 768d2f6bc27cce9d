"""What a Put carries comes through a socket as it is."""

import pytest

from popwheel_common.contract.put import (
    MessageRun,
    PutKind,
    PutResult,
    decode_results,
    decode_runs,
    encode_results,
    encode_runs,
)
from popwheel_common.pb.popwheel.v1.broker_pb2 import PutRequest, PutRun


def test_runs_come_through_as_they_are() -> None:
    runs = [
        MessageRun("orders", 3, [b"a", b"b"], [b"", b"x"], ["", "tag"]),
        MessageRun("later", 0, [b"c"], [b"y"], [""], PutKind.AT_TIME, [1_700_000_000_123], topic_id=7),
    ]
    halves = MessageRun("pledged", 1, [b"d", b"e"], [b"", b""], ["", ""], PutKind.HALF, [0, 500], is_retry=True)
    half, *decoded = decode_runs(encode_runs([halves, *runs]))
    assert (half.topic, half.kind, half.is_retry, half.times_ms) == ("pledged", PutKind.HALF, True, [0, 500])
    assert [(run.topic, run.queue_id, list(run.payloads), run.kind, run.times_ms) for run in decoded] == [
        ("orders", 3, [b"a", b"b"], PutKind.NOW, []),
        ("later", 0, [b"c"], PutKind.AT_TIME, [1_700_000_000_123]),
    ]
    assert [(list(run.system_properties), list(run.tags)) for run in decoded] == [
        ([b"", b"x"], ["", "tag"]),
        ([b"y"], [""]),
    ]
    assert [run.topic_id for run in decoded] == [0, 7]


def test_a_run_with_times_of_two_kinds_is_uneven() -> None:
    run = PutRun(topic="t", payloads=[b"d"], system_properties=[b""], tags=[""], due_ms=[1], first_check_ms=[0])
    (decoded,) = decode_runs(PutRequest(runs=[run]).SerializeToString())
    assert not decoded.is_even


def test_results_come_through_as_they_are() -> None:
    results = [PutResult(20000, "", 7, 8), PutResult(20000, "", 0, 9, ["one", "two"]), PutResult(40005, "too late")]
    half = PutResult(20000, references=["a", "b"])
    *decoded, decoded_half = decode_results(encode_results([*results, half]))
    assert list(decoded_half.references) == ["a", "b"]
    assert [(one.code, one.error, one.queue_offset, one.store_time_ms, list(one.references)) for one in decoded] == [
        (20000, "", 7, 8, []),
        (20000, "", 0, 9, ["one", "two"]),
        (40005, "too late", 0, 0, []),
    ]


@pytest.mark.parametrize(("times_ms", "is_even"), [((), False), ((1, 2), True), ((1,), False), ((1, 2, 3), False)])
def test_a_run_has_a_time_for_each_message_or_none(times_ms: tuple[int, ...], is_even: bool) -> None:
    for kind in (PutKind.AT_TIME, PutKind.HALF):
        assert MessageRun("orders", 0, [b"a", b"b"], [b"", b""], ["", ""], kind, times_ms).is_even is is_even
    at_once = MessageRun("orders", 0, [b"a", b"b"], [b"", b""], ["", ""], times_ms=times_ms)
    assert at_once.is_even is (not times_ms)
