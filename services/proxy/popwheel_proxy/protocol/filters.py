"""Filters that clients send: a new SQL92 filter or a long one of tags takes milliseconds, so one at most is read per
turn of the loop, and who sends many waits for the others in between.
"""

from collections import OrderedDict
from typing import Final

from popwheel_common.errors import StatusError
from popwheel_common.filter.parser import SHORT
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, FilterExpression, FilterType
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_common.shares import Shares
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.turns import Turns
from popwheel_proxy.protocol.validation import filter_of

_SQL: Final = FilterType.SQL  # which takes long to be looked up there
REFUSED_MAX = 256
"""Latest SQL92 filters whose refusals are cached: clients send a bad filter again and again."""
KNOWN_MAX = 4_096
"""Cached SQL92 filters, of at most 4,096 characters each."""
WAITING_MAX = 512
"""Filters that wait to be parsed; clients share it."""


class Filters:
    """Parses filters, and caches the latest SQL92 ones.

    Args:
        turns: in which new ones are read.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._known: OrderedDict[str, broker.Filter] = OrderedDict()
        self._refused: dict[str, str] = {}
        """Errors of the latest bad filters."""
        self._waiting = Shares()  # by client

    def __len__(self) -> int:
        """Return the number of cached filters, of `KNOWN_MAX`."""
        return len(self._known)

    @property
    def waiting(self) -> int:
        """Filters that wait to be parsed, of `WAITING_MAX`."""
        return self._waiting.total

    async def read(self, client_id: str, expression: FilterExpression) -> broker.Filter:
        """Return the filter for the broker.

        Args:
            client_id: who sent it.
            expression: as it came.

        Raises:
            StatusError: ILLEGAL_FILTER_EXPRESSION.
            LimitError: TOO_MANY_REQUESTS, if too many wait to be parsed.
        """
        if expression.type != _SQL and len(expression.expression) <= SHORT:
            return filter_of(expression)
        known = None if expression.type != _SQL else self._known.get(expression.expression)
        if known is not None:
            self._known.move_to_end(expression.expression)
            return known
        self._check(expression)
        if not self._waiting.room(client_id, WAITING_MAX):
            raise LimitError(
                Code.TOO_MANY_REQUESTS,
                f"{self.waiting} filters wait to be read, and this client has its share of them; try again, and "
                "use few different filters",
                "waiting_filters_max",
            )
        self._waiting.take(client_id)
        try:
            async with self._turns.one():
                return self._read(expression)
        finally:
            self._waiting.give(client_id)

    def _read(self, expression: FilterExpression) -> broker.Filter:
        if expression.type != _SQL:
            return filter_of(expression)
        text = expression.expression
        known = self._known.get(text)  # it may have been read meanwhile
        if known is None:
            self._check(expression)
            try:
                known = self._known[text] = filter_of(expression)
            except LimitError:
                raise  # long ones take no time, and much room
            except StatusError as error:
                self._refused[text] = error.message
                if len(self._refused) > REFUSED_MAX:
                    del self._refused[next(iter(self._refused))]
                raise
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return known

    def _check(self, expression: FilterExpression) -> None:
        """Refuse a filter that was refused a moment ago, for the same reason."""
        refusal = self._refused.get(expression.expression) if expression.type == _SQL else None
        if refusal is not None:
            raise StatusError(Code.ILLEGAL_FILTER_EXPRESSION, refusal)
