"""What a seed draws: the server's settings, the clients, which faults there are and how often."""

import random
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from popwheel_broker.options import TimerOptions
from popwheel_cli.options import StandaloneOptions
from popwheel_common.contract.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from popwheel_common.contract.time_to_live import DEAD_LETTER, DROP
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from tests.sim import transactions
from tests.sim.consumers import Manners, Subscription
from tests.sim.delays import Delays
from tests.sim.filters import CONDITIONS, FILTERING
from tests.sim.filters import SHARE as FILTERING_SHARE
from tests.sim.history import EXPIRY_S

FAULTS = {
    "kill": 10,
    "kill in a step": 6,
    "power": 8,
    "restart": 3,
    "sync error": 3,
    "sync error elsewhere": 3,
    "sync error of the timer": 3,
    "write error": 4,
    "disk full": 4,
    "bit flip": 3,
    "bit flip of the timer": 3,
    "clock jump": 3,
    "bad ways": 5,
    "slow device": 4,
}
"""Fault -> how often it comes where it is on, against the others."""

LATEST_FAULTS = {"out of files": 4, "rotten record": 6}
"""Those that came last, drawn by themselves, so that the others go on with what they draw."""

TAGS = ("red", "green", "blue")

HOARDING = "hoarding group"
"""One group takes all that it is given and acknowledges nothing, where few messages may be delivered. It is drawn by
itself, and goes on all the time."""
ORDERED = "ordered group"
"""A topic whose messages have message groups, and a group that consumes it in order. Drawn by itself, too."""
ORDERED_TOPIC = "ordered"
ORDERED_GROUP = "orderly"
PRIORITIES = "priorities"
"""A topic whose queues are levels, and a group that reads it. Drawn by itself, too."""
PRIORITY_TOPIC = "urgent"
LIVES = "times to live"
"""A topic whose messages have times to live, and a group that reads it. Drawn by itself, too."""
BRIEF_GROUP = "hasty"
_LIVES_FIRST_SEED = 49_000_000
"""First seed in which messages may expire."""
_LIVES_SHARE = 0.25
BRIEF_TOPIC = "brief"
FIFO_GROUPS = (ORDERED_GROUP, "watchful-fifo")
_PRIORITY_GROUPS = ("watchful", "watchful", "watchful-fifo")
_PRIORITY_SHARE = 0.2
_PRIORITY_WAIT_MS = (0, 50, 300, 300, 2000, 30_000)
_ORDERED_SHARE = 0.2
TRIES = "second tries"
"""Receives of the ordered group whose connection breaks, and that are tried again with the same attempt id."""
_TRIES_SHARE = 0.5
_HELD_MESSAGES = (16, 40, 400_000, 400_000)
_HOARDING_SHARE = 0.15
_HOARDER = Manners(batch_max=32, invisible_ms=(8000, 8000), wait_s=(1.0,), think_s_max=0.0, polls=3, forget=1.0)
_OPEN_MESSAGES = (8, 16, 40)
_EDGE_SHARE = 0.15
_EDGE_CHARACTERS = "%_-09azAZ"

_TYPES = (TopicType.NORMAL, TopicType.MIXED, TopicType.MIXED, TopicType.DELAY)
_DAY_MS = 24 * 3_600_000
PLENTY_BYTES = 1 << 40
READ_S_MAX = 0.005
"""How long a read of what is not in memory takes at the most."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """One seed's draw.

    Args:
        seed: the seed.
        options: the server's settings.
        faults: fault -> weight, of those that are on.
        faults_per_s: how often one comes.
        safety_s: how long the phase with faults lasts.
        topics: topic -> number of queues.
        types: topic -> what it takes.
        delays: what producers delay and take back.
        groups: group -> attempts.
        subscriptions: who reads what; each by one or more consumers.
        manners: of each consumer, by subscription.
        producers: rate, batch and body size of each.
        sync_s_max: how long a sync takes at the most.
        delay_s_max: how long a way takes at the most.
        memory: how much of each file's end stays in memory, in bytes.
        hoarder: the group that acknowledges nothing before all is healed; empty for none.
        odd: whether names, keys and properties are as long and as odd as they may be.
        condition: the SQL92 filter of one subscription; empty for none.
        expired: what becomes of messages past their time to live; empty if none has one.
    """

    seed: int
    options: StandaloneOptions
    faults: dict[str, int]
    faults_per_s: float
    safety_s: float
    topics: dict[str, int]
    types: dict[str, "TopicType.ValueType"]
    delays: Delays
    groups: dict[str, int]
    subscriptions: list[Subscription]
    manners: dict[Subscription, list[Manners]]
    producers: list[tuple[float, int, int]]
    sync_s_max: float
    delay_s_max: float
    memory: int
    hoarder: str = field(default="")
    odd: bool = field(default=False)
    auto_created: bool = field(default=False)
    condition: str = field(default="")
    expired: str = field(default="")

    @property
    def is_lossy(self) -> bool:
        """Whether a disaster may take what was acknowledged a moment ago."""
        return self.options.broker.flush == "async"

    @property
    def clocks_differ(self) -> bool:
        """Whether wall clocks are set, or run too fast or too slow."""
        return not self.faults.keys().isdisjoint(("clock jump", "clock drift", "clocks apart"))

    @property
    def deposed_s_max(self) -> float:
        """How long a master may acknowledge what the next one will not have."""
        return 0.0

    @property
    def down_s_max(self) -> float:
        """For how long nobody knows whether a process ran that lost what it had not synced."""
        return 2.0

    @property
    def is_ordered(self) -> bool:
        """Whether there is a topic whose messages have message groups."""
        return ORDERED_TOPIC in self.topics

    @property
    def plain_topics(self) -> list[str]:
        """The others."""
        return [name for name in self.topics if name not in (ORDERED_TOPIC, PRIORITY_TOPIC, BRIEF_TOPIC)]

    @property
    def levels(self) -> int:
        """Of the topic whose messages have priorities; 0 if there is none."""
        return self.topics.get(PRIORITY_TOPIC, 0)

    def random(self, purpose: str) -> random.Random:
        """A random source for one purpose, so that one more draw here changes nothing there."""
        return random.Random(f"{self.seed}/{purpose}")

    def describe(self) -> str:
        """In one line."""
        options = self.options.broker
        return (
            f"seed={self.seed} faults={','.join(sorted(self.faults)) or 'none'} per_s={self.faults_per_s:.2f} "
            f"flush={options.flush}/{options.flush_interval_ms} segment={options.log.segment_bytes} "
            f"checkpoint={options.checkpoint_interval_ms} {_describe_timer(options.timer)} stay={options.pop.stay_ms} "
            f"buffer={options.pop.buffer_deliveries_max} topics={self.topics} "
            f"types={[TopicType.Name(each) for each in self.types.values()]} groups={self.groups} "
            f"consumers={sum(map(len, self.manners.values()))} sync_s={self.sync_s_max} memory={self.memory}"
            + (f" held={options.pop.held_messages_max}" if self.is_ordered else "")
            + (f" priority_wait={options.pop.priority_wait_ms}" if self.levels else "")
            + (f" hoarder={self.hoarder}/{options.pop.open_messages_max}" if self.hoarder else "")
            + (f" filter={self.condition}" if self.condition else "")
            + (f" expired={self.expired}" if self.expired else "")
        )


AnySwarm = TypeVar("AnySwarm", bound=Swarm)


def draw(seed: int, only: tuple[str, ...] | None = None, settings: dict[str, Any] | None = None) -> Swarm:
    """Draw a seed's swarm.

    Args:
        seed: the seed.
        only: faults that may be on at all; None for all.
        settings: settings of the broker that are not drawn.
    """
    chance = random.Random(f"{seed}/swarm")
    faults = {name: weight for name, weight in FAULTS.items() if chance.random() < 0.4}
    if only is not None:
        faults = {name: weight for name, weight in FAULTS.items() if name in only}
    edge = random.Random(f"{seed}/edge swarm")
    odd = only is None and edge.random() < _EDGE_SHARE

    def named(stem: str, length_max: int) -> str:
        left = length_max - len(stem)
        return stem + "".join(edge.choices(_EDGE_CHARACTERS, k=left)) if odd else stem

    topics = {
        named(f"topic{number}", TOPIC_LENGTH_MAX): chance.choice((1, 1, 2, 4))
        for number in range(chance.choice((1, 1, 2)))
    }
    groups = {
        named(f"group{number}", GROUP_LENGTH_MAX): chance.choice((1, 2, 3, 16))
        for number in range(chance.choice((1, 1, 2)))
    }
    subscriptions = [
        Subscription(group, topic, tuple(chance.sample(TAGS, chance.choice((0, 0, 1, 2)))))
        for group in groups
        for topic in topics
    ]
    timer = random.Random(f"{seed}/timer swarm")
    safety_s = chance.choice((4.0, 6.0, 10.0))
    latest = random.Random(f"{seed}/latest swarm")
    latest_faults = {name: weight for name, weight in LATEST_FAULTS.items() if latest.random() < 0.2}
    if only is not None:
        latest_faults = {name: weight for name, weight in LATEST_FAULTS.items() if name in only}
    hoard = random.Random(f"{seed}/hoard swarm")
    is_hoarding = hoard.random() < _HOARDING_SHARE if only is None else HOARDING in only
    hoarder = hoard.choice(list(groups)) if is_hoarding and len(groups) > 1 else ""
    swarm = Swarm(
        seed=seed,
        options=_options(chance, timer, {"transaction": transactions.options_of(seed), **(settings or {})}),
        faults=faults | latest_faults,
        faults_per_s=chance.choice((0.2, 0.5, 1.0)) if faults else 0.5 if latest_faults else 0.0,
        safety_s=safety_s,
        topics=topics,
        types={name: timer.choice(_TYPES) for name in topics},
        delays=Delays(
            share=timer.choice((0.2, 0.5, 1.0)),
            recall=timer.choice((0.0, 0.2, 0.5)),
            latest_s=safety_s + 8.0,
            far_ms=timer.choice((3 * _DAY_MS, 45 * _DAY_MS)),
        ),
        groups=groups,
        subscriptions=subscriptions,
        manners={each: [_manners(chance) for _ in range(chance.choice((1, 1, 2)))] for each in subscriptions},
        producers=[
            (chance.choice((2.0, 5.0, 10.0)), chance.choice((1, 4, 20)), chance.choice((20, 300, 3000, 9000)))
            for _ in range(chance.choice((1, 2)))
        ],
        sync_s_max=chance.choice((0.0, 0.001, 0.01, 0.05)),
        delay_s_max=chance.choice((0.0, 0.001, 0.02)),
        memory=memory_of(seed),
        hoarder=hoarder,
        odd=odd,
    )
    if hoarder:
        swarm = _with_hoarder(swarm, hoard)
    sql = random.Random(f"{seed}/sql swarm")
    is_filtering = sql.random() < FILTERING_SHARE if only is None else FILTERING in only
    swarm = with_priorities(with_ordered(with_condition(swarm, sql) if is_filtering else swarm, only), only)
    return with_lives(swarm, only, _LIVES_FIRST_SEED)


def with_condition(swarm: AnySwarm, chance: random.Random) -> AnySwarm:
    """One subscription is by an SQL92 filter, in place of its tags."""
    before = chance.choice(swarm.subscriptions)
    after = replace(before, tags=(), condition=chance.choice(list(CONDITIONS)))
    return replace(
        swarm,
        subscriptions=[after if each == before else each for each in swarm.subscriptions],
        manners={after if each == before else each: manners for each, manners in swarm.manners.items()},
        condition=after.condition,
    )


def with_ordered(swarm: AnySwarm, only: tuple[str, ...] | None) -> AnySwarm:
    """A swarm with a topic and a group that keep the order of messages, if they are drawn.

    Args:
        swarm: the rest of the draw.
        only: faults that may be on; None for all.
    """
    chance = random.Random(f"{swarm.seed}/ordered swarm")
    if not (chance.random() < _ORDERED_SHARE if only is None else ORDERED in only):
        return swarm
    values = swarm.options.model_dump()
    values["broker"]["pop"]["held_messages_max"] = chance.choice(_HELD_MESSAGES)
    of = Subscription(ORDERED_GROUP, ORDERED_TOPIC)
    consumers = with_tries([_manners(chance) for _ in range(chance.choice((1, 2, 3)))], swarm, only)
    if swarm.hoarder:
        consumers = [replace(each, vanish=0.0) for each in consumers]
    return replace(
        swarm,
        options=StandaloneOptions.model_validate(values),
        topics={**swarm.topics, ORDERED_TOPIC: chance.choice((1, 2, 4))},
        types={**swarm.types, ORDERED_TOPIC: TopicType.FIFO},
        groups={**swarm.groups, ORDERED_GROUP: chance.choice((1, 2, 3, 16))},
        subscriptions=[*swarm.subscriptions, of],
        manners={**swarm.manners, of: consumers},
    )


def with_tries(consumers: list[Manners], swarm: Swarm, only: tuple[str, ...] | None) -> list[Manners]:
    """Consumers of the ordered group that try receives again, if that is drawn.

    Args:
        consumers: as they are drawn otherwise.
        swarm: the draw up to here.
        only: faults that may be on; None for all.
    """
    is_lucky = swarm.random("second tries").random() < _TRIES_SHARE
    if not (is_lucky if only is None else TRIES in only):
        return consumers
    return [replace(each, tries=swarm.random(f"second tries {number}")) for number, each in enumerate(consumers)]


def with_priorities(swarm: AnySwarm, only: tuple[str, ...] | None) -> AnySwarm:
    """A swarm with a topic whose queues are levels, if it is drawn.

    Args:
        swarm: the rest of the draw.
        only: faults that may be on; None for all.
    """
    chance = random.Random(f"{swarm.seed}/priority swarm")
    is_drawn = chance.random() < _PRIORITY_SHARE if only is None else PRIORITIES in only
    if not is_drawn or swarm.hoarder:  # which has others share what is left, and there are enough of them
        return swarm
    values = swarm.options.model_dump()
    values["broker"]["pop"]["priority_wait_ms"] = chance.choice(_PRIORITY_WAIT_MS)
    group = chance.choice(_PRIORITY_GROUPS)
    of = Subscription(group, PRIORITY_TOPIC)
    consumers = [_manners(chance) for _ in range(chance.choice((1, 2)))]
    return replace(
        swarm,
        options=StandaloneOptions.model_validate(values),
        topics={**swarm.topics, PRIORITY_TOPIC: chance.choice((1, 2, 3, 10))},
        types={**swarm.types, PRIORITY_TOPIC: TopicType.PRIORITY},
        groups={**swarm.groups, group: chance.choice((1, 2, 3, 16))},
        subscriptions=[*swarm.subscriptions, of],
        manners={**swarm.manners, of: consumers},
    )


def with_lives(swarm: AnySwarm, only: tuple[str, ...] | None, first_seed: int) -> AnySwarm:
    """A swarm with a topic whose messages may expire, if it is drawn.

    Args:
        swarm: the rest of the draw.
        only: faults that may be on; None for all.
        first_seed: those below it go on with what they draw, as they were kept before there were times to live.
    """
    chance = random.Random(f"{swarm.seed}/lives swarm")
    is_lucky = swarm.seed >= first_seed and chance.random() < _LIVES_SHARE
    if not (is_lucky if only is None else LIVES in only) or swarm.hoarder:
        return swarm
    of = Subscription(BRIEF_GROUP, BRIEF_TOPIC)
    return replace(
        swarm,
        topics={**swarm.topics, BRIEF_TOPIC: chance.choice((1, 2, 4))},
        types={**swarm.types, BRIEF_TOPIC: TopicType.NORMAL},
        groups={**swarm.groups, BRIEF_GROUP: chance.choice((1, 2, 3, 16))},
        subscriptions=[*swarm.subscriptions, of],
        manners={**swarm.manners, of: [_manners(chance) for _ in range(chance.choice((1, 2)))]},
        expired=chance.choice((DROP, DEAD_LETTER)),
    )


def _with_hoarder(swarm: Swarm, chance: random.Random) -> Swarm:
    values = swarm.options.model_dump()
    values["broker"]["pop"]["open_messages_max"] = chance.choice(_OPEN_MESSAGES)
    manners = {
        # Nobody else vanishes: what such clients were given counts, and is seen by nobody.
        each: [_HOARDER if each.group == swarm.hoarder else replace(manners, vanish=0.0) for manners in all_manners]
        for each, all_manners in swarm.manners.items()
    }
    return replace(swarm, options=StandaloneOptions.model_validate(values), manners=manners)


def memory_of(seed: int) -> int:
    """How much of each file's end stays in memory, in bytes: all of it in half of the seeds, as before it was drawn."""
    return random.Random(f"{seed}/memory").choice((*[PLENTY_BYTES] * 3, 0, 500, 4000))


def _describe_timer(options: TimerOptions) -> str:
    return (
        f"timer={options.slots}/{options.roll_window_ms}/{options.flush_interval_ms}/{options.stage_entries_max} "
        f"delay={options.delay_ms_max} timers={options.timers_max}/{options.timers_per_slot_max}/{options.recalls_max}"
    )


def _timer_options(chance: random.Random) -> dict[str, Any]:
    """The timer's settings: a small wheel rolls all the time."""
    slots = chance.choice((*[16] * 20, *[64] * 10, 14 * 24 * 3600))
    few = chance.random() < 0.15
    return {
        "slots": slots,
        "roll_window_ms": chance.choice((2000, 2500, 5000, 8000)) if slots < 1000 else 0,
        "log_file_bytes": 4096,
        "flush_interval_ms": chance.choice((10, 100, 1000)),
        "clean_interval_ms": chance.choice((10, 500, 30_000)),
        "stage_entries_max": chance.choice((1, 3, 4096)),
        "delay_ms_max": chance.choice((30_000, 30_000, 40 * _DAY_MS)),
        "timers_max": 10 if few else 50_000_000,
        "timers_per_slot_max": 3 if few else 200_000,
        "recalls_max": 2 if few else 200_000,
    }


def _options(chance: random.Random, timer: random.Random, settings: dict[str, Any]) -> StandaloneOptions:
    broker: dict[str, Any] = {
        "flush": chance.choice(("sync", "sync", "async")),
        "flush_interval_ms": chance.choice((1, 50, 500)),
        "checkpoint_interval_ms": chance.choice((10, 100, 1000, 600_000)),
        "log": {
            "segment_bytes": chance.choice((4096, 4096, 65_536, 256 << 20)),
            "index_entries_max": chance.choice((2, 16, 500_000)),
            "queue_entries_in_memory": chance.choice((0, 3, 1024)),
        },
        "pop": {
            "stay_ms": chance.choice((0, 200, 10_000)),
            "buffer_deliveries_max": chance.choice((1, 2, 200_000)),
            "scan_entries_max": chance.choice((16, 4096)),
            "response_bytes_max": chance.choice((1024, 16 << 20)),
            "rewrite_after_records": chance.choice((16, 16, 200_000)),
        },
        # Nothing may go before its time, or the checker could not demand it back.
        "retention": {"disk_used_share_max": 1.0, "interval_ms": chance.choice((500, 10_000))},
        "disk_full_share": chance.choice((0.95, 1.0)),
        "timer": _timer_options(timer),
        "checkpoint_changes_bytes": timer.choice((0, 0, 500, 1 << 20)),
    }
    broker.update(settings)
    proxy: dict[str, Any] = {
        "receive": {"invisible_ms_min": 0, "interest_idle_ms": chance.choice((0, 1000, 10_000))},
        "renewal": {"invisible_ms": 3000},
        "client": {"expiry_ms": int(EXPIRY_S * 1000)},
        "send": {"put_messages_max": chance.choice((1, 3, 512))},
        "grpc_client_consumer_min_long_polling_timeout_ms": chance.choice((0, 1500)),
        "grpc_client_consumer_max_long_polling_timeout_ms": chance.choice((3000, 20_000)),
    }
    return StandaloneOptions.model_validate({"broker": broker, "proxy": proxy})


def _manners(chance: random.Random) -> Manners:
    def often(most: float) -> float:
        return chance.random() * most if chance.random() < 0.5 else 0.0

    return Manners(
        batch_max=chance.choice((1, 4, 32)),
        invisible_ms=chance.choice(((100, 400), (500, 3000), (3000, 3000))),
        wait_s=chance.choice(((0.0,), (0.0, 1.0, 3.0), (5.0,), (2.0,))),
        think_s_max=chance.choice((0.0, 0.05, 0.5)),
        polls=chance.choice((1, 1, 3)),
        nack=often(0.3),
        forward=often(0.1),
        forget=often(0.4),
        twice=often(0.3),
        stale=often(0.3),
        forge=often(0.3),
        vanish=often(0.3),
        auto_renew=often(0.5),
    )
