"""`popwheel admin offset reset`: set a group back or forward in a topic."""

import re
from typing import Any
from urllib.parse import quote

import click

from popwheel_cli.admin.api import AdminApi, Format, MomentParam, Row, output_option, show_all, show_whole
from popwheel_cli.admin.consent import Consent, agree, destroys
from popwheel_cli.admin.spans import span_ms
from popwheel_cli.errors import CommandError, WrongUseError
from popwheel_common.clock import SystemClock

_COLUMNS = ("broker", "queue_id", "from_offset", "to_offset", "max_offset", "clamped")
_OFFSET = re.compile(r"offset:(\d{1,18})")


class _Place(click.ParamType[dict[str, Any]]):
    """Parameter for a group's new position, as the admin API takes it."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if value in ("earliest", "latest"):
            return {"to": value}
        if offset := _OFFSET.fullmatch(value):
            return {"to": "offset", "offset": int(offset[1])}
        if value.startswith("-"):
            if (back_ms := span_ms(value[1:])) is not None:
                return {"to": "time", "time_ms": max(0, SystemClock().wall_ms() - back_ms)}
            self.fail(f"{value!r} is no span back from now; write it like -90s, -10m, -2h or -1d", param, ctx)
        return {"to": "time", "time_ms": MomentParam().convert(value, param, ctx)}


@click.group()
def offset() -> None:
    """Change the offsets of groups."""


@offset.command("reset")
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to",
    "place",
    type=_Place(),
    help="earliest, latest, a time (2026-01-31T12:00:00Z), a span back from now (-1h), or offset:N of each queue.",
)
@click.option("--shift", type=int, help="Number of messages to move each queue by; negative: back.")
@click.option("--broker", default="", help="With --queue: that queue of this broker alone.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="With --broker.")
@click.option("--force", is_flag=True, help="Reset although consumers of the group are connected.")
@destroys
@output_option
@click.pass_obj
def reset(
    api: AdminApi,
    group: str,
    topic: str,
    place: dict[str, Any] | None,
    shift: int | None,
    broker: str,
    queue_id: int | None,
    force: bool,
    consent: Consent,
    output: Format,
) -> None:
    """Set a group back or forward in a topic, after showing the changes.

    The group gets the messages from there on as if it had never read them. Its messages in flight are revoked, its
    waiting retries are skipped (but kept with --queue). Refused while consumers of the group are connected.
    """
    if (place is None) == (shift is None):
        raise WrongUseError("give one of --to and --shift")
    if bool(broker) != (queue_id is not None):
        raise WrongUseError("each broker has queues of these numbers: give both --broker and --queue, or neither")
    consent.check_terminal()
    path = f"/groups/{quote(group, safe='')}/reset"
    wanted = {"topic": topic, **(place or {"to": "shift", "shift": shift}), "force": force}
    if broker:
        wanted |= {"broker": broker, "queue_id": queue_id}
    found = api.request("POST", path, {**wanted, "dry_run": True})
    if not consent.dry_run:
        if found["consumers"] and not force:
            raise CommandError(
                f"PRECONDITION_FAILED: consumers of {group} are connected (at least {found['consumers']}), so nothing "
                "was changed; stop them and run this again, or give --force, which revokes their messages in flight"
            )
        if not consent.yes:
            _show(found, "table", "would be", err=True)
            agree(f"set {group} to these offsets of {topic}?")
        found = api.request("POST", path, wanted)
    _show(found, output, "would be" if consent.dry_run else "are")
    if consent.dry_run and found["consumers"]:
        refused = "" if force else ", so this would be refused without --force"
        click.echo(f"consumers of {group} are connected (at least {found['consumers']}){refused}", err=True)
    if shift is not None and found["unanswered"]:
        raise CommandError(
            f"{_silent(found['unanswered'])} did not answer, and the others have shifted; look at `popwheel admin "
            f"progress {group}`, and shift what is left with --broker and --queue"
        )
    fail_if_silent(found["unanswered"])


def fail_if_silent(unanswered: list[Row]) -> None:
    """Raise CommandError if a broker did not answer: nothing is known to have changed there."""
    if unanswered:
        raise CommandError(f"without the brokers {_silent(unanswered)}; run this again when they are back")


def _silent(unanswered: list[Row]) -> str:
    return ", ".join(f"{one['broker']} ({one['reason']})" for one in unanswered)


def _show(found: Row, output: Format, verb: str, *, err: bool = False) -> None:
    if show_whole(found, output):
        return
    if err:
        changed = sum(one["from_offset"] != one["to_offset"] for one in found["queues"])
        click.echo(f"{changed} of {len(found['queues'])} queues change their offset; see them with --dry-run", err=True)
    else:
        show_all(found["queues"], output, _COLUMNS)
    if clamped := sum(one["clamped"] for one in found["queues"]):
        click.echo(f"{clamped} queues do not have the requested offset: the nearest one is used", err=True)
    kept = f", {found['retries_kept']} retries of the topic stay" if found["retries_kept"] else ""
    click.echo(f"{found['in_flight']} messages {verb} revoked, {found['retries']} retries skipped{kept}", err=True)
