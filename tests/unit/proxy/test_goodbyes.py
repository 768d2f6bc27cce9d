"""Messages that a client holds come to others when it says goodbye, and soon after it has gone without a word."""

import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.service import ClientStream
from tests.unit.proxy.world import CLIENT, Received, World, message, poll_request, turns, until, world

OTHER = {**CLIENT, "x-mq-client-id": "client-2"}
GRACE_S = 15.0
TelemetryStream = ClientStream[pb.TelemetryCommand, pb.TelemetryCommand]


async def say_goodbye(w: World, metadata: dict[str, str] = CLIENT) -> None:
    request = pb.NotifyClientTerminationRequest(group=d.Resource(name="group"))
    answer = await w.channel.call(protocol.NOTIFY_CLIENT_TERMINATION, request, metadata=metadata)
    assert answer.status.code == Code.OK


async def beat(w: World, metadata: dict[str, str] = CLIENT) -> None:
    assert (await w.channel.call(protocol.HEARTBEAT, pb.HeartbeatRequest(), metadata=metadata)).status.code == Code.OK


async def subscribe(w: World, metadata: dict[str, str] = CLIENT) -> TelemetryStream:
    """A consumer's Telemetry stream; its settings are answered."""
    stream = w.channel.open(protocol.TELEMETRY, metadata=metadata)
    settings = d.Settings(subscription=d.Subscription(group=d.Resource(name="group")))
    await stream.send((pb.TelemetryCommand(settings=settings),))
    assert await stream.receive() is not None
    return stream


async def held(w: World, count: int = 1, metadata: dict[str, str] = CLIENT, attempt_id: str = "") -> Received:
    """Messages that a push consumer holds."""
    await w.send(*(message(body=b"%d" % number) for number in range(count)))
    got = await w.receive(poll_request(auto_renew=True, attempt_id=attempt_id), metadata)
    assert len(got.messages) == count
    return got


def releases(w: World) -> list[broker.ReleaseRequest]:
    return [each for each in w.broker.asked("Release") if isinstance(each, broker.ReleaseRequest)]


def released(w: World) -> list[str]:
    return [handle for each in releases(w) for handle in each.receipt_handles]


async def time_passes(w: World, seconds: float) -> None:
    """Move the clock on, and have the proxy see what that brings about now instead of within a second."""
    w.clock.shift_s += seconds
    w.app._release_lost_clients(w.clock.monotonic())
    await turns()


async def test_what_a_push_consumer_holds_comes_to_others_at_its_goodbye() -> None:
    async with world() as w:
        got = await held(w, 3)
        others = await held(w, 1, OTHER)
        await say_goodbye(w)
        await until(lambda: sorted(released(w)) == sorted(got.handles))
        assert [(each.attempted, each.receive) for each in releases(w)] == [(True, 0)]
        again = await w.receive(poll_request(auto_renew=True), OTHER)
        assert sorted(again.bodies) == sorted(got.bodies)
        assert w.metric("popwheel_proxy_renewed_handles") == len(others.handles) + 3
        await until(lambda: w.metric("popwheel_proxy_renewed_handles_released_total") == 3)


async def test_handles_of_a_broker_that_is_away_come_when_their_time_is_over() -> None:
    async with world("b1", "b2") as w:
        book, now = w.app._renewals, w.clock.monotonic()
        book.add("client-1", "b1", "group", "orders", ["away"], now)
        w.brokers["b2"].open["there"] = ("group", "orders", 0)
        w.brokers["b2"].topics["orders"] = []
        book.add("client-1", "b2", "group", "orders", ["there"], now)
        w.controller.remove_broker("b1")
        await until(lambda: w.app._brokers.names == ("b2",))
        await say_goodbye(w)
        await until(lambda: w.metric("popwheel_proxy_release_failures_total") == 1)
        await until(lambda: w.metric("popwheel_proxy_renewed_handles_released_total") == 1)
        assert w.metric("popwheel_proxy_renewed_handles") == 0


async def test_a_simple_consumers_messages_stay_hidden_for_as_long_as_it_said() -> None:
    async with world() as w:
        await w.send(message())
        assert len((await w.receive(poll_request())).messages) == 1
        await say_goodbye(w)
        await turns()
        assert releases(w) == []


async def test_polls_end_at_a_goodbye_and_what_they_still_bring_is_released() -> None:
    async with world() as w:
        waiting = w.poll(poll_request())
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 1)
        w.broker.pop_gate.clear()
        popping = w.poll(poll_request(auto_renew=True, filter_expression=d.FilterExpression(expression="*")))
        await w.send(message(), message())
        await until(lambda: len(w.broker.asked("Pop")) >= 2)
        await say_goodbye(w)
        assert [(await each).code for each in (waiting, popping)] == [Code.MESSAGE_NOT_FOUND] * 2
        w.broker.pop_gate.set()
        await until(lambda: len(released(w)) == 2)
        assert not any(each.attempted for each in releases(w)), "they reached nobody"
        assert w.metric("popwheel_proxy_renewed_handles") == w.metric("popwheel_proxy_polls") == 0


async def test_what_is_on_its_way_to_a_client_is_released_at_its_goodbye_once() -> None:
    async with world() as w:
        await w.send(message())
        stream = w.open_receive(poll_request(auto_renew=True))
        await stream.send((poll_request(auto_renew=True),))
        await until(lambda: w.metric("popwheel_proxy_renewed_handles") == 1)
        await say_goodbye(w)
        await until(lambda: len(released(w)) == 1)
        stream.cancel()
        await turns()
        assert len(released(w)) == 1


async def test_a_client_whose_connection_breaks_is_given_a_moment_to_come_back() -> None:
    async with world() as w:
        stream = await subscribe(w)
        got = await held(w)
        stream.cancel()
        await until(lambda: w.metric("popwheel_proxy_clients_broken") == 1)
        await time_passes(w, GRACE_S - 1)
        assert releases(w) == []
        await time_passes(w, 2)
        await until(lambda: released(w) == got.handles)
        assert releases(w)[0].attempted
        assert w.metric("popwheel_proxy_clients") == 0


@pytest.mark.parametrize("sign", ["heartbeat", "settings", "poll"])
async def test_who_comes_back_within_the_grace_loses_nothing(sign: str) -> None:
    async with world() as w:
        stream = await subscribe(w)
        await held(w)
        stream.cancel()
        await until(lambda: w.metric("popwheel_proxy_clients_broken") == 1)
        if sign == "heartbeat":
            await beat(w)
        elif sign == "settings":
            await subscribe(w)
        else:
            w.poll(poll_request())
            await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 1)
        await time_passes(w, GRACE_S + 1)
        assert (releases(w), w.metric("popwheel_proxy_renewed_handles")) == ([], 1)


async def test_a_client_with_two_connections_is_there_while_one_is() -> None:
    async with world() as w:
        one, two = await subscribe(w), await subscribe(w)
        got = await held(w)
        one.cancel()
        await until(lambda: w.metric("popwheel_proxy_telemetry_streams") == 1)
        await time_passes(w, GRACE_S + 1)
        assert releases(w) == []
        two.cancel()
        await until(lambda: w.metric("popwheel_proxy_clients_broken") == 1)
        await time_passes(w, GRACE_S + 1)
        await until(lambda: released(w) == got.handles)


async def test_a_poll_that_breaks_off_counts_as_a_connection() -> None:
    """Some official clients have no Telemetry stream for minutes after they have connected anew."""
    async with world() as w:
        got = await held(w)
        poll = w.open_receive(poll_request())
        await poll.send((poll_request(),))
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 1)
        poll.cancel()
        await until(lambda: w.metric("popwheel_proxy_clients_broken") == 1)
        await time_passes(w, GRACE_S + 1)
        await until(lambda: released(w) == got.handles)


async def test_a_silent_client_is_gone_in_the_end() -> None:
    async with world() as w:
        stream = await subscribe(w)
        got = await held(w)
        await time_passes(w, 59)
        assert releases(w) == []
        await time_passes(w, 2)
        await until(lambda: released(w) == got.handles)
        stream.cancel()


async def test_a_proxy_that_drains_takes_nothing_from_clients_that_go_elsewhere() -> None:
    async with world() as w:
        stream = await subscribe(w)
        await held(w)
        w.app.drain()
        stream.cancel()
        await until(lambda: w.metric("popwheel_proxy_clients_broken") == 1)
        await time_passes(w, 1000)
        assert (releases(w), w.metric("popwheel_proxy_renewed_handles")) == ([], 1)


async def test_a_failed_try_takes_nothing_from_the_try_that_came_after_it() -> None:
    async with world() as w:
        w.controller.groups["group"].fifo = True
        w.controller.add_group("group", fifo=True)
        await until(lambda: w.app.view.groups["group"].fifo)
        first, second = await held(w, attempt_id="try"), await held(w, attempt_id="try")
        receives = [each.receive for each in w.broker.asked("Pop") if isinstance(each, broker.PopRequest)]
        assert len(set(receives)) == 2
        assert 0 not in receives
        # The broker of this test gives others, so the book is given both tries by hand.
        book, now = w.app._renewals, w.clock.monotonic()
        book.add("client-1", "b1", "group", "orders", first.handles, now, receives[1])
        book.drop_of(receives[0], first.handles)
        assert w.metric("popwheel_proxy_renewed_handles") == 2
        stream = await subscribe(w)
        stream.cancel()
        await until(lambda: w.metric("popwheel_proxy_clients_broken") == 1)
        await time_passes(w, GRACE_S + 1)
        await until(lambda: sorted(released(w)) == sorted([*first.handles, *second.handles]))
        assert {each.receive for each in releases(w)} == {receives[1]}, "the broker knows whose it is"


async def test_receives_of_other_groups_have_no_number() -> None:
    async with world() as w:
        await held(w, attempt_id="try")
        (pop,) = w.broker.asked("Pop")
        assert isinstance(pop, broker.PopRequest)
        assert pop.receive == 0


async def test_many_handles_are_renewed_and_released_in_parts() -> None:
    async with world() as w:
        book, now = w.app._renewals, w.clock.monotonic()
        handles = [f"h{number}" for number in range(2_500)]
        w.broker.open.update(dict.fromkeys(handles, ("group", "orders", 0)))
        await w.send(message())
        await beat(w)
        book.add("client-1", "b1", "group", "orders", handles, now)
        w.clock.shift_s += 21
        w.app._renewal.tick()
        await until(lambda: w.metric("popwheel_proxy_renewals_total") == 2_500)
        assert [len(each.entries) for each in w.broker.asked("Renew") if isinstance(each, broker.RenewRequest)] == [
            *(1_000, 1_000, 500)
        ]
        await say_goodbye(w)
        await until(lambda: w.metric("popwheel_proxy_renewed_handles_released_total") == 2_500)
        assert max(len(each.receipt_handles) for each in releases(w)) <= 16, "a broker stores each message once more"
