"""Tables and heads of the pages that are made."""

from collections.abc import Iterable, Sequence


def head(title: str, made_from: str, text: str) -> str:
    """The beginning of a page: its title, what it is made from, and what a reader has to know."""
    return f"# {title}\n\nMade by `make docs` from {made_from}; do not edit.\n\n{text}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. A bar in a cell is escaped, and a line feed becomes a space."""
    lines = [_row(titles), "|" + "---|" * len(titles)]
    return "\n".join([*lines, *map(_row, rows)]) + "\n"


def _row(cells: Sequence[str]) -> str:
    plain = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return "".join(f"| {cell} " if cell else "| " for cell in plain) + "|"
