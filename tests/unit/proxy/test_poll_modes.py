"""The three ways of waiting, side by side on virtual time: what they find, whom they ask, and when they give up."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest
from popwheel_proxy.receive.long_poll import SLICE_S, SLICES_MAX
from popwheel_proxy.receive.mode_choice import PATIENCE_S, Key
from popwheel_proxy.receive.shared_count import Sums
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.proxy.virtual import LoopClock, arrive, now, run
from tests.unit.proxy.world import CLIENT, World, poll_request, until, world

BROKERS = ("b1", "b2", "b3", "b4")
SOON_S = 0.05


class LyingStore:
    """Says of every topic and group that it is polled for a million times per second, or not at all.

    Args:
        seed: of the lies.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    async def exchange(self, counts: Mapping[Key, int]) -> Sums:
        return Sums({key: self._chance.choice((0.0, 1e6)) for key in counts}, "the same")

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class PollRun:
    """One poll: when it began, where, for how long, and how it ended."""

    began: float
    broker: str
    wait_s: float
    client: str
    ended: float = 0.0
    found: int = 0


@dataclass(slots=True)
class Arrival:
    """One message: when it came, where."""

    at: float
    broker: str


def pops(w: World) -> dict[str, int]:
    return {name: len(broker.asked("Pop")) for name, broker in w.brokers.items()}


async def play(mode: str, polls: list[PollRun], arrivals: list[Arrival], seed: int = 0) -> World:
    """Let polls and messages come at their times; the polls know how they ended afterwards."""

    async def poll(w: World, one: PollRun) -> None:
        await asyncio.sleep(one.began)
        one.began = now()
        request = poll_request(wait_s=one.wait_s, batch=1, broker=one.broker)
        received = await w.receive(request, CLIENT | {"x-mq-client-id": one.client})
        one.ended, one.found = now(), len(received.messages)
        assert received.code == (Code.OK if received.messages else Code.MESSAGE_NOT_FOUND)

    async def message(w: World, one: Arrival) -> None:
        await asyncio.sleep(one.at)
        one.at = now()
        await arrive(w.brokers[one.broker])

    choice: dict[str, Any] = {"poll_mode": mode, "adaptive": {"stay_ms": 0}}
    async with world(*BROKERS, clock=LoopClock(), count_store=LyingStore(seed), **choice) as w:
        await asyncio.gather(*(poll(w, one) for one in polls), *(message(w, one) for one in arrivals))
        return w


moments = st.integers(0, 300).map(lambda tenths: tenths / 10)
some_polls = st.lists(
    st.builds(
        PollRun, moments, st.sampled_from(BROKERS), st.sampled_from((0.0, 5.0, 7.3, 20.0)), st.sampled_from("abc")
    ),
    min_size=1,
    max_size=12,
)
some_arrivals = st.lists(st.builds(Arrival, moments, st.sampled_from(BROKERS)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(("auto", "auto", "notify", "plain", "sliced")), some_polls, some_arrivals, st.integers(0, 99))
def test_no_poll_outlives_its_deadline_and_none_waits_beside_a_message(
    mode: str, polls: list[PollRun], arrivals: list[Arrival], seed: int
) -> None:
    w = run(play(mode, polls, arrivals, seed))
    assert all(one.ended <= one.began + one.wait_s + SOON_S for one in polls)
    left = {name: broker.waiting("group", "orders") for name, broker in w.brokers.items()}
    assert sum(one.found for one in polls) + sum(left.values()) == len(arrivals)
    if mode in ("auto", "notify"):
        # When a poll ends empty, all messages that were there for longer than this while it waited have been taken.
        unasked_s = SOON_S + (PATIENCE_S if mode == "auto" else 0.0)
        for poll in (one for one in polls if not one.found and one.wait_s):
            came = sum(max(one.at, poll.began) < poll.ended - unasked_s for one in arrivals)
            taken = sum(one.found for one in polls if one.ended <= poll.ended)
            assert came <= taken, (mode, poll)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=8), some_arrivals)
def test_plain_asks_no_other_broker_and_finds_what_comes_there(named: list[str], arrivals: list[Arrival]) -> None:
    polls = [PollRun(0.0, broker, 20.0, "a") for broker in named]
    w = run(play("plain", polls, arrivals))
    for name, broker in w.brokers.items():
        asked = named.count(name)
        there = sum(one.broker == name and one.at < 20.0 - SOON_S for one in arrivals)
        assert min(asked, there) <= sum(one.found for one in polls if one.broker == name) <= asked
        assert bool(broker.asked("Pop")) == bool(asked)
        assert asked or not broker.registrations


def test_notify_finds_a_message_at_any_broker() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            for name in BROKERS:
                poll = w.poll(poll_request(broker="b1"))
                await asyncio.sleep(3)
                began = now()
                await arrive(w.brokers[name])
                assert (await poll).code == Code.OK
                assert now() - began < SOON_S
            polled = {"topic": "orders", "consumer_group": "group"}
            assert w.metric("is_pop_with_notify_total", polled) == 4
            assert w.metric("popwheel_proxy_notification_round_trip_seconds_count") == 4
            assert w.metric("popwheel_proxy_poll_mode", polled | {"mode": "notify"}) == 1

    run(body())


def test_sliced_goes_round_the_brokers_and_then_stays_where_it_is() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="sliced") as w:
            poll = w.poll(poll_request(broker="b2"))
            await asyncio.sleep(SLICE_S * 1.5)
            assert pops(w) == {"b1": 1, "b2": 1, "b3": 0, "b4": 0}
            await asyncio.sleep(SLICES_MAX * SLICE_S)
            assert pops(w) == dict.fromkeys(BROKERS, SLICES_MAX // len(BROKERS))
            assert not any(w.brokers[name].interests for name in ("b1", "b2", "b3"))
            await arrive(w.brokers["b1"])
            await asyncio.sleep(2)
            assert not poll.done()  # the article's complaint
            await arrive(w.brokers["b4"])
            assert (await poll).code == Code.OK

    run(body())


def test_a_sliced_poll_finds_a_message_when_its_turn_comes() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="sliced") as w:
            poll = w.poll(poll_request(broker="b1"))
            await asyncio.sleep(SLICE_S / 2)
            await arrive(w.brokers["b4"])
            assert (await poll).code == Code.OK
            assert 2.9 * SLICE_S < now() < 3.2 * SLICE_S

    run(body())


async def plain_poll(w: World, broker: str) -> None:
    """Have a poll wait at one broker."""
    w.poll(poll_request(broker=broker))
    await until(lambda: len(w.brokers[broker].interests) == 1)


@pytest.mark.parametrize("mode", ["auto", "plain"])
def test_a_plain_poll_whose_broker_leaves_turns_to_the_others(mode: str) -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode=mode) as w:
            if mode == "auto":
                w.app._mode_choice._pinned = None
                w.app._mode_choice.count("orders", "group")
                w.app._mode_choice.cluster({("orders", "group"): 1e6})
                w.app._mode_choice.time_passed(now())
            await plain_poll(w, "b1")
            assert not w.brokers["b2"].interests
            w.controller.remove_broker("b1")
            await until(lambda: len(w.brokers["b2"].interests) == 1)
            await arrive(w.brokers["b2"])
            assert (await w.polls[0]).code == Code.OK

    run(body())


@pytest.mark.parametrize("mode", ["auto", "plain", "sliced"])
def test_a_poll_has_one_timer_though_its_pops_end_at_once(mode: str) -> None:
    """A second one would keep the poll, and what it found, long after its call."""

    def timers() -> int:
        scheduled = vars(asyncio.get_running_loop())["_scheduled"]
        return sum("_time_passed" in repr(timed.step) for timed in scheduled)

    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode=mode) as w:
            if mode == "auto":
                w.app._mode_choice.count("orders", "group")
                w.app._mode_choice.cluster({("orders", "group"): 1e6})
                w.app._mode_choice.time_passed(now())
            before = timers()
            poll = w.poll(poll_request(broker="b1"))
            for _ in range(30):
                await asyncio.sleep(SLICE_S / 2)
                assert timers() == before + 1
            for name in BROKERS:
                await arrive(w.brokers[name])
            assert (await poll).code == Code.OK
            assert timers() == before

    run(body())


def test_a_plain_poll_whose_pop_fails_turns_to_the_others() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="plain") as w:
            w.brokers["b1"].pop_error = RpcError(GrpcStatus.UNAVAILABLE, "away")
            poll = w.poll(poll_request(broker="b1"))
            await until(lambda: len(w.brokers["b3"].interests) == 1)
            await arrive(w.brokers["b3"])
            assert (await poll).code == Code.OK

    run(body())


def test_many_polls_become_plain_and_few_are_notified_again() -> None:
    async def body() -> None:
        adaptive = {"up_per_s": 20, "down_per_s": 10, "stay_ms": 3_000}
        polled = {"topic": "orders", "consumer_group": "group"}
        async with world(*BROKERS, clock=LoopClock(), adaptive=adaptive) as w:
            for _ in range(8):
                for _ in range(30):
                    await w.receive(poll_request(wait_s=0))
                await asyncio.sleep(1)
            assert w.metric("popwheel_proxy_poll_mode", polled | {"mode": "plain"}) == 1
            assert w.metric("popwheel_proxy_poll_mode_switches_total", {"to": "plain"}) == 1
            poll = w.poll(poll_request(broker="b1"))
            await asyncio.sleep(PATIENCE_S / 2)
            assert not w.brokers["b2"].interests
            await asyncio.sleep(PATIENCE_S)
            assert len(w.brokers["b2"].interests) == 1  # it has lost its patience
            await asyncio.sleep(15)
            assert w.metric("popwheel_proxy_poll_mode_switches_total", {"to": "notify"}) == 1
            assert w.metric("popwheel_proxy_counted_polls") == 0
            await arrive(w.brokers["b4"])
            assert (await poll).code == Code.OK

    run(body())


def test_polls_that_name_no_broker_are_spread() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="plain") as w:
            for _ in range(8):
                w.poll(poll_request(broker="nowhere"))
            await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 8)
            assert pops(w) == dict.fromkeys(BROKERS, 2)

    run(body())


def test_a_short_poll_asks_first_where_messages_are_known_to_be() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock()) as w:
            first = w.poll(poll_request(broker="b1", batch=1))
            await until(lambda: len(w.brokers["b3"].interests) == 1)
            await arrive(w.brokers["b3"], count=2)
            await first
            before = pops(w)
            received = await w.receive(poll_request(wait_s=1, broker="b2"))
            assert len(received.messages) == 1
            assert pops(w) == before | {"b3": before["b3"] + 1}
            (request,) = w.brokers["b3"].asked("Pop")[-1:]
            assert isinstance(request, PopRequest)

    run(body())
