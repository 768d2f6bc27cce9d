"""Consumers and producers that go on after their group or topic was deleted by hand."""

import asyncio

import pytest

from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Topic
from popwheel_proxy.receive.absent_names import AbsentName, AbsentNames
from popwheel_proxy.session import catalog
from tests.unit.proxy.test_goodbyes import say_goodbye
from tests.unit.proxy.virtual import LoopClock, now, run
from tests.unit.proxy.world import World, message, poll_request, turns, until, world

KINDS = pytest.mark.parametrize(
    ("kind", "code"), [("topic", Code.TOPIC_NOT_FOUND), ("group", Code.CONSUMER_GROUP_NOT_FOUND)]
)


async def delete(w: World, kind: str) -> None:
    """Delete a name by hand, and wait until the proxy knows."""
    name = "orders" if kind == "topic" else "group"
    w.controller.resting.add(name)
    (w.controller.delete_topic if kind == "topic" else w.controller.delete_group)(name)
    await until(lambda: name not in w.app.view.topics and name not in w.app.view.groups)


def make(w: World, kind: str) -> None:
    """Make it by hand."""
    w.controller.resting.clear()
    if kind == "topic":
        w.controller.add_topic("orders")
    else:
        w.controller.add_group("group")


def absent(w: World) -> AbsentNames:
    return w.app._receive_handler.absent


@KINDS
async def test_a_poll_is_parked_for_its_time_and_answered_with_what_is_wrong(kind: str, code: int) -> None:
    async with world(grpc_client_consumer_min_long_polling_timeout_ms=1) as w:
        await delete(w, kind)
        began = asyncio.get_running_loop().time()
        received = await w.receive(poll_request(0.2))
        assert received.code == code
        assert asyncio.get_running_loop().time() - began >= 0.19
        assert w.controller.ensured <= 1, "each poll asks the controller at most once"
        assert len(absent(w)) == w.app._admission.polls == 0


@KINDS
async def test_a_poll_that_is_parked_goes_on_when_the_name_is_made_by_hand(kind: str, code: int) -> None:
    async with world() as w:
        await delete(w, kind)
        poll = w.poll(poll_request())
        await until(lambda: len(absent(w)) == 1)
        assert w.app._admission.polls == w.metric("popwheel_proxy_polls_absent") == 1
        w.controller.add_topic("others")  # of which it knows nothing
        await turns()
        assert len(absent(w)) == 1
        make(w, kind)
        await until(lambda: len(w.app._receive_handler._polls) == 1)
        assert not poll.done() and len(absent(w)) == 0


@KINDS
async def test_parked_polls_are_answered_when_the_proxy_drains_or_their_client_goes(kind: str, code: int) -> None:
    async with world() as w:
        await delete(w, kind)
        poll, gone = w.poll(poll_request()), w.open_receive(poll_request())
        await gone.send([poll_request()])
        await until(lambda: len(absent(w)) == 2)
        gone.cancel()
        await until(lambda: len(absent(w)) == 1)
        w.app.drain()
        assert (await poll).code == code
        assert len(absent(w)) == w.app._admission.polls == 0
        assert (await w.receive(poll_request())).code == code, "at once"


@pytest.mark.parametrize(
    ("wait_s", "controller_s", "code"),
    [
        (0.0, 60.0, Code.PROXY_TIMEOUT),
        (1.0, 60.0, Code.PROXY_TIMEOUT),
        (0.0, 0.1, Code.MESSAGE_NOT_FOUND),
        (1.0, 0.9, Code.MESSAGE_NOT_FOUND),
        (4.0, 2.5, Code.MESSAGE_NOT_FOUND),
    ],
)
def test_a_poll_whose_group_the_controller_makes_slowly_lasts_no_longer_than_others(
    wait_s: float, controller_s: float, code: int
) -> None:
    async def scenario() -> None:
        async with world(clock=LoopClock(), grpc_client_consumer_min_long_polling_timeout_ms=1) as w:
            w.controller.delete_group("group")
            await until(lambda: "group" not in w.app.view.groups)
            w.controller.answers_after_s = controller_s
            began_s = now()
            assert (await w.receive(poll_request(wait_s))).code == code
            assert wait_s <= now() - began_s <= wait_s + 0.25
            assert w.app._admission.polls == 0

    run(scenario())


async def test_polls_that_are_parked_count_as_polls() -> None:
    async with world(receive={"polls_per_client_max": 2}) as w:
        await delete(w, "group")
        for _ in range(2):
            w.poll(poll_request())
        await until(lambda: len(absent(w)) == 2)
        assert (await w.receive(poll_request())).code == Code.TOO_MANY_REQUESTS


async def test_a_poll_that_is_not_to_wait_is_refused_at_once() -> None:
    async with world() as w:
        await delete(w, "group")
        assert (await w.receive(poll_request(0))).code == Code.CONSUMER_GROUP_NOT_FOUND


async def test_a_send_to_a_topic_that_was_deleted_is_notified_so_and_makes_nothing() -> None:
    async with world(auto_create_topics=True) as w:
        assert (await w.send(message())).status.code == Code.OK
        await delete(w, "topic")
        answer = await w.send(message())
        assert answer.status.code == Code.TOPIC_NOT_FOUND
        assert "was deleted by an operator" in answer.status.message
        assert w.controller.topics == {}
        make(w, "topic")
        await turns()
        assert (await w.send(message())).status.code == Code.OK


async def test_the_controller_is_asked_once_a_second_for_what_it_does_not_make_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The seen fault: each send to a topic that was deleted took a place among the controller's changes."""
    async with world(auto_create_topics=True) as w:
        await delete(w, "topic")

        async def send(count: int = 5) -> None:
            for _ in range(count):
                assert (await w.send(message())).status.code == Code.TOPIC_NOT_FOUND

        await send()
        assert w.controller.ensured == 1
        w.clock.shift_s += 1
        await send()
        assert w.controller.ensured == 2
        w.controller.add_topic("others")
        await until(lambda: "others" in w.app.view.topics)
        await send()
        assert w.controller.ensured == 3, "something has changed"
        monkeypatch.setattr(catalog, "_REFUSALS_MAX", 2)
        w.controller.resting |= {f"t{number}" for number in range(4)}
        for number in range(4):
            await w.send(message(f"t{number}"))
        assert len(w.app._send_handler._catalog._refusals) <= 2
        w.controller.away = True
        asked = w.controller.ensured
        for _ in range(2):
            assert (await w.send(message("never"))).status.code == Code.HA_NOT_AVAILABLE
        assert w.controller.ensured == asked + 2, "only what may last is kept in mind"


async def test_a_snapshot_wakes_those_whose_name_it_has() -> None:
    async with world() as w:
        await delete(w, "group")
        w.poll(poll_request())
        await until(lambda: len(absent(w)) == 1)
        w.controller.groups["group"] = w.controller.add_group("group")
        w.app._controller_watch.renew()
        await until(lambda: len(absent(w)) == 0)


async def test_a_name_that_was_made_while_its_refusal_was_on_its_way_is_seen() -> None:
    """The seen fault: what the controller refuses and what it reports come on ways of their own."""
    async with world() as w:
        await delete(w, "group")
        w.controller.after_refusal = lambda: make(w, "group")
        poll = w.poll(poll_request())
        await until(lambda: len(w.app._receive_handler._polls) == 1)
        assert not poll.done() and len(absent(w)) == 0


async def test_a_topic_does_not_stand_for_a_group_of_its_name() -> None:
    async with world() as w:
        await delete(w, "group")
        w.poll(poll_request())
        await until(lambda: len(absent(w)) == 1)
        w.controller.add_topic("group")
        await turns()
        assert len(absent(w)) == 1


async def test_a_poll_for_dead_letters_waits_for_their_group() -> None:
    async with world(auto_create_groups=False) as w:
        await delete(w, "group")
        request = poll_request()
        request.message_queue.topic.name = "%DLQ%group"
        request.group.name = "readers"
        w.controller.add_group("readers")
        await until(lambda: "readers" in w.app.view.groups)
        w.poll(request)
        await until(lambda: len(absent(w)) == 1)
        make(w, "group")
        await until(lambda: len(w.app._receive_handler._polls) == 1)


@KINDS
async def test_a_goodbye_ends_polls_that_are_parked(kind: str, code: int) -> None:
    async with world() as w:
        await delete(w, kind)
        poll = w.poll(poll_request())
        await until(lambda: len(absent(w)) == 1)
        await say_goodbye(w)
        await until(poll.done)
        assert (await poll).code == code
        make(w, kind)
        await turns()
        assert w.metric("popwheel_proxy_clients") == 0
        assert w.broker.asked("Pop") == []


async def test_a_goodbye_ends_polls_before_their_pop() -> None:
    """While a filter is read, or a group is made."""
    async with world() as w:
        w.controller.delete_group("group")
        await until(lambda: "group" not in w.app.view.groups)
        w.controller.gate.clear()
        making = w.poll(poll_request())
        await until(lambda: w.controller.ensured == 1)
        reading = w.poll(poll_request(filter_expression=d.FilterExpression(type=d.FilterType.SQL, expression="a < 1")))
        async with w.app._telemetry._turns.one():
            await until(lambda: w.metric("popwheel_proxy_waiting_filters") == 1)
            await say_goodbye(w)
        w.controller.gate.set()
        assert [(await each).code for each in (making, reading)] == [Code.MESSAGE_NOT_FOUND] * 2
        assert w.metric("popwheel_proxy_clients") == 0
        assert w.broker.asked("Pop") == []


@pytest.mark.parametrize("is_made", [True, False])
async def test_many_polls_are_woken_some_at_a_time(is_made: bool) -> None:
    view = ClusterView()
    held = AbsentNames(view, SystemClock())
    made: list[bool] = []

    async def poll(number: int) -> None:
        name = AbsentName(is_group=False, name=f"orders-{number % 115}")
        made.append(await held.made(name, 0, SystemClock().monotonic() + 60, held.waiter()))

    polls = [asyncio.create_task(poll(number)) for number in range(230)]
    await until(lambda: len(held) == 230)
    topics = [Topic(name=f"orders-{number}", queues=1, id=1) for number in range(115)]
    if is_made:
        view.apply(ClusterUpdate(version=1, snapshot=True, topics=topics))
    else:
        held.drain()
    assert len(held) == 0
    counts = []
    while len(made) < 230:
        await asyncio.sleep(0)
        counts.append(len(made))
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) <= 50
    await asyncio.gather(*polls)
    assert made == [is_made] * 230
