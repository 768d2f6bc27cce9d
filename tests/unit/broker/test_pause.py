"""A paused group is delivered nothing, a paused topic is delivered to nobody; nothing is lost, and nothing spins."""

from typing import Any

import pytest

from popwheel_broker.core.notification import Interest, Subscriber
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Group, Topic, TopicType
from tests.unit.broker import lite_world as lite
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.world import INVISIBLE_MS, KEY, World, attempts, handles


def steer(world: World, name: str, since_ms: int) -> None:
    """Pause or resume a topic or group of the world."""
    topic, group = world.view.topics.get(name), world.view.groups.get(name)
    changes: dict[str, Any] = {}
    if topic is not None:
        changed = Topic()
        changed.CopyFrom(topic)
        changed.paused_ms = since_ms
        changes["topics"] = [changed]
    else:
        assert group is not None
        altered = Group()
        altered.CopyFrom(group)
        altered.paused_ms = since_ms
        changes["groups"] = [altered]
    world._apply(**changes)


class Polls:
    """A proxy whose polls wait for a group and topic."""

    def __init__(self, world: World, group: str = "g", topic: str = "t") -> None:
        self._subscriber = Subscriber(lambda: None)
        world.core.interests.add(Interest(1, self._subscriber, topic, group, None))

    def notified(self) -> dict[int, int]:
        return dict(self._subscriber.take()[0])


def bodies(messages: list[Message]) -> list[bytes]:
    return [each.body for each in messages]


@pytest.mark.parametrize("name", ["g", "t"])
def test_nothing_is_delivered_or_notified_until_it_is_resumed(name: str) -> None:
    world = world_of()
    polls = Polls(world)
    steer(world, name, 1)
    for number in range(3):
        world.put("t", b"%d" % number)
    assert polls.notified() == {}
    answer = world.answer("g", "t")
    assert (len(answer.messages), answer.waiting) == (0, 0), "or its proxy would pop again at once"
    steer(world, name, 0)
    assert polls.notified() == {1: 3}
    assert bodies(world.pop("g", "t")) == [b"0", b"1", b"2"]
    assert world.pop("g", "t") == []
    world.put("t", b"3")
    assert polls.notified() == {1: 1}


def test_other_groups_and_topics_go_on() -> None:
    world = world_of()
    world.add_topic("u")
    world.add_group("h")
    world.put("t", b"1")
    world.put("u", b"2")
    steer(world, "t", 1)
    assert (world.pop("g", "t"), world.pop("h", "t")) == ([], [])
    assert bodies(world.pop("g", "u")) == [b"2"]
    steer(world, "t", 0)
    steer(world, "g", 1)
    assert (world.pop("g", "t"), world.pop("g", "u")) == ([], [])
    assert bodies(world.pop("h", "t")) == [b"1"]


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("name", ["g", "t"])
def test_what_is_in_flight_may_be_acknowledged_or_expires_and_waits(name: str, fifo: bool) -> None:
    world = world_of()
    world.add_group("g", fifo=fifo)
    polls = Polls(world)
    for number in range(4):
        world.put("t", b"%d" % number, message_group="ab"[number % 2])
    given = world.pop("g", "t", 2)
    assert bodies(given) == [b"0", b"1"]
    steer(world, name, 1)
    polls.notified()
    assert world.ack("g", "t", *handles(given[:1])) == [Code.OK]
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 1
    world.flush()
    assert polls.notified() == {}
    assert world.pop("g", "t") == []
    steer(world, name, 0)
    (waiting,) = polls.notified().values()
    assert waiting > 0
    found = world.pop("g", "t")
    if fifo:
        assert sorted(bodies(found)) == [b"1", b"2"], "3 stands behind 1"
        world.ack("g", "t", *handles(found))
        world.flush()
        assert bodies(world.pop("g", "t")) == [b"3"]
    else:
        assert sorted(bodies(found)) == [b"1", b"2", b"3"]
    assert sorted(attempts(found))[-1] == 2


@pytest.mark.parametrize("name", ["g", lite.PARENT])
def test_a_paused_parent_or_group_pauses_lite_topics(name: str) -> None:
    world = lite.lite_world()
    lite.read(world, "ab")
    reported = lite.Reported(world, "c")
    steer(world, name, 1)
    lite.send(world, "a1", "b1", "a2")
    assert reported.take() == {}
    assert lite.pop(world) == []
    steer(world, name, 0)
    assert reported.take() == {0: 2}
    assert sorted(lite.take_all(world)) == ["a1", "a2", "b1"]


def test_levels_are_paused_too() -> None:
    world = world_of()
    world.add_topic("p", 10, TopicType.PRIORITY)
    world.put("p", b"low", queue_id=1)
    world.put("p", b"high", queue_id=9)
    steer(world, "p", 1)
    assert world.pop("g", "p") == []
    steer(world, "p", 0)
    assert bodies(world.pop("g", "p")) == [b"high", b"low"]


def test_a_pause_outlives_a_crash_and_a_whole_state_anew() -> None:
    world = world_of()
    steer(world, "g", 1)
    world.put("t", b"1")
    world.crash("process")
    assert world.pop("g", "t") == []
    polls = Polls(world)
    topics, groups = list(world.view.topics.values()), list(world.view.groups.values())
    cluster = Cluster(name="test", receipt_key=KEY)
    anew = ClusterUpdate(version=world.view.version, snapshot=True, cluster=cluster, topics=topics, groups=groups)
    world.learn(anew)
    assert world.pop("g", "t") == []
    resumed = Group()
    resumed.CopyFrom(groups[0])
    resumed.paused_ms = 0
    del anew.groups[:]
    anew.groups.append(resumed)
    world.learn(anew)
    world.core.cluster_changes.apply()
    assert polls.notified() == {1: 1}, "a broker that was away learns of the end from a whole state, too"
    assert bodies(world.pop("g", "t")) == [b"1"]


@pytest.mark.parametrize("name", ["g", "t"])
def test_a_deletion_ends_a_pause(name: str) -> None:
    world = world_of()
    steer(world, name, 1)
    of = "groups" if name == "g" else "topics"
    assert f'popwheel_paused{{of="{of}"}} 1.0' in metrics(world)
    if name == "g":
        world.delete_group("g")
        world.add_group("g")
    else:
        world.delete_topic("t")
        world.add_topic("t")
    assert (world.view.paused_groups, world.view.paused_topics) == (set(), set())
    world.put("t", b"1")
    assert bodies(world.pop("g", "t")) == [b"1"]


def test_the_same_try_gets_what_it_was_given_before() -> None:
    world = world_of()
    world.add_group("g", fifo=True)
    world.put("t", b"1", message_group="a")
    world.put("t", b"2", message_group="b")
    given = world.answer("g", "t", 1, attempt_id="try")
    steer(world, "g", 1)
    again = world.answer("g", "t", 1, attempt_id="try")
    assert [Message.FromString(each).body for each in again.messages] == [b"1"]
    assert len(given.messages) == 1
    assert world.answer("g", "t", attempt_id="other").messages == []


def test_a_snapshot_in_parts_counts_when_it_is_whole() -> None:
    view = ClusterView()
    cluster = Cluster(name="test", receipt_key=KEY)
    first = ClusterUpdate(version=1, snapshot=True, cluster=cluster, more=True)
    first.topics.append(Topic(name="t", id=1, paused_ms=5))
    view.apply(first)
    assert not view.is_paused("g", "t")
    last = ClusterUpdate(version=1, snapshot=True)
    last.groups.append(Group(name="g", id=1, paused_ms=6))
    view.apply(last)
    assert (view.is_paused("h", "t"), view.is_paused("g", "u"), view.is_paused("h", "u")) == (True, True, False)
