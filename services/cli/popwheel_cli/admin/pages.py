"""Lists that the admin API returns page by page."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import click

from popwheel_cli.admin.api import AdminApi, Row

_PAGE_ROWS = 500
_ROWS = 1_000

limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=_ROWS, show_default=True, help="At most this many."
)


def gather(
    api: AdminApi, path: str, asked: Mapping[str, object], name: str, limit: int
) -> tuple[list[dict[str, Any]], list[Row], bool]:
    """Request page after page; return the rows, the pages, and whether there may be more."""
    found: list[dict[str, Any]] = []
    pages: list[Row] = []
    after: str | None = ""
    while after is not None and len(found) < limit:
        wanted = {**asked, "after": after, "limit": min(_PAGE_ROWS, limit - len(found))}
        page = api.request("GET", f"{path}?{urlencode(wanted)}")
        pages.append(page)
        found += page[name]
        after = page["next"]
    return found, pages, after is not None


def silent(pages: Sequence[Row]) -> list[Row]:
    """Brokers that did not answer, and why."""
    return [silence for page in pages for silence in page["unanswered"]]


def say_what_is_missing(pages: Sequence[Row], more: bool) -> None:
    """Print on standard error which brokers did not answer, and that there may be more."""
    if more:
        click.echo("there may be more: raise --limit", err=True)
    for one in silent(pages):
        click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)
