"""Acks and all else that bears a handle while masters die: done once, and told truly; on virtual time."""

import asyncio

from google.protobuf.duration_pb2 import Duration

from popwheel_common.contract import recall_handle
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import AckRequest
from popwheel_proxy.protocol import client_methods as protocol
from tests.unit.proxy.fake_broker import Timer
from tests.unit.proxy.fake_controller import KEY
from tests.unit.proxy.replicas import groups, names, popped, send
from tests.unit.proxy.test_many_brokers import codes
from tests.unit.proxy.virtual import arrive, now, run
from tests.unit.proxy.world import CLIENT, poll_request


def test_an_ack_that_was_done_and_not_answered_is_done() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            handles = await popped(w, 3)
            w.replicas["a"][0].answers_lost = 1
            answer = await w.ack(*handles[:2])
            assert answer.status.code == Code.OK
            assert {entry.status.code for entry in answer.entries} == {Code.OK}
            assert len(w.logs["a"].asked("Ack")) == 2
            forged = handles[2][:-1] + ("A" if handles[2][-1] != "A" else "B")
            w.replicas["a"][0].answers_lost = 1
            assert (await w.ack(forged)).status.code == Code.INVALID_RECEIPT_HANDLE, "it was never good"
            assert (await w.ack(handles[0])).status.code == Code.INVALID_RECEIPT_HANDLE, "nothing was in doubt"

    run(scenario())


def test_all_tries_of_a_call_bear_one_name_and_those_of_another_call_another() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            handles = await popped(w, 2)
            for handle in handles:
                w.replicas["a"][0].answers_lost = 1
                await w.ack(handle)
            asked = w.logs["a"].asked("Ack")
            first, again, second, second_again = (each.call for each in asked if isinstance(each, AckRequest))
            assert first == again != second == second_again
            assert first

    run(scenario())


def test_an_ack_of_unknown_outcome_that_the_broker_knows_nothing_of_stays_of_unknown_outcome() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            (handle,) = await popped(w, 1)
            w.replicas["a"][0].answers_lost = 1
            w.replicas["a"][0].before_answer = lambda _: w.logs["a"].acked.clear()
            answer = await w.ack(handle)
            assert answer.status.code == Code.PROXY_TIMEOUT
            assert "the outcome is unknown" in answer.entries[0].status.message
            assert (await w.ack(handle)).status.code == Code.INVALID_RECEIPT_HANDLE, "nothing is in doubt now"

    run(scenario())


def test_a_recall_of_unknown_outcome_of_a_message_whose_time_has_come_stays_of_unknown_outcome() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            handle = recall_handle.encode(KEY, "orders", RecallHandle("a", 0, 2_000_000_000_000, "m"))
            w.logs["a"].timers[handle] = Timer("orders", 2_000_000_000_000, d.Message())
            request = pb.RecallMessageRequest(topic=d.Resource(name="orders"), recall_handle=handle)
            w.replicas["a"][0].answers_lost = 1
            answer = await w.channel.call(protocol.RECALL_MESSAGE, request, metadata=CLIENT)
            assert answer.status.code == Code.PROXY_TIMEOUT, "the first try has taken it back"
            assert "it is unknown whether it was recalled" in answer.status.message
            answer = await w.channel.call(protocol.RECALL_MESSAGE, request, metadata=CLIENT)
            assert answer.status.code == Code.MESSAGE_NOT_FOUND, "nothing was in doubt"

    run(scenario())


def test_a_changed_invisible_duration_that_was_done_and_not_answered_gives_its_handle_once_more() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            (handle,) = await popped(w, 1)
            w.replicas["a"][0].answers_lost = 1
            request = pb.ChangeInvisibleDurationRequest(
                group=d.Resource(name="group"),
                topic=d.Resource(name="orders"),
                receipt_handle=handle,
                invisible_duration=Duration(seconds=20),
            )
            answer = await w.channel.call(protocol.CHANGE_INVISIBLE_DURATION, request, metadata=CLIENT)
            assert (answer.status.code, answer.receipt_handle) == (Code.OK, handle + "+")
            answer = await w.channel.call(protocol.CHANGE_INVISIBLE_DURATION, request, metadata=CLIENT)
            assert answer.status.code == Code.INVALID_RECEIPT_HANDLE, "nothing was in doubt"

    run(scenario())


def test_a_dead_letter_that_was_done_and_not_answered_is_done() -> None:
    async def scenario() -> None:
        async with groups("a") as w:
            (handle,) = await popped(w, 1)
            request = pb.ForwardMessageToDeadLetterQueueRequest(
                group=d.Resource(name="group"), topic=d.Resource(name="orders"), receipt_handle=handle
            )
            w.replicas["a"][0].answers_lost = 1
            for code in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
                answer = await w.channel.call(protocol.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE, request, metadata=CLIENT)
                assert answer.status.code == code

    run(scenario())


def test_an_ack_for_two_groups_is_delayed_for_one_of_them_only() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            await arrive(w.logs["a"])
            await arrive(w.logs["b"])
            handles = [(await w.receive(poll_request(broker=one, batch=1))).handles[0] for one in ("a", "b")]
            await w.kill_master("a")
            ack = asyncio.create_task(w.ack(*handles))
            await asyncio.sleep(0.5)
            assert (len(w.logs["b"].acked), ack.done()) == (1, False)
            w.elect("a", 1)
            assert (await ack).status.code == Code.OK

    run(scenario())


def test_acks_do_not_wait_behind_sends_that_cannot_be_taken() -> None:
    """A master with too few replicas in sync refuses sends for as long as that lasts, and does everything else."""

    async def scenario() -> None:
        async with groups("a") as w:
            handles = await popped(w, 20)
            master = w.replicas["a"][0]

            def loses_a_slave(path: str) -> None:
                master.takes_sends = False

            master.before_answer, master.answers_lost = loses_a_slave, 1
            sends = [asyncio.create_task(send(w, one)) for one in names(50)]
            await asyncio.sleep(1.0)
            assert w.logs["a"].ids, "what was written stays in doubt, so it may go to no other group"
            master.before_answer = None
            for handle in handles:
                began = now()
                assert (await w.ack(handle)).status.code == Code.OK
                assert now() - began < 0.01
            assert not any(one.done() for one in sends)
            master.takes_sends = True
            began = now()
            assert codes(await asyncio.gather(*sends)) == {Code.OK: 50}
            assert now() - began < 0.2

    run(scenario())


def test_handles_kept_renewed_and_messages_released_outlive_a_master() -> None:
    async def scenario() -> None:
        async with groups("a", renewal={"invisible_ms": 30_000}) as w:
            await arrive(w.logs["a"], count=2)
            received = await w.receive(poll_request(broker="a", batch=1, auto_renew=True))
            assert received.code == Code.OK
            for _ in range(9):
                await asyncio.sleep(1.0)
                w.app._clients.seen(CLIENT["x-mq-client-id"], now())
            w.replicas["a"][0].hangs.clear()
            await asyncio.sleep(2.0)
            w.elect("a", 1)
            await asyncio.sleep(1.0)
            assert w.metric("popwheel_proxy_renewals_total") == 1
            assert w.metric("popwheel_proxy_renewal_failures_total") == 0
            # A client that goes while its pop is under way.
            w.replicas["a"][1].takes_s = 0.5
            stream = w.open_receive(request := poll_request(broker="a", batch=1))
            await stream.send((request,))
            await asyncio.sleep(0.1)
            stream.cancel()
            await asyncio.sleep(0.6)
            await w.kill_master("a", 1)
            await asyncio.sleep(1.0)
            w.replicas["a"][0].alive = True
            w.replicas["a"][0].hangs.set()
            w.elect("a", 0)
            await asyncio.sleep(1.0)
            assert w.metric("popwheel_proxy_messages_released_total") == 1
            assert w.logs["a"].waiting("group", "orders") == 1

    run(scenario())
