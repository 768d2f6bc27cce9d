"""Clock, random source and registry of metrics, which every process hands to its service."""

import random
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from popwheel_common.clock import Clock


@dataclass(frozen=True, slots=True)
class Runtime:
    """The surroundings of one service; a test or a simulator gives others than a real process.

    Args:
        clock: the time.
        random_source: chance.
        registry: where metrics are shown.
    """

    clock: Clock
    random_source: random.Random
    registry: CollectorRegistry
