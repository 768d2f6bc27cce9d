"""SQL92 filters: what they mean, what is refused and where, and that a second evaluator agrees."""

import contextlib
import operator
import time
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_common.errors import StatusError
from popwheel_common.filter.evaluation import evaluation
from popwheel_common.filter.lexer import LENGTH_MAX, TOKENS_MAX
from popwheel_common.filter.numbers import NUMBER_LENGTH_MAX, NotComparableError, number_of
from popwheel_common.filter.parser import DEPTH_MAX, parse
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.unit.common import naive_filter
from tests.unit.common.naive_filter import Tree, text_of


def value(expression: str, **properties: str) -> object:
    return evaluation(parse(expression))(properties)


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        # As RocketMQ's own tests have it.
        ("a=3 and b<>4 And c>5 AND d<=4", {"a": "3", "b": "5", "c": "6", "d": "1"}, True),
        ("a=3 and b<>4 And c>5 AND d<=4", {"a": "3", "b": "4", "c": "6", "d": "1"}, False),
        ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "5", "d": "4"}, True),
        ("a in ('3', '4', '5')", {"a": "3"}, True),
        ("a in ('3', '4', '5')", {"a": "03"}, False),
        ("a in ('3', '4', '5')", {}, None),
        ("a not in ('3', '4', '5')", {"a": "8"}, True),
        ("a not in ('3', '4', '5')", {}, None),
        ("a between 2 and 10", {"a": "10"}, True),
        ("a between 2 and 10", {"a": "1"}, False),
        ("a not between 2 and 10", {"a": "1"}, True),
        ("a is null", {}, True),
        ("a is null", {"a": ""}, False),
        ("a is not null and a='hello'", {"a": "hello"}, True),
        ("a=TRUE OR b=FALSE", {"a": "TRUE", "b": "x"}, True),
        ("a = false", {"a": "no"}, True),
        ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}, True),
        ("a contains 'x'", {"a": "axb"}, True),
        ("a not contains 'x'", {"a": "axb"}, False),
        ("a contains ''", {"a": "axb"}, False),
        ("a not contains ''", {"a": "axb"}, False),
        ("a not contains 'x'", {}, False),
        ("a startswith 'ax' and a EndsWith 'xb'", {"a": "axb"}, True),
        ("a not startswith 'x'", {"a": "axb"}, True),
        ("'axb' contains 'x'", {}, True),
        # Numbers.
        ("a > 5", {"a": "5.5"}, True),
        ("a > 5", {"a": "3000000000"}, True),
        ("a = 5.0", {"a": "5"}, True),
        ("a = 5L", {"a": "+5"}, True),
        ("a < -2 and a > -.3e1", {"a": "-2.5"}, True),
        ("a > b", {"a": "10", "b": "9"}, True),
        ("a = b", {"a": "10", "b": "10.0"}, False),
        ("3 < a", {"a": "4"}, True),
        ("a = 0.0", {"a": "0"}, True),
        ("-a > 3", {"a": "-5"}, None),
        ("1 = 1.0 and '1' = 1 and not (1 = TRUE)", {}, True),
        ("a >= 9007199254740993", {"a": "9007199254740992"}, False),
        # What is unknown.
        ("a > 3", {}, None),
        ("not (a > 3)", {}, None),
        ("a > 3 or b = 'x'", {"b": "x"}, True),
        ("a > 3 and b = 'x'", {"b": "y"}, False),
        ("a > 3 and b = 'x'", {"b": "x"}, None),
        ("a = b", {}, True),
        ("a = b", {"a": "1"}, False),
        ("a = b", {"b": "1"}, None),
        ("NULL or a = '1'", {"a": "1"}, True),
        ("null is null", {}, True),
        # A property alone is a text, and never true.
        ("a", {"a": "true"}, "true"),
        ("a or b", {"a": "true"}, None),
        ("a and TRUE", {"a": "true"}, False),
        ("not a and not (a)", {"a": "true"}, True),
        # What binds how.
        ("a = '1' or a = '2' and b = '3'", {"a": "1"}, True),
        ("(a = '1' or a = '2') and b = '3'", {"a": "1", "b": "4"}, False),
        ("a between 1 and 3 and b = '1'", {"a": "2", "b": "1"}, True),
        ("a = '1' = TRUE", {"a": "1"}, True),
        ("(a = '1') = b", {"a": "1", "b": "true"}, True),
        ("(NOT a) = FALSE", {"a": "1"}, False),
        ("+a in ('1') -- a comment", {"a": "1"}, True),
        ("a /* one ** comment */ = /**/ '--'", {"a": "--"}, True),
        ("$a_1 = 'ü'", {"$a_1": "ü"}, True),
        ("A = '1'", {"a": "1"}, None),
    ],
)
def test_what_filters_mean(expression: str, properties: Mapping[str, str], expected: object) -> None:
    found = evaluation(parse(expression))(properties)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("text", ["", " 1", "1 ", "many", "0x10", "1_0", "1e", ".", "NaN", "inf", "१", "--1", "1d"])
def test_what_is_no_number_has_no_answer(text: str) -> None:
    for expression in ("a = 1", "a > 1.5", "1 <> a", "a between 1 and 2", "a < b", "a > 1 or TRUE"):
        with pytest.raises(NotComparableError):
            value(expression, a=text, b="1")
    assert value("TRUE or a > 1", a=text) is True, "as in RocketMQ it is not asked for"


@pytest.mark.parametrize(
    "text", ["1" * 16_000 + "x", "9" * 16_000, "1" * 65, "." + "0" * 16_000 + "e", "1e" + "9" * 10]
)
def test_what_is_too_long_is_no_number_and_costs_nothing(text: str) -> None:
    began_s = time.thread_time()
    for _ in range(100):
        with pytest.raises(NotComparableError):
            number_of(text)
    assert time.thread_time() - began_s < 0.05


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        *(
            ("a = 9223372036854775807", each)
            for each in ("9223372036854775807", "9223372036854775807.0", "+9223372036854775807")
        ),
        ("a = 9223372036854775806 OR a = 9223372036854775807.00", "9223372036854775807"),
        ("a > 9223372036854775806 AND a < 9223372036854775807.5", "9223372036854775807"),
        ("a BETWEEN 1844674407370955161 AND 1844674407370955161", "1844674407370955161"),
        ("a NOT BETWEEN 1844674407370955160 AND 1844674407370955160", "1844674407370955161"),
        ("a IN ('1844674407370955161')", "1844674407370955161"),
        ("a = -9223372036854775807 AND a > -9223372036854775808.0", "-9223372036854775807"),
        ("a = - 12345678901234567890123456789012345678.5", "-12345678901234567890123456789012345678.5"),
        ("a < 9007199254740993 AND NOT (a = 9007199254740993)", "9007199254740992.9"),
        ("a = 0.1 AND a = 1e-1 AND a = .10", "0.1"),
        ("a > 0.1", "0.1000000000000000000001"),
        ("a < 9223372036854775807", "-1e999999999"),
    ],
)
def test_numbers_are_compared_exactly(expression: str, text: str) -> None:
    assert value(expression, a=text) is True


@settings(max_examples=300, deadline=None)
@given(
    left=st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.integers(-(2**63) + 1, 2**63 - 1),
    right=st.decimals(-(10**20), 10**20, allow_nan=False, allow_infinity=False, places=3) | st.integers(0, 2**63 - 1),
)
def test_any_two_numbers_are_compared_as_on_paper(left: Decimal | int, right: Decimal | int) -> None:
    text, written = (
        f"{left:f}" if isinstance(left, Decimal) else str(left),
        str(right) if isinstance(right, int) else f"{right:f}",
    )
    if len(text) > NUMBER_LENGTH_MAX:
        return
    exact, asked = Fraction(text), Fraction(written)
    for sign, compare in (
        ("<", operator.lt),
        ("<=", operator.le),
        (">", operator.gt),
        (">=", operator.ge),
        ("=", operator.eq),
    ):
        assert value(f"a {sign} {written}", a=text) is compare(exact, asked)


@pytest.mark.parametrize(
    ("expression", "position", "why"),
    [
        ("", 1, "ends too early"),
        ("   ", 4, "ends too early"),
        ("a =", 4, "ends too early"),
        ("*", 1, "'*' has no meaning"),
        ("a @ 3", 3, "'@' has no meaning"),
        ("a = 'x", 5, "has no end"),
        ("a = 3 LIMIT 5", 7, "'LIMIT' is not expected"),
        ("a LIKE 'x%'", 3, "there is no LIKE"),
        ("a = 007", 6, "'0' is not expected"),
        ("a = 1 AND", 10, "ends too early"),
        ("(a = 1", 7, "ends too early"),
        ("a > 'x'", 5, "only numbers"),
        ("a between 'a' and 'b'", 11, "only numbers"),
        ("(a = 1) > 3", 2, "only numbers"),
        ("a > TRUE", 5, "only numbers"),
        ("a = NULL", 5, "IS NULL"),
        ("NULL <> a", 1, "IS NULL"),
        ("TRUE = 'x'", 8, "TRUE and FALSE"),
        ("a between 5 and 2", 11, "nothing is between"),
        ("a in (1, 2)", 7, "'1' is not expected"),
        ("a in ()", 7, "is not expected"),
        ("'a' in ('a')", 1, "only a property"),
        ("NOT a = 1", 1, r"write NOT \(a = 1\)"),
        ("b = '1' and NOT a IS NULL", 13, r"write NOT \(a = 1\)"),
        ("not a contains 'x'", 1, r"write NOT \(a = 1\)"),
        ("3", 1, "a condition is needed"),
        ("a = 1 or 'x'", 10, "a condition is needed"),
        ("not -a", 5, "a condition is needed"),
        ("a = 9223372036854775808", 5, "whole numbers reach"),
        (f"a = {'9' * 3000}", 5, "whole numbers reach"),
        ("a = 1e999", 5, "too large"),
        ("a > 1e-99999999999999999999", 5, "too large an exponent"),
        ("b = 1 or a = 0e99999999999999999999", 14, "too large an exponent"),
        ("a between 0.0e+20000000000000000000 and 1", 11, "too large an exponent"),
        ("a = 1." + "0" * 63, 5, "at most 64 characters"),
        ("a IS NULL CONTAINS 'x'", 11, "'CONTAINS' is not expected"),
        ("a = 1 IS NULL > 2", 15, "'>' is not expected"),
        ("a BETWEEN 1 OR 2", 13, "'OR' is not expected"),
        ("a BETWEEN (1", 13, "ends too early"),
        ("a NOT = 1", 7, "'=' is not expected"),
        ("a = 1)", 6, "is not expected"),
        ("a contains b", 12, "'b' is not expected"),
    ],
)
def test_a_bad_filter_is_refused_with_its_position(expression: str, position: int, why: str) -> None:
    with pytest.raises(StatusError, match=why) as caught:
        parse(expression)
    assert caught.value.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert caught.value.message.startswith(f"at position {position} of the filter: ")


def test_limits() -> None:
    deep = "-" * 1 + " -" * (DEPTH_MAX - 3) + "a > 1"
    parse(deep)
    with pytest.raises(StatusError, match="nested more than"):
        parse("- " + deep)
    parse("(" * 200 + "a = 1" + ")" * 200)  # parentheses alone are no depth
    parse("a in (" + ",".join(["'x'"] * (TOKENS_MAX // 2 - 2)) + ")")
    with pytest.raises(StatusError, match=rf"at position \d+ of the filter: .* more than {TOKENS_MAX} names"):
        parse("a in (" + ",".join(["'x'"] * (TOKENS_MAX // 2)) + ")")
    with pytest.raises(StatusError, match=f"at most {LENGTH_MAX} are taken"):
        parse("a = 'x'" + " " * LENGTH_MAX)


@pytest.mark.parametrize(
    "part", ["(", "- ", "not ", "a and ", "a=1 or ", "'", "/*", "/**", "1.", "''", "a,", "=", "\x00", "ü"]
)
def test_odd_texts_end_soon(part: str) -> None:
    began = time.perf_counter()
    for text in (part * (LENGTH_MAX // len(part)), f"a = 1 {part * 2000}"[:LENGTH_MAX]):
        with pytest.raises(StatusError):
            parse(text)
    assert time.perf_counter() - began < 1.0


NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["", "1", "2", "-1", "1.5", "2.0", "1e1", "x", "xy", "yx", "it's", "true", "FALSE", "ü", " 1"])
NUMBERS = st.sampled_from([0, 1, 2, 10, 1.5, 2.0, 0.25])
PROPERTY = st.tuples(st.just("name"), NAMES)
LITERAL = st.tuples(st.just("value"), NUMBERS)
NUMBER: st.SearchStrategy[Tree] = st.one_of(PROPERTY, LITERAL, st.tuples(st.just("-"), st.one_of(PROPERTY, LITERAL)))
SCALAR: st.SearchStrategy[Tree] = st.one_of(NUMBER, st.tuples(st.just("value"), TEXTS | st.booleans()))
LISTS = st.lists(TEXTS, min_size=1, max_size=4)
SIGNS = st.sampled_from(["<", "<=", ">", ">="])
SEARCHES = st.sampled_from([f"{word}{how}" for word in ("", "NOT ") for how in ("CONTAINS", "STARTSWITH", "ENDSWITH")])


def conditions(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    either = inner | PROPERTY
    return st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), either, either),
        st.tuples(st.sampled_from(["AND", "OR"]), either, either, either),
        st.tuples(st.just("NOT"), either),
        st.tuples(st.sampled_from(["=", "<>"]), SCALAR | inner, SCALAR | inner),
        st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL"]), SCALAR | inner),
    )


SIMPLE = st.one_of(
    st.tuples(st.sampled_from(["=", "<>"]), PROPERTY, SCALAR),
    st.tuples(SIGNS, NUMBER, NUMBER),
    st.tuples(st.sampled_from(["BETWEEN", "NOT BETWEEN"]), NUMBER, NUMBER, NUMBER),
    st.tuples(st.sampled_from(["IN", "NOT IN"]), NAMES, LISTS),
    st.tuples(SEARCHES, SCALAR, st.tuples(st.just("value"), TEXTS)),
    st.tuples(st.just("value"), st.booleans() | st.none()),
)
TREES = st.recursive(SIMPLE, conditions, max_leaves=8)


@settings(max_examples=600, deadline=None)
@given(tree=TREES, properties=st.lists(st.dictionaries(NAMES, TEXTS, max_size=3), min_size=1, max_size=6))
def test_a_second_evaluator_agrees(tree: Tree, properties: list[dict[str, str]]) -> None:
    expression = text_of(tree)
    try:
        evaluate = evaluation(parse(expression))
    except StatusError as refusal:
        assert any(why in refusal.message for why in ("nothing equals NULL", "TRUE and FALSE", "nothing is between"))
        return
    for each in properties:
        try:
            passes = evaluate(each) is True
        except NotComparableError:
            passes = False
        assert passes == naive_filter.passes(tree, each), (expression, each)


EXPONENTS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["0", "1", "0.0", ".5"]),
    st.sampled_from("eE"),
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 10**20 - 1),
)
WORDS = EXPONENTS | st.sampled_from(
    [
        *("a", "b", "1", "2.5", "3L", "1e5", "'x'", "''", "NULL", "TRUE", "not", "AND", "or", "IN", "BETWEEN", "IS"),
        *("CONTAINS", "ENDSWITH", "(", ")", "=", "<>", "<", ">=", "-", "+", ",", "--", "/*", "*/", ".", "'"),
        *("ü", "\n", "\x00"),
    ]
)


@settings(max_examples=400, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=60), st.lists(WORDS, max_size=20).map(" ".join), EXPONENTS.map("a > {} OR b = 1".format)
    )
)
def test_any_text_is_a_filter_or_is_refused_with_a_position(text: str) -> None:
    try:
        evaluate = evaluation(parse(text))
    except StatusError as refusal:
        assert refusal.code == Code.ILLEGAL_FILTER_EXPRESSION
        assert refusal.message.startswith("at position ")
        return
    for properties in ({}, {"a": "1", "b": "x"}):
        with contextlib.suppress(NotComparableError):
            evaluate(properties)
