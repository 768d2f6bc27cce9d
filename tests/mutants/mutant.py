"""One change that breaks a promise: what in which function of the code is replaced by what."""

import ast
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
UNIT_TESTS = "tests/unit"
COPIED = (
    "services",
    "spark",
    "tests",
    "proto",
    "bench",
    "docs",
    "tools",
    "demo",
    "pyproject.toml",
    "README.md",
    "Makefile",
)


class StaleMutantError(Exception):
    """The code that a mutant changes is not there any more as the mutant has it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A small change by meaning.

    Args:
        name: what one calls it by.
        says: what is wrong then, in a sentence.
        breaks: the invariants that do not hold any more.
        file: below the root of the repository.
        function: qualified name of the function or method that is changed.
        old: a piece of its source that stands there once.
        new: what stands there instead.
        tests: the file of unit tests that is to notice it, below `UNIT_TESTS`.
        simulator: module of the simulator that is to notice it; empty if none can.
    """

    name: str
    says: str
    breaks: str
    file: str
    function: str
    old: str
    new: str
    tests: str
    simulator: str

    def applied(self, source: str) -> str:
        """The source of the file with the change.

        Raises:
            StaleMutantError: the function, or the piece in it, is not there, or not once.
        """
        first, behind = _lines_of(source, self.function)
        lines = source.splitlines(keepends=True)
        body = "".join(lines[first:behind])
        if body.count(self.old) != 1:
            raise StaleMutantError(
                f"{self.name}: {self.file} {self.function} has {self.old!r} {body.count(self.old)} times"
            )
        changed = "".join(lines[:first]) + body.replace(self.old, self.new) + "".join(lines[behind:])
        ast.parse(changed)
        return changed

    @contextmanager
    def applied_in(self, folder: Path) -> Iterator[None]:
        """Have the change in a copy of the repository for a while. Raises as `applied` does."""
        path = folder / self.file
        source, stat = path.read_text(), path.stat()
        path.write_text(self.applied(source))
        try:
            yield
        finally:
            path.write_text(source)
            # By its time Python knows the bytecode of before from that of the mutant.
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def copy_repository(folder: Path) -> None:
    """Copy the repository into an empty folder."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)


def environment_of(folder: Path) -> dict[str, str]:
    """The environment in which Python takes the modules of a copy: those that are installed are not the mutant."""
    paths = [folder, folder / "spark", *(folder / "services").iterdir()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def _lines_of(source: str, function: str) -> tuple[int, int]:
    """Where a function's lines begin and end in a module."""
    node: ast.AST = ast.parse(source)
    for part in function.split("."):
        found = [
            each
            for each in ast.iter_child_nodes(node)
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and each.name == part
        ]
        if not found:
            raise StaleMutantError(f"there is no {function}")
        node = found[-1]  # of a property and its setter, the setter
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    assert node.end_lineno is not None
    return node.lineno - 1, node.end_lineno
