"""docs/reference/metrics.md: every metric, read from where the services make it."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.reference.markdown import head, table

SERVICES = Path(__file__).resolve().parents[2] / "services"
_KINDS = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
}
_WRAPPERS = {"PollCounts": "counter"}
"""Classes that take a name and a text, and make a metric of them."""
PARTS = {
    "proxy": "",
    "broker": "",
    "controller": "",
    "every process": "Connections, HTTP, logs, access, workers; of the console at controllers.\n\n",
}

_HEAD = """\
Every process serves them at `/metrics` of its HTTP port, for Prometheus. Metrics of consumer groups have the label
`consumer_group`; with `/metrics?pairs=true` they have `topic`, too. Names that begin with `rocketmq_` are RocketMQ's.
Series of a topic or group go when it is deleted. Past 10,000 series of a metric, further topics and groups count
together as `(other)`.
"""


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A metric.

    Args:
        name: as Prometheus shows it.
        kind: counter, gauge or histogram.
        labels: its labels; empty if they depend on how it is asked for.
        text: its HELP.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def metrics_page() -> str:
    """The whole page, in Markdown."""
    parts = [
        f"## {name}\n\n{text}"
        + table(
            ("metric", "kind", "labels", "meaning"),
            ((f"`{row.name}`", row.kind, ", ".join(row.labels), row.text) for row in rows_of(name)),
        )
        for name, text in PARTS.items()
    ]
    return "\n".join(
        [
            head(
                "Metrics",
                "the code that counts them",
                _HEAD,
            ),
            *parts,
        ]
    )


_EVERY = ("cli", "common", "console", "rpc")


def rows_of(part: str) -> list[Row]:
    """The metrics that the code of a part makes, by name."""
    found = set()
    services = (part,) if part in ("proxy", "broker", "controller") else _EVERY
    for path in sorted(path for service in services for path in (SERVICES / service).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "prometheus_client" in source:
            found |= set(_rows(ast.parse(source), str(path)))
    return sorted(found)


def _rows(tree: ast.Module, where: str) -> Iterator[Row]:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
            continue
        kind = _KINDS.get(node.func.id) or _WRAPPERS.get(node.func.id)
        if kind is None:
            continue
        known = list(_values(node, parents))
        if not known and _text(node.args[0], {}) is None:
            if isinstance(node.args[0], ast.Attribute):
                continue  # within a wrapper, which its users fill in
            raise ValueError(f"{where}:{node.lineno}: write the metric's name where it is made, or in a loop around it")
        for names in known or [{}]:
            name, text = _text(node.args[0], names), _text(node.args[1], names)
            if name is not None and text is not None:
                suffix = "_total" if kind == "counter" and not name.endswith("_total") else ""
                yield Row(name + suffix, kind, _labels(node, names), text)


def _values(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[dict[str, ast.expr]]:
    """Yield the values of the variables of a loop around a node, if the loop iterates over a literal."""
    at: ast.AST | None = node
    while at is not None:
        for target, over in _loops(at):
            rows = list(_written(over))
            names = [each.id for each in target.elts if isinstance(each, ast.Name)]
            if rows and len(names) == len(target.elts):
                yield from (dict(zip(names, row, strict=False)) for row in rows)
                return
        at = parents.get(at)


def _loops(node: ast.AST) -> Iterator[tuple[ast.Tuple, ast.expr]]:
    if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
        yield node.target, node.iter
    if isinstance(node, ast.DictComp | ast.ListComp | ast.GeneratorExp):
        for each in node.generators:
            if isinstance(each.target, ast.Tuple):
                yield each.target, each.iter


def _written(over: ast.expr) -> Iterator[list[ast.expr]]:
    if isinstance(over, ast.Tuple | ast.List):
        yield from (row.elts for row in over.elts if isinstance(row, ast.Tuple))
    elif isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and isinstance(over.func.value, ast.Dict):
        for key, value in zip(over.func.value.keys, over.func.value.values, strict=True):
            if key is not None:
                yield [key, value]


def _text(node: ast.expr, names: Mapping[str, ast.expr]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return _text(names[node.id], {})
    if isinstance(node, ast.JoinedStr):
        parts = [
            each.value if isinstance(each, ast.Constant) else _text(each.value, names) or "a fixed number"
            for each in node.values
            if isinstance(each, ast.Constant | ast.FormattedValue)
        ]
        return "".join(map(str, parts))
    return None


def _labels(node: ast.Call, names: Mapping[str, ast.expr]) -> tuple[str, ...]:
    given = next((each.value for each in node.keywords if each.arg in ("labels", "labelnames")), None)
    if given is None and len(node.args) > 2:
        given = node.args[2]
    if isinstance(given, ast.Name):
        given = names.get(given.id, given)
    if isinstance(given, ast.IfExp):
        given = given.orelse
    if isinstance(given, ast.Tuple | ast.List):
        return tuple(str(each.value) for each in given.elts if isinstance(each, ast.Constant))
    return ()
