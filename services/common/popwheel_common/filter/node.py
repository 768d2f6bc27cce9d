"""Nodes of a parsed SQL92 filter. All positions count characters from 1."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

Number = int | Decimal
"""Both are exact, also where they are compared with each other."""

Scalar = str | int | Decimal | bool | None
"""A value; None is SQL's NULL, which also stands for a property that a message does not have."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that stands in the expression."""

    value: Scalar
    position: int


@dataclass(frozen=True, slots=True)
class Property:
    """A message's property, by its name."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Negated:
    """`-x`."""

    operand: "Node"
    position: int


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT x`; bare if no parentheses are around it."""

    operand: "Node"
    position: int
    is_bare: bool = True


@dataclass(frozen=True, slots=True)
class AllOf:
    """`x AND y AND ...`."""

    operands: tuple["Node", ...]
    position: int


@dataclass(frozen=True, slots=True)
class AnyOf:
    """`x OR y OR ...`."""

    operands: tuple["Node", ...]
    position: int


@dataclass(frozen=True, slots=True)
class Equal:
    """`x = y`."""

    left: "Node"
    right: "Node"
    position: int


@dataclass(frozen=True, slots=True)
class Order:
    """`x < y` and the like: a comparison of numbers.

    Args:
        compare: what compares them.
        left, right: what is compared.
        position: where it begins.
    """

    compare: Callable[[Number, Number], bool]
    left: "Node"
    right: "Node"
    position: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """`x IS NULL`."""

    operand: "Node"
    position: int


@dataclass(frozen=True, slots=True)
class In:
    """`property IN ('a', 'b')`."""

    name: str
    values: frozenset[str]
    is_negated: bool
    position: int


@dataclass(frozen=True, slots=True)
class Search:
    """`x CONTAINS 'a'`, `x STARTSWITH 'a'`, `x ENDSWITH 'a'`.

    Args:
        find: whether a text has another in the place that is meant.
        operand: where it is looked for.
        text: what is looked for.
        is_negated: with NOT.
        position: where it begins.
    """

    find: Callable[[str, str], bool]
    operand: "Node"
    text: str
    is_negated: bool
    position: int


Condition = Not | AllOf | AnyOf | Equal | Order | IsNull | In | Search
"""Condition: true, false or unknown."""

Node = Literal | Property | Negated | Condition


def is_condition(node: Node) -> bool:
    """Return whether a node is true, false or unknown whatever a message's properties are."""
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return isinstance(node, Condition)


def operands(node: Node) -> Sequence[Node]:
    """Return the nodes that a node is made of."""
    match node:
        case AllOf() | AnyOf():
            return node.operands
        case Equal() | Order():
            return node.left, node.right
        case Not() | Negated() | IsNull() | Search():
            return (node.operand,)
        case _:
            return ()
