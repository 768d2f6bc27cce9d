"""Names in the controllers' store that nobody could make now: they are survived, warned of, and can be deleted."""

import json

import pytest
from structlog.testing import capture_logs

from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate
from popwheel_controller.broker_groups.broker_group import GroupState, ReplicaRecord, group_document
from popwheel_controller.broker_groups.group_writer import GroupWriter
from popwheel_controller.cluster.cluster_book import cluster_of
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.store.state_store import CLUSTER, group_document_name
from tests.unit.controller.memory_store import MemoryStore
from tests.unit.controller.test_stored_cluster import hold

LONG = "t" * 200
"""What settings of an older release allowed."""


def entry(name: str, number: int) -> dict[str, object]:
    return {"name": name, "type": "NORMAL", "queues": 1, "id": number}


def document(name: str = "test") -> dict[str, object]:
    groups = [{"name": "a/b", "max_attempts": 3, "fifo": False, "backoff_ms": [1], "id": 3}]
    return {
        "name": name,
        "receipt_key": "AAAA",
        "version": 3,
        "topics": [entry("good", 1), entry(LONG, 2)],
        "groups": groups,
    }


async def loaded() -> tuple[ClusterState, list[object]]:
    store = MemoryStore()
    await store.write(CLUSTER, document(), None)
    with capture_logs() as logs:
        state = await hold(store).load(0)
    return state, [entry["names"] for entry in logs if "are invalid" in entry["event"]]


async def test_a_topic_that_nobody_could_make_stays_is_warned_of_and_can_be_deleted() -> None:
    state, warned = await loaded()
    assert warned == [[repr(LONG[:61] + "..."), "'a/b'"]]
    assert set(state.topics) == {"good", LONG}
    assert LONG not in state.after(state.delete_topic(LONG)).topics
    assert "a/b" not in state.after(state.delete_group("a/b")).groups
    with pytest.raises(StatusError) as caught:
        state.delete_topic(LONG + "t")
    assert caught.value.code == Code.ILLEGAL_TOPIC


async def test_nobody_who_is_notified_of_it_takes_it_up() -> None:
    state, _ = await loaded()
    view = ClusterView()
    cluster = Cluster(name=state.name, receipt_key=state.receipt_key)
    topics, groups = state.topics.values(), state.groups.values()
    view.apply(ClusterUpdate(version=3, snapshot=True, cluster=cluster, topics=topics, groups=groups))
    assert list(view.topics) == ["good"]
    assert not view.groups


@pytest.mark.parametrize("name", ["../x", "", "c" * 65, "\ud800"])
def test_a_cluster_of_a_name_that_can_not_be_is_damaged(name: str) -> None:
    with pytest.raises(CorruptDataError, match="is not a name for a cluster"):
        cluster_of(document(name), "there")


@pytest.mark.parametrize("page", ["../x", "", "p" * 65, "a/b"])
def test_a_page_of_a_name_that_can_not_be_is_damage(page: str) -> None:
    paged = {**document(), "format": 2, "pages": [{"name": page, "topics": 0, "groups": 0, "deleted": []}]}
    with pytest.raises(CorruptDataError, match="is not a name for a page"):
        cluster_of(json.loads(json.dumps(paged)), "there")


async def test_documents_of_broker_groups_that_can_not_be_are_left_as_they_are() -> None:
    store = MemoryStore()
    for name in ("b0", "b" * 120, "b%1", "../b"):
        state = GroupState(name, 1, 1, 0, frozenset({0}), {0: ReplicaRecord(0, "a:1", b"i")})
        await store.write(group_document_name(name), group_document(state), None)
    group_writer = GroupWriter(store, 10, lambda: None)
    with capture_logs() as logs:
        await group_writer.load()
    assert list(group_writer.states) == ["b0"]
    assert [entry["count"] for entry in logs if entry["log_level"] == "warning"] == [3]
    await group_writer.poll_store(await store.versions())
    assert list(group_writer.states) == ["b0"]
