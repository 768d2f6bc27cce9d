"""What a broker's log says of topics and groups to controllers that have lost their state."""

import asyncio
import random

import pytest

from popwheel_broker.calls.name_server import LISTED_MAX, NameServer
from popwheel_broker.topics.known_settings import written_settings
from popwheel_broker.topics.topic_registry import Names, TopicRegistry
from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import VERSIONS_PER_STORE, ClusterView
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Group, Topic, TopicType
from popwheel_rpc import methods
from tests.harness import names_in_log
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.served_broker import Broker, refused, running
from tests.unit.broker.test_notify import change
from tests.unit.broker.world import KEY

ANEW = 7 * VERSIONS_PER_STORE
BACK = 1_000_001


async def listed(broker: Broker, *, groups: bool = False, after: str = "", limit: int = 10) -> pb.NameListResponse:
    request = pb.NameListRequest(groups=groups, after=after, limit=limit)
    return await broker.channel.call(methods.NAME_LIST, request)


async def learn(broker: Broker, update: ClusterUpdate) -> None:
    """The controller tells it, and it stands in the log."""
    await broker.controller.updates.put(update)
    names = broker.app.core.topic_registry
    async with asyncio.timeout(5):
        while broker.app.view.version != update.version or names.has_pending_changes or names.has_unwritten_settings:
            await asyncio.sleep(0)


def whole(version: int, *topics: Topic, groups: tuple[Group, ...] = ()) -> ClusterUpdate:
    cluster = Cluster(name="test", receipt_key=KEY)
    return ClusterUpdate(version=version, snapshot=True, cluster=cluster, topics=topics, groups=groups)


FIFO = Topic(name="a", type=TopicType.FIFO, queues=4, message_group_queues=2, id=2)
SLOW = Group(name="slow", max_attempts=9, fifo=True, backoff_ms=[5, 7], paused_ms=11, id=3)


async def test_ids_settings_and_queues_are_reported_page_by_page() -> None:
    async with running() as broker:
        await learn(broker, ClusterUpdate(version=2, topics=[FIFO]))
        await learn(broker, ClusterUpdate(version=3, groups=[SLOW]))
        await broker.put(b"1", queue_id=1)
        first = await listed(broker, limit=1)
        assert first.next == "a"
        (found,) = first.names
        assert (found.name, list(found.ids), found.queues, found.has_lite_topics) == ("a", [2], 0, False)
        expected = Topic(type=TopicType.FIFO, queues=4, message_group_queues=2)
        assert Topic.FromString(found.settings) == expected
        second = await listed(broker, after=first.next)
        assert [(each.name, list(each.ids), each.queues) for each in second.names] == [("t", [1], 2)]
        assert second.next == ""
        groups = await listed(broker, groups=True)
        assert [(each.name, list(each.ids)) for each in groups.names] == [("g", [1]), ("slow", [3])]
        assert Group.FromString(groups.names[1].settings) == Group(
            max_attempts=9, fifo=True, backoff_ms=[5, 7], paused_ms=11
        )
        assert [(state.version, state.applied_version) for state in groups.states] == [(3, 3)]


@pytest.mark.parametrize("limit", [0, LISTED_MAX + 1])
async def test_a_page_has_its_limits(limit: int) -> None:
    async with running() as broker:
        await refused(listed(broker, limit=limit), Code.BAD_REQUEST, "limit must be from 1 to 1000")


async def test_a_change_of_settings_is_written_down_and_outlives_a_restart() -> None:
    disk, clock = MemoryDisk(random.Random(0), 1 << 30), ManualClock()
    async with running(disk, clock=clock) as broker:
        broker.controller.snapshot.topics[0].queues = 2
        await change(broker, topics=[Topic(name="t", queues=5, type=TopicType.MIXED, id=1)])
        await learn(broker, ClusterUpdate(version=3, groups=[Group(name="g", max_attempts=4, id=1)]))
        assert Topic.FromString((await listed(broker)).names[0].settings).queues == 5
    async with running(disk, clock=clock) as broker:  # its controller tells the older settings, which count again
        async with asyncio.timeout(5):
            while (
                broker.app.core.topic_registry.has_unwritten_settings
                or broker.app.core.topic_registry.has_pending_changes
            ):
                await asyncio.sleep(0)
        assert Topic.FromString((await listed(broker)).names[0].settings) == Topic(queues=2)


async def test_when_the_controllers_lose_their_state_all_is_known_still_and_goes_on_when_it_is_back() -> None:
    """Ids of the state that was lost are told as former ones, of groups, too, and what was learned of it (S1)."""
    disk, clock = MemoryDisk(random.Random(0), 1 << 30), ManualClock()
    async with running(disk, clock=clock) as broker:
        await learn(broker, ClusterUpdate(version=2, topics=[FIFO]))
        await broker.put(b"1", b"2".decode())
        await broker.put(b"2")
        (first,) = await broker.pop(1)
        assert await broker.ack(first) == [Code.OK]
        await learn(broker, whole(ANEW))
        for groups, names in ((False, {"a": [2], "t": [1]}), (True, {"g": [1]})):
            found = await listed(broker, groups=groups)
            assert {each.name: list(each.ids) for each in found.names} == names
            assert all(each.HasField("settings") for each in found.names)
            assert [(each.version, each.applied_version) for each in found.states] == [(2, 2), (ANEW, ANEW)]
        broker.controller.snapshot = whole(ANEW)
        controller = broker.controller
    async with running(disk, clock=clock) as broker:
        broker.controller.updates = controller.updates
        back = whole(BACK, Topic(name="t", queues=2, id=1), FIFO, groups=(Group(name="g", max_attempts=2, id=1),))
        await learn(broker, back)
        assert dict(broker.app.core.topic_registry.topic_ids) == {"a": 2, "t": 1}
        assert dict(broker.app.core.topic_registry.group_ids) == {"g": 1}
        assert len(await broker.pop()) == 1
        found = await listed(broker)
        assert [list(each.ids) for each in found.names] == [[2], [1]]


async def test_settings_of_before_are_notified_of_what_was_made_again_since() -> None:
    disk, clock = MemoryDisk(random.Random(0), 1 << 30), ManualClock()
    async with running(disk, clock=clock) as broker:
        await learn(broker, ClusterUpdate(version=3, groups=[SLOW]))
        await learn(broker, whole(ANEW))
        made = Group(name="slow", max_attempts=16, id=ANEW + 1)
        await learn(broker, ClusterUpdate(version=ANEW + 1, groups=[made]))
        broker.controller.snapshot = whole(ANEW + 1, groups=(made,))
        controller = broker.controller
    for again in (False, True):
        async with running(disk, clock=clock) as broker:
            broker.controller.snapshot = controller.snapshot
            _, slow = (await listed(broker, groups=True)).names
            assert list(slow.ids) == [3, ANEW + 1], again
            assert Group.FromString(slow.settings).max_attempts == 16
            assert Group.FromString(slow.former_settings).max_attempts == 9


def test_a_record_of_an_older_release_says_no_settings_and_one_of_this_release_does() -> None:
    old = Names.decode(b'{"topics": {"t": 3}, "groups": {}}')
    assert (old.topics, old.topic_settings, old.group_settings) == ({"t": 3}, {}, {})
    assert b"settings" not in Names({"t": 3}, {}, 3).encode()
    new = Names({"t": 3}, {"g": 4}, 4, topic_settings={"t": "EAE="}, group_settings={"g": ""})
    assert Names.decode(new.encode()) == new


def test_settings_that_an_older_release_did_not_write_are_written_down_some_at_a_time() -> None:
    view = ClusterView()
    names = TopicRegistry(view)
    topics = [Topic(name=f"t{number}", queues=number + 1, id=number + 1) for number in range(600)]
    names_in_log.record(names, Names({each.name: each.id for each in topics}, {}, 600))
    update = whole(600, *topics)
    names.stage(update)
    view.apply(update)
    names.view_changed(update)
    assert names.changes().new_topics == {}
    names.applied()
    written = []
    while names.has_unwritten_settings:
        some = names.unwritten_settings()
        if some is not None:
            names_in_log.record(names, some)
            written.append(len(some.topic_settings))
    assert written == [250, 250, 100]
    assert names.topic_settings.known == {each.name: written_settings(each) for each in topics}


def test_what_a_log_has_otherwise_than_the_view_is_written_down_though_it_is_not_reported_anew() -> None:
    """A master before had learned of other settings, and the controllers were set back since."""
    view = ClusterView()
    names = TopicRegistry(view)
    topic = Topic(name="t", queues=2, id=1)
    for each in (whole(1, topic), whole(1, topic)):
        names.stage(each)
        view.apply(each)
        names.view_changed(each)
        newer = written_settings(Topic(queues=9))
        names_in_log.record(names, Names({"t": 1}, topic_settings={"t": newer}))
        assert names.unwritten_settings() == Names(topic_settings={"t": written_settings(topic)})
    names_in_log.record(names, Names({"t": 1}, topic_settings={"t": written_settings(topic)}))
    assert not names.has_unwritten_settings
    names_in_log.forget_topic(names, "t")
    assert names.topic_settings.known == {}


async def test_many_names_are_listed_in_short_turns() -> None:
    async with running() as broker:
        core = broker.app.core
        names_in_log.record(
            core.topic_registry, Names({f"t-{number:06}": number for number in range(1, 50_000)}, {}, 1)
        )
        server = NameServer(core, SystemClock())
        call = None
        with measured_turns() as turns:
            request = pb.NameListRequest(after="t-020000", limit=LISTED_MAX)
            listing = server.list_names(call, request)  # type: ignore[arg-type]
            found = await asyncio.create_task(listing)
        assert [found.names[0].name, found.next] == ["t-020001", "t-021000"]
        assert turns.longest_s < TURN_S_MAX, str(turns)
