"""Detects groups whose consumers ask for different messages of one topic at the same time.

Then the filter of the consumer that happens to reach a message decides on it, and some messages reach nobody, though
one consumer of the group wants them. No rule forbids it: every rolling change of a filter leads through it. So it is
counted and logged.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

import structlog
from google.protobuf.message import DecodeError

from popwheel_broker.consume.sql_filter import FilterCounts, SqlFilter
from popwheel_broker.consume.wanted import Wanted, wanted_by
from popwheel_broker.log.record import StoredRecord
from popwheel_common.contract.names import shown
from popwheel_common.pb.popwheel.v1.broker_pb2 import ALL, Filter, FilterKind

WHILE_MS: Final = 60_000
"""A filter is in use for so long after a pop that asked with it: a poll may wait for half of that."""
WARN_AGAIN_MS: Final = 600_000
PAIRS_MAX: Final = 10_000
"""Limit of tracked pairs of a group and a topic; beyond it those that were seen longest ago are forgotten."""
_FILTERS_MAX: Final = 8
"""Limit of tracked filters of a group and topic."""
_STORED_LENGTH_MAX: Final = 256
"""Characters of an expression that is stored as a whole."""

_log = structlog.get_logger()


@dataclass(slots=True)
class _Used:
    mark: int
    text: str
    seen_ms: int
    kind: FilterKind.ValueType
    expression: str | None
    """None for one that is too long to be stored."""

    @classmethod
    def of(cls, mark: int, asked: Filter, seen_ms: int) -> "_Used":
        is_short = len(asked.expression) <= _STORED_LENGTH_MAX
        return cls(mark, _text(asked), seen_ms, asked.kind, asked.expression if is_short else None)


@dataclass(slots=True)
class _Pair:
    """The filters of one group for one topic; those before the last one begin with the oldest."""

    last: _Used
    before: deque[_Used] = field(default_factory=lambda: deque(maxlen=_FILTERS_MAX - 1))
    differ_ms: int | None = None
    warned_ms: int | None = None


class GroupFilters:
    """Checks the filter of each pop.

    Attributes:
        changes: pops that asked with another filter than the pop before them, of groups that use both.
        passed_over: messages that were passed over in such groups; a consumer with another filter may have wanted them.
    """

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str], _Pair] = OrderedDict()
        self.changes = 0
        self.passed_over = 0

    def __len__(self) -> int:
        return len(self._pairs)

    def record(self, group: str, topic: str, message_filter: Filter, wanted: Wanted, now_ms: int) -> bool:
        """Record a pop's filter; return whether the group uses others as well.

        Args:
            group, topic: whose pop, and of what.
            message_filter: as it was asked for.
            wanted: the same, read: filters of one meaning are one.
            now_ms: when.
        """
        mark = hash(wanted)
        pair = self._pairs.get((group, topic))
        if pair is None:
            if len(self._pairs) >= PAIRS_MAX:
                self._pairs.popitem(last=False)
            self._pairs[group, topic] = _Pair(_Used.of(mark, message_filter, now_ms))
            return False
        self._pairs.move_to_end((group, topic))
        if pair.last.mark == mark:
            pair.last.seen_ms = now_ms
        else:
            self._changed(group, topic, pair, _Used.of(mark, message_filter, now_ms))
        return self._differ(pair, now_ms)

    def _changed(self, group: str, topic: str, pair: _Pair, used: _Used) -> None:
        former, pair.last = pair.last, used
        again = next((each for each in pair.before if each.mark == used.mark), None)
        if again is not None:
            pair.before.remove(again)
        pair.before.append(former)
        # A filter that replaces another for good is none of these: one of the two has to be used again.
        if again is None or used.seen_ms - again.seen_ms > WHILE_MS:
            return
        self.changes += 1
        pair.differ_ms = used.seen_ms
        if pair.warned_ms is None or used.seen_ms - pair.warned_ms >= WARN_AGAIN_MS:
            pair.warned_ms = used.seen_ms
            _log.warning(
                "consumers of a group ask for different messages of a topic: some may reach none of them",
                group=group,
                topic=topic,
                filters=[former.text, used.text],
            )

    def _differ(self, pair: _Pair, now_ms: int) -> bool:
        return pair.differ_ms is not None and now_ms - pair.differ_ms <= WHILE_MS

    def rejecting_filter(self, group: str, topic: str, stored: StoredRecord) -> str:
        """Return the filter that a group asked with last, if it does not let a message through; else an empty text."""
        pair = self._pairs.get((group, topic))
        if pair is None or pair.last.kind == ALL or pair.last.expression is None:
            return ""
        wanted = wanted_by(Filter(kind=pair.last.kind, expression=pair.last.expression))
        if wanted is None:
            return ""
        if not isinstance(wanted, SqlFilter):
            return "" if stored.tag_hash in wanted else pair.last.expression
        try:
            return "" if wanted.passes(stored, FilterCounts()) else pair.last.expression
        except DecodeError:
            return ""

    def count(self, now_ms: int) -> int:
        """Return the number of groups and topics with different filters now."""
        return sum(self._differ(each, now_ms) for each in self._pairs.values())


def _text(message_filter: Filter) -> str:
    return "*" if message_filter.kind == ALL else shown(message_filter.expression)
