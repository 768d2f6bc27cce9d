"""Polls that come back wait without a pop, where that is safe; and those of refused interests find messages too."""

import asyncio

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, FilterExpression, FilterType
from popwheel_proxy.receive.refused_interests import POP_INTERVAL_S, REGISTER_EVERY_S
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.proxy.fake_broker import FakeBroker
from tests.unit.proxy.virtual import LoopClock, arrive, now, run
from tests.unit.proxy.world import World, poll_request, until, world

BROKERS = ("b1", "b2", "b3")
SOON_S = 0.05
TICK_S = 0.1


def pops(w: World) -> int:
    return sum(len(broker.asked("Pop")) for broker in w.brokers.values())


def spared(w: World) -> float:
    return w.metric("popwheel_proxy_first_pops_spared_total")


async def found_soon(w: World, name: str, broker: str, within_s: float = SOON_S) -> None:
    """A poll that names one broker finds at once what comes to another."""
    poll = w.poll(poll_request(broker=broker))
    await asyncio.sleep(0.5)
    began = now()
    await arrive(w.brokers[name])
    assert (await poll).code == Code.OK
    assert now() - began < within_s


def test_each_message_costs_one_pop_once_the_brokers_have_said_that_they_will_report() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            for number in range(10):
                await found_soon(w, BROKERS[number % 3], "b1")
            assert (pops(w), spared(w)) == (11, 9)
            polled = {"topic": "orders", "consumer_group": "group"}
            assert w.metric("is_pop_with_notify_total", polled) == 10
            assert w.metric("is_short_polling_hit_total", polled) == 0, "none was there when its poll came"
            assert (await w.receive(poll_request(wait_s=20))).code == Code.MESSAGE_NOT_FOUND
            assert (pops(w), spared(w)) == (11, 10)

    run(body())


def test_a_poll_pops_first_where_something_is_left_over() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            await found_soon(w, "b2", "b1")
            await arrive(w.brokers["b3"], count=2)
            before = pops(w)
            for broker in ("b1", "b1"):
                assert len((await w.receive(poll_request(batch=1, broker=broker))).messages) == 1
            assert (pops(w) - before, len(w.brokers["b3"].asked("Pop"))) == (2, 2)

    run(body())


def test_until_every_broker_has_answered_polls_pop_first() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            w.brokers["b3"].notify_gate.clear()
            for _ in range(2):
                await found_soon(w, "b2", "b1")
            assert spared(w) == 0
            w.brokers["b3"].notify_gate.set()
            await asyncio.sleep(0.1)
            await found_soon(w, "b2", "b1")
            assert spared(w) == 1

    run(body())


def test_after_a_stream_broke_polls_pop_until_the_broker_has_answered_anew() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            await found_soon(w, "b2", "b1")
            w.brokers["b2"].notify_gate.clear()
            watcher = w.brokers["b2"].watchers[0]
            w.app._notifications._links["b2"].stream.cancel()  # type: ignore[union-attr]
            await until(lambda: watcher not in w.brokers["b2"].watchers)
            before = spared(w)
            poll = w.poll(poll_request(broker="b1"))
            await asyncio.sleep(2)
            assert spared(w) == before
            await arrive(w.brokers["b2"])  # told with the answer to the registration
            w.brokers["b2"].notify_gate.set()
            assert (await poll).code == Code.OK
            await found_soon(w, "b3", "b1")
            assert spared(w) == before + 1

    run(body())


def test_a_broker_that_comes_is_asked_first() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            await found_soon(w, "b2", "b1")
            new = w.brokers["b4"] = FakeBroker("b4")
            new.notify_gate.clear()
            w.controller.add_broker("b4")
            await until(lambda: bool(new.registrations))
            await found_soon(w, "b2", "b1")
            assert spared(w) == 0
            new.notify_gate.set()
            await asyncio.sleep(1)
            w.controller.remove_broker("b1")
            await asyncio.sleep(1)
            await found_soon(w, "b4", "b2")
            assert spared(w) == 1

    run(body())


def test_short_plain_sliced_and_fifo_polls_pop_as_ever() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            await found_soon(w, "b2", "b1")
            before = pops(w)
            await w.receive(poll_request(wait_s=1))
            assert pops(w) - before == 3
            w.controller.add_group("group", fifo=True)
            await until(lambda: w.app.view.groups["group"].fifo)
            poll = w.poll(poll_request())
            await asyncio.sleep(1)
            assert pops(w) - before == 4
            await arrive(w.brokers["b2"])
            await poll
            assert spared(w) == 0
        for mode in ("plain", "sliced"):
            async with world(*BROKERS, clock=LoopClock(), poll_mode=mode) as w:
                for _ in range(3):
                    await found_soon(w, "b1", "b1", 1.0)
                assert spared(w) == 0

    run(body())


def test_polls_with_a_filter_pop_first_so_that_their_group_gets_past_what_they_do_not_want() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            tagged = FilterExpression(type=FilterType.TAG, expression="a")
            for count in (1, 2, 3):
                await w.receive(poll_request(wait_s=5, filter_expression=tagged))
                assert (pops(w), spared(w)) == (count, 0)

    run(body())


def test_a_pop_that_fails_leaves_nobody_waiting_for_what_it_did_not_take() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            await found_soon(w, "b2", "b1")
            poll = w.poll(poll_request())
            await asyncio.sleep(0.5)
            w.brokers["b2"].pop_error = RpcError(GrpcStatus.UNAVAILABLE, "away")
            await arrive(w.brokers["b2"])
            await asyncio.sleep(0.1)
            other = w.poll(poll_request())
            await asyncio.sleep(0.1)
            assert spared(w) == 1, "something is known to be there"
            w.brokers["b2"].pop_error = None
            done, _ = await asyncio.wait((poll, other), timeout=1, return_when=asyncio.FIRST_COMPLETED)
            assert done

    run(body())


def test_a_broker_that_refuses_an_interest_is_popped_in_turn() -> None:
    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="notify") as w:
            for broker in w.brokers.values():
                broker.interests_max = 1
            await until(lambda: len(w.app._brokers.names) == 3)
            other = w.poll(poll_request())  # takes the only place
            await asyncio.sleep(0.5)
            w.controller.add_group("late")
            await until(lambda: "late" in w.app.view.groups)
            for number in range(4):
                request = poll_request(broker="b1")
                request.group.name = "late"
                poll = w.poll(request)
                await asyncio.sleep(0.5)
                assert w.metric("popwheel_proxy_interests_refused") == 3
                began, name = now(), BROKERS[number % 3]
                await arrive(w.brokers[name])
                assert (await poll).code == Code.OK
                assert now() - began < POP_INTERVAL_S + TICK_S + SOON_S
                if not other.done():
                    assert (await other).code == Code.OK, "who was registered is not disturbed"
                    assert now() - began < POP_INTERVAL_S + TICK_S + SOON_S
            assert spared(w) == 0
            assert w.metric("popwheel_proxy_notify_streams_broken_total") == 0
            for broker in w.brokers.values():
                broker.interests_max = 10
            request = poll_request()
            request.group.name = "late"
            w.poll(request)
            await asyncio.sleep(1)
            before = pops(w)
            await asyncio.sleep(5)
            assert 12 <= pops(w) - before <= 15, "one pop a second at each broker that refuses"
            while w.metric("popwheel_proxy_interests_refused"):
                w.poll(request)
                await asyncio.sleep(1)
                assert now() < REGISTER_EVERY_S + 20
            before = pops(w)
            await asyncio.sleep(5)
            assert pops(w) == before

    run(body())
