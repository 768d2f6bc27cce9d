"""Which of several controllers is asked: the one that leads, and the next when it does not any more."""

import asyncio
import random

import pytest

from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import NotLeadingError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import controller_pb2 as pb
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership.controller_channel import ControllerChannel, addresses_of
from popwheel_rpc.membership.controller_watch import ControllerWatch
from popwheel_rpc.methods import ENSURE_TOPIC, WATCH
from popwheel_rpc.service import Call, Service, Stream
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError


class Controller:
    """One of several.

    Args:
        name: goes into what it answers.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.leads = False
        self.away: RpcError | None = None
        self.refusal: StatusError | None = None
        self.asked = 0
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.deposed = asyncio.Event()
        self.service = Service()
        self.service.unary(ENSURE_TOPIC, self._ensure)
        self.service.stream(WATCH, self._watch)

    async def _check(self) -> None:
        self.asked += 1
        await self.hangs.wait()
        if self.away is not None:
            raise self.away
        if not self.leads:
            raise NotLeadingError(f"not I: {self.name}")
        if self.refusal is not None:
            raise self.refusal

    async def _ensure(self, call: Call, request: pb.EnsureTopicRequest) -> pb.EnsureTopicResponse:
        await self._check()
        return pb.EnsureTopicResponse(topic=pb.Topic(name=self.name))

    async def _watch(self, call: Call, stream: Stream[pb.WatchRequest, pb.ClusterUpdate]) -> None:
        await self._check()
        await stream.send([pb.ClusterUpdate(snapshot=True, cluster=pb.Cluster(name=self.name))])
        await self.deposed.wait()
        raise NotLeadingError(f"not I: {self.name}, any more")


class Controllers:
    """Several, and the way to them."""

    def __init__(self, count: int = 3) -> None:
        self.all = [Controller(f"c{number}") for number in range(count)]
        self.channel = ControllerChannel([LocalChannel(one.service) for one in self.all], SystemClock())

    def elect(self, number: int) -> None:
        """One leads, the others do not."""
        for one in self.all:
            one.leads = one is self.all[number]

    async def who(self, timeout_s: float | None = 3.0) -> str:
        """Who answers."""
        answer = await self.channel.call(ENSURE_TOPIC, pb.EnsureTopicRequest(name="t"), timeout_s=timeout_s)
        return answer.topic.name


async def test_the_one_that_leads_is_asked_and_asked_first_from_then_on() -> None:
    w = Controllers()
    w.elect(2)
    assert await w.who() == "c2"
    assert await w.who(timeout_s=None) == "c2"
    assert [one.asked for one in w.all] == [1, 1, 2]
    w.elect(0)
    assert await w.who() == "c0"
    assert [one.asked for one in w.all] == [2, 1, 3]


@pytest.mark.parametrize("away", [NotProcessedError("refused"), RpcError(GrpcStatus.UNAVAILABLE, "lost")])
async def test_one_that_is_away_is_passed_by(away: RpcError) -> None:
    w = Controllers()
    w.elect(1)
    w.all[0].away = away
    assert await w.who() == "c1"


async def test_one_that_hangs_takes_its_share_of_the_time_only() -> None:
    w = Controllers(2)
    w.elect(1)
    w.all[0].hangs.clear()
    async with asyncio.timeout(1.0):
        assert await w.who(timeout_s=0.2) == "c1"
        assert await w.who(timeout_s=0.2) == "c1"
    assert w.all[0].asked == 1


async def test_what_the_leader_refuses_is_reported() -> None:
    w = Controllers()
    w.elect(1)
    w.all[1].refusal = StatusError(Code.ILLEGAL_TOPIC, "no")
    with pytest.raises(StatusError, match="no"):
        await w.who()
    assert w.all[2].asked == 0


async def test_a_leader_that_gives_up_is_not_taken_for_one_that_does_not_lead() -> None:
    w = Controllers()
    w.elect(0)
    w.all[0].refusal = StatusError(Code.HA_NOT_AVAILABLE, "others change it all the time")
    for _ in range(2):
        with pytest.raises(StatusError, match="all the time"):
            await w.who()


async def test_one_of_a_release_that_does_not_mark_its_refusal_is_passed_by_but_proves_nothing() -> None:
    w = Controllers()
    w.elect(1)
    w.all[0].leads, w.all[0].refusal = True, StatusError(Code.HA_NOT_AVAILABLE, "this controller does not lead; ...")
    assert await w.who() == "c1"
    w.elect(2)
    w.all[2].refusal = StatusError(Code.ILLEGAL_TOPIC, "no")
    w.channel._leader = 0
    w.all[0].leads = True
    with pytest.raises(StatusError) as refused:
        await w.who()
    assert refused.value.code == Code.HA_NOT_AVAILABLE, "the first may have done it, as far as is known"
    with pytest.raises(StatusError, match="no"):
        await w.who()


async def test_where_none_leads_that_is_reported_after_one_round() -> None:
    w = Controllers()
    w.all[0].away = w.all[2].away = NotProcessedError("refused")
    with pytest.raises(StatusError, match="not I: c1"):
        await w.who()
    assert [one.asked for one in w.all] == [1, 1, 1]
    for one in w.all:
        one.away = NotProcessedError("refused")
    with pytest.raises(NotProcessedError):
        await w.who()


async def test_once_a_controller_may_have_done_it_the_call_is_of_unknown_outcome() -> None:
    w = Controllers()
    lost = RpcError(GrpcStatus.UNAVAILABLE, "lost")
    w.all[0].away, w.all[1].away = NotProcessedError("refused"), lost
    for last in (NotProcessedError("refused"), None):
        w.all[2].away = last  # it is not there, or does not lead
        with pytest.raises(RpcError) as raised:
            await w.who()
        assert raised.value is lost
    w.elect(2)
    w.all[2].refusal = StatusError(Code.PRECONDITION_FAILED, "not what it was any more")
    w.all[2].asked = 0
    with pytest.raises(RpcError) as raised:
        while not w.all[2].asked:
            await w.who()
    assert raised.value is lost
    with pytest.raises(StatusError, match="any more"):
        await w.who()


async def test_a_follower_finds_the_leader_and_the_next_one() -> None:
    w = Controllers()
    w.elect(2)
    view = ClusterView()
    follower = ControllerWatch(w.channel, view, "test", SystemClock(), random.Random(0))
    await follower.start()
    async with asyncio.timeout(5):
        await follower.wait_ready()
        assert view.name == "c2"
        w.elect(1)
        w.all[2].deposed.set()
        while view.name != "c1":
            await asyncio.sleep(0.01)
    await follower.stop()
    await w.channel.close()


async def test_a_follower_that_asks_for_all_anew_asks_the_same_controller() -> None:
    w = Controllers(2)
    w.elect(0)
    w.all[1].hangs.clear()
    view = ClusterView()
    follower = ControllerWatch(w.channel, view, "test", SystemClock(), random.Random(0))
    await follower.start()
    async with asyncio.timeout(5):
        await follower.wait_ready()
        w.all[0].name = "anew"
        follower.renew()
        while view.name != "anew":
            await asyncio.sleep(0.01)
    assert [one.asked for one in w.all] == [2, 0]
    await follower.stop()
    await w.channel.close()


async def test_any_order_of_leaders_is_followed() -> None:
    dice = random.Random(7)
    w = Controllers(4)
    for _ in range(200):
        leader = dice.randrange(4)
        w.elect(leader)
        for one in w.all:
            one.away = None if one.leads or dice.random() < 0.7 else NotProcessedError("refused")
        assert await w.who() == f"c{leader}"


def test_addresses_stand_with_commas() -> None:
    assert addresses_of("a:1") == ["a:1"]
    assert addresses_of("a:1, b:2,[::1]:3") == ["a:1", "b:2", "[::1]:3"]
    for wrong in ("", "a:1,", "a:1,a:1", ",".join(f"a:{port}" for port in range(17))):
        with pytest.raises(ValueError, match="commas"):
            addresses_of(wrong)
