"""Whether compiled modules are tested (`make test-compiled`), and what tests can't do then.

Compiled code calls what its source names, and never looks whether a test has put something else there. Such a test
would show nothing. It is skipped, and runs where the same source is not compiled.
"""

import sys
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from popwheel_rpc.http2 import connection


def is_compiled() -> bool:
    """Whether the modules that can be compiled are."""
    return not (connection.__file__ or "").endswith(".py")


def skip_replacements(patch: pytest.MonkeyPatch) -> None:
    """Have tests skipped that replace parts of compiled modules by pytest's or the standard library's means.

    Args:
        patch: undoes it.
    """
    replace_one = pytest.MonkeyPatch.setattr

    def checked(self: pytest.MonkeyPatch, target: Any, *arguments: Any, **options: Any) -> None:
        _check(target)
        replace_one(self, target, *arguments, **options)

    patch.setattr(pytest.MonkeyPatch, "setattr", checked)
    kind: Any = type(mock.patch("sys.path"))
    enter = kind.__enter__

    def entered(self: Any) -> Any:
        _check(self.getter())
        return enter(self)

    patch.setattr(kind, "__enter__", entered)


def _check(target: Any) -> None:
    """Skip the running test if it replaces something within a compiled module."""
    if isinstance(target, str):
        parts = target.split(".")
        names = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
        name = next((each for each in names if each in sys.modules), "")
    elif isinstance(target, ModuleType):
        name = target.__name__
    else:
        name = (target if isinstance(target, type) else type(target)).__module__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    if name.startswith("popwheel_") and not file.endswith(".py"):
        pytest.skip(f"{name} is compiled: nothing in it can be replaced")
