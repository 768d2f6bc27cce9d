"""From the text of an SQL92 filter to its nodes, with RocketMQ's rules for what may stand where.

The grammar is that of RocketMQ's selector: `NOT`, `+` and `-` bind more tightly than comparisons. So `NOT a = 1` would
mean `(NOT a) = 1` there, which is never true, and `NOT a IS NULL` the contrary of what it says. Both are refused here.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeGuard

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from services.common.contract.names import shown
from services.common.errors import StatusError
from services.common.filter.node import (
    AllOf,
    AnyOf,
    Equal,
    In,
    IsNull,
    Literal,
    Negated,
    Node,
    Not,
    Order,
    Property,
    Search,
    is_condition,
    operands,
)
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code

LENGTH_MAX = 4096
"""Characters of an expression."""
TOKENS_MAX = 1000
"""Names, values, operators and parentheses of an expression: they bound the time for it, and for each message."""
DEPTH_MAX = 32
"""How deeply operators may be nested."""

_SHORT = 256
"""Characters of an expression whose parsed form is small; of longer ones fewer are kept in mind."""
_WHOLE_MAX = 2**63 - 1

_KEYWORDS = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_GRAMMAR = rf"""
start: any_of
?any_of: all_of (OR all_of)*
?all_of: equality (AND equality)*
?equality: comparison
    | equality "=" comparison -> equal
    | equality _UNEQUAL comparison -> unequal
    | equality IS NULL -> is_null
    | equality IS NOT NULL -> is_not_null
?comparison: unary
    | comparison ORDER unary -> order
    | comparison BETWEEN unary AND unary -> between
    | comparison NOT BETWEEN unary AND unary -> not_between
    | comparison SEARCH TEXT -> search
    | comparison NOT SEARCH TEXT -> not_search
    | comparison IN "(" TEXT ("," TEXT)* ")" -> in_list
    | comparison NOT IN "(" TEXT ("," TEXT)* ")" -> not_in_list
?unary: primary
    | "+" unary -> plus
    | MINUS unary -> negated
    | NOT unary -> negation
?primary: TEXT -> text
    | FLOAT -> fraction
    | WHOLE -> whole
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | NAME -> name
    | "(" any_of ")" -> bracketed

_UNEQUAL.2: "<>"
ORDER: ">=" | "<=" | ">" | "<"
MINUS: "-"
TEXT: /'(?:''|[^'])*'/
FLOAT.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
WHOLE: /0|[1-9][0-9]*[lL]?/
NAME: /[a-zA-Z_$][a-zA-Z0-9_$]*/
LINE_COMMENT.3: /--[^\n\r]*/
BLOCK_COMMENT.3: /\/\*(?:[^*]|\*(?!\/))*\*\//
SPACE: /[ \t\n\r\f]+/
%declare {" ".join(sorted(_KEYWORDS - {"CONTAINS", "STARTSWITH", "ENDSWITH"}))} SEARCH
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
%ignore SPACE
"""

_ORDERS: dict[str, Callable[[int | float, int | float], bool]] = {
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


def parse(expression: str) -> Node:
    """The condition that an SQL92 filter states.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION, with the position of what is wrong.
    """
    if len(expression) > LENGTH_MAX:
        raise _refusal(f"the filter has {len(expression)} characters, at most {LENGTH_MAX} are taken")
    return _parsed(expression) if len(expression) <= _SHORT else _parsed_long(expression)


def _parse(expression: str) -> Node:
    try:
        parsing = _parser().parse_interactive(expression)
        for count, token in enumerate(parsing.iter_parse()):
            if count == TOKENS_MAX:
                raise _refusal_at(
                    _position(token), f"the filter has more than {TOKENS_MAX} names, values and operators"
                )
        found: Node = parsing.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedCharacters as error:
        begin = error.pos_in_stream or 0
        raise _refusal_at(begin + 1, _unreadable(expression[begin:])) from None
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise _refusal_at(len(expression) + 1, "the filter ends too early") from None
        raise _refusal_at(_position(error.token), _unexpected(error.token)) from None
    condition = _condition(found)
    _check_depth(condition)
    return condition


_parsed = lru_cache(maxsize=1024)(_parse)
_parsed_long = lru_cache(maxsize=64)(_parse)


class _Builder(Transformer[Token, Node]):
    """Makes nodes while the parser goes."""

    def start(self, node: Node) -> Node:
        return node

    def any_of(self, *parts: Node | Token) -> Node:
        operands = tuple(_condition(each) for each in parts if not isinstance(each, Token))
        return AnyOf(operands, operands[0].position)

    def all_of(self, *parts: Node | Token) -> Node:
        operands = tuple(_condition(each) for each in parts if not isinstance(each, Token))
        return AllOf(operands, operands[0].position)

    def equal(self, left: Node, right: Node) -> Node:
        _check_left(left)
        for each in (left, right):
            if isinstance(each, Literal) and each.value is None:
                raise _refusal_at(each.position, "nothing equals NULL; write IS NULL or IS NOT NULL")
        if _is_constant(left) and isinstance(right, Literal) and not _is_constant(right):
            raise _refusal_at(right.position, "TRUE and FALSE are compared with properties and conditions only")
        return Equal(left, right, left.position)

    def unequal(self, left: Node, right: Node) -> Node:
        return Not(self.equal(left, right), left.position, is_bare=False)

    def is_null(self, operand: Node, *_: Token) -> Node:
        _check_left(operand)
        return IsNull(operand, operand.position)

    def is_not_null(self, operand: Node, *_: Token) -> Node:
        return Not(self.is_null(operand), operand.position, is_bare=False)

    def order(self, left: Node, sign: Token, right: Node) -> Node:
        return _order(left, str(sign), right)

    def between(self, operand: Node, _: Token, low: Node, __: Token, high: Node) -> Node:
        lowest, highest = (each.value if isinstance(each, Literal) else None for each in (low, high))
        if _is_number(lowest) and _is_number(highest) and highest < lowest:
            raise _refusal_at(low.position, "nothing is between these, as the first is above the second")
        return AllOf((_order(operand, ">=", low), _order(operand, "<=", high)), operand.position)

    def not_between(self, operand: Node, _: Token, __: Token, low: Node, ___: Token, high: Node) -> Node:
        return AnyOf((_order(operand, "<", low), _order(operand, ">", high)), operand.position)

    def search(self, operand: Node, how: Token, text: Token) -> Node:
        return _search(operand, how, text, is_negated=False)

    def not_search(self, operand: Node, _: Token, how: Token, text: Token) -> Node:
        return _search(operand, how, text, is_negated=True)

    def in_list(self, operand: Node, _: Token, *texts: Token) -> Node:
        return _in(operand, texts, is_negated=False)

    def not_in_list(self, operand: Node, _: Token, __: Token, *texts: Token) -> Node:
        return _in(operand, texts, is_negated=True)

    def plus(self, operand: Node) -> Node:
        return operand

    def negated(self, sign: Token, operand: Node) -> Node:
        return Negated(operand, _position(sign))

    def negation(self, word: Token, operand: Node) -> Node:
        return Not(_condition(operand), _position(word))

    def bracketed(self, node: Node) -> Node:
        return replace(node, is_bare=False) if isinstance(node, Not) else node

    def text(self, token: Token) -> Node:
        return Literal(_text(token), _position(token))

    def whole(self, token: Token) -> Node:
        digits = token.rstrip("lL")
        # The length first: to read a very long number takes long.
        if len(digits) > len(str(_WHOLE_MAX)) or int(digits) > _WHOLE_MAX:
            raise _refusal_at(_position(token), f"whole numbers reach up to {_WHOLE_MAX}; write {digits[:30]}.0")
        return Literal(int(digits), _position(token))

    def fraction(self, token: Token) -> Node:
        value = float(token)
        if math.isinf(value):
            raise _refusal_at(_position(token), "the number is too large")
        return Literal(value, _position(token))

    def true(self, token: Token) -> Node:
        return Literal(True, _position(token))

    def false(self, token: Token) -> Node:
        return Literal(False, _position(token))

    def null(self, token: Token) -> Node:
        return Literal(None, _position(token))

    def name(self, token: Token) -> Node:
        return Property(str(token), _position(token))


def _word(token: Token) -> Token:
    """A name, or the keyword that it is in whatever case."""
    word = token.upper()
    if word in _SEARCHES:
        token.type = "SEARCH"
    elif word in _KEYWORDS:
        token.type = word
    return token


@lru_cache(maxsize=1)
def _parser() -> Lark:
    """Made when it is needed first: most processes never see such a filter."""
    return Lark(
        _GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=v_args(inline=True)(_Builder)(),
        lexer_callbacks={"NAME": _word},
        keep_all_tokens=False,
    )


def _condition(node: Node) -> Node:
    """A node that stands where something must be true or false; a property alone is never true, as in RocketMQ."""
    if isinstance(node, Property) or is_condition(node):
        return node
    raise _refusal_at(node.position, "a condition is needed here, such as a comparison")


def _check_left(node: Node) -> None:
    if isinstance(node, Not) and node.is_bare:
        raise _refusal_at(node.position, "NOT binds more tightly than comparisons; write NOT (a = 1) or (NOT a) = 1")


def _order(left: Node, sign: str, right: Node) -> Node:
    for each in (left, right):
        if is_condition(each) or (isinstance(each, Literal) and not _is_number(each.value)):
            raise _refusal_at(each.position, f"only numbers and properties are compared by {sign} and BETWEEN")
    return Order(_ORDERS[sign], left, right, left.position)


def _search(operand: Node, how: Token, text: Token, is_negated: bool) -> Node:
    _check_left(operand)
    return Search(_SEARCHES[how.upper()], operand, _text(text), is_negated, operand.position)


def _in(operand: Node, texts: Sequence[Token], is_negated: bool) -> Node:
    if not isinstance(operand, Property):
        raise _refusal_at(operand.position, "only a property can be IN a list")
    return In(operand.name, frozenset(map(_text, texts)), is_negated, operand.position)


def _is_constant(node: Node) -> bool:
    return isinstance(node, Literal) and isinstance(node.value, bool)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _position(token: Token) -> int:
    return (token.start_pos or 0) + 1


def _check_depth(node: Node) -> None:
    level, depth = [node], 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise _refusal_at(level[0].position, f"the filter is nested more than {DEPTH_MAX} deep")
        level = [inner for outer in level for inner in operands(outer)]


def _unreadable(rest: str) -> str:
    if rest[0] == "'":
        return "the text that begins here has no end; a quote in a text is written twice"
    return f"{shown(rest[0])} has no meaning here"


def _unexpected(token: Token) -> str:
    if token.upper() == "LIKE":
        return "there is no LIKE; use CONTAINS, STARTSWITH or ENDSWITH"
    return f"{shown(str(token))} is not expected here"


def _refusal_at(position: int, why: str) -> StatusError:
    return _refusal(f"at position {position} of the filter: {why}")


def _refusal(why: str) -> StatusError:
    return StatusError(Code.ILLEGAL_FILTER_EXPRESSION, why)
