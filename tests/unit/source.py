"""Source files as syntax trees, and what they import and call: the eyes of test_tidy.py."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "popwheel_common.pb"


@dataclass(frozen=True)
class Source:
    """One Python file of this repository."""

    path: Path

    @property
    def name(self) -> str:
        """`services/rpc/popwheel_rpc/server/server.py`."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        """`popwheel_rpc.server.server`; a package's `__init__` bears the package's name."""
        name = re.sub(r"^(?:services/\w+|spark)/(?=popwheel_)", "", self.name)
        return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def docstring(self) -> str | None:
        return ast.get_docstring(ast.parse(self.text))

    def nodes(self) -> Iterator[ast.AST]:
        """All of its syntax tree, parsed anew: a tree takes far more memory than what is found in it, which is kept."""
        return ast.walk(ast.parse(self.text))

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Local name -> what it stands for: `{"time": "time", "Path": "pathlib.Path"}`."""
        names: dict[str, str] = {}
        for node in self.nodes():
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    names[bound] = alias.name if alias.asname else bound
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        return names

    @cached_property
    def imports(self) -> set[str]:
        """All that is imported anywhere in it, whole modules and names within modules alike."""
        found: set[str] = set()
        for node in self.nodes():
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module and node.level == 0, f"{self.name}:{node.lineno}: imports are absolute"
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return found

    @cached_property
    def uses(self) -> list[tuple[int, str]]:
        """(line, full name) of each imported thing that is used, and of each function that is called by a bare name."""
        return list(self._uses())

    def _uses(self) -> Iterator[tuple[int, str]]:
        modules = {name for name, meaning in self.aliases.items() if "." not in meaning}
        for node in self.nodes():
            if isinstance(node, ast.Attribute):
                name = self._full_name(node)
                if name:
                    yield node.lineno, name
            elif isinstance(node, ast.Name) and node.id in self.aliases and node.id not in modules:
                yield node.lineno, self.aliases[node.id]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in self.aliases:
                yield node.lineno, node.func.id

    @cached_property
    def method_names(self) -> list[tuple[int, str]]:
        """(line, name) of each method that is called on whatever it may be."""
        return [
            (node.lineno, node.func.attr)
            for node in self.nodes()
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ]

    def _full_name(self, node: ast.Attribute) -> str | None:
        words = [node.attr]
        inner: ast.expr = node.value
        while isinstance(inner, ast.Attribute):
            words.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name) or inner.id not in self.aliases:
            return None
        return ".".join([self.aliases[inner.id], *reversed(words)])


@cache
def sources_of(folder: str) -> list[Source]:
    """The Python files of one top folder; what was found in them is found once."""
    return [Source(path) for path in sorted((ROOT / folder).rglob("*.py"))]


def sources(*folders: str) -> list[Source]:
    """The Python files of some top folders, without generated code."""
    files = [file for folder in folders for file in sources_of(folder)]
    return [file for file in files if not file.module.startswith(GENERATED)]
