"""Cuts the text of an SQL92 filter into tokens. Its time is proportional to the text, whatever that is."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from popwheel_common.contract.names import shown
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

LENGTH_MAX = 4096
"""Characters of an expression."""
TOKENS_MAX = 1000
"""Names, values, operators and parentheses of an expression: they bound the time for it, and for each message."""

END = "the end"
"""Kind of the token behind the last one."""
_SEARCHES = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))
_KEYWORDS = frozenset(("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE"))
_ORDERS = frozenset((">=", "<=", ">", "<"))
_TOKEN = re.compile(
    r"(?P<SPACE>[ \t\n\r\f]++|--[^\n\r]*+|/\*[^*]*+\*++(?:[^/*][^*]*+\*++)*/)"
    r"|(?P<TEXT>'(?:''|[^'])*+')"
    r"|(?P<FLOAT>(?:[0-9]++\.[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++)"
    r"|(?P<WHOLE>0|[1-9][0-9]*+[lL]?+)"
    r"|(?P<NAME>[a-zA-Z_$][a-zA-Z0-9_$]*+)"
    r"|(?P<SIGN><>|>=|<=|[<>=(),+-])"
)
"""No part backtracks far, so no character is read more than a few times.

No group of several parts is possessive: Python before 3.11.5 misreads those.
"""


class Token(NamedTuple):
    """A word, value or sign of a filter.

    Args:
        kind: `TEXT`, `FLOAT`, `WHOLE`, `NAME`, `SEARCH`, `ORDER`, `END`, a keyword in capitals, or a sign itself.
        text: as it is written.
        position: of its first character, from 1.
    """

    kind: str
    text: str
    position: int


def tokens_of(expression: str) -> Iterator[Token]:
    """Yield the tokens of a filter, and one of the kind `END`.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION, with the position of what is none, or of one too many.
    """
    at = count = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise refusal_at(at + 1, _unreadable(expression[at]))
        kind = found.lastgroup or ""
        if kind != "SPACE":
            count += 1
            if count > TOKENS_MAX:
                raise refusal_at(at + 1, f"the filter has more than {TOKENS_MAX} names, values and operators")
            text = found[0]
            yield Token(_kind(kind, text), text, at + 1)
        at = found.end()
    yield Token(END, "", len(expression) + 1)


def refusal_at(position: int, why: str) -> StatusError:
    """Return the refusal of a filter, with the position of what is wrong."""
    return refusal(f"at position {position} of the filter: {why}")


def refusal(why: str) -> StatusError:
    """Return the refusal of a filter."""
    return StatusError(Code.ILLEGAL_FILTER_EXPRESSION, why)


def _kind(kind: str, text: str) -> str:
    if kind == "NAME":
        word = text.upper()
        if word in _KEYWORDS:
            return word
        return "SEARCH" if word in _SEARCHES else kind
    if kind == "SIGN":
        return "ORDER" if text in _ORDERS else text
    return kind


def _unreadable(character: str) -> str:
    if character == "'":
        return "the text that begins here has no end; a quote in a text is written twice"
    return f"{shown(character)} has no meaning here"
