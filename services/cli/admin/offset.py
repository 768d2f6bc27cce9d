"""`popwheel admin offset reset`: set a group back or forward in a topic."""

import json
from typing import Any
from urllib.parse import quote

import click

from services.cli.admin.api import AdminApi, Format, MomentParam, Row, output_option, show_all
from services.cli.errors import CommandError

_COLUMNS = ("broker", "queue_id", "from_offset", "to_offset", "max_offset")

yes_option = click.option("--yes", is_flag=True, help="Do not ask before it is done.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Change nothing, show what would be changed.")


class _Place(click.ParamType[dict[str, Any]]):
    """Where a group is to go on, as the admin API takes it."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if value in ("earliest", "latest"):
            return {"to": value}
        return {"to": "time", "time_ms": MomentParam().convert(value, param, ctx)}


@click.group()
def offset() -> None:
    """Where groups go on to read."""


@offset.command("reset")
@click.argument("group")
@click.argument("topic")
@click.option("--to", "place", type=_Place(), required=True, help="earliest, latest, or a time: 2026-01-31T12:00:00Z.")
@yes_option
@dry_run_option
@output_option
@click.pass_obj
def reset(
    api: AdminApi, group: str, topic: str, place: dict[str, Any], yes: bool, dry_run: bool, output: Format
) -> None:
    """Set a group back or forward in a topic, once it was shown what that changes.

    The group gets what stands there and behind as if it had never read it. What is given out to it is taken back, what
    waits to be tried again is passed over.
    """
    path = f"/groups/{quote(group, safe='')}/reset"
    wanted = {"topic": topic, **place}
    found = api.request("POST", path, {**wanted, "dry_run": True})
    if not dry_run:
        if not yes:
            _show(found, "table", "would be", err=True)
            click.confirm(f"set {group} to these offsets of {topic}?", abort=True, err=True)
        found = api.request("POST", path, wanted)
    _show(found, output, "would be" if dry_run else "are")
    fail_if_silent(found["unanswered"])


def fail_if_silent(unanswered: list[Row]) -> None:
    """Raise CommandError if a broker did not answer: nothing is known to have changed there."""
    if unanswered:
        silent = ", ".join(f"{one['broker']} ({one['reason']})" for one in unanswered)
        raise CommandError(f"without the brokers {silent}; run this again when they are back")


def _show(found: Row, output: Format, verb: str, *, err: bool = False) -> None:
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    if err:
        changed = sum(one["from_offset"] != one["to_offset"] for one in found["queues"])
        click.echo(f"{changed} of {len(found['queues'])} queues go elsewhere; see them with --dry-run", err=True)
    else:
        show_all(found["queues"], output, _COLUMNS)
    click.echo(f"{found['in_flight']} messages {verb} taken back, {found['retries']} retries passed over", err=True)
