"""Makes the nodes of SQL92 filters, and refuses what RocketMQ's grammar has no meaning for, or another than SQL."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import TypeGuard

from popwheel_common.filter.lexer import Token, refusal_at
from popwheel_common.filter.node import (
    AllOf,
    AnyOf,
    Equal,
    In,
    IsNull,
    Literal,
    Negated,
    Node,
    Not,
    Number,
    Order,
    Property,
    Scalar,
    Search,
    is_condition,
)
from popwheel_common.filter.numbers import NUMBER_LENGTH_MAX

_WHOLE_MAX = 2**63 - 1
_ORDERS: dict[str, Callable[[Number, Number], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_CONSTANTS: dict[str, Scalar] = {"TRUE": True, "FALSE": False, "NULL": None}


def value(token: Token) -> Node | None:
    """Return the literal or property that a token is; None if it is none.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION: a number that is too large.
    """
    match token.kind:
        case "NAME":
            return Property(token.text, token.position)
        case "TEXT":
            return Literal(text_of(token), token.position)
        case "WHOLE":
            return Literal(_whole(token), token.position)
        case "FLOAT":
            return Literal(_fraction(token), token.position)
        case "TRUE" | "FALSE" | "NULL":
            return Literal(_CONSTANTS[token.kind], token.position)
    return None


def text_of(token: Token) -> str:
    """Return the text in quotes."""
    return token.text[1:-1].replace("''", "'")


def _whole(token: Token) -> int:
    digits = token.text.rstrip("lL")
    # The length first: to read a very long number takes long.
    if len(digits) > len(str(_WHOLE_MAX)) or int(digits) > _WHOLE_MAX:
        raise refusal_at(token.position, f"whole numbers reach up to {_WHOLE_MAX}; write {digits[:30]}.0")
    return int(digits)


def _fraction(token: Token) -> Decimal:
    if len(token.text) > NUMBER_LENGTH_MAX:
        raise refusal_at(token.position, f"a number has at most {NUMBER_LENGTH_MAX} characters")
    if math.isinf(float(token.text)):
        raise refusal_at(token.position, "the number is too large")
    try:
        return Decimal(token.text)
    except InvalidOperation:
        raise refusal_at(token.position, "the number has too large an exponent") from None


def any_of(parts: Sequence[Node]) -> Node:
    """`x OR y OR ...`."""
    return AnyOf(tuple(map(condition, parts)), parts[0].position)


def all_of(parts: Sequence[Node]) -> Node:
    """`x AND y AND ...`."""
    return AllOf(tuple(map(condition, parts)), parts[0].position)


def condition(node: Node) -> Node:
    """Return a node where a condition is required; a property alone is never true, as in RocketMQ.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION: it is neither, as all that makes nodes here says.
    """
    if isinstance(node, Property) or is_condition(node):
        return node
    raise refusal_at(node.position, "a condition is needed here, such as a comparison")


def negated(operand: Node, position: int) -> Node:
    """`-x`."""
    return Negated(operand, position)


def negation(operand: Node, position: int) -> Node:
    """`NOT x`."""
    return Not(condition(operand), position)


def bracketed(node: Node) -> Node:
    """`(x)`."""
    return replace(node, is_bare=False) if isinstance(node, Not) else node


def equal(left: Node, right: Node) -> Node:
    """`x = y`."""
    _check_left(left)
    for each in (left, right):
        if isinstance(each, Literal) and each.value is None:
            raise refusal_at(each.position, "nothing equals NULL; write IS NULL or IS NOT NULL")
    if _is_constant(left) and isinstance(right, Literal) and not _is_constant(right):
        raise refusal_at(right.position, "TRUE and FALSE are compared with properties and conditions only")
    return Equal(left, right, left.position)


def unequal(left: Node, right: Node) -> Node:
    """`x <> y`."""
    return Not(equal(left, right), left.position, is_bare=False)


def is_null(operand: Node, *, is_negated: bool) -> Node:
    """`x IS NULL`, `x IS NOT NULL`."""
    _check_left(operand)
    made = IsNull(operand, operand.position)
    return Not(made, operand.position, is_bare=False) if is_negated else made


def order(left: Node, sign: str, right: Node) -> Node:
    """`x < y` and the like."""
    for each in (left, right):
        if is_condition(each) or (isinstance(each, Literal) and not _is_number(each.value)):
            raise refusal_at(each.position, f"only numbers and properties are compared by {sign} and BETWEEN")
    return Order(_ORDERS[sign], left, right, left.position)


def between(operand: Node, low: Node, high: Node, *, is_negated: bool) -> Node:
    """`x BETWEEN y AND z`, `x NOT BETWEEN y AND z`."""
    if is_negated:
        return AnyOf((order(operand, "<", low), order(operand, ">", high)), operand.position)
    lowest, highest = (each.value if isinstance(each, Literal) else None for each in (low, high))
    if _is_number(lowest) and _is_number(highest) and highest < lowest:
        raise refusal_at(low.position, "nothing is between these, as the first is above the second")
    return AllOf((order(operand, ">=", low), order(operand, "<=", high)), operand.position)


def search(operand: Node, how: Token, text: Token, *, is_negated: bool) -> Node:
    """`x CONTAINS 'a'` and the like, also with NOT."""
    _check_left(operand)
    return Search(_SEARCHES[how.text.upper()], operand, text_of(text), is_negated, operand.position)


def is_in(operand: Node, texts: Sequence[Token], *, is_negated: bool) -> Node:
    """`x IN ('a', 'b')`, `x NOT IN ('a', 'b')`."""
    if not isinstance(operand, Property):
        raise refusal_at(operand.position, "only a property can be IN a list")
    return In(operand.name, frozenset(map(text_of, texts)), is_negated, operand.position)


def _check_left(node: Node) -> None:
    if isinstance(node, Not) and node.is_bare:
        raise refusal_at(node.position, "NOT binds more tightly than comparisons; write NOT (a = 1) or (NOT a) = 1")


def _is_constant(node: Node) -> bool:
    return isinstance(node, Literal) and isinstance(node.value, bool)


def _is_number(found: object) -> TypeGuard[Number]:
    return isinstance(found, int | Decimal) and not isinstance(found, bool)
