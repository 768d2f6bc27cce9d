"""Who is connected to a proxy, as operators are shown it: some at a time, and never long in one turn."""

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClientInfo, ClientListRequest
from popwheel_proxy.receive.client_list import ClientList
from popwheel_proxy.session import clients as clients_module
from popwheel_proxy.session.client_facts import FILTER_LENGTH_MAX, NAMES_MAX, facts_of
from popwheel_proxy.session.clients import Clients
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.proxy.world import World, message, poll_request, until, world

HEADERS = {"x-mq-client-id": "c1"}


def settings(language: str = "JAVA", version: str = "5.0.7", topics: int = 1) -> d.Settings:
    """Of a push consumer."""
    return d.Settings(
        client_type=d.PUSH_CONSUMER,
        user_agent=d.UA(language=d.Language.Value(language), version=version, platform="Linux", hostname="pod-1"),
        subscription=d.Subscription(
            group=d.Resource(name="group"),
            subscriptions=[
                d.SubscriptionEntry(
                    topic=d.Resource(name=f"topic-{number}"),
                    expression=d.FilterExpression(type=d.TAG, expression="a || b"),
                )
                for number in range(topics)
            ],
        ),
    )


async def listed(clients: ClientList, limit: int = 100, **asked: str) -> list[ClientInfo]:
    """All of them, page by page."""
    found: list[ClientInfo] = []
    request = ClientListRequest(limit=limit, **asked)
    while True:
        answer = await clients.some(request)
        assert len(answer.clients) <= limit
        found += answer.clients
        if not answer.next:
            return found
        request.after = answer.next


def reported(world: World) -> ClientList:
    return world.app.client_list


async def test_what_a_client_says_and_does_is_shown() -> None:
    async with world("b1") as w:
        clients: Clients = w.app._clients
        clients.seen("c1", w.clock.monotonic(), "alice")
        clients.says("c1", facts_of(settings()), "10.0.0.1:4711")
        (info,) = await listed(reported(w))
        assert (info.id, info.language, info.version, info.hostname) == ("c1", "JAVA", "5.0.7", "pod-1")
        assert (info.kind, info.group, info.address, info.user) == ("push", "group", "10.0.0.1:4711", "alice")
        assert [(each.group, each.topic, each.filter, each.polled_ms) for each in info.subscriptions] == [
            ("group", "topic-0", "a || b", 0)
        ]
        assert (info.in_flight, info.polls) == (0, 0)
        assert info.since_ms == info.seen_ms
        clients.polls("c1", "10.0.0.1:4712", "group", "topic-0", "a || b", w.clock.monotonic())
        clients.sends("c1", "made")
        (info,) = await listed(reported(w))
        assert [each.polled_ms > 0 for each in info.subscriptions] == [True]
        assert (info.address, list(info.publishes)) == ("10.0.0.1:4712", ["made"])
        clients.remove("c1")
        assert await listed(reported(w)) == []
        assert (clients.facts_bytes, clients.uses, clients.libraries) == (0, 0, {})


async def test_a_poll_and_what_it_finds_are_shown() -> None:
    async with world("b1") as w:
        poll = w.poll(poll_request(auto_renew=True), HEADERS)
        await until(lambda: len(w.broker.interests) == 1)
        (info,) = await listed(reported(w), topic="orders")
        assert (info.polls, info.kind, info.in_flight) == (1, "", -1)
        assert [(each.group, each.topic) for each in info.subscriptions] == [("group", "orders")]
        assert await listed(reported(w), topic="others") == []
        assert await listed(reported(w), group="others") == []
        await w.send(message())
        assert (await poll).bodies == [b"body"]
        (info,) = await listed(reported(w), group="group")
        assert (info.in_flight, info.in_flight_since_ms > 0) == (1, True)
        one = (await reported(w).some(ClientListRequest(id="c1"))).clients[0]
        assert [(each.group, each.topic, each.broker) for each in one.messages] == [("group", "orders", "b1")]
        assert (await reported(w).some(ClientListRequest(id="nobody"))).clients == []


async def test_pages_hold_each_once() -> None:
    async with world("b1") as w:
        ids = [f"c{number:03}" for number in range(257)]
        for client_id in reversed(ids):
            w.app._clients.seen(client_id, 0.0)
        for limit in (1, 100, 256, 257, 300):
            assert [each.id for each in await listed(reported(w), limit)] == ids
        assert [each.id for each in await listed(reported(w), 7, prefix="c01")] == ids[10:20]


async def test_ten_thousand_clients_take_short_turns() -> None:
    async with world("b1") as w:
        clients: Clients = w.app._clients
        facts = facts_of(settings(topics=5))
        for number in range(10_000):
            clients.seen(f"client-{number}", w.clock.monotonic())
            clients.says(f"client-{number}", facts, "10.0.0.1:1")
        with measured_turns() as turns:
            found = await listed(reported(w), 100)
            some = await listed(reported(w), 100, topic="topic-4", group="group")
        assert len(found) == len(some) == 10_000
        assert turns.longest_s < TURN_S_MAX, str(turns)


def test_what_is_kept_is_bounded() -> None:
    clients = Clients(100, 60.0, 15.0)
    clients.seen("a", 0.0)
    facts = facts_of(settings(topics=500))
    assert (len(facts.subscriptions), facts.subscriptions_total) == (NAMES_MAX, 500)
    clients.says("a", facts, "")
    held = clients.facts_bytes
    clients.says("a", facts, "")
    assert clients.facts_bytes == held > 0, "what was said before counts no more"
    for number in range(NAMES_MAX + 50):
        clients.polls("a", "", "g", f"t{number}", "x" * 1000, float(number))
        clients.sends("a", f"t{number}")
    known = clients.get("a")
    assert known is not None
    assert len(known.polls) == len(known.sends) == NAMES_MAX
    assert ("g", "t0", "x" * FILTER_LENGTH_MAX) not in known.polls, "the oldest goes"
    assert clients.uses == 2 * NAMES_MAX
    clients.remove("a")
    assert (clients.uses, clients.facts_bytes) == (0, 0)


def test_beyond_the_limit_of_all_only_numbers_are_kept() -> None:
    clients = Clients(100, 60.0, 15.0)
    facts = facts_of(settings(topics=100))
    room = clients_module.FACTS_BYTES_MAX
    clients._facts_bytes.take("somebody", room)
    clients.seen("a", 0.0)
    clients.says("a", facts, "")
    known = clients.get("a")
    assert known is not None
    assert (known.facts.subscriptions, known.facts.subscriptions_total) == ((), 100)


async def test_libraries_are_counted_and_bounded() -> None:
    async with world("b1") as w:
        clients: Clients = w.app._clients
        for number in range(30):
            for more in range(1 + (number == 7)):
                clients.seen(f"c{number}-{more}", 0.0)
                clients.says(f"c{number}-{more}", facts_of(settings("GOLANG", f"5.{number}")), "")
        assert w.metric("popwheel_clients", {"language": "GOLANG", "version": "5.7"}) == 2
        others = w.metric("popwheel_clients", {"language": "(other)", "version": "(other)"})
        assert others == 10
