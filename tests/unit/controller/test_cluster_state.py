"""Which changes of the cluster are allowed, and that whoever applies them sees the same state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ExponentialBackoff, TopicType
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.options import ControllerOptions
from tests.unit.controller.changes import (
    CHANGES,
    OPTIONS,
    Change,
    contents,
    document_of,
    fresh_state,
    snapshot_of,
    state_of,
    try_change,
)


def with_topic(name: str = "orders") -> ClusterState:
    state = fresh_state()
    return state.after(state.create_topic(OPTIONS, name, TopicType.NORMAL))


def refusal(change: Change, state: ClusterState) -> tuple[Code.ValueType, str]:
    with pytest.raises(StatusError) as caught:
        change(state)
    return caught.value.code, caught.value.message


def test_a_topic_gets_the_default_queues_and_the_version_as_its_id() -> None:
    topic = with_topic().topic("orders")
    assert (topic.queues, topic.type, topic.id) == (8, TopicType.NORMAL, 1)


def test_a_topic_with_levels_gets_ten_of_them() -> None:
    state = fresh_state()
    made = state.after(state.create_topic(OPTIONS, "urgent", TopicType.PRIORITY)).topic("urgent")
    assert (made.queues, made.type) == (10, TopicType.PRIORITY)
    assert state.after(state.create_topic(OPTIONS, "urgent", TopicType.PRIORITY, 3)).topic("urgent").queues == 3


def test_a_topic_made_again_has_another_id() -> None:
    state = with_topic()
    first = state.topic("orders").id
    state = state.after(state.delete_topic("orders"))
    state = state.after(state.create_topic(OPTIONS, "orders", TopicType.NORMAL))
    assert state.topic("orders").id > first


def test_a_group_gets_sixteen_retries_and_the_ladder_of_delays() -> None:
    state = fresh_state()
    group = state.after(state.create_group(OPTIONS, "g")).group("g")
    assert group.max_attempts == 17
    assert [wait // 1000 for wait in group.backoff_ms] == [
        *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
    ]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "letters"),
        ("with blank", "letters"),
        ("zürich", "letters"),
        ("a" * 128, "between 1 and 127"),
        ("%RETRY%g_orders", "retry topic"),
        ("%RETRY%g+orders", "cannot be made"),
        ("%DLQ%g", "cannot be made"),
        ("rmq_sys_REVIVE_LOG_test", "cannot be made"),
    ],
)
def test_names_that_a_topic_cannot_have(name: str, word: str) -> None:
    code, sentence = refusal(lambda state: state.create_topic(OPTIONS, name, TopicType.NORMAL), fresh_state())
    assert code == Code.ILLEGAL_TOPIC
    assert word in sentence


def test_the_longest_names() -> None:
    state = fresh_state()
    state = state.after(state.create_topic(OPTIONS, "a" * 127, TopicType.NORMAL))
    state = state.after(state.create_group(OPTIONS, "a" * 120))
    code, _ = refusal(lambda state: state.create_group(OPTIONS, "a" * 121), state)
    assert code == Code.ILLEGAL_CONSUMER_GROUP


def test_name_lengths_are_configurable() -> None:
    options = ControllerOptions(topic_name_length_max=3, group_name_length_max=2)
    state = fresh_state()
    state.create_topic(options, "abc", TopicType.NORMAL)
    assert refusal(lambda state: state.create_topic(options, "abcd", TopicType.NORMAL), state)[0] == Code.ILLEGAL_TOPIC
    assert refusal(lambda state: state.create_group(options, "abc"), state)[0] == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize("queues", [0, -1, 1025])
def test_numbers_of_queues_that_cannot_be(queues: int) -> None:
    code, sentence = refusal(
        lambda state: state.create_topic(OPTIONS, "orders", TopicType.NORMAL, queues), fresh_state()
    )
    assert code == Code.BAD_REQUEST
    assert "1 to 1024" in sentence


def test_a_topic_needs_a_type() -> None:
    code, sentence = refusal(
        lambda state: state.create_topic(OPTIONS, "orders", TopicType.TOPIC_TYPE_UNSPECIFIED), fresh_state()
    )
    assert code == Code.BAD_REQUEST
    assert "NORMAL, FIFO, DELAY, TRANSACTION, MIXED" in sentence


@pytest.mark.parametrize(("attempts", "backoff"), [(0, None), (1001, None), (1, []), (1, [-1]), (1, [0] * 65)])
def test_values_that_a_group_cannot_have(attempts: int, backoff: list[int] | None) -> None:
    code, _ = refusal(
        lambda state: state.create_group(OPTIONS, "g", max_attempts=attempts, backoff_ms=backoff), fresh_state()
    )
    assert code == Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("initial_ms", "max_ms", "multiplier"),
    [(0, 10, 2), (10, 9, 2), (1, 7 * 24 * 3_600_000 + 1, 2), (1, 10, 0.5), (1, 10, 1001), (1, 10, float("nan"))],
)
def test_waits_that_grow_as_they_may_not(initial_ms: int, max_ms: int, multiplier: float) -> None:
    grows = ExponentialBackoff(initial_ms=initial_ms, max_ms=max_ms, multiplier=multiplier)
    code, sentence = refusal(lambda state: state.create_group(OPTIONS, "g", exponential=grows), fresh_state())
    assert code == Code.BAD_REQUEST
    assert "exponential_backoff must have" in sentence or "multiplier must be" in sentence


def test_waits_are_listed_or_grow() -> None:
    grows = ExponentialBackoff(initial_ms=1, max_ms=1, multiplier=1)
    group = fresh_state().create_group(OPTIONS, "g", exponential=grows).groups[0]
    assert (list(group.backoff_ms), group.exponential_backoff) == ([], grows)
    code, sentence = refusal(
        lambda state: state.create_group(OPTIONS, "g", backoff_ms=[1], exponential=grows), fresh_state()
    )
    assert (code, "leave one out" in sentence) == (Code.BAD_REQUEST, True)


def test_what_is_there_is_not_made_again() -> None:
    state = with_topic()
    assert refusal(lambda state: state.create_topic(OPTIONS, "orders", TopicType.FIFO), state) == (
        Code.PRECONDITION_FAILED,
        "topic orders is there already",
    )


def test_the_cluster_holds_no_more_topics_and_groups_than_it_may() -> None:
    state = fresh_state()
    for name in "abcd":
        state = state.after(state.create_topic(OPTIONS, name, TopicType.NORMAL))
        state = state.after(state.create_group(OPTIONS, name))
    code, sentence = refusal(lambda state: state.create_topic(OPTIONS, "e", TopicType.NORMAL), state)
    assert (code, "controller.topics_max" in sentence) == (Code.TOO_MANY_REQUESTS, True)
    code, sentence = refusal(lambda state: state.create_group(OPTIONS, "e"), state)
    assert (code, "controller.groups_max" in sentence) == (Code.TOO_MANY_REQUESTS, True)


def test_what_is_not_there_is_not_found() -> None:
    assert refusal(lambda state: state.delete_topic("x"), fresh_state())[0] == Code.TOPIC_NOT_FOUND
    assert refusal(lambda state: state.delete_group("x"), fresh_state())[0] == Code.CONSUMER_GROUP_NOT_FOUND


@given(changes=st.lists(CHANGES, max_size=40), joins_at=st.integers(min_value=0, max_value=40))
def test_a_view_that_applies_updates_equals_the_state(changes: list[Change], joins_at: int) -> None:
    """Whenever a watcher joins, the snapshot and the changes after it lead to the state itself."""
    state = fresh_state()
    view: ClusterView | None = None
    for step, change in enumerate([*changes, lambda _: None]):
        if step >= joins_at and view is None:
            view = ClusterView()
            view.apply(snapshot_of(state))
        state, update = try_change(state, change)
        if view is not None:
            if update is not None:
                view.apply(update)
                view.apply(update)  # one that comes twice changes nothing
            assert (view.version, contents(view)) == (state.version, contents(state))


@given(lives=st.lists(st.lists(CHANGES, max_size=10), max_size=5))
def test_ids_are_larger_than_what_was_learned_of_topics_and_groups_before(lives: list[list[Change]]) -> None:
    """Also those that another controller gives, which knows of routes only those that were stored with a topic."""
    state, document = fresh_state(), document_of(fresh_state())
    view = ClusterView()
    for changes in lives:
        view.apply(snapshot_of(state))
        for change in changes:
            state, update = try_change(state, change)
            if update is None:
                continue
            known = {topic.id for topic in view.topics.values()} | {group.id for group in view.groups.values()}
            ids = [topic.id for topic in update.topics] + [group.id for group in update.groups]
            assert all(each > view.named for each in ids if each not in known)  # else it was changed
            view.apply(update)
            assert all(each <= view.named for each in ids)
            if ids or update.deleted_topics or update.deleted_groups or update.HasField("cluster"):
                document = document_of(state)
            assert view.named == state.named <= document["version"]
        state = state_of(document, "the store")


@given(changes=st.lists(CHANGES, max_size=40))
def test_ids_are_never_given_twice_and_decisions_change_nothing(changes: list[Change]) -> None:
    state = fresh_state()
    ids: list[int] = []
    for change in changes:
        before = (state.version, contents(state))
        after, update = try_change(state, change)
        assert (state.version, contents(state)) == before
        if update is not None:
            ids += [topic.id for topic in update.topics if topic.name not in state.topics]
            ids += [group.id for group in update.groups if group.name not in state.groups]
        state = after
    assert ids == sorted(set(ids))


def test_names_that_would_not_fit_into_a_retry_topic_are_refused_as_settings() -> None:
    longest = ControllerOptions()
    retry_topic = names.retry_topic("g" * longest.group_name_length_max, "t" * longest.topic_name_length_max)
    assert len(retry_topic) == names.STORED_NAME_BYTES_MAX
    with pytest.raises(ValueError, match="less than or equal to 127"):
        ControllerOptions(topic_name_length_max=128)
    with pytest.raises(ValueError, match="less than or equal to 120"):
        ControllerOptions(group_name_length_max=121)


def test_the_settings_may_allow_less_than_the_gate() -> None:
    options = ControllerOptions(topic_name_length_max=3, group_name_length_max=2)
    state = fresh_state()
    code, sentence = refusal(lambda state: state.create_topic(options, "abcd", TopicType.NORMAL), state)
    assert (code, "controller.topic_name_length_max" in sentence) == (Code.ILLEGAL_TOPIC, True)
    code, sentence = refusal(lambda state: state.create_group(options, "abc"), state)
    assert (code, "controller.group_name_length_max" in sentence) == (Code.ILLEGAL_CONSUMER_GROUP, True)
