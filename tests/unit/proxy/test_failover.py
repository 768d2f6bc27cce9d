"""Masters that die, hang, hand over and are deposed: clients notice slower calls, no errors; on virtual time."""

import asyncio
from collections import Counter

import pytest
from google.protobuf.duration_pb2 import Duration

from popwheel_common.contract.put import MessageRun
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ClusterUpdate
from popwheel_proxy.brokers.brokers import CLOSE_AFTER_S
from popwheel_proxy.brokers.retry_policy import LEFT_S
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.receive.long_poll import SLICE_S, SLICES_MAX
from popwheel_rpc.methods import PUT
from tests.unit.proxy.replicas import Groups, groups, names, popped, send
from tests.unit.proxy.test_many_brokers import codes
from tests.unit.proxy.virtual import arrive, now, run
from tests.unit.proxy.world import CLIENT, message, poll_request, turns, until


def runs_of(w: Groups, name: str) -> list[MessageRun]:
    """The runs that a group was asked to store."""
    return [run for runs in w.logs[name].asked("Put") for run in runs]  # type: ignore[attr-defined]


async def send_in_two_batches(w: Groups, bodies: list[str]) -> list[asyncio.Task[pb.SendMessageResponse]]:
    """Sends of which the first half goes to one broker, the others to the next."""
    half = len(bodies) // 2
    first = [asyncio.create_task(send(w, one)) for one in bodies[:half]]
    await turns()
    return first + [asyncio.create_task(send(w, one)) for one in bodies[half:]]


def test_sends_to_the_only_group_wait_for_its_next_master() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            await send(w, "first")
            await w.kill_master("a")
            sends = [asyncio.create_task(send(w, one)) for one in names(50)]
            await asyncio.sleep(2.0)
            assert not any(one.done() for one in sends)
            assert w.metric("popwheel_proxy_parked_calls") == 50
            assert w.metric("popwheel_proxy_parked_bytes") > 50 * 4
            assert w.metric("popwheel_proxy_brokers_without_master") == 1
            assert w.app.ready, "there is nothing wrong with the proxy"
            w.elect("a", 1)
            began = now()
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 50}
            assert now() - began < 0.05
            assert sorted(w.logs["a"].ids) == sorted(["first", *names(50)]), "each once"
            assert w.metric("popwheel_proxy_parked_seconds_count", {"served": "yes"}) == 50
            assert w.metric("popwheel_proxy_call_retries_total", {"reason": "no_master"}) == 50

    run(scenario())


def test_sends_go_to_another_group_at_once() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            await w.kill_master("a")
            without = "popwheel_proxy_broker_without_master"
            assert [w.metric(without, {"broker": name}) for name in "ab"] == [1, 0], "an alert names the group"
            for one in names(20):
                began = now()
                assert (await send(w, one)).status.code == Code.OK
                assert now() - began < 0.01
            assert (len(w.logs["a"].ids), w.logs["b"].ids) == (0, names(20))
            w.elect("a", 1)
            await until(lambda: len(w.app._brokers.led) == 2)
            for one in names(20, "later"):
                await send(w, one)
            assert len(w.logs["a"].ids) == 10, "nothing bad is remembered of its former master"

    run(scenario())


def test_what_may_be_stored_is_tried_again_at_the_same_group_and_stored_once() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            master = w.replicas["a"][0]
            master.answers_lost = 1
            sends = await send_in_two_batches(w, names(8))
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 8}
            assert sorted(w.logs["a"].ids + w.logs["b"].ids) == names(8)
            assert len(w.logs["a"].ids) == 4
            again = [one for one in runs_of(w, "a") if one.is_retry]
            assert [len(one.payloads) for one in again] == [1, 1, 1, 1], "some may be stored and others not"
            offsets = [one.result().entries[0].offset for one in sends]
            assert sorted(offsets) == [0, 0, 1, 1, 2, 2, 3, 3]

    run(scenario())


def test_a_master_that_stores_and_dies_leaves_nothing_twice() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            master = w.replicas["a"][0]
            dying: list[asyncio.Task[None]] = []

            def die(path: str) -> None:
                if path == PUT.path and not dying:
                    dying.append(asyncio.create_task(w.kill_master("a")))
                    master.answers_lost = 1

            master.before_answer = die
            sends = await send_in_two_batches(w, names(8))
            await asyncio.sleep(1.0)
            assert sum(one.done() for one in sends) == 4
            w.elect("a", 1)
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 8}
            assert sorted(w.logs["a"].ids + w.logs["b"].ids) == names(8)
            assert len(w.logs["a"].ids) == 4

    run(scenario())


def test_what_may_be_stored_goes_elsewhere_when_its_group_is_gone_for_good() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            w.replicas["a"][0].hangs.clear()
            sends = await send_in_two_batches(w, names(2))
            await asyncio.sleep(0.3)
            assert sum(one.done() for one in sends) == 1
            w.tell("a", None)
            await asyncio.sleep(1.0)
            assert sum(one.done() for one in sends) == 1, "it may be stored at the group, so it waits for it"
            w.controller.remove_broker("a")
            await asyncio.sleep(LEFT_S - 0.1)
            assert sum(one.done() for one in sends) == 1, "it may be started again, and be back in a moment"
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 2}
            assert sorted(w.logs["b"].ids) == names(2)
            assert w.app._parked_calls.calls == 0

    run(scenario())


def test_what_may_be_stored_at_a_group_without_slaves_is_stored_once_when_that_was_started_again() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            w.replicas["a"][0].answers_lost = 100
            w.replicas["a"][0].before_answer = lambda path: w.controller.remove_broker("a")
            sends = [asyncio.create_task(send(w, one)) for one in names(4)]
            await asyncio.sleep(1.5)
            w.replicas["a"][0].before_answer, w.replicas["a"][0].answers_lost = None, 0
            stored = w.logs["a"].ids
            assert stored
            assert [one.done() for one in sends].count(False) == len(stored)
            w.elect("a", 1)
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 4}
            assert sorted(w.logs["a"].ids + w.logs["b"].ids) == names(4), "each once"

    run(scenario())


def test_a_master_that_hangs_holds_nobody_up_once_there_is_another() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            handles = await popped(w, 4)
            w.replicas["a"][0].hangs.clear()
            calls = [asyncio.create_task(send(w, one)) for one in names(20)]
            acks = [asyncio.create_task(w.ack(handle)) for handle in handles]
            poll = w.poll(poll_request(broker="a", wait_s=20.0))
            await asyncio.sleep(2.0)
            calls.append(asyncio.create_task(send(w, "late")))
            await turns()
            assert not any(one.done() for one in (*calls, *acks))
            w.elect("a", 1)
            began = now()
            assert codes(await asyncio.gather(*calls)) == {Code.OK: 21}
            assert {one.status.code for one in await asyncio.gather(*acks)} == {Code.OK}
            assert now() - began <= CLOSE_AFTER_S + 0.1
            assert sorted(w.logs["a"].ids[4:]) == sorted([*names(20), "late"])
            assert (await poll).messages
            assert now() - began <= CLOSE_AFTER_S + 0.5

    run(scenario())


def test_a_transfer_costs_no_more_than_it_takes() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            old, new = w.replicas["a"]
            sends: list[asyncio.Task[pb.SendMessageResponse]] = []
            took: list[float] = []

            async def timed(message_id: str) -> pb.SendMessageResponse:
                began = now()
                answer = await send(w, message_id, timeout_s=3.0)
                took.append(now() - began)
                return answer

            for number in range(200):
                if number == 50:
                    old.leads = False
                if number == 60:
                    new.leads = True
                    w.epochs["a"] += 1
                if number == 62:
                    w.tell("a", 1)
                sends.append(asyncio.create_task(timed(f"m-{number:03}")))
                await asyncio.sleep(0.01)
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 200}
            assert sorted(w.logs["a"].ids) == sorted(set(w.logs["a"].ids))
            assert len(w.logs["a"].ids) == 200
            assert max(took) < 0.3
            assert w.metric("popwheel_proxy_call_retries_total", {"reason": "outcome_unknown"}) == 0

    run(scenario())


def test_a_master_that_is_not_ready_yet_is_asked_by_one_at_a_time() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            handles = await popped(w, 32)
            await w.kill_master("a")
            new = w.replicas["a"][1]
            acks = [asyncio.create_task(w.ack(handle)) for handle in handles * 30]
            await turns()
            w.elect("a", 1)
            new.leads = False
            await asyncio.sleep(1.0)
            assert 5 <= new.asked <= 20, "though 960 calls wait"
            asked = new.asked
            new.leads = True
            began = now()
            answers = await asyncio.gather(*acks)
            assert now() - began < 0.2
            assert new.asked - asked == 960
            assert Counter(int(one.status.code) for one in answers) == {
                Code.OK: 32,
                Code.INVALID_RECEIPT_HANDLE: 928,
            }

    run(scenario())


def test_polls_go_on_and_their_interests_are_at_the_next_master_at_once() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            polls = [w.poll(poll_request(broker="a", batch=1)) for _ in range(1_000)]
            await asyncio.sleep(0.5)
            await w.kill_master("a")
            await asyncio.sleep(1.0)
            assert not any(poll.done() for poll in polls)
            before = len(w.logs["a"].registrations)
            w.elect("a", 1)
            await asyncio.sleep(0.01)
            assert len(w.logs["a"].registrations) == before + 1
            began = now()
            await arrive(w.logs["a"], count=1_000)
            assert {one.code for one in await asyncio.gather(*polls)} == {Code.OK}
            assert now() - began < 1.0

    run(scenario())


def test_a_poll_whose_pop_is_cut_off_takes_what_is_at_the_next_master() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            w.replicas["a"][0].hangs.clear()
            poll = w.poll(poll_request(broker="a"))
            await asyncio.sleep(0.5)
            await w.kill_master("a")
            await asyncio.sleep(0.5)
            await arrive(w.logs["a"])
            began = now()
            w.elect("a", 1)
            assert (await poll).code == Code.OK
            assert now() - began < 0.3
            poll = w.poll(poll_request(broker="a", wait_s=6.0))
            await asyncio.sleep(0.5)
            await w.kill_master("a", 1)
            assert (await poll).code == Code.MESSAGE_NOT_FOUND, "no error"

    run(scenario())


def test_a_poll_that_comes_to_wait_at_a_group_without_master_is_reported_by_the_next_one() -> None:
    async def scenario() -> None:
        async with groups("a", poll_mode="sliced") as w:
            poll = w.poll(poll_request(broker="a"))
            await asyncio.sleep(1.0)
            await w.kill_master("a")
            await asyncio.sleep(SLICES_MAX * SLICE_S)  # now it waits, after its last short pop
            w.elect("a", 1)
            await asyncio.sleep(0.5)
            began = now()
            await arrive(w.logs["a"])
            assert (await poll).code == Code.OK
            assert now() - began < 0.1

    run(scenario())


def test_reading_by_offset_goes_on_at_the_next_master() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            await arrive(w.logs["a"], count=3)
            queue = d.MessageQueue(topic=d.Resource(name="orders"), broker=d.Broker(name="a"), id=0)
            group = d.Resource(name="group")
            await w.kill_master("a")

            async def pull() -> int:
                stream = w.channel.open(protocol.PULL_MESSAGE, metadata=CLIENT)
                await stream.send(
                    [
                        pb.PullMessageRequest(
                            group=group,
                            message_queue=queue,
                            batch_size=8,
                            long_polling_timeout=Duration(seconds=15),
                            filter_expression=d.FilterExpression(type=d.FilterType.TAG, expression="*"),
                        )
                    ]
                )
                await stream.end()
                found = 0
                while (part := await stream.receive()) is not None:
                    found += pb.PullMessageResponse.FromString(part).WhichOneof("content") == "message"
                return found

            update = pb.UpdateOffsetRequest(group=group, message_queue=queue, offset=2)
            query = pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=d.QueryOffsetPolicy.END)
            updated = asyncio.create_task(w.channel.call(protocol.UPDATE_OFFSET, update, metadata=CLIENT))
            queried = asyncio.create_task(w.channel.call(protocol.QUERY_OFFSET, query, metadata=CLIENT))
            pulled = asyncio.create_task(pull())
            await asyncio.sleep(1.0)
            assert not any(call.done() for call in (updated, queried, pulled))
            w.elect("a", 1)
            assert ((await updated).status.code, (await queried).offset, await pulled) == (Code.OK, 3, 3)
            answer = await w.channel.call(
                protocol.GET_OFFSET, pb.GetOffsetRequest(group=group, message_queue=queue), metadata=CLIENT
            )
            assert (answer.status.code, answer.offset) == (Code.OK, 2)

    run(scenario())


def test_parked_calls_are_answered_before_their_clients_have_gone() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            (handle,) = await popped(w, 1)
            await w.kill_master("a")
            began = now()
            answer = await send(w, "m", timeout_s=2.0)
            assert answer.status.code == Code.HA_NOT_AVAILABLE
            assert "no broker has a master" in answer.status.message
            assert 1.5 < now() - began < 2.0
            began = now()
            ack = pb.AckMessageRequest(
                group=d.Resource(name="group"),
                topic=d.Resource(name="orders"),
                entries=[pb.AckMessageEntry(receipt_handle=handle)],
            )
            refused = await w.channel.call(protocol.ACK_MESSAGE, ack, metadata=CLIENT, timeout_s=2.0)
            assert refused.status.code == Code.HA_NOT_AVAILABLE
            assert 1.5 < now() - began < 2.0
            assert w.metric("popwheel_proxy_parked_seconds_count", {"served": "no"}) == 2
            began = now()
            assert (await send(w, "m")).status.code == Code.HA_NOT_AVAILABLE, "a client that waits for ever"
            assert now() - began == pytest.approx(10.0, abs=0.1)

    run(scenario())


def test_a_send_that_may_be_stored_says_so_when_its_time_is_over() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            w.replicas["a"][0].answers_lost = 1
            w.replicas["a"][0].before_answer = lambda _: w.tell("a", None)
            answer = await send(w, "m", timeout_s=2.0)
            assert answer.status.code == Code.PROXY_TIMEOUT
            assert "it is unknown whether the message is stored" in answer.status.message

    run(scenario())


def test_a_client_that_gives_up_is_parked_no_more() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            await w.kill_master("a")
            sends = [asyncio.create_task(send(w, one)) for one in names(10)]
            await asyncio.sleep(0.5)
            assert w.metric("popwheel_proxy_parked_calls") == 10
            for one in sends:
                one.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
            assert w.metric("popwheel_proxy_parked_calls") == 0
            w.elect("a", 1)
            await asyncio.sleep(0.5)
            assert w.logs["a"].ids == []

    run(scenario())


def test_only_so_much_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("popwheel_proxy.brokers.parked_calls.PARKED_CALLS_MAX", 3)
        async with groups("a") as w:
            await w.kill_master("a")
            sends = [asyncio.create_task(send(w, one)) for one in names(5)]
            await turns()
            done = [one.result() for one in sends if one.done()]
            assert codes(done) == {Code.TOO_MANY_REQUESTS: 2}
            limit = {"limit": "parked_calls_max"}
            assert w.metric("popwheel_proxy_limit_hits_total", limit) == 2
            w.elect("a", 1)
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 3, Code.TOO_MANY_REQUESTS: 2}
        monkeypatch.setattr("popwheel_proxy.brokers.parked_calls.PARKED_CALLS_MAX", 1)
        async with groups("a") as w:
            await w.kill_master("a")
            held = asyncio.create_task(send(w, "held"))
            await turns()
            w.replicas["a"][0].alive = True
            w.elect("a", 0)
            await held
            w.replicas["a"][0].hangs.clear()
            sends = [asyncio.create_task(send(w, one)) for one in names(2)]
            await asyncio.sleep(0.1)
            w.tell("a", None)
            await asyncio.sleep(0.5)
            assert codes([one.result() for one in sends if one.done()]) == {Code.PROXY_TIMEOUT: 1}, "it may be stored"
            w.elect("a", 1)
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 1, Code.PROXY_TIMEOUT: 1}
        monkeypatch.undo()
        monkeypatch.setattr("popwheel_proxy.brokers.parked_calls.PARKED_BYTES_MAX", 1024 * 1024)
        async with groups("a") as w:
            await w.kill_master("a")
            large = pb.SendMessageRequest(messages=[message(body=b"x" * 700_000)]).SerializeToString()
            two = [asyncio.create_task(w.channel.call(protocol.SEND_MESSAGE, large, metadata=CLIENT)) for _ in range(2)]
            await turns()
            ended = [pb.SendMessageResponse.FromString(one.result()) for one in two if one.done()]
            assert [answer.status.code for answer in ended] == [Code.TOO_MANY_REQUESTS]
            w.elect("a", 1)
            await asyncio.gather(*two)

    run(scenario())


def test_who_reports_a_former_master_is_not_learned() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            w.elect("a", 1)
            await turns()
            w.controller.publish(ClusterUpdate(brokers=[BrokerInfo(name="a", address="a-0:1", epoch=1)]))
            w.controller.publish(ClusterUpdate(brokers=[BrokerInfo(name="a", address="", epoch=1)]))
            await turns()
            assert (await send(w, "m", timeout_s=1.0)).status.code == Code.OK
            assert w.replicas["a"][1].asked == 1
            assert w.metric("popwheel_proxy_stale_routes") == 2
            assert w.metric("popwheel_proxy_masters_changed") == 1
            w.tell("a", None)
            await turns()
            w.tell("a", 1)
            await turns()
            assert (await send(w, "n")).status.code == Code.OK, "the same master is back in the same epoch"
            w.controller.remove_broker("a")
            await turns()
            w.epochs["a"] = 1
            w.tell("a", 1)
            await turns()
            assert (await send(w, "o")).status.code == Code.OK, "a group that was gone begins anew"

    run(scenario())


def test_a_call_to_a_group_that_is_gone_is_refused_at_once() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            (handle,) = await popped(w, 1)
            w.replicas["a"][0].hangs.clear()
            ack = asyncio.create_task(w.ack(handle))
            await asyncio.sleep(0.5)
            w.controller.remove_broker("a")
            began = now()
            assert (await ack).status.code == Code.PROXY_TIMEOUT, "it may have been done"
            assert (await w.ack(handle)).status.code == Code.HA_NOT_AVAILABLE
            assert now() - began < 0.2

    run(scenario())


@pytest.mark.parametrize("leaves_at_s", [1.5, SLICES_MAX * SLICE_S + 1.5])
def test_a_poll_at_a_group_that_leaves_without_a_master_goes_on_at_the_others(leaves_at_s: float) -> None:
    """It slept to its deadline beside messages, whether the group left before it came to wait there or after."""

    async def scenario() -> None:
        async with groups("a", "b", poll_mode="sliced") as w:
            poll = w.poll(poll_request(broker="b"))  # so its last short pop is at a
            await asyncio.sleep(1.0)
            await w.kill_master("a")
            await asyncio.sleep(leaves_at_s - 1.0)
            w.controller.remove_broker("a")
            await asyncio.sleep(SLICES_MAX * SLICE_S + 2.0 - leaves_at_s)
            began = now()
            await arrive(w.logs["b"])
            assert (await poll).code == Code.OK
            assert now() - began < 0.1

    run(scenario())
