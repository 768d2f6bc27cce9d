"""A fault: some messages, or all recalls, fail by themselves at some steps, for a while or for ever.

All others must not feel it. It has draws of its own, so that what else a seed draws stays as it is.
"""

import contextlib
import random
import zlib
from collections.abc import Iterator

from popwheel_broker.core.core import BrokerCore
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from tests.harness.poison import ERRORS, Poison
from tests.sim.history import History
from tests.sim.trace import Trace

NAME = "failing record"
_STEPS = ("redelivery", "answer", "firing")
_LATER_STEPS = ("scheduling", "rolling")
_LATEST_STEPS = ("retention", "folding", "replication")
"""Each drawn after the others, so that the seeds of before are what they were but for these."""
SHARE = 0.4
"""Of the seeds in which any faults may be on."""
_ONE_IN = 8


class FailingRecords:
    """Of one run.

    Args:
        chance: its draws.
        trace: what happens goes there.
        history: what is quarantined in the end is noted there.
        only: faults that may be on; None for all.
    """

    def __init__(self, chance: random.Random, trace: Trace, history: History, only: tuple[str, ...] | None) -> None:
        self._trace = trace
        self._history = history
        self._remainder = chance.randrange(_ONE_IN)
        self._error = chance.choice(ERRORS)
        self.steps = tuple(step for step in _STEPS if chance.random() < 0.6)
        self._for_ever = chance.random() < 0.3
        self._strikes = (chance.random() < SHARE if only is None else NAME in only) and bool(self.steps)
        self.steps += tuple(step for step in _LATER_STEPS if chance.random() < 0.3)
        self._recalls_fail = chance.random() < 0.5
        self.steps += tuple(step for step in _LATEST_STEPS if chance.random() < 0.3)
        self.is_on = self._strikes
        """Whether any message fails in this run."""
        self._poison = Poison(self.steps, lambda: self._error if self._strikes else None, self._is_marked)

    @contextlib.contextmanager
    def spread(self) -> Iterator[None]:
        """Have them fail while the run lasts."""
        if not self._strikes:
            yield
            return
        self._trace.add("fault", NAME, *self.steps, "for ever" if self._for_ever else "for a while")
        with self._poison.spread():
            yield

    def fails(self, message_id: str) -> bool:
        """Whether a message is one of those."""
        return self.is_on and zlib.crc32(message_id.encode()) % _ONE_IN == self._remainder

    def _is_marked(self, payload: bytes, properties: bytes) -> bool:
        if not properties:  # of a recall, or of what is folded or taken over: nothing is said of its sender's
            return self._recalls_fail
        return self.fails(SystemProperties.FromString(properties).message_id)

    def heal(self) -> None:
        """A release that mends the fault runs now, unless it never comes."""
        if not self._for_ever:
            self._strikes = False

    def hand_over(self, core: BrokerCore) -> int:
        """An operator retries what is quarantined, once it does not fail any more; how many are left."""
        if self._for_ever:
            return 0
        for entry in list(core.quarantine.table):
            with contextlib.suppress(StatusError, CorruptDataError):
                core.retrial.retry(entry.id)
        return len(core.quarantine.table)

    def record(self, core: BrokerCore) -> None:
        """P1: what is quarantined in the end, by group and message id; of a delayed message the group is empty."""
        for entry in core.quarantine.table:
            with contextlib.suppress(StatusError, CorruptDataError):
                properties = core.retrial.message(entry).system_properties
                message_id = SystemProperties.FromString(properties).message_id
                self._history.set_aside.add((entry.group, message_id))
