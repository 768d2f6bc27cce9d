"""Notices that a lite topic has something reach all that poll in the end, whoever comes and goes meanwhile."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_broker.lite.readers import ClientKey, LiteClient, LiteGroup
from popwheel_broker.lite.subscriptions import LiteSubscriptions
from tests.unit.broker.lite_world import PARENT, Reported, lite_world, read, send
from tests.unit.broker.world import World

LEAVES: list[Callable[[World, Reported], object]] = [
    lambda world, reported: world.core.interests.cancel(reported.subscriber, 0),
    lambda world, reported: read(world, "b", "c"),
    lambda world, reported: world.core.lite.subscriptions.end(ClientKey("g", PARENT, "c")),
]


@pytest.mark.parametrize("others", [1, 2, 5])
@pytest.mark.parametrize("leaves", LEAVES)
def test_another_is_notified_of_a_message_if_the_one_that_was_reported_leaves(
    leaves: Callable[[World, Reported], object], others: int
) -> None:
    """Its poll or its proxy's stream ends within the while, or it subscribes to something else, or goes."""
    world = lite_world()
    later = []
    world.core.lite.subscriptions.later = lambda _, call: later.append(call)
    clients = "cdefgh"[: 1 + others]
    for client in clients:
        read(world, "a", client)
    reported = Reported(world, *clients)
    send(world, "a1")
    assert reported.take() == {0: 1}
    leaves(world, reported)
    all_reported: set[int] = set()
    for _ in range(20):
        if later:
            later.pop()()
        all_reported.update(reported.take())
    assert all_reported >= set(range(1, 1 + others))
    assert later == []


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["leave", "come", "look", "send"]), st.integers(0, 2)), max_size=12))
def test_who_polls_is_notified_in_the_end_of_what_nobody_takes(steps: list[tuple[str, int]]) -> None:
    """Whoever comes asks for itself what waits, so it counts as notified from then on."""
    reported: set[str] = set()
    later: list[Callable[[], None]] = []
    waits: set[str] = set()
    subscriptions = LiteSubscriptions(
        1_000, lambda key: reported.add(key.client_id), lambda key: False, lambda _, call: later.append(call)
    )
    keys = [ClientKey("g", PARENT, f"c{number}") for number in range(3)]
    for key in keys:
        client, _ = subscriptions.begin(key, ("a",), 0)
    group, is_ready = client.group, False
    for what, number in steps:
        key = keys[number]
        if what == "leave":
            subscriptions.polls(key, False)
            waits.discard(key.client_id)
            reported.discard(key.client_id)
        elif what == "come":
            subscriptions.polls(key, True)
            if is_ready and key.client_id not in waits:
                reported.add(key.client_id)
            waits.add(key.client_id)
        elif what == "look":
            if later:
                later.pop()()
        else:
            subscriptions.notify_one(group, "a")
            is_ready = True
    for _ in range(20):
        if later:
            later.pop()()
    assert later == []
    assert not is_ready or reported >= waits


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 99), max_size=8), st.sets(st.integers(0, 20), max_size=8))
def test_what_is_ready_for_a_client_is_in_the_order_in_which_it_came(ready: dict[int, int], read: set[int]) -> None:
    group = LiteGroup(PARENT, "g")
    client = LiteClient(ClientKey("g", PARENT, "c"), group, 0, polls=False)
    client.lite_topics = set(map(str, read))
    group.ready = {str(each): 100 * number + each for each, number in ready.items()}
    expected = sorted(client.lite_topics & group.ready.keys(), key=lambda each: group.ready[each])
    assert group.ready_for(client) == expected
