"""Lag of a group counts in all that it reads, also where it never found or never looked for anything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.topics import readers as readers_module
from popwheel_broker.topics.readers import Readers
from popwheel_common.contract import names
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic, TopicType
from popwheel_rpc import methods
from tests.harness.memory_disk import CrashKind
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.served_broker import events, running
from tests.unit.broker.test_oldest_messages import found, put_one_a_second
from tests.unit.broker.world import World, handles

CRASHES: tuple[CrashKind, ...] = ("process", "power")
LAG = 'rocketmq_consumer_lag_messages{consumer_group="g",topic="t"}'


def lag_of(world: World, line: str = LAG) -> float | None:
    values = [each.rpartition(" ")[2] for each in metrics(world).splitlines() if each.startswith(line)]
    return float(values[0]) if values else None


@pytest.mark.parametrize("crash", [None, "process", "power"])
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_group_that_polled_an_empty_topic_and_died_is_behind_by_all_that_comes(
    crash: CrashKind | None, is_saved: bool
) -> None:
    """0 of 60 were shown, and no age, so that no alert could fire."""
    world = world_of(queues=8)
    assert world.pop("g", "t") == []
    world.flush()
    if is_saved:
        world.save()
    for number in range(60):
        put_one_a_second(world, 1, queue_id=number % 8)
    if crash is not None:
        world.crash(crash)
    assert lag_of(world) == 60
    assert found(world)["g", "t"].waiting_ms == 60_000


def test_queues_that_a_group_never_read_count_beside_those_that_it_read() -> None:
    """165 of 440 were shown."""
    world = world_of(queues=8)
    for number in range(440):
        world.put("t", b"%d" % number, queue_id=number % 8)
    acked = handles(world.pop("g", "t", 10, queue_id=0))
    world.ack("g", "t", *acked)
    assert lag_of(world) == 430


def test_a_group_that_reads_nothing_of_a_topic_lags_nowhere_in_it() -> None:
    world = world_of()
    world.add_topic("other")
    world.put("other", b"x")
    world.put("t", b"x")
    world.pop("g", "other")
    assert lag_of(world) is None
    assert ("g", "t") not in found(world)


def test_what_is_retried_counts_though_nothing_of_it_was_read() -> None:
    world = world_of()
    world.put("t", b"fails")
    world.pop("g", "t", invisible_ms=1000)
    world.clock.advance(2000)
    world.revive()
    world.flush()
    retry = names.retry_topic("g", "t")
    assert lag_of(world, f'rocketmq_consumer_lag_messages{{consumer_group="g",topic="{retry}"}}') == 1


def test_a_lite_topic_that_a_client_reads_counts_before_it_is_polled() -> None:
    world = world_of()
    world.add_topic("lite", kind=TopicType.LITE)
    world.core.cluster_changes.record_reader("g", "lite")
    client, new = world.core.lite.subscriptions.begin(ClientKey("g", "lite", "c"), ["mine"], 0)
    world.core.lite.record_waiting(client, new)
    for name in ("mine", "mine", "another's"):
        world.put(names.lite_topic("lite", name), b"x")
    assert lag_of(world, 'rocketmq_consumer_lag_messages{consumer_group="g",topic="lite"}') == 2


def test_a_poll_counts_as_soon_as_the_broker_learns_of_its_names() -> None:
    """A proxy notifies all brokers of what is polled for, maybe before the controller reports that it is there."""
    world = world_of()
    for topic, group in (("t", "late"), ("later", "g"), ("later", "late"), ("never", "g")):
        assert not world.core.cluster_changes.record_reader(group, topic)
    world.add_group("late")
    world.add_topic("later")
    readers = world.core.topic_registry.readers
    assert {group: sorted(readers.topics_of(group)) for group in readers.groups} == {
        "late": ["later", "t"],
        "g": ["later"],
    }


def test_names_that_nobody_learns_of_are_kept_within_a_limit_and_keep_nobody_out() -> None:
    world = world_of()
    for number in range(2000):
        world.core.cluster_changes.record_reader("g", f"never{number}")
    world.core.cluster_changes.record_reader("g", "later")
    for number in range(500):
        world.core.cluster_changes.record_reader("g", f"never again{number}")
    assert len(world.core.cluster_changes._waiting_readers) == 1000
    world.add_topic("later")
    assert world.core.topic_registry.readers.topics_of("g") == ["later"]


def test_groups_share_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that reads very many topics leaves room for others, polls that came early or late."""
    monkeypatch.setattr(readers_module, "READERS_MAX", 9)
    world = world_of()
    world.add_group("h")
    for number in range(20):
        world.core.cluster_changes.record_reader("g", f"later{number}")
    world._apply(topics=[Topic(name=f"later{number}", queues=1, id=1000 + number) for number in range(20)])
    readers = world.core.topic_registry.readers
    assert len(readers.topics_of("g")) == 5
    for number in range(20):
        world.core.cluster_changes.record_reader("g", f"later{number}")
    assert len(readers.topics_of("g")) == 5
    assert world.core.cluster_changes.record_reader("h", "t")
    assert world.core.cluster_changes._waiting_readers == {}


@given(
    st.lists(
        st.tuples(st.sampled_from(["note", "topic", "group", "restore"]), st.sampled_from("gh"), st.sampled_from("tu"))
    )
)
def test_readers_are_found_by_topic_as_by_group(steps: list[tuple[str, str, str]]) -> None:
    readers = Readers()
    model: set[tuple[str, str]] = set()
    for what, group, topic in steps:
        if what == "note":
            readers.record({group: [topic]})
            model.add((group, topic))
        elif what == "topic":
            assert sorted(readers.forget_topic(topic)) == sorted(each for each, of in model if of == topic)
            model = {pair for pair in model if pair[1] != topic}
        elif what == "group":
            readers.forget_group(group)
            model = {pair for pair in model if pair[0] != group}
        else:
            readers.restore({each: readers.topics_of(each) for each in readers.groups})
        assert {(each, of) for each in readers.groups for of in readers.topics_of(each)} == model
        assert len(readers) == len(model)
        assert {(each, of) for of, groups in readers._groups.items() for each in groups} == model


def test_only_what_is_read_is_a_row_of_a_checkpoint() -> None:
    world = world_of()
    world.pop("g", "t")
    world.flush()
    world.add_group("idle")
    assert [row for row in world.core.rows() if row[0] == "reads"] == [("reads", ["g", "t"])]
    world.save()
    world.delete_topic("t")
    world.save()
    world.crash("process")
    assert world.core.topic_registry.readers.topics_of("g") == []


async def test_a_proxy_reports_a_broker_that_none_of_the_polls_comes_to() -> None:
    async with running() as broker:
        await broker.put(b"x")
        stream = broker.channel.open(methods.NOTIFY)
        await stream.send(
            [
                pb.NotifyInterest(reads=True, cancel=True, topic="no name", group="g"),
                pb.NotifyInterest(reads=True, cancel=True, topic="t", group="g"),
                pb.NotifyInterest(id=1, topic="t", group="g"),
            ]
        )
        assert await events(stream) == {1: 1}
        assert broker.app.core.topic_registry.readers.topics_of("g") == ["t"]
        assert len(broker.app.core.interests) == 1
        stream.cancel()


def test_a_full_disk_refuses_no_poll_and_the_next_one_is_written_down() -> None:
    world = world_of()
    world.disk.fill(1)
    assert not world.core.cluster_changes.record_reader("g", "t")
    world.disk.fill(1 << 20)
    assert world.core.cluster_changes.record_reader("g", "t")
    assert not world.core.cluster_changes.record_reader("g", "t"), "once is enough"


def test_there_are_that_many_pairs_at_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_module, "READERS_MAX", 1)
    world = world_of()
    world.add_topic("u")
    assert world.core.cluster_changes.record_reader("g", "t")
    assert not world.core.cluster_changes.record_reader("g", "u")
    assert "popwheel_pop_readers 1.0" in metrics(world)


class ReadersMachine(RuleBasedStateMachine):
    """Polls, deletions, saves and crashes: memory and log say the same (S6)."""

    def __init__(self) -> None:
        super().__init__()
        self.world = world_of(queues=2)
        self.world.add_topic("u")
        self.world.add_group("h")
        self.model: set[tuple[str, str]] = set()

    @rule(group=st.sampled_from("gh"), topic=st.sampled_from(["t", "u", "%DLQ%g"]))
    def poll(self, group: str, topic: str) -> None:
        self.world.pop(group, topic)
        self.world.flush()
        self.model.add((group, topic))

    @rule(topic=st.sampled_from("tu"))
    def delete_topic(self, topic: str) -> None:
        self.world.delete_topic(topic)
        self.world.add_topic(topic)
        self.world.flush()
        self.model = {pair for pair in self.model if pair[1] != topic}

    @rule(group=st.sampled_from("gh"))
    def delete_group(self, group: str) -> None:
        self.world.delete_group(group)
        self.world.add_group(group)
        self.world.flush()
        self.model = {pair for pair in self.model if pair[0] != group and pair[1] != f"%DLQ%{group}"}

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule(kind=st.sampled_from(CRASHES))
    def crash(self, kind: CrashKind) -> None:
        self.world.crash(kind)

    @invariant()
    def memory_and_log_agree(self) -> None:
        readers = self.world.core.topic_registry.readers
        assert {(group, topic) for group in readers.groups for topic in readers.topics_of(group)} == self.model
        assert len(readers) == len(self.model)


TestReaders = ReadersMachine.TestCase
TestReaders.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)


def test_a_pair_is_there_once() -> None:
    readers = Readers()
    readers.record({"g": ["t", "t"]})
    readers.record({"g": ["t", "u"]})
    assert (len(readers), readers.topics_of("g")) == (2, ["t", "u"])
