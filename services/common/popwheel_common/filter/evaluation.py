"""Compiler of an SQL92 filter's nodes to one function of a message's properties. The rules for types are RocketMQ's.

A property is a text, and becomes what it is compared with. A text that is none of a number cannot be compared with
one. Then the whole filter has no answer, and the message does not pass.

NULL is neither true nor false, and `AND`, `OR`, `NOT` have SQL's three values.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal

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
)
from popwheel_common.filter.numbers import number_of

Properties = Mapping[str, str]
"""Name -> text, of those that a message has."""

Evaluation = Callable[[Properties], Scalar]
"""Raises NotComparableError."""

_TRUE_LENGTH = len("true")


def evaluation(node: Node) -> Evaluation:
    """Return the function that evaluates a node for a message; it raises NotComparableError."""
    match node:
        case Literal(value):
            return lambda properties: value
        case Property(name):
            return lambda properties: properties.get(name)
        case Negated(operand):
            return _negated(evaluation(operand))
        case Not(operand):
            return _not(_truth(operand))
        case AllOf(operands):
            return _all_of([_truth(each) for each in operands])
        case AnyOf(operands):
            return _any_of([_truth(each) for each in operands])
        case Equal(left, right):
            return _equal(left, right)
        case Order(compare, left, right):
            return _order(compare, evaluation(left), evaluation(right))
        case IsNull(operand):
            inner = evaluation(operand)
            return lambda properties: inner(properties) is None
        case In():
            return _in(node)
        case Search():
            return _search(node)


def _truth(node: Node) -> Evaluation:
    """True, False or None. A property alone is a text, which is never true."""
    if isinstance(node, Property):
        name = node.name
        return lambda properties: False if name in properties else None
    return evaluation(node)


def _negated(inner: Evaluation) -> Evaluation:
    def evaluate(properties: Properties) -> Scalar:
        value = inner(properties)
        if isinstance(value, Decimal):
            return value.copy_negate()  # unlike the operator it never rounds
        return -value if isinstance(value, int) and not isinstance(value, bool) else None

    return evaluate


def _not(inner: Evaluation) -> Evaluation:
    def evaluate(properties: Properties) -> Scalar:
        value = inner(properties)
        return None if value is None else not value

    return evaluate


def _all_of(parts: list[Evaluation]) -> Evaluation:
    def evaluate(properties: Properties) -> Scalar:
        result: Scalar = True
        for part in parts:
            value = part(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return evaluate


def _any_of(parts: list[Evaluation]) -> Evaluation:
    def evaluate(properties: Properties) -> Scalar:
        result: Scalar = False
        for part in parts:
            value = part(properties)
            if value is None:
                result = None
            elif value:
                return True
        return result

    return evaluate


def _equal(left: Node, right: Node) -> Evaluation:
    if isinstance(left, Property) and isinstance(right, Literal) and isinstance(right.value, str):
        name, text = left.name, right.value  # the usual case

        def is_text(properties: Properties) -> Scalar:
            value = properties.get(name)
            return None if value is None else value == text

        return is_text
    left_of, right_of = evaluation(left), evaluation(right)
    return lambda properties: _are_equal(left_of(properties), right_of(properties))


def _are_equal(left: Scalar, right: Scalar) -> Scalar:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if isinstance(left, str):
        return left == right if isinstance(right, str) else _is_as(left, right)
    if isinstance(right, str):
        return _is_as(right, left)
    return isinstance(left, bool) is isinstance(right, bool) and left == right


def _is_as(text: str, value: Number | bool) -> bool:
    """Return whether a text equals a value once it is converted to the value's type."""
    if isinstance(value, bool):
        return (len(text) == _TRUE_LENGTH and text.lower() == "true") is value
    return number_of(text) == value


def _order(compare: Callable[[Number, Number], bool], left_of: Evaluation, right_of: Evaluation) -> Evaluation:
    def evaluate(properties: Properties) -> Scalar:
        left, right = left_of(properties), right_of(properties)
        if left is None or right is None:
            return None
        if isinstance(left, str):
            left = number_of(left)
        if isinstance(right, str):
            right = number_of(right)
        return compare(left, right)

    return evaluate


def _in(node: In) -> Evaluation:
    name, values, is_negated = node.name, node.values, node.is_negated

    def evaluate(properties: Properties) -> Scalar:
        value = properties.get(name)
        return None if value is None else (value in values) is not is_negated

    return evaluate


def _search(node: Search) -> Evaluation:
    """Search a text. A value that is no text, or an empty search, is false with NOT and without."""
    find, text, is_negated, inner = node.find, node.text, node.is_negated, evaluation(node.operand)

    def evaluate(properties: Properties) -> Scalar:
        value = inner(properties)
        return isinstance(value, str) and text != "" and find(value, text) is not is_negated

    return evaluate
