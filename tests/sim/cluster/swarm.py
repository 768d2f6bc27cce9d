"""What a seed draws: how many proxies, brokers and polls, their settings, who reads what, which faults there are."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal
from unittest.mock import patch

from popwheel_cli.options import StandaloneOptions
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.receive import interest, interest_book, notifications
from tests.sim import guests, passing_group, transactions
from tests.sim.cluster import recalls
from tests.sim.consumers import Manners, Subscription
from tests.sim.delays import Delays
from tests.sim.filters import FILTERING
from tests.sim.history import EXPIRY_S
from tests.sim.swarm import (
    ORDERED,
    ORDERED_GROUP,
    ORDERED_TOPIC,
    TAGS,
    Swarm,
    memory_of,
    with_condition,
    with_tries,
)

FAULTS = {
    "kill broker": 8,
    "kill proxy": 8,
    "restart broker": 4,
    "restart proxy": 4,
    "pause broker": 5,
    "pause proxy": 4,
    "new broker": 3,
    "remove broker": 3,
    "controller away": 4,
    "cut": 8,
    "isolate": 3,
    "break connections": 8,
    "bad ways": 5,
    "slow device": 3,
    "bad notifications": 0,
}
"""Fault -> how often it comes where it is on, against the others; 0: it is there all the time."""

SMALL_TIMER = {"slots": 16, "roll_window_ms": 5000, "log_file_bytes": 4096, "delay_ms_max": 30_000}
"""Nothing is delayed here, and the files of a real wheel take longer to make than all the rest."""

_SHARES = {
    ORDERED: 0.2,
    FILTERING: 0.2,
    transactions.NAME: 0.2,
    recalls.NAME: 0.15,
    guests.NAME: 0.15,
    passing_group.NAME: 0.15,
}
"""Workloads that are drawn each by itself, and how often; never beside a lone poll, which must have silence."""
_MORE_POLLS = 2
"""Most polls that each of those adds that read a topic of their own."""
_HELD_MESSAGES = (16, 40, 400_000, 400_000, 400_000)
_LONELY = 0.2
"""How often there are one proxy, one poll, no faults, and silence between messages: nothing makes good later what the
poll has missed, and nothing excuses it."""
ENOUGH_INTERESTS = 100
"""Limit of interests at which no broker refuses any."""

Counting = Literal["alone", "honest", "lying"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSwarm(Swarm):
    """One seed's draw.

    Args:
        proxies, brokers: how many there are in the beginning.
        counting: how proxies add up their polls.
        loyal: how often a client stays with its proxy.
        pops_at_once_max, fruitless_max, interests_per_send: limits within the proxy that are no settings.
        burst_ways: longest time between calls of a burst, in longest ways of a message; after a burst a producer is
            silent for some seconds; 0: no bursts.
        rest_s_max: how long consumers rest between two polls at most.
        workloads: those of `_SHARES` that are there.
    """

    proxies: int
    brokers: int
    counting: Counting
    loyal: float
    pops_at_once_max: int
    fruitless_max: int
    interests_per_send: int
    burst_ways: float
    rest_s_max: float
    workloads: frozenset[str] = frozenset()

    @property
    def has_one_broker(self) -> bool:
        """Whether there is never a second one."""
        return self.brokers == 1 and "new broker" not in self.faults

    @property
    def notifies(self) -> bool:
        """Whether every message must find a waiting poll in time."""
        return (
            "bad notifications" not in self.faults
            and (self.options.proxy.poll_mode in ("notify", "auto") or self.has_one_broker)
            and self.options.broker.pop.notify_interests_max >= ENOUGH_INTERESTS
        )

    @property
    def lite_bound_s(self) -> float | None:
        """How soon a poll gets a message of a lite topic where nothing is wrong; None if that is not promised."""
        has_room = self.options.broker.pop.notify_interests_max >= ENOUGH_INTERESTS
        return 3.0 + 15 * self.delay_s_max + self.sync_s_max if has_room and self.delay_s_max < 0.5 else None

    def describe(self) -> str:
        """In one line."""
        proxy, broker = self.options.proxy, self.options.broker
        return (
            f"seed={self.seed} proxies={self.proxies} brokers={self.brokers} mode={proxy.poll_mode} "
            f"counting={self.counting} faults={','.join(sorted(self.faults)) or 'none'} per_s={self.faults_per_s:.2f} "
            f"workloads={','.join(sorted(self.workloads)) or 'plain'} "
            f"safety_s={self.safety_s} delay_s={self.delay_s_max} flush={broker.flush} topics={self.topics} "
            f"groups={self.groups} polls={sum(each.polls for all_of in self.manners.values() for each in all_of)} "
            f"consumers={sum(map(len, self.manners.values()))} producers={self.producers} "
            f"adaptive={proxy.adaptive.up_per_s}/{proxy.adaptive.stay_ms} pop_timeout={proxy.receive.pop_timeout_ms} "
            f"idle={proxy.receive.interest_idle_ms} polls_max={proxy.receive.polls_max} "
            f"interests={proxy.receive.interests_max}/{broker.pop.notify_interests_max} "
            f"pops_at_once={self.pops_at_once_max} fruitless={self.fruitless_max} sync_s={self.sync_s_max} "
            f"burst_ways={self.burst_ways} rest_s={self.rest_s_max}"
        )

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Have the proxy's inner limits be what was drawn."""
        with (
            patch.object(interest, "POPS_AT_ONCE_MAX", self.pops_at_once_max),
            patch.object(interest_book, "FRUITLESS_MAX", self.fruitless_max),
            patch.object(notifications, "_INTERESTS_PER_SEND", self.interests_per_send),
        ):
            yield


def draw(seed: int, only: tuple[str, ...] | None = None, settings: dict[str, Any] | None = None) -> ClusterSwarm:
    """Draw a seed's swarm.

    Args:
        seed: the seed.
        only: faults that may be on at all; None for all.
        settings: settings of the proxy that are not drawn.
    """
    chance = random.Random(f"{seed}/cluster swarm")
    faults = {name: weight for name, weight in FAULTS.items() if chance.random() < (0.3 if weight else 0.15)}
    lulls = random.Random(f"{seed}/cluster lulls")
    is_lonely = lulls.random() < _LONELY
    rest_s_max = lulls.choice((0.0, 0.0, 0.0, 3.0, 10.0))
    if is_lonely:
        faults = {}
    if only is not None:
        faults = {name: weight for name, weight in FAULTS.items() if name in only}
    small = chance.random() < 0.5 or is_lonely
    topics = {
        f"topic{number}": chance.choice((1, 1, 2, 4)) for number in range(1 if small else chance.choice((1, 2, 3, 4)))
    }
    groups = {
        f"group{number}": chance.choice((3, 16, 16)) for number in range(1 if small else chance.choice((1, 1, 2, 3)))
    }
    subscriptions = [
        Subscription(group, topic, tuple(chance.sample(TAGS, chance.choice((0, 0, 0, 1, 2)))))
        for group in groups
        for topic in topics
    ]
    brokers = chance.choice((1, 2, 3, 4, 6))
    polls = chance.choice((1, 1, 2, 4, 8, 16, 40))
    if is_lonely:
        brokers, polls = 2 if rest_s_max else lulls.choice((1, 1, 2)), 1
    workloads = frozenset(
        name
        for name, share in _SHARES.items()
        if name in (only or ())
        or (only is None and not is_lonely and random.Random(f"{seed}/cluster {name}").random() < share)
    )
    more = _MORE_POLLS * len(workloads - {FILTERING})
    swarm = ClusterSwarm(
        seed=seed,
        options=_options(seed, chance, len(subscriptions) + more, polls + more, settings or {}),
        faults=faults,
        faults_per_s=chance.choice((0.05, 0.1, 0.3)) if any(faults.values()) else 0.0,
        safety_s=chance.choice((20.0, 30.0, 50.0)),
        topics=topics,
        types=dict.fromkeys(topics, TopicType.NORMAL),
        delays=Delays(share=0.0, recall=0.0, latest_s=0.0, far_ms=0),
        groups=groups,
        subscriptions=subscriptions,
        manners=_consumers(chance, subscriptions, polls),
        producers=[
            (chance.choice((0.3, 1.0, 3.0)), chance.choice((1, 4, 12)), chance.choice((20, 300)))
            for _ in range(chance.choice((1, 1, 2, 3)))
        ][: 1 if is_lonely else None],
        sync_s_max=chance.choice((0.0, 0.001, 0.01)),
        memory=memory_of(seed),
        delay_s_max=max(chance.choice((0.001, 0.001, 0.02, 0.1)), 0.02 if is_lonely else 0.0),
        proxies=min(chance.choice((1, 1, 2, 3, 4)), 1 if is_lonely else 4),
        brokers=brokers,
        counting=chance.choice(("alone", "honest", "lying", "lying")),
        loyal=chance.choice((0.0, 0.5, 1.0)),
        pops_at_once_max=chance.choice((1, 2, 32)),
        fruitless_max=chance.choice((1, 2, 16)),
        interests_per_send=chance.choice((1, 1000)),
        burst_ways=lulls.choice((1.0, 2.0)) if is_lonely else 0.0,
        rest_s_max=rest_s_max,
        workloads=workloads,
    )
    if FILTERING in workloads:
        swarm = with_condition(swarm, random.Random(f"{seed}/cluster sql swarm"))
    if ORDERED in workloads:
        swarm = _with_ordered(swarm, random.Random(f"{seed}/cluster ordered swarm"), only)
    if transactions.NAME in workloads:
        swarm = _with_options(swarm, "transaction", transactions.options_of(seed))
    return swarm


def _with_options(swarm: ClusterSwarm, section: str, settings: dict[str, Any]) -> ClusterSwarm:
    """A swarm with other settings in a section of those of the brokers."""
    values = swarm.options.model_dump()
    values["broker"][section].update(settings)
    return replace(swarm, options=StandaloneOptions.model_validate(values))


def _with_ordered(swarm: ClusterSwarm, chance: random.Random, only: tuple[str, ...] | None) -> ClusterSwarm:
    """A swarm with a topic and a group that keep the order of messages."""
    swarm = _with_options(swarm, "pop", {"held_messages_max": chance.choice(_HELD_MESSAGES)})
    of = Subscription(ORDERED_GROUP, ORDERED_TOPIC)
    return replace(
        swarm,
        topics={**swarm.topics, ORDERED_TOPIC: chance.choice((1, 2, 4))},
        types={**swarm.types, ORDERED_TOPIC: TopicType.FIFO},
        groups={**swarm.groups, ORDERED_GROUP: chance.choice((1, 2, 16))},
        subscriptions=[*swarm.subscriptions, of],
        manners={
            **swarm.manners,
            of: with_tries([_manners(chance) for _ in range(chance.randint(1, _MORE_POLLS))], swarm, only),
        },
    )


def _options(
    seed: int, chance: random.Random, interests_needed: int, polls: int, settings: dict[str, Any]
) -> StandaloneOptions:
    broker: dict[str, Any] = {
        "flush": chance.choice(("sync", "async")),
        "flush_interval_ms": chance.choice((50, 500)),
        "checkpoint_interval_ms": chance.choice((1000, 5000)),
        "log": {"segment_bytes": chance.choice((4096, 65_536)), "index_entries_max": chance.choice((2, 500_000))},
        "pop": {
            "stay_ms": chance.choice((0, 200, 10_000)),
            "scan_entries_max": chance.choice((16, 4096)),
            "response_bytes_max": chance.choice((1024, 16 << 20)),
            "notify_interests_max": chance.choice((*[100_000] * 9, 1)),
        },
        "retention": {"disk_used_share_max": 1.0},
        "timer": SMALL_TIMER,
    }
    up = chance.choice((2, 10, 1000))
    receive: dict[str, Any] = {
        "invisible_ms_min": 0,
        "interest_idle_ms": chance.choice((0, 1000, 10_000)),
        "pop_timeout_ms": chance.choice((500, 3000)),
        # Twice as many as are needed: no group may take more than is free.
        "interests_max": chance.choice((2 * interests_needed, 50_000)),
        "polls_max": chance.choice((*[50_000] * 4, max(2 * interests_needed, polls))),
        "polls_per_client_max": chance.choice((*[1024] * 4, 1)),
        "batch_messages_max": chance.choice((1, 32, 32)),
    }
    proxy: dict[str, Any] = {
        "poll_mode": chance.choice(("auto", "auto", "auto", "notify", "notify", "notify", "plain", "sliced")),
        "receive": receive,
        "adaptive": {"up_per_s": up, "down_per_s": up // 2, "stay_ms": chance.choice((0, 1000, 10_000))},
        "renewal": {"invisible_ms": 3000},
        "client": {"expiry_ms": int(EXPIRY_S * 1000)},
        "send": {"put_messages_max": chance.choice((1, 3, 512))},
        "auto_create_topics": False,
        "grpc_client_consumer_min_long_polling_timeout_ms": chance.choice((0, 1500, 5000)),
        "grpc_client_consumer_max_long_polling_timeout_ms": chance.choice((20_000, 40_000)),
    }
    proxy.update(settings)
    pages = random.Random(f"{seed}/cluster pages")
    controller = {
        "store": {"page_bytes": pages.choice((64, 300, 65_536))},
        "watcher_part_names": pages.choice((1, 1, 2, 500)),
    }
    return StandaloneOptions.model_validate({"broker": broker, "proxy": proxy, "controller": controller})


def _consumers(
    chance: random.Random, subscriptions: list[Subscription], polls: int
) -> dict[Subscription, list[Manners]]:
    """At least one poll for each subscription, `polls` in all if that is more."""
    manners: dict[Subscription, list[Manners]] = {each: [_manners(chance)] for each in subscriptions}
    left = polls - len(subscriptions)
    while left > 0:
        some = min(left, chance.choice((1, 1, 3, 10)))
        left -= some
        of = chance.choice(subscriptions)
        if chance.random() < 0.5:
            manners[of][-1].polls += some
        else:
            manners[of].append(_manners(chance))
            manners[of][-1].polls = some
    return manners


def _manners(chance: random.Random) -> Manners:
    def often(most: float) -> float:
        return chance.random() * most if chance.random() < 0.2 else 0.0

    return Manners(
        batch_max=chance.choice((1, 4, 32)),
        invisible_ms=chance.choice(((500, 3000), (3000, 3000), (10_000, 10_000), (10_000, 10_000))),
        wait_s=chance.choice(((0.0, 5.0, 20.0), (20.0,), (20.0,), (35.0,), (35.0,), (6.0,), (2.0,))),
        think_s_max=chance.choice((0.0, 0.05, 0.5)),
        nack=often(0.3),
        forward=often(0.1),
        forget=often(0.3),
        twice=often(0.3),
        stale=often(0.3),
        forge=often(0.3),
        vanish=often(0.3),
        auto_renew=often(0.5),
    )
