"""Interests: who is told how much of what arrives."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from popwheel_broker.core.notification import Interest, Interests, Subscriber
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.log import tag
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.queue_index import QueueIndex
from popwheel_broker.log.record import hash_tag
from popwheel_broker.log.tag import wanted_hashes
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import TAG, Filter
from tests.harness.memory_disk import MemoryDisk


def queue_of(topic: str) -> ConsumeQueue:
    return ConsumeQueue(QueueIndex(MemoryDisk(random.Random(0)), Path("/q"), 2, 0), topic, 0)


class Proxy:
    """A subscriber that counts how often it was woken."""

    def __init__(self, interests: Interests) -> None:
        self.woken = 0
        self.interests = interests
        self.subscriber = Subscriber(self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def add(self, identity: int, topic: str = "t", group: str = "g", *tags: str) -> None:
        wanted = frozenset(map(hash_tag, tags)) if tags else None
        self.interests.add(Interest(identity, self.subscriber, topic, group, wanted))

    def take(self) -> dict[int, int]:
        reported, refused = self.subscriber.take()
        assert not refused
        return dict(reported)


def test_as_many_are_reported_as_have_arrived_and_it_is_woken_once() -> None:
    interests = Interests(10, 1 << 20)
    proxy = Proxy(interests)
    proxy.add(1)
    for _ in range(3):
        interests.arrived(queue_of("t"), [0])
    interests.arrived(queue_of("other"), [0])
    assert (proxy.woken, proxy.take(), proxy.take()) == (1, {1: 3}, {})
    interests.arrived(queue_of("t"), [0])
    assert (proxy.woken, proxy.take()) == (2, {1: 1})


def test_filters() -> None:
    interests = Interests(10, 1 << 20)
    proxy = Proxy(interests)
    proxy.add(1, "t", "g", "a", "b")
    proxy.add(2, "t", "g")
    for each in ("a", "b", "c", ""):
        interests.arrived(queue_of("t"), [hash_tag(each)])
    assert proxy.take() == {1: 2, 2: 4}


def test_the_retry_topic_wakes_its_group_whatever_the_filter() -> None:
    interests = Interests(10, 1 << 20)
    proxy = Proxy(interests)
    proxy.add(1, "t", "g", "a")
    proxy.add(2, "t", "h", "a")
    interests.arrived(queue_of(names.retry_topic("g", "t")), [hash_tag("c")])
    assert proxy.take() == {1: 1}


def test_what_is_cancelled_is_not_reported_any_more() -> None:
    interests = Interests(10, 1 << 20)
    proxy, other = Proxy(interests), Proxy(interests)
    for each in (proxy, other):
        each.add(1)
        each.add(2)
    interests.arrived(queue_of("t"), [0])
    interests.cancel(proxy.subscriber, 1)
    interests.cancel(proxy.subscriber, 99)
    assert proxy.take() == {2: 1}
    interests.cancel_all(proxy.subscriber)
    interests.arrived(queue_of("t"), [0])
    assert (proxy.take(), other.take(), len(interests)) == ({}, {1: 2, 2: 2}, 2)
    interests.cancel_all(other.subscriber)
    assert (len(interests), interests._by_topic) == (0, {})


def test_one_of_the_same_id_is_replaced_also_at_the_limit() -> None:
    interests = Interests(1, 1 << 20)
    proxy = Proxy(interests)
    proxy.add(1, "t")
    proxy.add(1, "u")
    interests.arrived(queue_of("t"), [0])
    interests.arrived(queue_of("u"), [0])
    assert (proxy.take(), len(interests)) == ({1: 1}, 1)


def test_no_more_than_allowed() -> None:
    interests = Interests(3, 1 << 20)
    proxy = Proxy(interests)
    proxy.add(1)
    proxy.add(2)
    with pytest.raises(StatusError, match="notify_interests_max") as caught:
        proxy.add(3)
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    interests.arrived(queue_of("t"), [0])
    assert proxy.take() == {1: 1, 2: 1}
    interests.cancel(proxy.subscriber, 1)
    proxy.add(3)
    assert interests.refused == 1


def test_a_refusal_is_reported_once_unless_it_was_registered_after_all() -> None:
    interests = Interests(1, 1 << 20)
    proxy = Proxy(interests)
    proxy.subscriber.refuse(7)
    proxy.subscriber.refuse(8)
    proxy.add(8)
    proxy.subscriber.notify(8, 0)
    assert (proxy.woken, proxy.subscriber.take(), proxy.subscriber.take()) == (1, ([(8, 0)], [(7, False)]), ([], []))


def test_many_interests_of_a_proxy_that_has_gone_end_some_at_a_time() -> None:
    interests = Interests(10_000, 1 << 20)
    later: list[Callable[[], None]] = []
    interests.start_rotation(lambda _, call: later.append(call), lambda interest: 0)
    gone, stays = Subscriber(lambda: None), Subscriber(lambda: None)
    for subscriber in (gone, stays):
        interests.subscribers[subscriber] = None
    for number in range(600):
        interests.add(Interest(number, gone, "t", f"g{number}", None))
    interests.add(Interest(1, stays, "t", "g1", None))
    interests.cancel_all(gone)
    assert list(interests.subscribers) == [stays]
    lengths = [len(interests)]
    while later:
        later.pop()()
        lengths.append(len(interests))
    assert lengths == [345, 89, 1]
    assert [each.subscriber for each in interests.of_topic("t")] == [stays]


def test_interests_of_clients_with_many_lite_topics_end_few_at_a_time() -> None:
    interests = Interests(10_000, 1 << 20)
    later: list[Callable[[], None]] = []
    interests.start_rotation(lambda _, call: later.append(call), lambda interest: 0)
    looks: list[int] = []

    def on_client(key: ClientKey, is_waiting: bool) -> int:
        looks.append(0 if is_waiting else 2_000)
        return looks[-1]

    interests.on_client = on_client
    gone = Subscriber(lambda: None)
    for number in range(100):
        interests.add(Interest(number, gone, "t", "g", None, f"c{number}"))
    later.append(lambda: interests.cancel_all(gone))
    while later:
        looks.clear()
        later.pop()()
        assert sum(looks) <= 3 * 2_000
    assert len(interests) == 0


def test_interests_are_found_by_topic_and_by_group() -> None:
    interests = Interests(10, 1 << 20)
    proxy = Proxy(interests)
    for identity, (topic, group) in enumerate([("t", "g"), ("t", "h"), ("u", "g"), ("u", "i")]):
        proxy.add(identity, topic, group)
    assert [each.id for each in interests.of_topic("t")] == [0, 1]
    assert [each.id for each in interests.of_topic(names.retry_topic("g", "u"))] == [2]
    assert interests.of_topic("v") == []
    assert sorted(each.id for each in interests.of_groups({"g", "i"})) == [0, 2, 3]


def test_filters_are_bounded_by_the_memory_they_take_and_equal_ones_are_kept_once() -> None:
    interests = Interests(100, 12_000)
    proxies = Proxy(interests), Proxy(interests)
    tags = [f"tag-{number}" for number in range(50)]
    for number, proxy in enumerate(proxies):
        proxy.add(number, "t", "g", *tags)
    first, second = (proxy.subscriber.interests[number] for number, proxy in enumerate(proxies))
    assert first.wanted is second.wanted
    assert interests.filter_bytes == 5256
    with pytest.raises(StatusError, match=r"5256 of them for the group g.*broker\.pop\.notify_filter_bytes_max"):
        proxies[0].add(7, "t", "g", *tags, "another")
    proxies[0].add(8, "t", "other", "a", "b")
    proxies[0].add(9, "t", "g")
    for proxy in proxies:
        interests.cancel_all(proxy.subscriber)
    assert (interests.filter_bytes, len(interests)) == (0, 0)


def test_long_filters_are_not_kept_in_mind_by_the_thousand() -> None:
    for number in range(200):
        expression = "||".join(f"{number}-{tag}" for tag in range(100))
        assert len(wanted_hashes(Filter(kind=TAG, expression=expression)) or ()) == 100
    assert tag._parsed_long.cache_info().currsize <= 64
