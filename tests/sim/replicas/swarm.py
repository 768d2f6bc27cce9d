"""What a seed draws: how many replicas, controllers and proxies, their settings, and which faults there are."""

import random
from dataclasses import dataclass, fields
from typing import Any

from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_cli.options import StandaloneOptions
from tests.sim import swarm as one
from tests.sim.consumers import POLITE
from tests.sim.delays import Delays
from tests.sim.swarm import Swarm

FAULTS = {
    "kill master": 10,
    "kill slave": 5,
    "kill at an operation": 10,
    "kill all": 3,
    "kill controller": 4,
    "kill proxy": 2,
    "power of master": 6,
    "power of slave": 4,
    "power of all": 3,
    "restart": 5,
    "pause master": 6,
    "pause slave": 4,
    "pause controller": 3,
    "cut": 8,
    "isolate": 4,
    "master without controller": 4,
    "master without slaves": 4,
    "slaves without controller": 4,
    "break connections": 5,
    "bad ways": 4,
    "controllers away": 3,
    "store away": 3,
    "lost answers of the store": 2,
    "old checkpoint": 5,
    "switchover": 8,
    "slow device": 3,
    "disk full": 3,
    "write error": 3,
    "sync error": 3,
    "bit flip": 4,
    "wiped volume": 4,
    "clock jump": 3,
}
"""Fault -> how often it comes where it is on, against the others."""

RARE_FAULTS = {
    "lying syncs": 8,
    "misdirected write": 4,
    "stale sector": 4,
    "rotten derived file": 5,
    "derived file cut short": 5,
    "derived file lost": 5,
    "derived file of before": 5,
    "log cut short": 8,
    "volume of before": 8,
    "bridge": 4,
    "ring": 4,
    "swizzle": 4,
    "half-open": 5,
    "changed address": 4,
    "second process": 4,
    "left behind": 5,
    "store away for a minute": 2,
    "conflicts in the store": 4,
    "stale reads": 4,
    "unclean election": 3,
    "clock drift": 4,
    "topic comes and goes": 1,
}
"""Those that came later; drawn by themselves, in half of the seeds, so that the others go on with what they draw."""

LATEST_FAULTS = {
    "kill at an answer": 10,
    "kill while slaves are slow": 10,
    "power of all, master away": 5,
    "power of all, master wiped": 10,
    "wiped volume, others away": 10,
    "clocks apart": 5,
}
"""Those that came last; drawn by themselves, in half of the seeds."""

DRAWN = ("topic comes and goes", "clocks apart")
"""Those of them that go on all the time, if they are drawn, and do not strike."""


RETENTION_MS = 3000
"""For how long messages are held where old segments are deleted."""
HOUR_MS = 3_600_000
_OFTEN_MS_MIN = 100
_LIVES_FIRST_SEED = 100_000_000
"""First seed in which messages may expire."""
_PROBED = 0.25


_RETENTION_SHARE = 0.8
"""How often old segments are deleted where slaves are left behind."""
_NEEDED_SHARE = 0.5
"""How often, then, messages are delayed, or not acknowledged, until their segments should go; else nothing is moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSwarm(Swarm):
    """One seed's draw.

    Args:
        constants: paces and sizes of replication.
        replicas, controllers, proxies: how many there are.
        loyal: how often a client stays with its proxy.
        is_probed: whether the group is asked in the end whether it is well.
    """

    constants: ReplicationConstants
    replicas: int
    controllers: int
    proxies: int
    loyal: float
    is_probed: bool

    def clock_offsets_ms(self) -> list[int]:
        """By how much the clock of each replica is wrong from the beginning."""
        chance = self.random("replicas clocks")
        if "clocks apart" not in self.faults:
            return [0] * self.replicas
        return [chance.choice((0, chance.randint(-HOUR_MS, HOUR_MS))) for _ in range(self.replicas)]

    @property
    def is_safe(self) -> bool:
        """Whether nothing acknowledged may be lost, whatever happens to less than all copies."""
        return self.options.broker.replication.ack_mode == "sync_state_set" and "unclean election" not in self.faults

    @property
    def has_retention(self) -> bool:
        """Whether old segments are deleted while it runs."""
        return self.options.broker.retention.hours < 1

    @property
    def is_lossy(self) -> bool:
        """Whether a disaster may take what was acknowledged a moment ago."""
        return self.options.broker.flush == "async" or not self.is_safe

    @property
    def deposed_s_max(self) -> float:
        """How long a master may acknowledge what the next one will not have: as long as it hears nothing of it."""
        return 0.0 if self.is_safe else float("inf")

    @property
    def down_s_max(self) -> float:
        """None: a `Disaster` says when the process stood still."""
        return 0.0

    def describe(self) -> str:
        """In one line."""
        broker = self.options.broker
        return (
            f"replicas={self.replicas} controllers={self.controllers} proxies={self.proxies} "
            f"clocks={self.clock_offsets_ms()} ack_mode={broker.replication.ack_mode} "
            f"min_in_sync={broker.replication.min_in_sync_replicas} "
            f"safety_s={self.safety_s} delay_s={self.delay_s_max} {Swarm.describe(self)}"
        )


def draw(seed: int, only: tuple[str, ...] | None = None, settings: dict[str, Any] | None = None) -> GroupSwarm:
    """Draw a seed's swarm.

    Args:
        seed: the seed.
        only: faults that may be on at all; None for all.
        settings: settings of the brokers that are not drawn.
    """
    base = one.draw(seed, (), None)
    chance = random.Random(f"{seed}/replicas swarm")
    faults = {name: weight for name, weight in FAULTS.items() if chance.random() < 0.3}
    if only is not None:
        faults = {name: weight for name, weight in FAULTS.items() if name in only}
    rare = random.Random(f"{seed}/replicas rare swarm")
    rare_faults = _drawn(rare, RARE_FAULTS, only, 0.5, 0.2)
    replicas = chance.choice((1, 2, 2, 2, 2, 3, 3))
    values = {each.name: getattr(base, each.name) for each in fields(Swarm)}
    safety_s = chance.choice((8.0, 12.0, 20.0))
    options, constants = _options(seed, chance, base.options, replicas, settings or {})
    faults_per_s = chance.choice((0.1, 0.3, 0.6)) if faults else 0.0
    if rare_faults:
        faults_per_s = faults_per_s or rare.choice((0.1, 0.3, 0.6))
    latest = random.Random(f"{seed}/replicas latest swarm")
    latest_faults = _drawn(latest, LATEST_FAULTS, only, 0.5, 0.4)
    if latest_faults:
        faults_per_s = faults_per_s or latest.choice((0.1, 0.3, 0.6))
    values.update(
        options=options,
        faults=faults | rare_faults | latest_faults,
        faults_per_s=faults_per_s,
        safety_s=safety_s,
        delays=Delays(base.delays.share, base.delays.recall, safety_s + 8.0, base.delays.far_ms),
        producers=[(min(rate, 5.0), batch, size) for rate, batch, size in base.producers],
        sync_s_max=chance.choice((0.0, 0.001, 0.01, 0.05)),
        delay_s_max=chance.choice((0.001, 0.001, 0.02)),
    )
    if "left behind" in rare_faults and "unclean election" not in rare_faults and rare.random() < _RETENTION_SHARE:
        values.update(options=_with_retention(options), producers=[(5.0, 4, 3000)])
        if random.Random(f"{seed}/replicas needed").random() >= _NEEDED_SHARE:
            values.update(
                delays=Delays(0.0, 0.0, 0.0, base.delays.far_ms),
                manners={each: [POLITE for _ in all_manners] for each, all_manners in base.manners.items()},
            )
    swarm = GroupSwarm(
        **values,
        constants=constants,
        replicas=replicas,
        controllers=chance.choice((1, 1, 2)),
        proxies=chance.choice((1, 1, 2)),
        loyal=chance.choice((0.0, 0.5, 1.0)),
        is_probed=random.Random(f"{seed}/replicas probed").random() < _PROBED,
    )
    swarm = one.with_priorities(one.with_ordered(swarm, only), only)
    return one.with_lives(swarm, only, _LIVES_FIRST_SEED)


def _drawn(
    chance: random.Random, of: dict[str, int], only: tuple[str, ...] | None, seeds_share: float, share: float
) -> dict[str, int]:
    """Some of the faults, in a share of the seeds, each of them with a share; where `only` is given, all of these."""
    if only is not None:
        return {name: weight for name, weight in of.items() if name in only}
    if chance.random() < 1 - seeds_share:
        return {}
    return {name: weight for name, weight in of.items() if chance.random() < share}


def _with_retention(options: StandaloneOptions) -> StandaloneOptions:
    """Have small segments deleted that are some seconds old, and nothing acknowledged be lost otherwise."""
    values = options.model_dump()
    values["broker"]["retention"].update(hours=RETENTION_MS / 3_600_000, interval_ms=200)
    values["broker"]["timer"]["roll_window_ms"] = 2000
    values["broker"].update(checkpoint_interval_ms=200, checkpoint_changes_bytes=300, flush="sync")
    values["broker"]["replication"].update(ack_mode="sync_state_set", min_in_sync_replicas=1)
    values["broker"]["pop"]["stay_ms"] = 0
    values["broker"]["log"]["segment_bytes"] = 4096
    return StandaloneOptions.model_validate(values)


def _options(
    seed: int, chance: random.Random, options: StandaloneOptions, replicas: int, settings: dict[str, Any]
) -> tuple[StandaloneOptions, ReplicationConstants]:
    replication: dict[str, Any] = {
        "ack_mode": chance.choice(("sync_state_set", "sync_state_set", "sync_state_set", "master")),
        "min_in_sync_replicas": chance.choice((1, 1, min(2, replicas))),
    }
    constants: dict[str, int] = {
        "chunk_bytes": chance.choice((4096, 1 << 20)),
        "coalesce_bytes": chance.choice((1, 1 << 18)),
        "watermark_ms": chance.choice((1, 20, 200)),
    }
    replication.update(lag_ms_max=chance.choice((300, 3000)), absence_ms_max=chance.choice((10, 500)))
    constants.update(joining_bytes=chance.choice((4096, 4 << 20)))
    controller = {"replication": {"checkpoint_interval_ms": chance.choice((200, 3000))}}
    pages = random.Random(f"{seed}/replicas pages")
    flush = chance.choice(("sync", "sync", "sync", "async"))
    values = options.model_dump()
    values["broker"]["replication"].update(replication)
    values["broker"]["flush"] = flush
    for settings_of, name in (
        (values["broker"], "flush_interval_ms"),
        (values["broker"], "checkpoint_interval_ms"),
        (values["broker"]["timer"], "flush_interval_ms"),
        (values["broker"]["timer"], "clean_interval_ms"),
    ):
        # The simulator of one server has shorter ones; here they would take half of the time of a run.
        settings_of[name] = max(settings_of[name], _OFTEN_MS_MIN)
    if values["broker"]["timer"]["slots"] > 1000:
        values["broker"]["timer"].update(slots=64, roll_window_ms=8000)
    values["broker"].update(settings)
    values["controller"]["replication"].update(controller["replication"])
    values["controller"]["store"]["page_bytes"] = pages.choice((64, 64, 300, 65_536))
    values["controller"]["watcher_part_names"] = pages.choice((1, 1, 2, 500))
    values["proxy"]["auto_create_topics"] = False
    return StandaloneOptions.model_validate(values), ReplicationConstants(**constants)
