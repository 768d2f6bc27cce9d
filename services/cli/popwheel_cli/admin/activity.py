"""`popwheel admin activity` and `trouble`: lag of groups, and current troubles."""

from collections.abc import Sequence

import click

from popwheel_cli.admin.api import AdminApi, Format, Row, moment, output_option, show_all, show_names, show_whole
from popwheel_cli.table import print_table

_PAGE_ROWS = 100  # of what a broker describes at once
_COLUMNS = (
    "name",
    "lag",
    "lag_ms",
    "waiting",
    "held",
    "retrying",
    "dead_letters",
    "poisoned",
    "in_rate",
    "out_rate",
    "topics",
)


@click.command()
@click.option("--prefix", default="", help="Only groups whose names have this prefix.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=_PAGE_ROWS, show_default=True, help="At most this many groups."
)
@output_option
@click.pass_obj
def activity(api: AdminApi, prefix: str, limit: int, output: Format) -> None:
    """Show lag, lag in time, rates per second, and messages in flight by group. An unknown value is empty."""
    groups, total = api.pages("/activity/groups", "groups", prefix, limit, page_rows=_PAGE_ROWS)
    show_all(groups, output, _COLUMNS)
    if len(groups) < total and output == "table":
        click.echo(f"{len(groups)} of {total} groups; raise --limit, or say with --prefix how they begin", err=True)


@click.command()
@output_option
@click.pass_obj
def trouble(api: AdminApi, output: Format) -> int:
    """Show the alerts that would fire now, and their remedies; the exit code is 0 if there are none, else 1."""
    found = api.request("GET", "/trouble")
    problems: Sequence[Row] = found["problems"]
    if not show_whole(found, output):
        if output == "name":
            show_names(each["id"] for each in problems)
        elif problems:
            print_table(
                ("severity", "problem", "since", "what to do", "more"),
                [[each["severity"], each["what"], _since(each), each["what_to_do"], each["link"]] for each in problems],
            )
        else:
            click.echo("nothing is wrong, as far as the controller knows")
        for one in found["unanswered"]:
            click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)
    return 1 if problems or found["unanswered"] else 0


def _since(problem: Row) -> str:
    return "" if problem["since_ms"] is None else moment(problem["since_ms"])
