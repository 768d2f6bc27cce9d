"""`popwheel admin topic update`, `pause` and `resume`, and the same of groups: change what is there, and show it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from popwheel_cli.admin.api import AdminApi, Format, Row, cell, output_option, show, show_all
from popwheel_cli.admin.backoff import BackoffParam
from popwheel_cli.admin.consent import dry_run_option
from popwheel_cli.admin.setting_options import setting_options
from popwheel_cli.errors import WrongUseError
from popwheel_common.contract.topic_settings import Value

_COLUMNS = ("setting", "before", "after")


@click.command("update")
@click.argument("name")
@click.option("--queues", type=int, help="New number of queues, larger than now; not of types FIFO, LITE and PRIORITY.")
@click.option(
    "--type",
    "topic_type",
    metavar="MIXED",
    help="NORMAL, FIFO, DELAY and TRANSACTION can become MIXED; no other type changes.",
)
@setting_options
@dry_run_option
@output_option
@click.pass_obj
def update_topic(
    api: AdminApi,
    /,
    name: str,
    queues: int | None,
    topic_type: str | None,
    dry_run: bool,
    output: Format,
    **settings: Value | None,
) -> None:
    """Change the settings of a topic, all or none of them. Its messages stay."""
    kind = None if topic_type is None else topic_type.upper()
    _update(api, "topics", name, {"queues": queues, "type": kind, **settings}, dry_run, output)


@click.command("update")
@click.argument("name")
@click.option("--max-attempts", type=int, help="Attempts before a message becomes a dead letter.")
@click.option(
    "--fifo/--no-fifo", default=None, help="Whether it consumes in order; only while the group is not in use."
)
@click.option(
    "--backoff",
    type=BackoffParam(),
    help="Waits after failed attempts: 1s,5s,1m or exponential:1s,5m,2 (first, longest, multiplier).",
)
@dry_run_option
@output_option
@click.pass_obj
def update_group(
    api: AdminApi,
    name: str,
    max_attempts: int | None,
    fifo: bool | None,
    backoff: Mapping[str, object] | None,
    dry_run: bool,
    output: Format,
) -> None:
    """Change the settings of a consumer group, all or none of them. Its progress stays."""
    _update(api, "groups", name, {"max_attempts": max_attempts, "fifo": fifo, **(backoff or {})}, dry_run, output)


def _update(api: AdminApi, kind: str, name: str, wanted: Mapping[str, object], dry_run: bool, output: Format) -> None:
    said = {key: value for key, value in wanted.items() if value is not None}
    if not said:
        raise WrongUseError("nothing is to be changed: say what is to be otherwise; --help lists it")
    dry = "?dry_run=true" if dry_run else ""
    found = api.request("PATCH", f"/{kind}/{quote(name, safe='')}{dry}", said)
    show_all(change_rows(found, output), output, _COLUMNS)
    if not found["changes"]:
        click.echo(f"{name} is so already", err=True)
    elif dry_run:
        click.echo("nothing was changed: this is what would be", err=True)


def change_rows(found: Row, output: Format) -> list[dict[str, Any]]:
    """Return the settings before and after, changed ones first; a table has only these."""
    changed = {each["field"] for each in found["changes"]}
    rows = [{"setting": each["field"], "before": each["before"], "after": each["after"]} for each in found["changes"]]
    if output != "table":
        return rows
    same = [{"setting": key, "before": value, "after": value} for key, value in found["settings"].items()]
    return [{key: cell(value) for key, value in row.items()} for row in rows] + [
        row for row in same if row["setting"] not in changed
    ]


def _paused(of: str, verb: str, text: str) -> click.Command:
    """Return the command that pauses or resumes a topic or group.

    Args:
        of: `topics` or `groups`.
        verb: `pause` or `resume`.
        text: what the command's help says.
    """

    @click.command(verb, help=text)
    @click.argument("name")
    @dry_run_option
    @output_option
    @click.pass_obj
    def command(api: AdminApi, name: str, dry_run: bool, output: Format) -> None:
        query = "?dry_run=true" if dry_run else ""
        show(api.request("POST", f"/{of}/{quote(name, safe='')}/{verb}{query}", {}), output)

    return command


pause_topic = _paused(
    "topics", "pause", "Stop deliveries of a topic to all groups until it is resumed. Sends continue."
)
resume_topic = _paused("topics", "resume", "Resume deliveries of a topic.")
pause_group = _paused(
    "groups", "pause", "Stop deliveries to a group until it is resumed. It can still acknowledge messages."
)
resume_group = _paused("groups", "resume", "Resume deliveries to a group.")
