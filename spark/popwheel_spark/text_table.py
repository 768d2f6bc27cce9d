"""A table on standard output; the columns of a report are few and short."""

import re
from collections.abc import Sequence

import click

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their headings, each as one line.

    Control characters are spelled out, as senders' texts must not control a terminal.
    """
    titles = [heading.upper() for heading in headings]
    lines = [[_CONTROL.sub(lambda match: repr(match[0])[1:-1], cell) for cell in line] for line in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    click.echo("\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines))
