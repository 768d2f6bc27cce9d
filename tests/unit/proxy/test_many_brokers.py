"""Sends over several brokers that are slow, fail, hang, leave and come back; on virtual time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from popwheel_common.contract.put import MessageRun, PutResult
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol.payload import messages_of
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.service import Call, Channel
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError
from tests.unit.proxy.fake_broker import FakeBroker
from tests.unit.proxy.virtual import LoopClock, now, run
from tests.unit.proxy.world import World, message, turns, until

UNAVAILABLE = NotProcessedError("connection refused")


class PacedBroker(FakeBroker):
    """Takes its time for a Put."""

    def __init__(self, name: str) -> None:
        self.put_takes_s = 0.002
        super().__init__(name)

    async def _put(self, call: Call, request: Sequence[MessageRun]) -> Sequence[PutResult]:
        takes_s = self.put_takes_s
        if takes_s:
            done = asyncio.Event()
            asyncio.get_running_loop().call_later(takes_s, done.set)
            await done.wait()
        return await super()._put(call, request)


class Cluster(World):
    """A proxy among several brokers; how many messages each has stored."""

    def __init__(self, options: ProxyOptions, *brokers: str) -> None:
        super().__init__(options, *brokers, clock=LoopClock())
        self.paced = {name: PacedBroker(name) for name in brokers}
        self.brokers = dict(self.paced)

    def _connect(self, info: BrokerInfo) -> Channel:
        return LocalChannel(self.brokers[info.name].service, clock=self.clock)

    @property
    def stored(self) -> dict[str, int]:
        """Messages by broker."""
        return {name: len(broker.topics.get("orders", ())) for name, broker in self.brokers.items()}

    @property
    def avoided(self) -> int:
        """What the metric says."""
        return int(self.metric("popwheel_proxy_brokers_avoided"))

    async def steady(self, seconds: float, every_s: float = 0.01) -> Counter[int]:
        """Send at a steady pace for so long, whoever waits; the codes of the answers."""
        sends: list[asyncio.Task[pb.SendMessageResponse]] = []
        ends_at = now() + seconds
        while now() < ends_at:
            sends.append(asyncio.create_task(self.send(message())))
            await asyncio.sleep(every_s)
        return codes(await asyncio.gather(*sends))


def codes(answers: Sequence[pb.SendMessageResponse]) -> Counter[int]:
    """How often each code was answered."""
    return Counter(int(answer.status.code) for answer in answers)


async def sends_apart(w: Cluster, count: int) -> list[asyncio.Task[pb.SendMessageResponse]]:
    """Sends of which each begins when a Put of the one before is in flight: they go to brokers in turn."""
    sends = []
    for _ in range(count):
        sends.append(asyncio.create_task(w.send(message())))
        await turns()
    return sends


@asynccontextmanager
async def cluster(*brokers: str, **options: object) -> AsyncIterator[Cluster]:
    """A proxy that serves."""
    made = Cluster(ProxyOptions.model_validate(options), *brokers)
    made.controller.add_topic("orders")
    await made.app.start()
    await until(lambda: made.app.ready)
    try:
        yield made
    finally:
        for broker in made.brokers.values():
            broker.put_gate.set()
        await made.channel.close()
        await made.app.stop()


def test_sends_of_a_moment_share_one_put_and_the_next_ones_go_to_another_broker() -> None:
    async def scenario() -> None:
        async with cluster("a", "b", "c") as w:
            for round_ in range(1, 4):
                for name in "abc":
                    before = w.stored[name]
                    sends = [asyncio.create_task(w.send(message())) for _ in range(8)]
                    assert codes(await asyncio.gather(*sends)) == {Code.OK: 8}
                    assert w.stored[name] == before + 8
                    assert len(w.paced[name].asked("Put")) == round_
            for broker in w.paced.values():
                queues: Counter[int] = Counter()
                for runs in broker.asked("Put"):
                    for one in runs:  # type: ignore[attr-defined]
                        queues[one.queue_id] += len(one.payloads)
                assert queues == dict.fromkeys(range(4), 6)

    run(scenario())


def test_topics_whose_sends_alternate_go_to_all_brokers() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            w.controller.add_topic("others")
            await until(lambda: "others" in w.app.view.topics)
            for _ in range(20):
                await w.send(message())
                await w.send(message(topic="others"))
            assert {len(broker.topics[name]) for broker in w.paced.values() for name in ("orders", "others")} == {10}

    run(scenario())


def test_sends_that_do_not_fit_into_a_put_go_to_the_next_broker() -> None:
    async def scenario() -> None:
        async with cluster("a", "b", send={"put_messages_max": 10}) as w:
            sends = [asyncio.create_task(w.send(message())) for _ in range(40)]
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 40}
            assert [len(w.paced[name].asked("Put")) for name in "ab"] == [2, 2]
            assert w.stored == {"a": 20, "b": 20}

    run(scenario())


def test_a_slow_broker_gets_next_to_no_sends_and_all_again_when_it_is_well() -> None:
    async def scenario() -> None:
        async with cluster("a", "b", "c") as w:
            assert set(await w.steady(1.0)) == {Code.OK}
            assert max(w.stored.values()) - min(w.stored.values()) <= 1
            w.paced["a"].put_takes_s = 0.4
            await w.steady(6.0)
            before = w.stored["a"]
            assert w.avoided == 1
            await w.steady(10.0)
            assert w.stored["a"] - before <= 5, "probes"
            assert w.metric("popwheel_proxy_broker_probes_total", {"result": "bad"}) >= 2
            w.paced["a"].put_takes_s = 0.002
            await w.steady(40.0)
            assert w.avoided == 0
            assert w.metric("popwheel_proxy_broker_probes_total", {"result": "good"}) == 1
            before = w.stored["a"]
            await w.steady(3.0)
            assert 99 <= w.stored["a"] - before <= 101

    run(scenario())


def test_nobody_notices_a_broker_that_fails_and_comes_back() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            w.paced["a"].put_error = UNAVAILABLE
            assert set(await w.steady(10.0)) == {Code.OK}
            assert w.stored["a"] == 0
            puts = len(w.paced["a"].asked("Put"))
            assert puts <= 5, "probes, ever fewer"
            failed = w.metric("popwheel_proxy_sends_total", {"broker": "a", "outcome": "unreachable"})
            assert failed == w.metric("popwheel_proxy_send_retries_total") >= puts
            assert w.metric("popwheel_proxy_sends_total", {"broker": "b", "outcome": "stored"}) == w.stored["b"]
            w.paced["a"].put_error = None
            assert set(await w.steady(20.0)) == {Code.OK}
            assert w.stored["a"] > 100

    run(scenario())


def test_when_all_fail_the_send_goes_on_until_one_is_back() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            for broker in w.paced.values():
                broker.put_error = UNAVAILABLE
            send = asyncio.create_task(w.send(message()))
            await asyncio.sleep(1.0)
            assert all(broker.asked("Put") for broker in w.paced.values())
            w.paced["b"].put_error = None
            assert codes([await send]) == {Code.OK: 1}
            assert w.stored == {"a": 0, "b": 1}
            for broker in w.paced.values():
                broker.put_error = UNAVAILABLE
            began = now()
            assert codes([await w.send(message())]) == {Code.HA_NOT_AVAILABLE: 1}
            assert now() - began == pytest.approx(10.0, abs=0.1), "failover.hold_ms"

    run(scenario())


def test_what_waits_behind_a_hanging_put_moves_on_and_only_what_was_sent_is_of_unknown_outcome() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            w.paced["a"].put_gate.clear()
            first = asyncio.create_task(w.send(message()))
            await turns()
            others = await sends_apart(w, 20)
            done, _ = await asyncio.wait(others, timeout=1.0)
            assert codes([task.result() for task in done]) == {Code.OK: 20}
            assert w.stored == {"a": 0, "b": 20}
            assert w.metric("popwheel_proxy_sends_moved_total") == 10
            assert w.avoided == 1
            assert set(await w.steady(3.0)) == {Code.OK}
            assert not first.done()
            assert codes([await first]) == {Code.PROXY_TIMEOUT: 1}, "it may have been stored"
            tries = len(w.paced["a"].asked("Put"))
            assert w.metric("popwheel_proxy_sends_total", {"broker": "a", "outcome": "unanswered"}) == tries
            assert tries > 1, "it is tried again where it may have been stored, and nowhere else"
            w.paced["a"].put_gate.set()
            assert set(await w.steady(60.0)) == {Code.OK}
            assert w.avoided == 0

    run(scenario())


def test_a_put_that_found_no_connection_in_time_goes_to_another_broker_at_once() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            w.paced["a"].put_error = NotProcessedError("no connection in time", GrpcStatus.DEADLINE_EXCEEDED)
            assert set(await w.steady(3.0)) == {Code.OK}
            assert now() < 3.5
            assert w.metric("popwheel_proxy_sends_total", {"broker": "a", "outcome": "unreachable"}) > 0
            assert w.metric("popwheel_proxy_sends_total", {"broker": "a", "outcome": "unanswered"}) == 0
            w.paced["b"].put_error = StatusError(Code.MASTER_PERSISTENCE_TIMEOUT, "the disk is full")
            # The first broker was never asked, so the second one's word is all there is to tell.
            w.controller.remove_broker("a")
            assert codes([await w.send(message())]) == {Code.MASTER_PERSISTENCE_TIMEOUT: 1}

    run(scenario())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotProcessedError("no connection in time", GrpcStatus.DEADLINE_EXCEEDED), Code.HA_NOT_AVAILABLE),
        (RpcError(GrpcStatus.DEADLINE_EXCEEDED, "too slow"), Code.PROXY_TIMEOUT),
    ],
)
def test_only_what_was_sent_may_have_been_stored(error: RpcError, code: int) -> None:
    async def scenario() -> None:
        async with cluster("a") as w:
            w.paced["a"].put_error = error
            assert codes([await w.send(message())]) == {code: 1}

    run(scenario())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotProcessedError("no connection"), Code.MASTER_PERSISTENCE_TIMEOUT),
        (RpcError(GrpcStatus.UNAVAILABLE, "the connection was lost"), Code.PROXY_TIMEOUT),
    ],
)
def test_a_refusal_after_a_try_that_was_not_sent_is_reported_as_it_is(error: RpcError, code: int) -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            w.paced["a"].put_error = error
            w.paced["b"].put_error = StatusError(Code.MASTER_PERSISTENCE_TIMEOUT, "the disk is full")
            assert codes([await w.send(message())]) == {code: 1}

    run(scenario())


def test_where_all_hang_what_waits_stays() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            for broker in w.paced.values():
                broker.put_gate.clear()
            sends = [asyncio.create_task(w.send(message())) for _ in range(2)]
            await turns()
            sends += [asyncio.create_task(w.send(message())) for _ in range(2)]
            await asyncio.sleep(2.0)
            assert (w.avoided, w.metric("popwheel_proxy_sends_moved_total")) == (2, 0)
            for broker in w.paced.values():
                broker.put_gate.set()
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 4}

    run(scenario())


def test_a_loop_that_stood_still_does_not_make_brokers_hang() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            sends = [asyncio.create_task(w.send(message())) for _ in range(4)]
            await turns()
            w.clock.shift_s += 30.0
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 4}
            assert w.avoided == 0

    run(scenario())


def test_what_waits_for_a_broker_that_leaves_goes_to_another() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            w.paced["a"].put_gate.clear()
            sends = await sends_apart(w, 12)
            w.controller.remove_broker("a")
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 12}
            assert w.stored == {"a": 0, "b": 12}
            assert w.metric("popwheel_proxy_sends_moved_total") == 5
            assert set(w.app._send_handler._batchers._batchers) == {"b"}
            assert w.app._send_handler._batchers.health.state("a") is None
            assert (
                w.registry.get_sample_value("popwheel_proxy_sends_total", {"broker": "a", "outcome": "unreachable"})
                is None
            )
            w.paced["a"].put_gate.set()
            w.controller.add_broker("a")
            await until(lambda: len(w.app._brokers.names) == 2)
            assert set(await w.steady(1.0)) == {Code.OK}
            assert 49 <= w.stored["a"] <= 51

    run(scenario())


def test_a_send_outlives_the_moment_in_which_the_only_broker_is_away() -> None:
    async def scenario() -> None:
        async with cluster("a") as w:
            w.paced["a"].put_gate.clear()
            first = asyncio.create_task(w.send(message()))
            await turns()
            waiting = asyncio.create_task(w.send(message()))
            await turns()
            w.controller.remove_broker("a")
            await until(lambda: not w.app.ready)
            assert codes([await w.send(message())]) == {Code.HA_NOT_AVAILABLE: 1}, "told at once"
            await asyncio.sleep(0.5)
            w.paced["a"].put_gate.set()
            w.controller.add_broker("a")
            assert codes(await asyncio.gather(first, waiting)) == {Code.OK: 2}

    run(scenario())


def test_a_send_is_given_up_if_no_broker_comes() -> None:
    async def scenario() -> None:
        async with cluster("a") as w:
            w.paced["a"].put_gate.clear()
            sends = [asyncio.create_task(w.send(message()))]
            await turns()
            sends.append(asyncio.create_task(w.send(message())))
            await turns()
            w.controller.remove_broker("a")
            assert codes(await asyncio.gather(*sends)) == {Code.HA_NOT_AVAILABLE: 1, Code.PROXY_TIMEOUT: 1}
            assert now() < 3.5

    run(scenario())


def test_a_broker_that_takes_nothing_now_is_left_for_another() -> None:
    async def scenario() -> None:
        for code in (Code.TOO_MANY_REQUESTS, Code.HA_NOT_AVAILABLE):
            async with cluster("a", "b") as w:
                w.paced["a"].put_error = StatusError(code, "not now")
                assert set(await w.steady(1.0)) == {Code.OK}
                assert w.stored["a"] == 0
                w.paced["b"].put_error = StatusError(code, "nor here")
                assert codes([await w.send(message())]) == {code: 1}

    run(scenario())


def test_a_broker_that_cannot_store_says_so_to_few() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            w.paced["a"].put_error = StatusError(Code.INTERNAL_ERROR, "the disk is nearly full")
            answers = await w.steady(10.0)
            assert answers[Code.INTERNAL_ERROR] <= 5
            assert answers[Code.OK] == answers.total() - answers[Code.INTERNAL_ERROR]

    run(scenario())


def test_a_full_send_queue_is_passed_by() -> None:
    async def scenario() -> None:
        async with cluster("a", "b", send={"waiting_messages_max": 3}) as w:
            w.paced["a"].put_gate.clear()
            sends = []
            for _ in range(10):
                sends.append(asyncio.create_task(w.send(message())))
                await asyncio.sleep(0.01)
            assert len(w.paced["a"].asked("Put")) == 1
            assert w.stored["b"] == 7
            w.paced["a"].put_gate.set()
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 10}

    run(scenario())


def test_a_send_bound_to_one_queue_waits_there_or_fails_and_never_moves() -> None:
    """What messages with a message group will need; nothing else sends so yet."""

    async def scenario() -> None:
        async with cluster("a", "b") as w:
            sending = w.app._send_handler
            topic = w.app.view.topics["orders"]
            request = pb.SendMessageRequest(messages=[message()]).SerializeToString()

            async def bound() -> object:
                call = Call("/", {}, None, "test")
                return await sending._store(call, topic, messages_of(request, 128), only=("a", 3))

            w.paced["a"].put_error = UNAVAILABLE
            send = asyncio.create_task(bound())
            await asyncio.sleep(1.0)
            w.paced["a"].put_error = None
            await send
            w.paced["a"].put_gate.clear()
            sends = [asyncio.create_task(bound())]
            await turns()
            sends.append(asyncio.create_task(bound()))
            await asyncio.sleep(2.0)
            w.paced["a"].put_gate.set()
            await asyncio.gather(*sends)
            assert w.stored == {"a": 3, "b": 0}
            assert {one.queue_id for one in w.paced["a"].topics["orders"]} == {3}
            w.controller.remove_broker("a")
            await until(lambda: w.app._brokers.names == ("b",))
            (error,) = await asyncio.gather(bound(), return_exceptions=True)
            assert isinstance(error, StatusError)
            assert error.code == Code.HA_NOT_AVAILABLE
            assert w.stored["b"] == 0

    run(scenario())


def test_brokers_that_come_and_go_leave_nothing_behind() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as w:
            for round_ in range(50):
                name = f"guest-{round_}"
                w.paced[name] = PacedBroker(name)
                w.brokers[name] = w.paced[name]
                w.paced[name].put_error = UNAVAILABLE if round_ % 2 else None
                w.controller.add_broker(name)
                assert set(await w.steady(0.05)) == {Code.OK}
                w.controller.remove_broker(name)
                assert set(await w.steady(0.05)) == {Code.OK}
            batchers = w.app._send_handler._batchers
            assert set(batchers._batchers) == {"a", "b"}
            assert batchers.health.sound == ("a", "b")
            assert len(batchers._metrics._ended) <= 4

    run(scenario())
