"""What mypyc makes otherwise than Python, and mypy says nothing about, is not in modules that are compiled."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tools.compile import SOURCE, modules

COMPILED = modules(SOURCE / "services")


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
