"""Write the tables of options of docs/use/spark.md and docs/use/spark-jobs.md (run by `make docs`)."""

from pathlib import Path

from popwheel_spark.options import OPTIONS, Kind, Option, Side

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_BEGIN = "<!-- made by `make docs` from popwheel_spark/options.py; do not edit -->\n"
_END = "<!-- end of what is made -->\n"
_WORDS = {
    Side.ALL: "all",
    Side.READ: "read",
    Side.BATCH: "table",
    Side.STREAM: "stream",
    Side.LIST: "timers, inflight",
    Side.SINK: "sink",
}


def options_table() -> str:
    """All options of the data source, in Markdown."""
    head = "| option | of | default | meaning |\n|---|---|---|---|\n"
    return head + "".join(
        f"| `{row.name}` | {', '.join(_WORDS[side] for side in row.sides)} | {_default(row)} | {row.help} |\n"
        for row in OPTIONS.values()
    )


def flags_table() -> str:
    """The flags of all jobs, in Markdown."""
    head = "| flag | is the option | default | meaning |\n|---|---|---|---|\n"
    rows = [row for row in OPTIONS.values() if row.flag]
    return head + "".join(
        f"| `{row.flag}` | `{row.name}` | {f'`{row.flag_default}`' if row.flag_default else _default(row)} "
        f"| {row.help}{f'; better by `{row.variable}`' if row.variable else ''} |\n"
        for row in rows
    )


def _default(row: Option) -> str:
    if row.shown:
        return row.shown
    if row.kind in (Kind.CHOICE, Kind.TEXT) and row.default:
        return f"`{row.default}`"
    return row.default


PAGES = {_DOCS / "use/spark.md": options_table, _DOCS / "use/spark-jobs.md": flags_table}


def made(page: Path) -> str:
    """A page with its table made anew.

    Raises:
        ValueError: it has no place for one.
    """
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{page} has no lines {_BEGIN!r} and {_END!r}, between which the options go")
    return f"{before}{_BEGIN}\n{PAGES[page]()}\n{_END}{after}"


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(made(each))
