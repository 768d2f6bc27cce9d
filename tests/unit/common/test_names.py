"""The gate for names: what is one, what may be asked of which kind, and that nothing is kept of what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.names import Kind, Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, Cluster, ClusterUpdate, Group, Topic
from tests.harness.names import BAD_GROUPS, BAD_TOPICS, OF_KIND

CHARACTERS = st.sampled_from("%AZaz09_-")
GROUPS = st.text(CHARACTERS, min_size=1, max_size=names.GROUP_LENGTH_MAX)
USERS = st.text(CHARACTERS, min_size=1, max_size=names.TOPIC_LENGTH_MAX).filter(names.is_topic)


@pytest.mark.parametrize("text", BAD_TOPICS)
@pytest.mark.parametrize("use", Use)
def test_what_is_no_topic(text: str, use: Use) -> None:
    with pytest.raises(StatusError) as caught:
        names.topic(text, use)
    assert caught.value.code == Code.ILLEGAL_TOPIC
    _fits_a_log(caught.value.message)
    assert not names.is_topic(text)


@pytest.mark.parametrize("text", BAD_GROUPS)
def test_what_is_no_group(text: str) -> None:
    with pytest.raises(StatusError) as caught:
        names.group(text)
    assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP
    _fits_a_log(caught.value.message)
    assert not names.is_group(text)


@pytest.mark.parametrize("text", ["", "a" * 65, "a.b", "../a", "a\n", "%", "ü", "\ud800"])
def test_what_is_no_broker_group_and_no_cluster(text: str) -> None:
    for gate in (names.broker_group, names.cluster):
        with pytest.raises(StatusError) as caught:
            gate(text)
        assert caught.value.code == Code.BAD_REQUEST
        _fits_a_log(caught.value.message)


def _fits_a_log(sentence: str) -> None:
    assert sentence.isprintable()
    assert len(sentence) < 300
    assert len(sentence.split()) > 5


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize("kind", Kind)
def test_the_table_is_what_the_gate_goes_by(kind: Kind, use: Use) -> None:
    for text in OF_KIND[kind]:
        assert names.kind_of(text) is kind
        if use in names.USES[kind]:
            assert names.topic(text, use) == text
        else:
            with pytest.raises(StatusError, match=r"^ILLEGAL_TOPIC: .* cannot be ") as caught:
                names.topic(text, use)
            _fits_a_log(caught.value.message)


@given(group=GROUPS, topic=USERS | GROUPS.map(names.dead_letter_topic))
def test_a_retry_topic_always_fits_and_says_what_it_is_made_of(group: str, topic: str) -> None:
    made = names.retry_topic(group, topic)
    assert len(made.encode()) <= names.STORED_NAME_BYTES_MAX
    assert (names.group_of_retry_topic(made), names.topic_of_retry_topic(made)) == (group, topic)
    assert names.topic(made, Use.PULL) == made
    assert names.is_storable(made)


@given(group=GROUPS, other=GROUPS, topic=USERS)
def test_a_retry_of_a_retry_can_not_be_built(group: str, other: str, topic: str) -> None:
    with pytest.raises(StatusError, match="ILLEGAL_TOPIC"):
        names.retry_topic(other, names.retry_topic(group, topic))


@given(name=st.text(max_size=300))
def test_any_text_is_a_name_or_refused_by_name(name: str) -> None:
    for use in Use:
        try:
            made = names.topic(name, use)
        except StatusError as error:
            assert error.code == Code.ILLEGAL_TOPIC
            _fits_a_log(error.message)
        else:
            assert len(made.encode()) <= names.STORED_NAME_BYTES_MAX
            assert made.isascii()


def test_nothing_is_remembered_of_what_is_refused() -> None:
    names.topic.cache_clear()
    names.group.cache_clear()
    for number in range(10):
        with pytest.raises(StatusError):
            names.topic(f"{number} {'n' * 4_000_000}", Use.RECEIVE)
        with pytest.raises(StatusError):
            names.group(f"{number} {'n' * 4_000_000}")
    assert names.topic.cache_info().currsize == names.group.cache_info().currsize == 0


def test_of_ever_new_names_only_some_are_remembered() -> None:
    for number in range(5_000):
        names.group(f"ever-new-{number}")
    assert names.group.cache_info().currsize == 4_096


def test_a_view_passes_over_names_that_can_not_be() -> None:
    view = ClusterView()
    update = ClusterUpdate(version=1, snapshot=True, cluster=Cluster(name="c", receipt_key=b"k"))
    bad = [text for text in BAD_TOPICS if "\ud800" not in text]
    update.topics.extend(Topic(name=name, id=1) for name in ("good", *bad, "%DLQ%g"))
    update.groups.extend(Group(name=name, id=1) for name in ("good", "a/b", "g" * 121))
    update.brokers.extend(BrokerInfo(name=name, address="a:1") for name in ("b-0", "../b", "b" * 65))
    update.away_brokers.extend(("b-1", "../b"))
    view.apply(update)
    assert view.away == {"b-1"}
    assert (list(view.topics), list(view.groups), list(view.brokers)) == (["good"], ["good"], ["b-0"])


def test_a_view_is_of_no_cluster_whose_name_can_not_be() -> None:
    view = ClusterView()
    with pytest.raises(StatusError, match="BAD_REQUEST"):
        view.apply(ClusterUpdate(version=1, snapshot=True, cluster=Cluster(name="c" * 300)))
    assert not view.ready
