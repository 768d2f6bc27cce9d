"""What a Put carries comes through a socket as it is."""

import pytest

from services.common.contract.put import MessageRun, PutResult, decode_results, decode_runs, encode_results, encode_runs


def test_runs_come_through_as_they_are() -> None:
    runs = [
        MessageRun("orders", 3, [b"a", b"b"], [b"", b"x"], ["", "tag"]),
        MessageRun("later", 0, [b"c"], [b"y"], [""], [1_700_000_000_123], topic_id=7),
    ]
    decoded = decode_runs(encode_runs(runs))
    assert [(run.topic, run.queue_id, list(run.payloads), list(run.due_ms)) for run in decoded] == [
        ("orders", 3, [b"a", b"b"], []),
        ("later", 0, [b"c"], [1_700_000_000_123]),
    ]
    assert [(list(run.system_properties), list(run.tags)) for run in decoded] == [
        ([b"", b"x"], ["", "tag"]),
        ([b"y"], [""]),
    ]
    assert [run.topic_id for run in decoded] == [0, 7]


def test_results_come_through_as_they_are() -> None:
    results = [PutResult(20000, "", 7, 8), PutResult(20000, "", 0, 9, ["one", "two"]), PutResult(40005, "too late")]
    decoded = decode_results(encode_results(results))
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
