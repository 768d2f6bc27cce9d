"""A second evaluator of SQL92 filters, written from RocketMQ's rules and not from ours: slow, plain, with decimals.

A filter is a tree of tuples here, `(operator, part, ...)`; `text_of` writes it as a consumer would.
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

Tree = tuple[Any, ...]


class NoAnswerError(Exception):
    """A text that is no number is to be one."""


def text_of(tree: Tree) -> str:
    """The expression; whatever is part of something else is in parentheses if it is not a single word."""
    match tree:
        case ("name", name):
            return str(name)
        case ("value", None):
            return "NULL"
        case ("value", bool(value)):
            return str(value).upper()
        case ("value", str(value)):
            return "'" + value.replace("'", "''") + "'"
        case ("value", value):
            return str(value)
        case ("AND" | "OR" as word, *parts):
            return f" {word} ".join(f"({text_of(part)})" for part in parts)
        case ("NOT", part):
            return f"NOT ({text_of(part)})"
        case ("-", part):
            return f"- ({text_of(part)})"
        case ("IS NULL" | "IS NOT NULL" as words, part):
            return f"({text_of(part)}) {words}"
        case ("IN" | "NOT IN" as words, name, texts):
            return f"{name} {words} ({', '.join(text_of(('value', text)) for text in texts)})"
        case ("BETWEEN" | "NOT BETWEEN" as words, part, low, high):
            return f"({text_of(part)}) {words} ({text_of(low)}) AND ({text_of(high)})"
        case ("<" | "<=" | ">" | ">=" | "=" | "<>" as sign, left, right):
            return f"({text_of(left)}) {sign} ({text_of(right)})"
        case (words, part, text):
            return f"({text_of(part)}) {words} {text_of(text)}"
    raise AssertionError(tree)


def passes(tree: Tree, properties: Mapping[str, str]) -> bool:
    """Whether a message with these properties passes."""
    try:
        return value_of(tree, properties) is True
    except NoAnswerError:
        return False


def value_of(tree: Tree, properties: Mapping[str, str]) -> Any:
    """What a tree is: a text, a decimal, a truth value, or None."""
    match tree:
        case ("name", name):
            return properties.get(name)
        case ("value", value):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return Decimal(str(value)) if is_number else value
        case ("AND", *parts):
            return _and([_lazy(part, properties) for part in parts])
        case ("OR", *parts):
            return _opposite(_and([_lazy(("NOT", part), properties) for part in parts]))
        case ("NOT", part):
            return _opposite(_lazy(part, properties)())
        case ("-", part):
            value = value_of(part, properties)
            return -value if isinstance(value, Decimal) else None
        case ("IS NULL", part):
            return value_of(part, properties) is None
        case ("IS NOT NULL", part):
            return value_of(part, properties) is not None
        case ("IN", name, texts):
            return None if name not in properties else properties[name] in texts
        case ("NOT IN", name, texts):
            return None if name not in properties else properties[name] not in texts
        case ("BETWEEN", part, low, high):
            return value_of(("AND", (">=", part, low), ("<=", part, high)), properties)
        case ("NOT BETWEEN", part, low, high):
            return value_of(("OR", ("<", part, low), (">", part, high)), properties)
        case ("=", left, right):
            return _equal(value_of(left, properties), value_of(right, properties))
        case ("<>", left, right):
            return _opposite(_equal(value_of(left, properties), value_of(right, properties)))
        case ("<" | "<=" | ">" | ">=" as sign, left, right):
            values = [value_of(left, properties), value_of(right, properties)]
            if None in values:
                return None
            first, second = (_decimal(value) if isinstance(value, str) else value for value in values)
            return {"<": first < second, "<=": first <= second, ">": first > second, ">=": first >= second}[sign]
        case (words, part, text):
            value = value_of(part, properties)
            if not isinstance(value, str) or not text[1]:
                return False
            parts = [value[begin : begin + len(text[1])] for begin in range(len(value) - len(text[1]) + 1)]
            where = {"CONTAINS": parts, "STARTSWITH": parts[:1], "ENDSWITH": parts[-1:]}[words.removeprefix("NOT ")]
            return (text[1] in where) != words.startswith("NOT ")
    raise AssertionError(tree)


def _lazy(tree: Tree, properties: Mapping[str, str]) -> Any:
    """A truth value, found out when it is needed: a text is never true."""

    def value() -> Any:
        found = value_of(tree, properties)
        return False if isinstance(found, str) else found

    return value


def _and(parts: Any) -> Any:
    known = []
    for part in parts:
        known.append(part())
        if known[-1] is False:
            return False
    return None if None in known else True


def _opposite(value: Any) -> Any:
    return None if value is None else not value


def _equal(left: Any, right: Any) -> Any:
    if left is None and right is not None:
        return None
    if isinstance(right, str) and not isinstance(left, str):
        left, right = right, left
    if isinstance(left, str) and isinstance(right, bool):
        left = left.lower() == "true"
    elif isinstance(left, str) and isinstance(right, Decimal):
        left = _decimal(left)
    return type(left) is type(right) and left == right


def _decimal(text: str) -> Decimal:
    if not text.isascii() or text != text.strip() or "_" in text or text.lstrip("+-")[:1] not in tuple("0123456789."):
        raise NoAnswerError
    try:
        return Decimal(text)
    except InvalidOperation:
        raise NoAnswerError from None
