"""A name that was deleted by hand is made on first use only after a while, and by hand at once."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from popwheel_common.contract.cluster_view import VERSIONS_PER_STORE
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import EnsureGroupRequest, EnsureTopicRequest, TopicType
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.cluster.cluster_book import cluster_of
from popwheel_controller.cluster.deleted_names import DELETED_BYTES_MAX, DeletedNames, Deletion
from popwheel_controller.cluster.watchers import Snapshot
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import ENSURE_GROUP, ENSURE_TOPIC
from tests.harness.manual_clock import ManualClock
from tests.unit.controller.changes import OPTIONS, fresh_state
from tests.unit.controller.nowhere import no_broker

REST_MS = 60_000


class Cluster:
    """A controller on a clock that stands still, and its admin API."""

    def __init__(self, app: ControllerApp, clock: ManualClock) -> None:
        self.app = app
        self.clock = clock
        self.channel = LocalChannel(app.service)
        api = make_http_app("test", "0", CollectorRegistry(), {}, [app.admin])
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://c/api/v1")

    async def use(self, kind: str, name: str) -> int:
        """Use a name for the first time; the id that it has then."""
        if kind == "topics":
            made = await self.channel.call(ENSURE_TOPIC, EnsureTopicRequest(name=name, type=TopicType.MIXED))
            return made.topic.id
        return (await self.channel.call(ENSURE_GROUP, EnsureGroupRequest(name=name))).group.id

    async def refused(self, kind: str, name: str) -> StatusError:
        with pytest.raises(StatusError) as caught:
            await self.use(kind, name)
        return caught.value


@asynccontextmanager
async def controller(folder: Path, clock: ManualClock, **options: Any) -> AsyncIterator[Cluster]:
    settings = ControllerOptions(**{"deleted_name_rest_ms": REST_MS, **options})
    app = ControllerApp(
        Runtime(clock, random.Random(7), CollectorRegistry()), settings, folder / "controller", no_broker
    )
    await app.start()
    cluster = Cluster(app, clock)
    try:
        yield cluster
    finally:
        await cluster.http.aclose()
        await cluster.channel.close()
        await app.stop()


KINDS = pytest.mark.parametrize(
    ("kind", "code"), [("topics", Code.TOPIC_NOT_FOUND), ("groups", Code.CONSUMER_GROUP_NOT_FOUND)]
)


@KINDS
async def test_a_deleted_name_is_made_on_first_use_only_after_its_rest(
    tmp_path: Path, kind: str, code: Code.ValueType
) -> None:
    clock = ManualClock()
    async with controller(tmp_path, clock) as cluster:
        first = await cluster.use(kind, "orders")
        assert (await cluster.http.delete(f"/{kind}/orders")).status_code == 200
        refusal = await cluster.refused(kind, "orders")
        assert refusal.code == code
        assert "orders was deleted by an operator at 2027-01-15T08:00:00Z; create it by hand, or" in refusal.message
        assert "before 2027-01-15T08:01:00Z" in refusal.message
        assert await cluster.use(kind, "others") > first
    clock.advance(REST_MS - 1)
    async with controller(tmp_path, clock) as cluster:  # every controller knows, also after a restart
        assert (await cluster.refused(kind, "orders")).code == code
        clock.advance(1)
        assert await cluster.use(kind, "orders") > first


@KINDS
async def test_a_refusal_takes_no_place_among_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: Code.ValueType
) -> None:
    async with controller(tmp_path, ManualClock()) as cluster:
        await cluster.use(kind, "orders")
        await cluster.http.delete(f"/{kind}/orders")
        state_writer = cluster.app._state_writer
        monkeypatch.setattr(state_writer, "_waiting_max", 0)  # as if very many changes waited
        assert (await cluster.refused(kind, "orders")).code == code
        assert (await cluster.refused(kind, "others")).code == Code.TOO_MANY_REQUESTS


@KINDS
async def test_a_deleted_name_is_made_by_hand_at_once(tmp_path: Path, kind: str, code: Code.ValueType) -> None:
    clock = ManualClock()
    async with controller(tmp_path, clock) as cluster:
        await cluster.use(kind, "orders")
        await cluster.http.delete(f"/{kind}/orders")
        made = await cluster.http.post(f"/{kind}", json={"name": "orders"})
        assert made.status_code == 201
        assert await cluster.use(kind, "orders") == made.json()["id"]
    async with controller(tmp_path, clock) as cluster:
        assert await cluster.use(kind, "orders") == made.json()["id"]


@KINDS
async def test_without_a_rest_the_next_use_makes_it(tmp_path: Path, kind: str, code: Code.ValueType) -> None:
    async with controller(tmp_path, ManualClock(), deleted_name_rest_ms=0) as cluster:
        first = await cluster.use(kind, "orders")
        await cluster.http.delete(f"/{kind}/orders")
        assert await cluster.use(kind, "orders") > first
        assert len(cluster.app.state.deleted_topics) == len(cluster.app.state.deleted_groups) == 0


async def test_a_use_that_comes_together_with_the_deletion_is_decided_after_it(tmp_path: Path) -> None:
    """Changes are decided one after the other: a use that was asked for before its name was deleted finds it there."""
    async with controller(tmp_path, ManualClock()) as cluster:
        await cluster.use("groups", "g")
        outcomes = await asyncio.gather(
            cluster.http.delete("/groups/g"), *(cluster.use("groups", "g") for _ in range(20)), return_exceptions=True
        )
        assert "g" not in cluster.app.state.groups
        codes = {error.code for error in outcomes if isinstance(error, StatusError)}
        assert codes <= {Code.CONSUMER_GROUP_NOT_FOUND}


def test_a_topic_and_a_group_of_one_name_rest_by_themselves() -> None:
    state = fresh_state()
    state = state.after(state.create_topic(OPTIONS, "a", TopicType.NORMAL))
    state = state.after(state.delete_topic("a", 1000, REST_MS))
    made = state.ensure_group(OPTIONS, "a", 1001)
    assert made is not None and made.groups[0].name == "a"
    with pytest.raises(StatusError):
        state.ensure_topic(OPTIONS, "a", TopicType.NORMAL, 1001)


@pytest.mark.parametrize(("length", "fewest"), [(24, 500), (127, 190)])
def test_the_latest_are_kept_in_mind_as_far_as_the_head_has_room(length: int, fewest: int) -> None:
    """The seen fault: a thousand of the longest names made 330 kB, which each change wrote."""
    names, now_ms = DeletedNames(), 1_800_000_000_000
    for number in range(1_000):
        deletion = Deletion(now_ms + number, now_ms + 1_000_000, 999_999 * VERSIONS_PER_STORE + number)
        names = names.after((), [f"{number:0{length}}"], deletion)
    assert len(json.dumps(names.document())) <= DELETED_BYTES_MAX
    assert fewest < len(names) < 1_000
    kept = [number for number in range(1_000) if names.resting(f"{number:0{length}}", now_ms + 1_000)]
    assert kept == list(range(1_000 - len(names), 1_000))


def test_those_that_rest_now_are_counted() -> None:
    names = DeletedNames().after((), ["a"], Deletion(1_000, 2_000)).after((), ["b"], Deletion(1_500, 2_500))
    assert [names.count_resting(now_ms) for now_ms in (1_500, 2_000, 2_500)] == [2, 1, 0]


def test_a_clock_that_is_set_back_by_much_ends_the_rest() -> None:
    names = DeletedNames().after((), ["t"], Deletion(10 * REST_MS, 11 * REST_MS))
    assert names.resting("t", 10 * REST_MS - 100) is not None  # of another controller
    assert names.resting("t", 9 * REST_MS) is None


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=30
    )
)
def test_a_name_rests_from_its_deletion_until_it_is_made_or_its_time_is_over(
    steps: list[tuple[bool, str, int, int]],
) -> None:
    names, now = DeletedNames(), 100
    until: dict[str, int] = {}
    for is_deletion, name, rest, later in steps:
        if is_deletion:
            names = names.after((), [name], Deletion(now, now + rest, 10 * now))
            until[name] = now + rest
        else:
            names = names.after([name], (), Deletion(0, 0))
            until.pop(name, None)
        now += later
        assert {each for each in "abc" if names.resting(each, now)} == {each for each in until if now < until[each]}
        again = DeletedNames.of_document(names.document())
        assert again == names and again.versions() == names.versions()


def test_deletions_of_an_older_release_are_read_and_say_no_version() -> None:
    names = DeletedNames.of_document({"a": [1_000, 2_000], "b": [1_500, 2_500, 7]})
    assert names.resting("a", 1_500) is not None
    assert names.versions() == {"b": 7}


def test_a_snapshot_says_which_names_were_deleted_lately() -> None:
    state = fresh_state()
    for name in ("a", "b", "c"):
        state = state.after(state.create_topic(OPTIONS, name, TopicType.NORMAL))
    state = state.after(state.create_group(OPTIONS, "a", 3))
    state = state.after(state.delete_topic("a", 1000, REST_MS))
    gone = state.version
    state = state.after(state.delete_group("a", 1000, REST_MS))
    state = state.after(state.delete_topic("b", 1000, REST_MS))
    state = state.after(state.create_topic(OPTIONS, "b", TopicType.NORMAL))
    first, *_, last = Snapshot(state, 1).parts()
    assert (first.more, dict(first.gone_topics), dict(first.gone_groups)) == (True, {}, {})
    assert (last.more, dict(last.gone_topics), dict(last.gone_groups)) == (False, {"a": gone}, {"a": gone + 1})


@pytest.mark.parametrize("damaged", [[], {"a": 3}, {"a": [1]}, {"a": ["x", 2]}, {"a": [1, 2, 3, 4]}])
def test_what_is_no_list_of_deletions_is_damage(damaged: object) -> None:
    document = {"name": "c", "receipt_key": "", "version": 1, "topics": [], "groups": [], "deleted_topics": damaged}
    with pytest.raises(CorruptDataError):
        cluster_of(document, "here")
