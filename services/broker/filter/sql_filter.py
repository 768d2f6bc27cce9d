"""An SQL92 filter, compiled once for all that ask for it: whether a message passes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from services.broker.filter.message_properties import NamedProperties
from services.broker.records.record import StoredRecord
from services.common.filter.evaluation import NotComparableError, evaluation
from services.common.filter.node import In, Node, Property, operands

_SHORT = 256
"""Characters of an expression whose compiled form is small; of longer ones fewer are kept in mind."""
_BYTES_PER_CHARACTER = 150


@dataclass(slots=True)
class Looks:
    """What came of the looks at messages.

    Args:
        passed: let through.
        kept_back: not let through.
        not_comparable: those of them with a text where a number was needed.
    """

    passed: int = 0
    kept_back: int = 0
    not_comparable: int = 0


class SqlFilter:
    """Whether messages pass. Equal to another one of the same expression.

    Args:
        expression: as the consumer wrote it.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION.
    """

    __slots__ = ("_evaluate", "_properties", "expression")

    def __init__(self, expression: str) -> None:
        from services.common.filter.parser import parse  # it takes a while to load, and few need it

        node = parse(expression)
        self.expression = expression
        self._evaluate = evaluation(node)
        self._properties = NamedProperties(frozenset(_names(node)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqlFilter) and other.expression == self.expression

    def __hash__(self) -> int:
        return hash(self.expression)

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return 1024 + _BYTES_PER_CHARACTER * len(self.expression)

    def passes(self, stored: StoredRecord, looks: Looks) -> bool:
        """Whether a message passes: only if the filter is true for it, neither false nor unknown.

        Args:
            stored: the message.
            looks: where the outcome is counted.

        Raises:
            DecodeError: it is no message.
        """
        try:
            passes = self._evaluate(self._properties.of(stored)) is True
        except NotComparableError:
            looks.not_comparable += 1
            passes = False
        if passes:
            looks.passed += 1
        else:
            looks.kept_back += 1
        return passes


def sql_filter(expression: str) -> SqlFilter:
    """The filter of an expression. Raises StatusError: ILLEGAL_FILTER_EXPRESSION."""
    return _compiled(expression) if len(expression) <= _SHORT else _compiled_long(expression)


_compiled = lru_cache(maxsize=1024)(SqlFilter)
_compiled_long = lru_cache(maxsize=64)(SqlFilter)


def _names(node: Node) -> Iterator[str]:
    """The properties that a filter asks for."""
    if isinstance(node, Property | In):
        yield node.name
    for operand in operands(node):
        yield from _names(operand)
