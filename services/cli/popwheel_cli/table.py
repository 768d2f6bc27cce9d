"""Tables on standard output or standard error."""

import re
import sys
from collections.abc import Sequence

import click

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, err: bool = False) -> None:
    """Print rows below the names of their columns: as wide as the terminal; into a pipe, each row is one line.

    Control characters are spelled out, as senders' texts must not control a terminal.

    Args:
        columns, rows: what is printed.
        err: on standard error, before a question.
    """
    titles = [column.upper() for column in columns]
    cells = [[printable(cell) for cell in row] for row in rows]
    if (sys.stderr if err else sys.stdout).isatty():
        _print_for_people(titles, cells, err=err)
        return
    lines = [titles, *([cell.replace("\n", r"\n") for cell in row] for row in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # In one write: a script that waits for the table of `popwheel cluster` reads all of it, or none.
    click.echo("\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines), err=err)


def printable(text: str) -> str:
    """A text whose control characters but line feeds are spelled out, as `\\x1b`."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def _print_for_people(titles: Sequence[str], rows: Sequence[Sequence[str]], *, err: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(stderr=err).print(table)
