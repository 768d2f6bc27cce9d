"""Which settings of topics and groups change in place, what refusals say, and what is stored and told of it."""

import random

import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ExponentialBackoff, Topic, TopicType
from popwheel_controller.cluster.alteration import (
    GroupSettings,
    TopicSettings,
    alter_group,
    alter_topic,
    define_group,
    define_topic,
)
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.metrics import ClusterMetrics
from popwheel_controller.cluster.stored_cluster import StoredCluster
from tests.harness.manual_clock import ManualClock
from tests.unit.controller.changes import OPTIONS, document_of, fresh_state, snapshot_of, state_of
from tests.unit.controller.memory_store import MemoryStore

LADDER = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY")


def with_topic(kind: str = "NORMAL", queues: int | None = None) -> ClusterState:
    state = fresh_state()
    return state.after(state.create_topic(OPTIONS, "t", TopicType.Value(kind), queues))


def altered(state: ClusterState, wanted: TopicSettings) -> Topic:
    update = alter_topic(state, "t", wanted)
    assert update is not None
    return state.after(update).topic("t")


def refusal(state: ClusterState, wanted: TopicSettings) -> tuple[Code.ValueType, str]:
    with pytest.raises(StatusError) as caught:
        alter_topic(state, "t", wanted)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize("kind", ["NORMAL", "DELAY", "TRANSACTION", "MIXED"])
def test_queues_go_up_and_never_down(kind: str) -> None:
    state = with_topic(kind, 4)
    topic = altered(state, TopicSettings(queues=16))
    assert (topic.queues, topic.id, topic.type) == (16, 1, TopicType.Value(kind))
    code, message = refusal(state, TopicSettings(queues=3))
    assert code == Code.PRECONDITION_FAILED
    assert message == (
        "topic t has 4 queues and can't get 3: the messages in those that would go could not be read any more"
    )
    assert refusal(state, TopicSettings(queues=1025)) == (
        Code.BAD_REQUEST,
        "a topic must have from 1 to 1024 queues, not 1025",
    )


@pytest.mark.parametrize(("kind", "why"), [("FIFO", "message group"), ("LITE", "lite topics"), ("PRIORITY", "levels")])
def test_queues_that_mean_something_stay(kind: str, why: str) -> None:
    code, message = refusal(with_topic(kind), TopicSettings(queues=20))
    assert code == Code.PRECONDITION_FAILED and why in message


def test_message_groups_of_a_mixed_topic_keep_the_queues_that_they_had() -> None:
    state = with_topic("MIXED", 4)
    for queues in (8, 16):
        update = alter_topic(state, "t", TopicSettings(queues=queues))
        assert update is not None
        state = state.after(update)
        assert (state.topic("t").queues, state.topic("t").message_group_queues) == (queues, 4)
    fifo = altered(with_topic("FIFO", 4), TopicSettings(TopicType.MIXED, 8))
    assert (fifo.type, fifo.queues, fifo.message_group_queues) == (TopicType.MIXED, 8, 4)
    assert altered(with_topic("NORMAL", 4), TopicSettings(TopicType.MIXED, 8)).message_group_queues == 0  # it has none


@pytest.mark.parametrize("before", LADDER)
@pytest.mark.parametrize("after", LADDER)
def test_types_only_grow_wider(before: str, after: str) -> None:
    state, wanted = with_topic(before), TopicSettings(TopicType.Value(after))
    if before == after:
        assert alter_topic(state, "t", wanted) is None
    elif after == "MIXED" and before not in ("LITE", "PRIORITY"):
        assert altered(state, wanted).type == TopicType.MIXED
    else:
        code, message = refusal(state, wanted)
        assert code == Code.PRECONDITION_FAILED
        assert message.startswith(f"topic t is of type {before} and can't become {after}: ")
    assert refusal(state, TopicSettings(TopicType.TOPIC_TYPE_UNSPECIFIED))[0] == Code.BAD_REQUEST


def test_a_change_is_made_as_a_whole_or_not_at_all() -> None:
    state = with_topic("NORMAL", 4)
    assert refusal(state, TopicSettings(TopicType.MIXED, 2))[0] == Code.PRECONDITION_FAILED
    assert refusal(state, TopicSettings(TopicType.MIXED, 8, {"lite_expiration_ms": 5_000}))[0] == Code.BAD_REQUEST
    assert alter_topic(state, "t", TopicSettings(TopicType.NORMAL, 4, {"lite_expiration_ms": 0})) is None
    assert alter_topic(state, "t", TopicSettings()) is None


def test_a_lite_expiration_changes_both_ways() -> None:
    state = with_topic("LITE")
    assert altered(state, TopicSettings(others={"lite_expiration_ms": 5_000})).lite_expiration_ms == 5_000
    assert refusal(state, TopicSettings(others={"lite_expiration_ms": 1}))[0] == Code.BAD_REQUEST
    update = alter_topic(state, "t", TopicSettings(others={"lite_expiration_ms": 5_000}))
    assert update is not None
    assert altered(state.after(update), TopicSettings(others={"lite_expiration_ms": 0})).lite_expiration_ms == 0


def test_a_group_changes_its_attempts_its_waits_and_its_order() -> None:
    state = fresh_state()
    state = state.after(state.create_group(OPTIONS, "g", 5, False, [1, 2]))
    grows = ExponentialBackoff(initial_ms=5, max_ms=500, multiplier=2)
    for wanted, shown in (
        (GroupSettings(max_attempts=7), (7, False, [1, 2], False)),
        (GroupSettings(exponential=grows), (7, False, [], True)),
        (GroupSettings(backoff_ms=[3]), (7, False, [3], False)),
        (GroupSettings(fifo=True), (7, True, [3], False)),
    ):
        update = alter_group(state, "g", wanted)
        assert update is not None
        state = state.after(update)
        group = state.group("g")
        assert group.id == 1
        assert (group.max_attempts, group.fifo, list(group.backoff_ms), group.HasField("exponential_backoff")) == shown
        assert alter_group(state, "g", wanted) is None
    for bad in (GroupSettings(0), GroupSettings(backoff_ms=[]), GroupSettings(backoff_ms=[1], exponential=grows)):
        with pytest.raises(StatusError) as caught:
            alter_group(state, "g", bad)
        assert caught.value.code == Code.BAD_REQUEST


def test_what_is_defined_is_made_once_and_then_changed() -> None:
    state = fresh_state()
    made = define_topic(state, OPTIONS, "t", TopicSettings(queues=2))
    assert made is not None and made.topics == [Topic(name="t", type=TopicType.NORMAL, queues=2, id=1)]
    state = state.after(made)
    assert define_topic(state, OPTIONS, "t", TopicSettings(queues=2)) is None
    more = define_topic(state, OPTIONS, "t", TopicSettings(queues=3))
    assert more is not None and more.topics[0].id == 1
    group = define_group(state, OPTIONS, "g", GroupSettings(fifo=True))
    assert group is not None and group.groups[0].fifo
    assert define_group(state.after(group), OPTIONS, "g", GroupSettings()) is None


def test_whoever_watches_has_it_changed_and_knows_it_by_the_same_id() -> None:
    state = with_topic("MIXED", 4)
    view = ClusterView()
    view.apply(snapshot_of(state))
    update = alter_topic(state, "t", TopicSettings(queues=16))
    assert update is not None
    view.apply(update)
    assert view.topics["t"] == Topic(name="t", type=TopicType.MIXED, queues=16, id=1, message_group_queues=4)
    assert view.named == 2
    again = ClusterView()
    again.apply(snapshot_of(state.after(update)))
    assert again.topics == view.topics
    assert state_of(document_of(state.after(update)), "here").topics == state.after(update).topics


@pytest.mark.parametrize("page_bytes", [300, 100_000])
async def test_what_is_changed_is_stored_whether_it_stood_in_a_page_or_not(page_bytes: int) -> None:
    store = MemoryStore()

    def hold() -> StoredCluster:
        return StoredCluster(
            store,
            alone=True,
            random_source=random.Random(1),
            clock=ManualClock(),
            metrics=ClusterMetrics(CollectorRegistry()),
            page_bytes=page_bytes,
        )

    held = hold()
    state = await held.load_or_make("test")
    names = [f"t-{number}" for number in range(12)]
    options = OPTIONS.model_copy(update={"topics_max": 100})
    for name in names:
        state = state.after(state.create_topic(options, name, TopicType.MIXED, 2))
        await held.save(state)
    for queues in (3, 4):
        for name in reversed(names):
            update = alter_topic(state, name, TopicSettings(queues=queues))
            assert update is not None
            state = state.after(update)
            await held.save(state)
            found = await hold().load_or_make("test")
            assert (found.topics, found.version) == (state.topics, state.version)
            assert (await held.load(state.named)).topics == state.topics
    assert {topic.id for topic in state.topics.values()} == {state.topic(name).id for name in names}
