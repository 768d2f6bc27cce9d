"""What mypyc makes otherwise than Python, and mypy says nothing about, is not in modules that are compiled."""

import ast
import dataclasses
import inspect
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tools.compile import SOURCE, modules, with_initializers

COMPILED = modules()


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_each_name_of_an_exception_has_one_type(path: Path) -> None:
    """mypyc gives a function's variable one type: a second `except ... as error` of another one is a TypeError."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        kinds: dict[str, set[str]] = defaultdict(set)
        for each in ast.walk(function):
            if isinstance(each, ast.ExceptHandler) and each.name is not None and each.type is not None:
                kinds[each.name].add(ast.unparse(each.type))
        assert [name for name, types in kinds.items() if len(types) > 1] == [], function.name


SUSPENDS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)


def suspended_behind_exceptions(source: str) -> list[int]:
    """Return the lines of what is suspended within `except` or `finally`."""
    parts = [
        part
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.Try)
        for part in (*each.handlers, *each.finalbody)
    ]
    return sorted({node.lineno for part in parts for node in ast.walk(part) if isinstance(node, SUSPENDS)})


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_suspended_within_except_or_finally(path: Path) -> None:
    """mypyc has one place in a thread for the exception that is handled, where Python has one for each coroutine."""
    assert suspended_behind_exceptions(path.read_text(encoding="utf-8")) == []


def test_what_is_suspended_within_except_or_finally_is_seen() -> None:
    source = """
async def work() -> None:
    try:
        await one()
    except OSError:
        await two()
    else:
        await three()
    try:
        await four()
    finally:
        async with five():
            pass
"""
    assert suspended_behind_exceptions(source) == [6, 12]


PLAIN = """
@dataclass(slots=True, eq=False)
class Plain:
    name: str
    numbers: Sequence[int] = ()
    '''What it holds.'''
    is_new: bool = False

    @property
    def size(self) -> int:
        return len(self.numbers)
"""
MADE = """
@dataclass(slots=True)
class Made:
    name: str
    names: list[str] = field(default_factory=list)
    one: tuple[int, ...] = field(default_factory=lambda: (1,))
    seen: set[str] = field(default_factory=set)
    size: int = 0

    def __post_init__(self) -> None:
        self.size = len(self.names)
"""
OTHERS = """
@dataclass(frozen=True, slots=True)
class Frozen:
    name: str


@dataclass(slots=True)
class Shown:
    name: str = field(default="", repr=False)


@dataclass(slots=True)
class Quoted:
    names: "list[str]" = field(default_factory=list)


@dataclass(slots=True)
class Derived(Base):
    name: str


class Ordinary:
    name: str
"""


def classes_of(source: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec("from collections.abc import Sequence\nfrom dataclasses import dataclass, field\n" + source, found)
    return found


def test_a_dataclass_has_the_same_initializer_written_out() -> None:
    before, after = classes_of(PLAIN)["Plain"], classes_of(with_initializers(PLAIN))["Plain"]
    assert "def __init__" in with_initializers(PLAIN)
    assert with_initializers(PLAIN).count("\n") == PLAIN.count("\n") + 1, "at the end of a file there is no blank line"
    assert inspect.signature(before) == inspect.signature(after)
    assert [each.name for each in dataclasses.fields(before)] == [each.name for each in dataclasses.fields(after)]
    for words in (("a",), ("a", (1, 2)), ("a", (1, 2), True)):
        assert repr(before(*words)) == repr(after(*words))
    assert after("a", (1, 2)).size == 2
    assert after("a") != after("a"), "what else the decorator says still holds"


def test_factories_and_what_follows_the_initializer_are_written_out() -> None:
    before, after = classes_of(MADE)["Made"], classes_of(with_initializers(MADE))["Made"]
    assert "def __init__" in with_initializers(MADE)
    for given in ({}, {"names": ["b", "c"]}, {"one": (), "seen": {"d"}}):
        assert repr(before("a", **given)) == repr(after("a", **given))
    assert after("a").names is not after("a").names


def test_other_classes_stay_as_they_are() -> None:
    assert with_initializers(OTHERS) == OTHERS


def test_initializers_are_written_for_what_each_call_makes() -> None:
    for name, made in (
        ("services/rpc/popwheel_rpc/http2/events.py", 11),
        ("services/rpc/popwheel_rpc/http2/headers.py", 2),
        ("services/common/popwheel_common/contract/put.py", 2),
        ("services/proxy/popwheel_proxy/send/batcher.py", 1),
        ("services/rpc/popwheel_rpc/service.py", 2),
        ("services/broker/popwheel_broker/consume/delivery.py", 1),
        ("services/common/popwheel_common/contract/pop_answer.py", 1),
    ):
        assert SOURCE / name in COMPILED
        source = (SOURCE / name).read_text(encoding="utf-8")
        written = with_initializers(source)
        assert written.count("@dataclass(init=False") == made, name
        places = [number for number, line in enumerate(source.splitlines()) if line.startswith(("class ", "def "))]
        lines = written.splitlines()
        assert all(lines[number] == source.splitlines()[number] for number in places), "lines keep their numbers"


def test_a_module_that_would_stay_interpreted_unseen_is_refused(tmp_path: Path) -> None:
    module = tmp_path / "popwheel_broker" / "log" / "commit_log.py"
    module.parent.mkdir(parents=True)
    module.write_text("import numpy as np\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"commit_log\.py"):
        modules([tmp_path / "popwheel_broker"])
