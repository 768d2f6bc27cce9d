"""Sends say which topic of a name they are for, and go to the one made anew when a broker knows of that first."""

import asyncio

import pytest

from popwheel_common.contract.cluster_view import VERSIONS_PER_STORE
from popwheel_common.contract.put import MessageRun
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.proxy.test_many_brokers import Cluster, cluster
from tests.unit.proxy.virtual import now, run
from tests.unit.proxy.world import message


def ids_put(w: Cluster) -> list[int]:
    """Of the topics that all Puts were for, in their order."""
    puts: list[list[MessageRun]] = w.broker.asked("Put")  # type: ignore[assignment]
    return [each.topic_id for runs in puts for each in runs]


def test_a_put_says_which_topic_it_is_for() -> None:
    async def scenario() -> None:
        async with cluster("a", auto_create_topics=True) as w:
            await w.send(message(), message(message_id="02" + "A" * 32))
            await w.send(message("new"))
            assert ids_put(w) == [w.controller.topics[name].id for name in ("orders", "new")]
            w.controller.delete_topic("orders")
            await w.send(message("new"))
            anew = w.controller.add_topic("orders")
            w.broker.calls.clear()
            assert (await w.send(message())).status.code == Code.OK
            assert ids_put(w) == [anew.id]

    run(scenario())


def test_sends_for_a_topic_and_the_one_made_anew_are_not_mixed_in_one_run() -> None:
    async def scenario() -> None:
        async with cluster("a") as w:
            old = w.controller.topics["orders"]
            w.broker.put_gate.clear()
            sends = [asyncio.create_task(w.send(message())) for _ in range(2)]
            await asyncio.sleep(0.01)
            sends += [asyncio.create_task(w.send(message())) for _ in range(4)]
            await asyncio.sleep(0.01)
            w.controller.delete_topic("orders")
            new = w.controller.add_topic("orders")
            await asyncio.sleep(0.01)
            sends += [asyncio.create_task(w.send(message())) for _ in range(4)]
            await asyncio.sleep(0.01)
            w.broker.put_gate.set()
            assert {(await each).status.code for each in sends} == {Code.OK}
            assert set(ids_put(w)) == {old.id, new.id}

    run(scenario())


def test_a_send_for_a_topic_that_was_deleted_goes_to_the_one_made_anew_once_the_proxy_has_learned_of_it() -> None:
    async def scenario() -> None:
        async with cluster("a") as w:
            w.broker.deleted.add(w.controller.topics["orders"].id)
            began = now()
            send = asyncio.create_task(w.send(message()))
            await asyncio.sleep(0.5)
            assert 1 < len(w.broker.asked("Put")) < 15
            w.controller.delete_topic("orders")
            w.controller.add_topic("orders", queues=1)
            assert (await send).status.code == Code.OK
            assert now() - began < 0.6
            assert [each.queue_id for each in w.broker.topics["orders"]] == [0]
            assert w.avoided == 0

    run(scenario())


def test_a_send_for_a_topic_that_was_deleted_is_notified_so_when_the_proxy_has_learned_of_it_or_its_time_is_over() -> (
    None
):
    async def scenario() -> None:
        async with cluster("a") as w:
            w.broker.deleted.add(w.controller.topics["orders"].id)
            began = now()
            assert (await w.send(message())).status.code == Code.TOPIC_NOT_FOUND
            assert 9.5 < now() - began < 10.5
            send = asyncio.create_task(w.send(message()))
            await asyncio.sleep(0.2)
            w.controller.delete_topic("orders")
            await asyncio.sleep(0.1)
            assert send.done()
            assert (await send).status.code == Code.TOPIC_NOT_FOUND

    run(scenario())


def test_what_waits_for_word_of_another_topic_does_not_ask_the_broker_all_the_time() -> None:
    async def scenario() -> None:
        async with cluster("a") as w:
            w.broker.deleted.add(w.controller.topics["orders"].id)
            assert (await w.send(message())).status.code == Code.TOPIC_NOT_FOUND
            assert 3 < len(w.broker.asked("Put")) < 15
            w.broker.calls.clear()
            send = asyncio.create_task(w.send(message()))
            await asyncio.sleep(2)
            puts = len(w.broker.asked("Put"))
            for number in range(20):
                w.controller.add_topic(f"another-{number}")
                await asyncio.sleep(0.01)
            assert len(w.broker.asked("Put")) == puts
            w.broker.deleted.clear()
            assert (await send).status.code == Code.OK

    run(scenario())


def test_a_send_to_a_topic_that_only_its_maker_has_reported_of_waits_for_the_broker_to_learn_of_it() -> None:
    async def scenario() -> None:
        async with cluster("a", auto_create_topics=True) as w:
            w.controller._watchers.clear()
            w.broker.deleted.add(w.controller.version + 1)
            send = asyncio.create_task(w.send(message("new")))
            await asyncio.sleep(0.3)
            assert not send.done()
            w.broker.deleted.clear()
            assert (await send).status.code == Code.OK

    run(scenario())


def test_a_send_is_refused_by_a_topic_made_anew_that_does_not_take_it() -> None:
    async def scenario() -> None:
        async with cluster("a") as w:
            w.broker.deleted.add(w.controller.topics["orders"].id)
            send = asyncio.create_task(w.send(message()))
            await asyncio.sleep(0.2)
            w.controller.delete_topic("orders")
            w.controller.add_topic("orders", TopicType.DELAY)
            assert (await send).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE

    run(scenario())


@pytest.mark.parametrize("state_was_lost", [False, True])
def test_a_send_of_unknown_outcome_may_go_anywhere_in_a_topic_made_anew_unless_that_holds_what_is_stored(
    state_was_lost: bool,
) -> None:
    """Where the controllers have lost their state, a topic goes on under another id."""

    async def scenario() -> None:
        async with cluster("a") as w:
            broker = w.broker
            broker.put_error = RpcError(GrpcStatus.UNAVAILABLE, "the connection was lost")
            send = asyncio.create_task(w.send(message(message_type=d.MessageType.NORMAL)))
            await asyncio.sleep(0.01)
            broker.put_error = None
            broker.deleted.add(w.controller.topics["orders"].id)
            await asyncio.sleep(0.3)
            first: list[MessageRun] = broker.asked("Put")[0]  # type: ignore[assignment]
            w.controller.delete_topic("orders")
            if state_was_lost:
                w.controller.version = VERSIONS_PER_STORE
            w.controller.add_topic("orders", queues=1)
            assert (await send).status.code == Code.OK
            last: list[MessageRun] = broker.asked("Put")[-1]  # type: ignore[assignment]
            place = (True, first[0].queue_id) if state_was_lost else (False, 0)
            assert [(each.is_retry, each.queue_id) for each in last] == [place]

    run(scenario())
