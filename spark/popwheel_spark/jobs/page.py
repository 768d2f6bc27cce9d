"""Self-contained HTML page: it loads no script, picture or font (pure)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

Cell = str | int | float | bool | None

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p.lead { color: GrayText; margin-top: 0; } p.note { color: GrayText; font-size: .87rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .87rem; }
div.wide { overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #8884; text-align: left; white-space: nowrap; }
th { font-weight: 600; white-space: normal; vertical-align: bottom; } td.number, th.number { text-align: right; }
tr.flagged td { background: #f5a62333; }
figure { margin: 1rem 0; background: #fff; border-radius: 4px; }
figure svg { display: block; width: 100%; height: auto; }
"""


@dataclass(frozen=True)
class Table:
    """Rows with headings.

    Args:
        headings: of the columns.
        rows: a number is shown with its thousands apart, None as a dash.
        flagged: numbers of the highlighted rows.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    flagged: frozenset[int] = frozenset()

    def html(self) -> str:
        """Return it as HTML."""
        numeric = [
            any(isinstance(row[column], int | float) for row in self.rows) for column in range(len(self.headings))
        ]
        heads = "".join(_cell("th", heading, wide) for heading, wide in zip(self.headings, numeric, strict=True))
        rows = "".join(
            f"<tr{' class=flagged' if number in self.flagged else ''}>"
            + "".join(_cell("td", cell_words(cell), wide) for cell, wide in zip(row, numeric, strict=True))
            + "</tr>\n"
            for number, row in enumerate(self.rows)
        )
        return f'<div class="wide"><table><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>'


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Args:
        title: its heading.
        caption: explanation, in a sentence or two.
        picture: SVG that is drawn below; empty: none.
        table: that stands below; None: none.
    """

    title: str
    caption: str = ""
    picture: str = ""
    table: Table | None = field(default=None)

    def html(self) -> str:
        """Return it as HTML."""
        caption = f'<p class="note">{escape(self.caption)}</p>' if self.caption else ""
        picture = f"<figure>{self.picture}</figure>" if self.picture else ""
        table = self.table.html() if self.table is not None else ""
        return f"<h2>{escape(self.title)}</h2>\n{caption}{picture}{table}"


def page(title: str, lead: str, sections: Iterable[Section]) -> str:
    """Return a whole page.

    Args:
        title: of it.
        lead: a sentence below the title.
        sections: from top to bottom.
    """
    body = "\n".join(section.html() for section in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f'<body><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>\n{body}\n</body></html>\n'
    )


def cell_words(cell: Cell) -> str:
    """Return a value as text."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _cell(tag: str, text: str, numeric: bool) -> str:
    return f"<{tag}{' class=number' if numeric else ''}>{escape(text)}</{tag}>"
