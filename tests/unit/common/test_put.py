"""What a Put carries comes through a socket as it is."""

import pytest

from popwheel_common.contract.put import MessageRun, PutResult, decode_results, decode_runs, encode_results, encode_runs
from popwheel_common.pb.popwheel.v1.broker_pb2 import PutRequest


def test_runs_come_through_as_they_are() -> None:
    runs = [
        MessageRun("orders", 3, [b"a", b"b"], [b"", b"x"], ["", "tag"]),
        MessageRun("later", 0, [b"c"], [b"y"], [""], [1_700_000_000_123], topic_id=7),
    ]
    halves = MessageRun("pledged", 1, [b"d", b"e"], [b"", b""], ["", ""], is_retry=True, first_check_ms=[0, 500])
    *decoded, half = decode_runs(encode_runs([*runs, halves]))
    assert (half.topic, half.is_retry, list(half.first_check_ms), half.is_even) == ("pledged", True, [0, 500], True)
    assert [list(run.first_check_ms) for run in decoded] == [[], []]
    assert [(run.topic, run.queue_id, list(run.payloads), list(run.due_ms)) for run in decoded] == [
        ("orders", 3, [b"a", b"b"], []),
        ("later", 0, [b"c"], [1_700_000_000_123]),
    ]
    assert [(list(run.system_properties), list(run.tags)) for run in decoded] == [
        ([b"", b"x"], ["", "tag"]),
        ([b"y"], [""]),
    ]
    assert [run.topic_id for run in decoded] == [0, 7]


def test_half_messages_are_no_messages_to_who_does_not_know_them() -> None:
    run = MessageRun("pledged", 1, [b"d"], [b""], [""], first_check_ms=[0])
    assert list(PutRequest.FromString(encode_runs([run])).runs) == []


def test_results_come_through_as_they_are() -> None:
    results = [PutResult(20000, "", 7, 8), PutResult(20000, "", 0, 9, ["one", "two"]), PutResult(40005, "too late")]
    half = PutResult(20000, transaction_ids=["a", "b"])
    *decoded, decoded_half = decode_results(encode_results([*results, half]))
    assert list(decoded_half.transaction_ids) == ["a", "b"]
    assert [
        (one.code, one.error, one.queue_offset, one.store_time_ms, list(one.recall_handles)) for one in decoded
    ] == [
        (20000, "", 7, 8, []),
        (20000, "", 0, 9, ["one", "two"]),
        (40005, "too late", 0, 0, []),
    ]


@pytest.mark.parametrize(("due_ms", "even"), [((), True), ((1, 2), True), ((1,), False), ((1, 2, 3), False)])
def test_a_run_has_a_delivery_time_for_each_message_or_none(due_ms: tuple[int, ...], even: bool) -> None:
    assert MessageRun("orders", 0, [b"a", b"b"], [b"", b""], ["", ""], due_ms).is_even is even
    assert MessageRun("orders", 0, [b"a", b"b"], [b"", b""], ["", ""], first_check_ms=due_ms).is_even is even
