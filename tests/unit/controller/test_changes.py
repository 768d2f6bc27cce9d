"""The log of changes: what a line holds, and what becomes of it when the store is away or shared."""

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_controller.cluster import change_log
from popwheel_controller.cluster.change_log import ChangeLog
from popwheel_controller.cluster.changes import (
    LINES_BYTES_MAX,
    LINES_MAX,
    Change,
    changes_document,
    changes_of,
    latest_fitting,
)
from popwheel_controller.kubernetes.state_store import KubernetesStateStore
from popwheel_controller.store.file_state_store import FileStateStore, encode
from popwheel_controller.store.state_store import CHANGES, StateStore
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.unit.controller.memory_api import MemoryApi
from tests.unit.controller.memory_store import MemoryStore

FAILURES = "popwheel_controller_change_line_failures_total"


def change(number: int = 0, **facts: Any) -> Change:
    reported: dict[str, Any] = {"who": "ops", "address": "10.0.0.1", "verb": "topic delete", "object": f"t{number}"}
    return Change(**{"id": str(number), "time_ms": number, "before": "", "after": "", **reported, **facts})


async def note(log: ChangeLog, object_: str = "orders", **facts: str) -> None:
    reported = {"who": "ops", "address": "10.0.0.1", "verb": "topic delete", "before": "there", "after": "gone"}
    await log.record(**{**reported, "object_": object_, "outcome": "done", **facts})


async def objects(log: ChangeLog) -> list[str]:
    return [each.object for each in await log.latest()]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def make_log(store: StateStore, clock: ManualClock, writer: str = "one", registry: Any = None) -> ChangeLog:
    return ChangeLog(store, clock, registry or CollectorRegistry(), writer)


def test_a_line_has_at_most_a_kibibyte_whatever_it_is_of() -> None:
    for text in ("x" * 5_000, "é" * 5_000, '"' * 5_000, "\U0001f600" * 5_000):
        facts: dict[str, Any] = dict.fromkeys(("who", "address", "verb", "object", "before", "after", "outcome"), text)
        line = change(**facts, id="1" * 30, time_ms=2**43, times=2**31).cut()
        assert len(json.dumps(asdict(line))) <= 1024
        assert line.object.endswith("...") and line.object[:5] == text[:5]
    short = change(1)
    assert short.cut() == short


def test_the_list_is_bounded_in_lines_and_in_bytes() -> None:
    small = [change(number) for number in range(LINES_MAX + 100)]
    assert latest_fitting(small) == small[100:]
    large = [change(number, before="x" * 140, after="y" * 190, object="z" * 250).cut() for number in range(LINES_MAX)]
    left = latest_fitting(large)
    assert left == large[-len(left) :]
    assert 150 < len(left) < LINES_MAX
    assert LINES_BYTES_MAX * 0.9 < len(json.dumps([asdict(each) for each in left])) < 256 * 1024
    assert len(encode(changes_document(left))) < 256 * 1024


def test_a_document_reports_them_and_a_damaged_one_is_seen() -> None:
    lines = [change(1), change(2, times=3, outcome="refused FORBIDDEN")]
    assert changes_of(json.loads(json.dumps(changes_document(lines))), "here") == lines
    damaged: list[dict[str, Any]] = [{}, {"changes": 1}, {"changes": [{}]}]
    for wrong in (*damaged, {"changes": [{**asdict(change()), "times": "many"}]}):
        with pytest.raises(CorruptDataError, match="here is damaged"):
            changes_of(wrong, "here")


async def test_lines_outlive_the_controller(store: MemoryStore, clock: ManualClock) -> None:
    log = make_log(store, clock)
    with capture_logs() as logged:
        await note(log)
    assert [(line["event"], line["who"], line["verb"], line["object"]) for line in logged] == [
        ("change", "ops", "topic delete", "orders")
    ]
    clock.advance(1_000)
    await note(log, "bills", outcome="refused FORBIDDEN")
    following = make_log(store, clock, "two")
    assert await objects(following) == ["bills", "orders"]
    await note(following, "later")
    log.begin()
    assert await objects(log) == ["later", "bills", "orders"]


async def test_two_controllers_lose_none_of_each_others_lines(store: MemoryStore, clock: ManualClock) -> None:
    one, two = make_log(store, clock), make_log(store, clock, "two")
    for number in range(3):
        await note(one, f"one-{number}")
        await note(two, f"two-{number}")
    assert set(await objects(make_log(store, clock))) == {f"{who}-{n}" for who in ("one", "two") for n in range(3)}


async def test_what_the_store_does_not_take_is_counted_and_comes_with_the_next_line(
    store: MemoryStore, clock: ManualClock
) -> None:
    registry = CollectorRegistry()
    log = make_log(store, clock, registry=registry)
    await note(log, "before")
    store.failing_writes = 1
    with capture_logs() as logged:
        await note(log, "meanwhile")
    assert registry.get_sample_value(FAILURES) == 1
    assert registry.get_sample_value("popwheel_controller_change_lines_unstored") == 1
    assert "the store is full" in logged[-1]["reason"]
    assert await objects(log) == ["meanwhile", "before"]
    await note(log, "after")
    assert await objects(make_log(store, clock)) == ["after", "meanwhile", "before"]
    assert registry.get_sample_value("popwheel_controller_change_lines_unstored") == 0


async def test_a_line_whose_write_was_not_answered_is_there_once(store: MemoryStore, clock: ManualClock) -> None:
    log = make_log(store, clock)
    store.lost_answers = 1
    await note(log, "first")
    await note(log, "second")
    assert await objects(make_log(store, clock)) == ["second", "first"]


async def test_a_store_that_hangs_holds_no_answer_up(
    store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "WAIT_S", 0.01)
    registry = CollectorRegistry()
    log = make_log(store, clock, registry=registry)
    store.hangs = True
    await note(log, "first")
    assert registry.get_sample_value(FAILURES) == 1
    store.hangs = False
    monkeypatch.setattr(change_log, "WAIT_S", 5)
    await note(log, "second")
    assert await objects(make_log(store, clock)) == ["second", "first"]


async def test_a_damaged_list_is_left_as_it_is_and_fails_no_change(store: MemoryStore, clock: ManualClock) -> None:
    await store.write(CHANGES, {"changes": "what"}, None)
    log = make_log(store, clock)
    await note(log)
    assert json.loads(store.history[CHANGES][-1]) == {"changes": "what"}
    with pytest.raises(StatusError, match="cannot be read now"):
        await log.latest()


async def test_what_is_done_again_and_again_is_one_line(store: MemoryStore, clock: ManualClock) -> None:
    log = make_log(store, clock)
    for number in range(5):
        clock.advance(1_000)
        await note(log, "letters", before="", after=f"redriven {number}")
    clock.advance(601_000)
    await note(log, "letters", before="", after="redriven 5")
    lines = await make_log(store, clock).latest()
    assert [(each.times, each.after) for each in lines] == [(1, "redriven 5"), (5, "redriven 4")]


@pytest.mark.parametrize("on_kubernetes", [False, True])
async def test_each_store_keeps_them(on_kubernetes: bool, clock: ManualClock) -> None:
    api = MemoryApi()

    def make_store() -> StateStore:
        return KubernetesStateStore(api, "popwheel") if on_kubernetes else FileStateStore(Path("/state"), disk)

    disk = MemoryDisk(random.Random(7))
    for number in range(3):
        await note(make_log(make_store(), clock, str(number)), f"t{number}")
    assert await objects(make_log(make_store(), clock)) == ["t2", "t1", "t0"]
    watching = make_store()
    assert CHANGES not in await watching.versions(), "they are nothing that others have to read"
    await watching.close()
    if on_kubernetes:
        found = api.objects["configmaps", "popwheel-changes"]
        assert found["metadata"]["labels"] == {"popwheel.io/cluster": "popwheel"}
        assert len(json.loads(found["data"]["changes"])["changes"]) == 3
