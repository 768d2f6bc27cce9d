"""Source files as syntax trees, and what they import and call: the eyes of test_tidy.py and test_code.py."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "popwheel_common.pb"


@dataclass(frozen=True)
class Facts:
    """What one walk over a file's syntax tree finds. It is kept; the tree, which takes far more memory, is not.

    Args:
        docstring: the module's.
        docstrings: line and text of each: of the module, of classes, functions and attributes.
        aliases: local name -> what it stands for: `{"time": "time", "Path": "pathlib.Path"}`.
        imports: all that is imported anywhere in it, whole modules and names within modules alike.
        uses: (line, full name) of each imported thing that is used, and of each function that is called by a bare name.
        method_names: (line, name) of each method that is called on whatever it may be.
        spread_calls: lines of calls `f(*(a, b), *(c, d))`.
        constructors: each class that writes its `__init__`, and how many arguments that takes; dataclasses write none.
        definitions: (line, name) of each function, class and attribute.
    """

    docstring: str | None
    docstrings: list[tuple[int, str]]
    aliases: dict[str, str]
    imports: set[str]
    uses: list[tuple[int, str]]
    method_names: list[tuple[int, str]]
    spread_calls: list[int]
    constructors: list[tuple[str, int]]
    definitions: list[tuple[int, str]]


def facts_of(text: str, name: str = "code") -> Facts:
    """Walk over the code of a file."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    aliases = aliases_of(nodes)
    return Facts(
        docstring=ast.get_docstring(tree),
        docstrings=list(docstrings(tree)),
        aliases=aliases,
        imports=imports_of(nodes, name),
        uses=list(uses(nodes, aliases)),
        method_names=[
            (node.lineno, node.func.attr)
            for node in nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ],
        spread_calls=[
            node.lineno
            for node in nodes
            if isinstance(node, ast.Call)
            if any(isinstance(each, ast.Starred) and isinstance(each.value, ast.Tuple | ast.List) for each in node.args)
        ],
        constructors=list(constructors(nodes)),
        definitions=sorted(definitions(nodes)),
    )


def docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, the node's own first."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    for before, statement in zip([node, *body], body, strict=False):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            is_first = isinstance(before, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(statement.value.value, str) and (is_first or isinstance(before, ast.Assign | ast.AnnAssign)):
                yield statement.lineno, statement.value.value
        yield from docstrings(statement)


def aliases_of(nodes: Iterable[ast.AST]) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                names[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def imports_of(nodes: Iterable[ast.AST], name: str) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and node.level == 0, f"{name}:{node.lineno}: imports are absolute"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def uses(nodes: Iterable[ast.AST], aliases: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    modules = {name for name, meaning in aliases.items() if "." not in meaning}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            name = full_name(node, aliases)
            if name:
                yield node.lineno, name
        elif isinstance(node, ast.Name) and node.id in aliases and node.id not in modules:
            yield node.lineno, aliases[node.id]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in aliases:
            yield node.lineno, node.func.id


def full_name(node: ast.Attribute, aliases: Mapping[str, str]) -> str | None:
    words = [node.attr]
    inner: ast.expr = node.value
    while isinstance(inner, ast.Attribute):
        words.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name) or inner.id not in aliases:
        return None
    return ".".join([aliases[inner.id], *reversed(words)])


def constructors(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                given = method.args
                yield node.name, len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1


def definitions(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        if isinstance(node, ast.ClassDef | ast.Module):
            for statement in node.body:
                targets = statement.targets if isinstance(statement, ast.Assign) else []
                targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
                yield from ((target.lineno, target.id) for target in targets if isinstance(target, ast.Name))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


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
    def facts(self) -> Facts:
        return facts_of(self.text, self.name)


@cache
def sources_of(folder: str) -> list[Source]:
    """The Python files of one top folder; what was found in them is found once."""
    return [Source(path) for path in sorted((ROOT / folder).rglob("*.py"))]


def sources(*folders: str) -> list[Source]:
    """The Python files of some top folders, without generated code."""
    files = [file for folder in folders for file in sources_of(folder)]
    return [file for file in files if not file.module.startswith(GENERATED)]
