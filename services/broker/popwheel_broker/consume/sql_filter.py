"""An SQL92 filter, compiled once for all that ask for it: whether a message passes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from popwheel_broker.consume.message_properties import NamedProperties
from popwheel_broker.log.record import StoredRecord
from popwheel_common.filter.evaluation import evaluation
from popwheel_common.filter.node import In, Node, Property, Search, operands
from popwheel_common.filter.numbers import NotComparableError
from popwheel_common.filter.parser import SHORT, parse

_BYTES_PER_CHARACTER = 150

NODES_OF_ONE, SEARCHED_OF_ONE = 24, 256
"""Parts of a filter (a comparison has three), and characters that one search goes over: they take about as long as one
look at an entry (`scan.ENTRY_COST`).
"""


@dataclass(slots=True)
class FilterCounts:
    """Result of the filter for some messages.

    Args:
        passed: messages that passed.
        rejected: messages that did not pass.
        not_comparable: those of them with a text where a number was needed.
        cost: of the filters, in lookups of entries.
    """

    passed: int = 0
    rejected: int = 0
    not_comparable: int = 0
    cost: int = 0


class SqlFilter:
    """Filter of messages by an expression. Equal to another one of the same expression.

    Args:
        expression: as the consumer wrote it.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION.
    """

    __slots__ = ("_cost", "_evaluate", "_properties", "_searches", "expression")

    def __init__(self, expression: str) -> None:
        node = parse(expression)
        nodes = list(_nodes(node))
        self.expression = expression
        self._evaluate = evaluation(node)
        self._properties = NamedProperties(frozenset(each.name for each in nodes if isinstance(each, Property | In)))
        self._cost = len(nodes) // NODES_OF_ONE
        self._searches = sum(isinstance(each, Search) for each in nodes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqlFilter) and other.expression == self.expression

    def __hash__(self) -> int:
        return hash(self.expression)

    @property
    def bytes(self) -> int:
        """Approximate memory that it takes, in bytes."""
        return 1024 + _BYTES_PER_CHARACTER * len(self.expression)

    def passes(self, stored: StoredRecord, counts: FilterCounts) -> bool:
        """Return whether a message passes: only if the filter is true for it, neither false nor unknown.

        Args:
            stored: the message.
            counts: counts the result and its cost.

        Raises:
            DecodeError: it is no message.
        """
        properties = self._properties.of(stored)
        counts.cost += self._cost
        if self._searches:
            counts.cost += self._searches * sum(map(len, properties.values())) // SEARCHED_OF_ONE
        try:
            passes = self._evaluate(properties) is True
        except NotComparableError:
            counts.not_comparable += 1
            passes = False
        if passes:
            counts.passed += 1
        else:
            counts.rejected += 1
        return passes


def sql_filter(expression: str) -> SqlFilter:
    """Return the filter of an expression. Raises StatusError: ILLEGAL_FILTER_EXPRESSION."""
    return _compiled(expression) if len(expression) <= SHORT else _compiled_long(expression)


_compiled = lru_cache(maxsize=1024)(SqlFilter)
_compiled_long = lru_cache(maxsize=64)(SqlFilter)


def _nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes below it."""
    yield node
    for operand in operands(node):
        yield from _nodes(operand)
