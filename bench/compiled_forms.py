"""Cost of forms of Python where mypyc compiles them, beside plain Python (docs/internals/compiled.md).

python -m bench.compiled_forms

A form is a function that does it `count` times. This module is compiled as it stands, in a temporary folder.
"""

import importlib.util
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol, cast

from mypy_extensions import i64

_COUNT: Final = 100_000
_ROUNDS: Final = 5
_HEADER: Final = struct.Struct(">IHQ")
_BYTES: Final = bytes(range(1, 15))
_TEN: Final = list(range(10))


class Plain:
    """A class as most are."""

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data

    def method(self, number: int) -> int:
        """Return its argument."""
        return number


@dataclass(slots=True)
class Data:
    """A dataclass whose initializer is left to the interpreter."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Frozen:
    """The same, frozen."""

    number: int
    data: bytes


class Named(NamedTuple):
    """A named tuple."""

    number: int
    data: bytes


class HasMethod(Protocol):
    """A type that a caller knows by its methods alone."""

    def method(self, number: int) -> int:
        """Return its argument."""


def _pair(number: int, data: bytes) -> tuple[int, bytes]:
    return number, data


def make_plain(count: int) -> None:
    """Make an object of a class."""
    for number in range(count):
        Plain(number, _BYTES)


def make_dataclass(count: int) -> None:
    """Make an object of a dataclass."""
    for number in range(count):
        Data(number, _BYTES)


def make_frozen(count: int) -> None:
    """Make an object of a frozen dataclass."""
    for number in range(count):
        Frozen(number, _BYTES)


def make_named_tuple(count: int) -> None:
    """Make a named tuple."""
    for number in range(count):
        Named(number, _BYTES)


def make_named_tuple_by_new(count: int) -> None:
    """Make a named tuple past its own constructor."""
    for number in range(count):
        tuple.__new__(Named, (number, _BYTES))


def return_tuple(count: int) -> None:
    """Return two values from a function."""
    for number in range(count):
        _, _ = _pair(number, _BYTES)


def read_attribute(count: int) -> int:
    """Read an attribute of a compiled class."""
    total, one = 0, Plain(1, _BYTES)
    for _ in range(count):
        total += one.number
    return total


def read_attribute_of_any(count: int) -> int:
    """Read an attribute of an object of unknown type."""
    total = 0
    one: Any = Plain(1, _BYTES)
    for _ in range(count):
        total += one.number
    return total


def call_method(count: int) -> None:
    """Call a method of a compiled class."""
    one = Plain(1, _BYTES)
    for number in range(count):
        one.method(number)


def call_by_protocol(count: int) -> None:
    """Call a method of a protocol."""
    one: HasMethod = Plain(1, _BYTES)
    for number in range(count):
        one.method(number)


def call_callable(count: int) -> None:
    """Call a function that is a value."""
    function: Callable[[int], int] = Plain(1, _BYTES).method
    for number in range(count):
        function(number)


def add_integers(count: int) -> int:
    """Read bytes and add them as integers."""
    total = 0
    for number in range(count):
        total += _BYTES[number & 7] << 3 & 0x7F
    return total


def add_native_integers(count: int) -> int:
    """Read bytes and add them as native integers."""
    total: i64 = 0
    for number in range(count):
        total += cast(i64, _BYTES[number & 7]) << 3 & 0x7F
    return int(total)


def unpack_struct(count: int) -> None:
    """Unpack three numbers by `struct`."""
    for _ in range(count):
        _HEADER.unpack_from(_BYTES, 0)


def unpack_by_shifts(count: int) -> None:
    """Read a number of four bytes by shifts."""
    data = _BYTES
    for _ in range(count):
        _ = data[0] << 24 | data[1] << 16 | data[2] << 8 | data[3]


def zip_ten(count: int) -> None:
    """Go through two lists of ten by zip."""
    for _ in range(count // 10):
        for _, _ in zip(_TEN, _TEN):  # noqa: B905  # the form without it is the one measured here
            pass


def zip_ten_strict(count: int) -> None:
    """Go through two lists of ten by a strict zip."""
    for _ in range(count // 10):
        for _, _ in zip(_TEN, _TEN, strict=True):
            pass


def find_by_pair(count: int) -> None:
    """Look up a pair in a dictionary."""
    found = {("t", 1): 1}
    for _ in range(count):
        found.get(("t", 1))


def find_in_two(count: int) -> None:
    """Look up in a dictionary of dictionaries."""
    found = {"t": {1: 1}}
    for _ in range(count):
        found["t"].get(1)


def take_larger(count: int) -> None:
    """Call max of two."""
    for number in range(count):
        max(number, 3)


FORMS: Final = (
    make_plain,
    make_dataclass,
    make_frozen,
    make_named_tuple,
    make_named_tuple_by_new,
    return_tuple,
    read_attribute,
    read_attribute_of_any,
    call_method,
    call_by_protocol,
    call_callable,
    add_integers,
    add_native_integers,
    unpack_struct,
    unpack_by_shifts,
    zip_ten,
    zip_ten_strict,
    find_by_pair,
    find_in_two,
    take_larger,
)


def measured(form: Callable[[int], object]) -> float:
    """Return the nanoseconds of CPU that a form takes once: the least of some rounds."""
    best_s = 1e9
    for _ in range(_ROUNDS):
        begin_s = time.process_time()
        form(_COUNT)
        best_s = min(best_s, time.process_time() - begin_s)
    return best_s / _COUNT * 1e9


def compiled(folder: Path) -> ModuleType:
    """Compile this module in a folder, and return it. Raises CalledProcessError: mypyc has said why not."""
    shutil.copy(__file__, folder / "forms.py")
    subprocess.run([sys.executable, "-m", "mypyc", "forms.py"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (library,) = folder.glob("forms.*.so")
    found = importlib.util.spec_from_file_location("forms", library)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["forms"] = module
    found.loader.exec_module(module)
    return module


def main() -> None:
    """Print a line for each form: nanoseconds in plain Python, and compiled."""
    with tempfile.TemporaryDirectory() as name:
        module = compiled(Path(name))
        for form in FORMS:
            summary = (form.__doc__ or "").partition(".")[0]
            print(f"{measured(form):8.1f} {measured(getattr(module, form.__name__)):8.1f}  {summary}")


if __name__ == "__main__":
    main()
