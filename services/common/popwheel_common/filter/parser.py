"""Parser of SQL92 filters to nodes, by RocketMQ's grammar.

The grammar is that of RocketMQ's selector, from what binds least to what binds most:

    any_of:     all_of (OR all_of)*
    all_of:     equality (AND equality)*
    equality:   comparison ("=" comparison | "<>" comparison | IS [NOT] NULL)*
    comparison: unary (ORDER unary | [NOT] BETWEEN unary AND unary | [NOT] SEARCH TEXT
                       | [NOT] IN "(" TEXT ("," TEXT)* ")")*
    unary:      (NOT | "+" | "-")* (TEXT | FLOAT | WHOLE | TRUE | FALSE | NULL | NAME | "(" any_of ")")

`NOT`, `+` and `-` bind more tightly than comparisons. So `NOT a = 1` would mean `(NOT a) = 1` there, which is never
true, and `NOT a IS NULL` the contrary of what it says. Both are refused.

Operators and operands wait on two stacks: no nesting is too deep, and the time is proportional to the text.
"""

from functools import lru_cache
from typing import NamedTuple

from popwheel_common.contract.names import shown
from popwheel_common.errors import StatusError
from popwheel_common.filter import conditions
from popwheel_common.filter.lexer import END, LENGTH_MAX, Token, refusal, refusal_at, tokens_of
from popwheel_common.filter.node import Node, operands

DEPTH_MAX = 32
"""Limit of nested operators."""
SHORT = 256
"""Characters of an expression whose parsed form is small; fewer of the longer ones are cached."""

_OPEN, _HIGH = "(", "the higher end of BETWEEN"
_BINDS = {_OPEN: 0, "OR": 1, "AND": 2, "=": 3, "<>": 3}
"""Ranks of operators that wait for what follows their right operand; all others bind to the next operand."""
_TIGHT = frozenset(("NOT", "+", "-", "ORDER", _HIGH))
_BEFORE_OPERAND = frozenset(("NOT", "+", "-", _OPEN))


class _Operator(NamedTuple):
    """An operator whose right operand is not complete; `is_negated` if NOT stands before BETWEEN."""

    kind: str
    token: Token
    is_negated: bool = False


def parse(expression: str) -> Node:
    """Return the condition that an SQL92 filter states.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION, with the position of what is wrong.
    """
    if len(expression) > LENGTH_MAX:
        raise refusal(f"the filter has {len(expression)} characters, at most {LENGTH_MAX} are taken")
    return _parsed(expression) if len(expression) <= SHORT else _parsed_long(expression)


def _parse(expression: str) -> Node:
    condition = conditions.condition(_Parser(expression).parse())
    _check_depth(condition)
    return condition


_parsed = lru_cache(maxsize=1024)(_parse)
_parsed_long = lru_cache(maxsize=64)(_parse)


class _Parser:
    def __init__(self, expression: str) -> None:
        self._tokens = tokens_of(expression)
        self._operands: list[Node] = []
        self._operators: list[_Operator] = []

    def parse(self) -> Node:
        """Return the whole expression. Raises StatusError: ILLEGAL_FILTER_EXPRESSION."""
        self._read_operand()
        while self._read_operator():
            self._read_operand()
        return self._operands[0]

    def _next(self, *kinds: str) -> Token:
        """Return the next token, which must be of one of these kinds, if any are named."""
        token = next(self._tokens)
        if kinds and token.kind not in kinds:
            raise _unexpected(token)
        return token

    def _read_operand(self) -> None:
        """Read on to the end of an operand, which signs, NOT and parentheses may precede."""
        while (token := self._next()).kind in _BEFORE_OPERAND:
            self._operators.append(_Operator(token.kind, token))
        operand = conditions.value(token)
        if operand is None:
            raise _unexpected(token)
        self._operands.append(operand)
        self._apply_tight()

    def _read_operator(self) -> bool:
        """Read on to an operator that needs one more operand; False if there is none."""
        is_equality = False
        while True:
            token = self._next()
            kind = token.kind
            if self._operators and self._operators[-1].kind == "BETWEEN":
                if kind != "AND":
                    raise _unexpected(token)
                self._operators.append(_Operator(_HIGH, token))
                return True
            if kind in _BINDS and kind != _OPEN:
                self._apply(_BINDS[kind] - (_BINDS[kind] == _BINDS["="]))
                self._operators.append(_Operator(kind, token))
                return True
            if kind == ")" or kind == END:
                self._apply(_BINDS[_OPEN])
                if bool(self._operators) is (kind == END):
                    raise _unexpected(token)
                if kind == END:
                    return False
                self._operators.pop()
                self._operands[-1] = conditions.bracketed(self._operands[-1])
                self._apply_tight()
                is_equality = False
            elif kind == "IS":
                self._apply(_BINDS["="] - 1)
                is_negated = self._next("NOT", "NULL").kind == "NOT"
                if is_negated:
                    self._next("NULL")
                self._operands[-1] = conditions.is_null(self._operands[-1], is_negated=is_negated)
                is_equality = True
            elif is_equality:
                raise _unexpected(token)
            elif self._read_comparison(token):
                return True

    def _read_comparison(self, token: Token) -> bool:
        """Read on from a comparison, or from NOT before one; whether it needs one more operand."""
        is_negated = token.kind == "NOT"
        how = self._next("BETWEEN", "SEARCH", "IN") if is_negated else token
        if how.kind in ("ORDER", "BETWEEN"):
            self._operators.append(_Operator(how.kind, how, is_negated))
            return True
        if how.kind == "SEARCH":
            text = self._next("TEXT")
            self._operands[-1] = conditions.search(self._operands[-1], how, text, is_negated=is_negated)
        elif how.kind == "IN":
            self._next("(")
            texts = [self._next("TEXT")]
            while self._next(",", ")").kind == ",":
                texts.append(self._next("TEXT"))
            self._operands[-1] = conditions.is_in(self._operands[-1], texts, is_negated=is_negated)
        else:
            raise _unexpected(how)
        return False

    def _apply_tight(self) -> None:
        """Apply the operators whose right operand has just been completed."""
        while self._operators and self._operators[-1].kind in _TIGHT:
            kind, token, _ = self._operators.pop()
            operand = self._operands.pop()
            if kind == "NOT":
                made = conditions.negation(operand, token.position)
            elif kind == "-":
                made = conditions.negated(operand, token.position)
            elif kind == "ORDER":
                made = conditions.order(self._operands.pop(), token.text, operand)
            elif kind == _HIGH:
                low = self._operands.pop()
                is_negated = self._operators.pop().is_negated
                made = conditions.between(self._operands.pop(), low, operand, is_negated=is_negated)
            else:
                made = operand
            self._operands.append(made)

    def _apply(self, binds: int) -> None:
        """Apply the operators that bind more tightly than what was read."""
        while self._operators and _BINDS[self._operators[-1].kind] > binds:
            kind = self._operators[-1].kind
            count = 0
            while self._operators and self._operators[-1].kind == kind:
                self._operators.pop()
                count += 1
            parts = self._operands[-count - 1 :]
            del self._operands[-count - 1 :]
            self._operands.append(_made(kind, parts))


def _made(kind: str, parts: list[Node]) -> Node:
    if kind == "OR":
        return conditions.any_of(parts)
    if kind == "AND":
        return conditions.all_of(parts)
    left, right = parts  # these are applied one at a time
    return conditions.equal(left, right) if kind == "=" else conditions.unequal(left, right)


def _check_depth(node: Node) -> None:
    level, depth = [node], 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise refusal_at(level[0].position, f"the filter is nested more than {DEPTH_MAX} deep")
        level = [inner for outer in level for inner in operands(outer)]


def _unexpected(token: Token) -> StatusError:
    if token.kind == END:
        return refusal_at(token.position, "the filter ends too early")
    if token.text.upper() == "LIKE":
        return refusal_at(token.position, "there is no LIKE; use CONTAINS, STARTSWITH or ENDSWITH")
    return refusal_at(token.position, f"{shown(token.text)} is not expected here")
