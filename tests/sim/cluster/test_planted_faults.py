"""A checker that never fails is broken: each fault that is planted here must be caught within a few seeds."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from popwheel_broker.consume.acks import Acks
from popwheel_broker.consume.merge_buffer import MergeBuffer, QueueProgress
from popwheel_broker.core.cluster_changes import ClusterChanges
from popwheel_broker.core.notification import Interests, Subscriber
from popwheel_common.contract import names
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.master_calls import MasterCalls
from popwheel_proxy.lite.lite_sync import LiteSync
from popwheel_proxy.receive.interest_book import InterestBook
from popwheel_proxy.receive.notifications import Notifications, _Link
from popwheel_proxy.receive.poll import Poll
from popwheel_proxy.receive.renewal import RenewalBook
from popwheel_proxy.send.send_queues import SendQueues
from popwheel_proxy.session.telemetry import Telemetry
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.methods import RECALL
from tests.sim import guests, passing_group, transactions
from tests.sim.cluster import lite, recalls
from tests.sim.cluster.run import run_seed
from tests.sim.filters import FILTERING
from tests.sim.planted import Plant, assert_caught
from tests.sim.swarm import ORDERED

SEEDS_MAX = 25


def notifications_are_ignored_while_a_pop_is_under_way(patch: pytest.MonkeyPatch) -> None:
    """A notification that comes while a pop is under way, at any broker, is taken for one of what that pop brings."""
    notified = InterestBook.notified

    def ignore(self: InterestBook, interest_id: int, broker: str, messages: int, now: float) -> bool:
        interest = self._by_id.get(interest_id)
        pops = 0 if interest is None else sum(waiting.pops for waiting in interest.waiting.values())
        return (messages > 0 and pops > 0) or notified(self, interest_id, broker, messages, now)

    patch.setattr(InterestBook, "notified", ignore)


def brokers_forget_to_report(patch: pytest.MonkeyPatch) -> None:
    """Now and then a broker does not tell a proxy of a message."""
    notify = Subscriber.notify
    chance = random.Random(1)

    def forget(self: Subscriber, interest_id: int, messages: int) -> None:
        if chance.random() < 0.7:
            notify(self, interest_id, messages)

    patch.setattr(Subscriber, "notify", forget)


def interests_are_not_registered_again(patch: pytest.MonkeyPatch) -> None:
    """After a stream has broken, the next one is opened and nothing is registered on it."""
    registered_at = InterestBook.registered_at
    asked: set[tuple[int, str]] = set()

    def first_time_only(self: InterestBook, broker: str) -> Any:
        is_first = (id(self), broker) not in asked
        asked.add((id(self), broker))
        return registered_at(self, broker) if is_first else []

    patch.setattr(InterestBook, "registered_at", first_time_only)


def streams_are_not_opened_again(patch: pytest.MonkeyPatch) -> None:
    """A Notify stream that has broken stays so."""

    async def run_once(self: _Link) -> None:
        await self._run_one_stream()

    patch.setattr(_Link, "run", run_once)


def new_brokers_get_no_stream(patch: pytest.MonkeyPatch) -> None:
    """A broker that comes later is not asked to notify."""
    follow = Notifications.follow

    def follow_first(self: Notifications) -> None:
        if not self._links:
            follow(self)

    patch.setattr(Notifications, "follow", follow_first)


def retries_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    """Polls are not told of messages that come again."""
    arrived = Interests.arrived

    def first_only(self: Interests, queue: Any, *more: Any) -> None:
        if not queue.topic.startswith(names.RETRY_PREFIX):
            arrived(self, queue, *more)

    patch.setattr(Interests, "arrived", first_only)


def polls_forget_their_deadline(patch: pytest.MonkeyPatch) -> None:
    """A poll waits on when its time is over."""
    patch.setattr(Poll, "_time_passed", lambda self: None)


def good_handles_are_refused(patch: pytest.MonkeyPatch) -> None:
    """Now and then a broker takes a good handle for a bad one."""
    ack = Acks.ack
    chance = random.Random(1)

    def refuse(self: Acks, group: str, topic: str, handles: Sequence[str], **tried: Any) -> Any:
        if chance.random() < 0.1:
            handles = [handle[:-1] + ("0" if handle[-1] != "0" else "1") for handle in handles]
        return ack(self, group, topic, handles, **tried)

    patch.setattr(Acks, "ack", refuse)


def messages_are_delivered_twice(patch: pytest.MonkeyPatch) -> None:
    """Now and then a pop delivers again what somebody holds."""
    popped = MergeBuffer.popped
    chance = random.Random(1)

    def pop_again(self: MergeBuffer, progress: QueueProgress, delivery: Any) -> None:
        before = progress.popped
        popped(self, progress, delivery)
        if chance.random() < 0.1:
            progress.popped = before
            self._store_progress(progress)

    patch.setattr(MergeBuffer, "popped", pop_again)


def registrations_end_with_the_first_stream(patch: pytest.MonkeyPatch) -> None:
    """A broker whose registration was cut off does not register again."""

    async def once(self: BrokerRegistrar) -> None:
        await self._register()

    patch.setattr(BrokerRegistrar, "_run", once)


def send_queues_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A proxy sends the next message of a message group before it is clear what became of the one before."""

    async def at_once(self: SendQueues, topic: str, line: str, wait_s: float | None, work: Callable[[], Any]) -> Any:
        return await work()

    patch.setattr(SendQueues, "run_in_order", at_once)


def a_message_group_moves_when_its_broker_is_gone(patch: pytest.MonkeyPatch) -> None:
    """Another broker takes over the message groups of one that is away."""
    update = Brokers._update

    def forget(self: Brokers, reported: Any) -> None:
        update(self, reported)
        self.homes = self.names

    patch.setattr(Brokers, "_update", forget)


def checks_find_no_producer(patch: pytest.MonkeyPatch) -> None:
    """A proxy that is to ask about a transaction takes it for another proxy's matter."""
    patch.setattr(Telemetry, "recover", lambda self, topic, transaction_id, message: False)


def recalls_go_to_any_broker(patch: pytest.MonkeyPatch) -> None:
    """A proxy asks the first broker that it knows to take a message back."""
    call = MasterCalls.call

    async def call_the_first(self: MasterCalls, broker: str, method: Any, request: Any, *more: Any) -> Any:
        if method is RECALL:
            broker = self._brokers.names[0]
        return await call(self, broker, method, request, *more)

    patch.setattr(MasterCalls, "call", call_the_first)


def polls_with_conditions_are_not_woken(patch: pytest.MonkeyPatch) -> None:
    """Nobody is notified of what an SQL92 filter lets through."""
    patch.setattr(Interests, "_passing", lambda *_: (0, 1))


def forgotten_readers_are_not_reported_again(patch: pytest.MonkeyPatch) -> None:
    """A broker that has forgotten who reads lite topics is told only by clients."""
    patch.setattr(LiteSync, "_pump", lambda _: None)


def readers_of_lite_topics_are_not_woken(patch: pytest.MonkeyPatch) -> None:
    """Notifications for lite topics are dropped."""
    notified = InterestBook.notified

    def ignore(self: InterestBook, interest_id: int, broker: str, messages: int, now: float) -> bool:
        interest = self._by_id.get(interest_id)
        is_lite = interest is not None and interest.lite_client_id != ""
        return notified(self, interest_id, broker, 0 if is_lite else messages, now)

    patch.setattr(InterestBook, "notified", ignore)


def clients_are_there_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A proxy renews for clients that have said goodbye, or have fallen silent."""
    patch.setattr(RenewalBook, "take", lambda *_: [])


def deleted_groups_keep_what_they_were_given(patch: pytest.MonkeyPatch) -> None:
    """A broker is not notified that a group was deleted."""
    patch.setattr(ClusterChanges, "forget_group", lambda *_: None)


CAUGHT_BY: dict[Plant, int] = {
    registrations_end_with_the_first_stream: 10,
    notifications_are_ignored_while_a_pop_is_under_way: 7,
    interests_are_not_registered_again: 3,
    send_queues_do_not_wait: 12,
    a_message_group_moves_when_its_broker_is_gone: 1,
    recalls_go_to_any_broker: 1,
    polls_with_conditions_are_not_woken: 8,
}
"""For those that the first seed does not catch, or not soon: one that did, tried first to save time, and all others
after it.
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "numbers", "only"),
    [
        (notifications_are_ignored_while_a_pop_is_under_way, {"L1"}, ()),
        (brokers_forget_to_report, {"L1"}, ()),
        (interests_are_not_registered_again, {"L1"}, ("break connections",)),
        (streams_are_not_opened_again, {"L1"}, ("break connections",)),
        (new_brokers_get_no_stream, {"L1"}, ("new broker",)),
        (retries_wake_nobody, {"L1"}, ()),
        (polls_forget_their_deadline, {"L1"}, ()),
        (good_handles_are_refused, {"X1"}, ()),
        (messages_are_delivered_twice, {"P2"}, ()),
        (registrations_end_with_the_first_stream, {"L2"}, ("controller away",)),
        (send_queues_do_not_wait, {"P6"}, (ORDERED, "kill broker", "restart broker", "break connections")),
        (a_message_group_moves_when_its_broker_is_gone, {"P6"}, (ORDERED, "restart broker", "kill broker")),
        (checks_find_no_producer, {"X2"}, (transactions.NAME,)),
        (recalls_go_to_any_broker, {"T4"}, (recalls.NAME,)),
        (polls_with_conditions_are_not_woken, {"L1"}, (FILTERING,)),
        (clients_are_there_for_ever, {"L2"}, (guests.NAME,)),
        (deleted_groups_keep_what_they_were_given, {"P7"}, (passing_group.NAME,)),
        (forgotten_readers_are_not_reported_again, {"L1"}, (lite.NAME,)),
        (readers_of_lite_topics_are_not_woken, {"L1"}, (lite.NAME,)),
    ],
)
def test_a_planted_fault_is_caught(plant: Plant, numbers: set[str], only: tuple[str, ...]) -> None:
    seeds = dict.fromkeys((CAUGHT_BY.get(plant, 0), *range(SEEDS_MAX)))
    assert_caught(plant, numbers, run_seed, seeds, only, {"poll_mode": "notify"})
