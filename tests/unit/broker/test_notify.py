"""What a broker tells of interests: each registration is answered, and nothing becomes visible without a word."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from popwheel_broker.core.notification import Interest
from popwheel_broker.options import BrokerOptions, PopOptions
from popwheel_common.cold_reads import NotInMemory
from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic
from popwheel_rpc import methods
from popwheel_rpc.service import ClientStream
from tests.unit.broker.served_broker import Broker, events, running
from tests.unit.broker.world import INVISIBLE_MS, tag_filter


@asynccontextmanager
async def registered(
    broker: Broker, *interests: tuple[int, str, str]
) -> AsyncIterator[ClientStream[pb.NotifyEvents, pb.NotifyInterest]]:
    """A Notify stream with interests in (topic, group)."""
    stream = broker.channel.open(methods.NOTIFY)
    await stream.send([pb.NotifyInterest(id=number, topic=topic, group=group) for number, topic, group in interests])
    yield stream
    stream.cancel()
    await asyncio.sleep(0)


async def silence(stream: ClientStream[pb.NotifyEvents, pb.NotifyInterest]) -> None:
    """Nothing more is told."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await stream.receive()


async def change(broker: Broker, **what: object) -> None:
    """Have the controller say something, and wait until it is taken in."""
    version = broker.app.view.version + 1
    await broker.controller.updates.put(ClusterUpdate(version=version, **what))  # type: ignore[arg-type]
    while broker.app.view.version < version:
        await asyncio.sleep(0)


REPORTED = (1, "t", "g")


async def test_what_is_one_interest_too_many_is_refused_alone() -> None:
    options = BrokerOptions(pop=PopOptions(notify_interests_max=3))
    async with running(options=options) as broker, registered(broker, (1, "t", "g"), (2, "u", "g")) as stream:
        async with asyncio.timeout(5):
            assert await events(stream) == {1: 0, 2: 0}
            await stream.send([pb.NotifyInterest(id=3, topic="t", group="g")])
            assert (await stream.receive()) == pb.NotifyEvents(events=[pb.NotifyEvent(id=3, refused=True)])
            await broker.put(b"1")
            assert await events(stream) == {1: 1}, "the others are told as ever, and this one is not"
            assert "popwheel_notify_interests_refused_total 1.0" in broker.metrics()
            await stream.send([pb.NotifyInterest(id=2, cancel=True), pb.NotifyInterest(id=3, topic="t", group="g")])
            assert await events(stream) == {3: 1}, "there was room again"
            await stream.send([pb.NotifyInterest(id=4, topic="t", group="h")])
            assert await events(stream) == {4: 1}, "another group has a share of its own"


async def test_a_bad_filter_is_refused_alone() -> None:
    async with running() as broker, registered(broker, (1, "t", "g")) as stream, asyncio.timeout(5):
        assert await events(stream) == {1: 0}
        bad = pb.Filter(kind=pb.SQL92, expression="a > 'x'")
        await stream.send([pb.NotifyInterest(id=2, topic="t", group="g", filter=bad)])
        assert (await stream.receive()) == pb.NotifyEvents(events=[pb.NotifyEvent(id=2, refused=True)])
        await broker.put(b"1")
        assert await events(stream) == {1: 1}


async def test_a_message_that_is_released_or_comes_due_is_notified_of() -> None:
    async with running() as broker, registered(broker, REPORTED) as stream, asyncio.timeout(5):
        assert await events(stream) == {1: 0}
        for attempted in (False, True):
            await broker.put(b"1")
            assert await events(stream) == {1: 1}
            request = pb.ReleaseRequest(group="g", topic="t", receipt_handles=await broker.pop(), attempted=attempted)
            await broker.channel.call(methods.RELEASE, request)
            assert await events(stream) == {1: 1}
            await broker.ack(*await broker.pop())
        await broker.put(b"2")
        assert await events(stream) == {1: 1}
        (handle,) = await broker.pop()
        later = pb.ChangeInvisibleRequest(group="g", topic="t", receipt_handle=handle, invisible_ms=0)
        await broker.channel.call(methods.CHANGE_INVISIBLE, later)
        assert await events(stream) == {1: 1}
        await broker.ack(*await broker.pop())
        await broker.put(b"3")
        assert await events(stream) == {1: 1}
        for left in (1, 0):
            await broker.pop(invisible_ms=10)
            broker.clock.advance(20)
            if left:
                assert await events(stream) == {1: 1}
            else:
                await silence(stream)  # it was the last attempt


async def test_an_offset_that_is_set_back_is_notified_of() -> None:
    async with running() as broker, registered(broker, REPORTED, (2, "t", "h"), (3, "u", "g")) as stream:
        async with asyncio.timeout(5):
            assert await events(stream) == {1: 0, 2: 0, 3: 0}
            for number in range(10):
                await broker.put(b"%d" % number)
                assert await events(stream) == {1: 1, 2: 1}
            for offset, reported in ((10, 0), (4, 6), (4, 6), (10, 0)):
                request = pb.UpdateOffsetRequest(group="g", topic="t", queue_id=0, offset=offset)
                await broker.channel.call(methods.UPDATE_OFFSET, request)
                if reported:
                    assert await events(stream) == {1: reported}
                else:
                    await silence(stream)


async def test_records_that_are_mended_are_notified_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as broker, registered(broker, REPORTED, (2, "u", "g")) as stream, asyncio.timeout(5):
        assert await events(stream) == {1: 0, 2: 0}
        await broker.put(b"a body to be found")
        assert await events(stream) == {1: 1}
        path, contents = next(each for each in broker.disk.files().items() if each[0].suffix == ".log")
        bit = 8 * contents.index(b"a body to be found")
        broker.disk.flip_bit(path, bit)
        with pytest.raises(StatusError, match="stands still at a damaged record"):
            await broker.pop()
        broker.disk.flip_bit(path, bit)
        await silence(stream)
        core = broker.app.core
        waiting, cold = core.waiting, [NotInMemory([])]

        def cold_at_first(interest: Interest) -> int:
            if cold:
                raise cold.pop()
            return waiting(interest)

        monkeypatch.setattr(core, "waiting", cold_at_first)
        await core.store.reads.run(core.damage_mended)
        assert await events(stream) == {1: 1}
        assert len(await broker.pop()) == 1


async def test_what_was_mended_while_the_device_refused_a_read_is_notified_of_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as broker, registered(broker, REPORTED, (2, "u", "g")) as stream, asyncio.timeout(5):
        assert await events(stream) == {1: 0, 2: 0}
        await broker.put(b"a body to be found")
        assert await events(stream) == {1: 1}
        path, contents = next(each for each in broker.disk.files().items() if each[0].suffix == ".log")
        bit = 8 * contents.index(b"a body to be found")
        broker.disk.flip_bit(path, bit)
        with pytest.raises(StatusError, match="stands still at a damaged record"):
            await broker.pop()
        broker.disk.flip_bit(path, bit)
        leader = broker.app.roles._role.leader
        assert leader is not None
        with monkeypatch.context() as patch:
            patch.setattr(broker.app.core, "waiting", refuse)
            with pytest.raises(OSError, match="the device refuses"):
                await leader.upkeep.mend()
        await leader.upkeep.mend()
        assert await events(stream) == {1: 1}
        assert len(await broker.pop()) == 1
        assert broker.app.core.store.log.damaged == set()


def refuse(interest: Interest) -> int:
    raise OSError("the device refuses")


async def test_what_a_bounded_look_did_not_reach_is_reported_with_its_answer() -> None:
    options = BrokerOptions(pop=PopOptions(scan_entries_max=16))
    async with running(options=options) as broker:
        for number in range(40):
            await broker.put(b"%d" % number, tag="a")
        await broker.put(b"wanted", tag="b")
        request = pb.PopRequest(
            group="g", topic="t", queue_id=-1, max_messages=1, invisible_ms=INVISIBLE_MS, filter=tag_filter("b")
        )
        looks = [await broker.channel.call(methods.POP, request) for _ in range(4)]
        assert [(len(look.messages), look.waiting) for look in looks] == [(0, 1), (0, 1), (1, 0), (0, 0)]


async def test_a_group_that_is_made_again_is_notified_of_what_it_begins_with() -> None:
    async with running() as broker, registered(broker, REPORTED, (2, "t", "h")) as stream, asyncio.timeout(5):
        assert await events(stream) == {1: 0, 2: 0}
        for number in range(3):
            await broker.put(b"%d" % number)
            assert await events(stream) == {1: 1, 2: 1}
        assert len(await broker.pop()) == 3
        await change(broker, deleted_groups=["g"])
        await silence(stream)
        await change(broker, groups=[Group(name="g", max_attempts=2, id=2)])
        assert await events(stream) == {1: 3}
        assert len(await broker.pop()) == 3
        await change(broker, groups=[Group(name="g", max_attempts=2, id=3)])  # deleted and made between two words
        assert await events(stream) == {1: 3}
        await change(broker, groups=[Group(name="g", max_attempts=5, id=3, fifo=True)])
        await silence(stream)  # settings hide and show nothing


async def test_a_topic_that_is_made_again_is_notified_of_when_something_comes() -> None:
    async with running() as broker, registered(broker, REPORTED) as stream, asyncio.timeout(5):
        assert await events(stream) == {1: 0}
        await broker.put(b"1")
        assert await events(stream) == {1: 1}
        await change(broker, deleted_topics=["t"])
        await change(broker, topics=[Topic(name="t", queues=2, id=2)])
        await silence(stream)
        await broker.put(b"2", queue_id=1)
        assert await events(stream) == {1: 1}
        assert len(await broker.pop()) == 1


async def test_messages_of_queues_that_were_not_known_to_be_there_are_notified_of() -> None:
    async with running() as broker, registered(broker, REPORTED, (2, "new", "g")) as stream, asyncio.timeout(5):
        assert await events(stream) == {1: 0, 2: 0}
        await broker.put(b"1", queue_id=3)  # a proxy has learned of four queues already
        assert await events(stream) == {1: 1}
        assert await broker.pop() == []
        await change(broker, topics=[Topic(name="t", queues=4, id=1)])
        assert await events(stream) == {1: 1}
        assert len(await broker.pop()) == 1
        await broker.put(b"2", queue_id=2, topic="new")
        assert await events(stream) == {2: 1}
        await change(broker, topics=[Topic(name="new", queues=4, id=7)])
        assert await events(stream) == {2: 1}
        snapshot = broker.controller.snapshot
        await change(broker, snapshot=True, cluster=snapshot.cluster, groups=snapshot.groups, topics=snapshot.topics)
        await silence(stream)


@pytest.mark.parametrize("of", ["group", "topic"])
async def test_what_is_paused_is_notified_of_nothing_until_it_is_resumed(of: str) -> None:
    """Nor is anything popped; a resume tells what came meanwhile."""
    async with running() as broker:
        await change(broker, topics=[Topic(name="t", queues=1, id=5)], groups=[Group(name="g", max_attempts=3, id=6)])
        topic, group = Topic(name="t", queues=1, id=5), Group(name="g", max_attempts=3, id=6)
        paused = topic if of == "topic" else group
        paused.paused_ms = 7
        await change(broker, topics=[topic], groups=[group])
        async with registered(broker, (1, "t", "g")) as stream:
            assert await events(stream) == {1: 0}
            await broker.put(b"1")
            await silence(stream)
            assert not await broker.pop()
            assert f'popwheel_paused{{of="{of}s"}} 1.0' in broker.metrics()
            paused.paused_ms = 0
            await change(broker, topics=[topic], groups=[group])
            assert await events(stream) == {1: 1}
            assert len(await broker.pop()) == 1
