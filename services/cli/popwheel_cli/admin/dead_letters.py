"""`popwheel admin dlq ...`: the dead letters of a group."""

import json
import threading
from typing import Any
from urllib.parse import quote, urlencode

import click

from popwheel_cli.admin.api import AdminApi, Format, Row, moment, output_option, show, show_all, show_whole
from popwheel_cli.admin.bodies import beginning, whole
from popwheel_cli.admin.consent import Consent, agree, destroys
from popwheel_cli.admin.offset import fail_if_silent
from popwheel_cli.errors import CommandError, WrongUseError

_PAGE_ROWS = 500
_ROWS = 1_000
_AT_ONCE_MAX = 1_000
_CHOSEN_MAX = 100
"""Limit of dead letters that are named one by one."""

_broker_option = click.option("--broker", default="", help="At this broker alone.")


@click.group()
def dlq() -> None:
    """List, redrive and purge dead letters: messages that a group failed on too often."""


@dlq.command("list")
@click.argument("group")
@_broker_option
@click.option("--limit", type=click.IntRange(min=1), default=_ROWS, show_default=True, help="At most this many.")
@output_option
@click.pass_obj
def list_dead_letters(api: AdminApi, group: str, broker: str, limit: int, output: Format) -> None:
    """Show dead letters, the oldest of each broker first; not those that were redriven or purged."""
    found: list[dict[str, Any]] = []
    total = 0
    for name in _brokers(api, broker):
        begin: int | None = 0
        while begin is not None and len(found) < limit:
            page = _page(api, group, name, begin, min(_PAGE_ROWS, limit - len(found)))
            found += page["letters"]
            total += page["total"] if not begin else 0
            begin = page["next"]
    if show_whole({"letters": found, "total": total}, output):
        return
    rows = [{**one, "dead since": moment(one["stored_ms"]), "body": beginning(one)} for one in found]
    show_all(rows, output, ("dead since", "broker", "queue_offset", "message_id", "topic", "tag", "keys", "body"))
    if total > len(found):
        click.echo(f"there are {total} or more: raise --limit", err=True)


@dlq.command("show")
@click.argument("group")
@click.argument("broker")
@click.argument("offset", type=click.IntRange(min=0))
@output_option
@click.pass_obj
def show_dead_letter(api: AdminApi, group: str, broker: str, offset: int, output: Format) -> None:
    """Show a dead letter with its message, by broker and offset."""
    found = api.request("GET", f"{_path(group)}/{quote(broker, safe='')}/{offset}")
    if output == "table":
        found = {**found, "stored_ms": moment(found["stored_ms"]), "properties": json.dumps(found["properties"])}
        found["body"] = whole(found)
    show(found, output)


@dlq.command("redrive")
@click.argument("group")
@_broker_option
@click.option(
    "--rate", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most this many a second."
)
@click.option("--limit", type=click.IntRange(min=1), help="At most this many.  [default: all that are there now]")
@click.option(
    "--select",
    "selected",
    multiple=True,
    metavar="BROKER/OFFSET",
    help="This one alone, as `dlq list` shows it; may be repeated.",
)
@destroys
@output_option
@click.pass_obj
def redrive(
    api: AdminApi,
    group: str,
    broker: str,
    rate: int,
    limit: int | None,
    selected: tuple[str, ...],
    consent: Consent,
    output: Format,
) -> None:
    """Redrive dead letters to their group, the oldest first: each is delivered as if for the first time.

    Other groups of the topic get nothing. An interrupted redrive continues when it is run again. If some are
    selected, others that stand before them at their broker move to the end.
    """
    consent.check_terminal()
    if selected:
        if broker or limit is not None:
            raise WrongUseError("--select says which: leave --broker and --limit out")
        _redrive_selected(api, group, [_letter(each) for each in selected], rate, consent, output)
        return
    waiting = {name: _page(api, group, name, 0, 1) for name in _brokers(api, broker)}
    there = sum(page["total"] for page in waiting.values())
    left = there if limit is None else min(there, limit)
    if consent.dry_run:
        show({"group": group, "would be redriven": left, "of": there}, output)
        return
    if left and not consent.yes:
        agree(f"give {left} of {there} dead letters back to {group}?")
    redriven = kept = 0
    for name, page in waiting.items():
        at_broker = page["total"]
        while left and at_broker:
            asked = min(left, at_broker, max(1, rate // 2), _AT_ONCE_MAX)
            answer = api.request(
                "POST",
                f"{_path(group)}/{quote(name, safe='')}/redrive",
                {"limit": asked, "end_offset": page["max_offset"]},
            )
            done = answer["redriven"] + answer["kept"]
            if not done:
                break  # another operator has redriven or purged them meanwhile
            redriven, kept = redriven + answer["redriven"], kept + answer["kept"]
            left, at_broker = left - done, at_broker - done
            if left:
                threading.Event().wait(done / rate)
    show({"group": group, "redriven": redriven, "kept": kept}, output)
    if kept:
        click.echo(f"{kept} are kept as dead letters: their topic is gone, or they cannot be read", err=True)


@dlq.command("export")
@click.argument("group")
@_broker_option
@click.option("--limit", type=click.IntRange(min=1), help="At most this many.  [default: all that are there]")
@click.pass_obj
def export(api: AdminApi, group: str, broker: str, limit: int | None) -> None:
    """Print dead letters with whole bodies, one JSON object a line, the oldest of each broker first."""
    left, after = limit, ""
    silent: list[Row] = []
    while left is None or left > 0:
        asked: dict[str, object] = {"broker": broker, "after": after, "limit": min(left or _AT_ONCE_MAX, _AT_ONCE_MAX)}
        *letters, end = api.request("GET", f"{_path(group)}/export?{urlencode(asked)}")
        for letter in letters:
            click.echo(json.dumps(letter, ensure_ascii=False))
        silent += end["unanswered"]
        if end["next"] is None:
            break
        after = end["next"]
        left = None if left is None else left - len(letters)
    fail_if_silent(silent)


@dlq.command("purge")
@click.argument("group")
@destroys
@output_option
@click.pass_obj
def purge(api: AdminApi, group: str, consent: Consent, output: Format) -> None:
    """Purge a group's dead letters. Their queue can still be read, until retention takes it."""
    consent.check_terminal()
    found = api.request("POST", f"{_path(group)}/purge", {"dry_run": True})
    if not consent.dry_run:
        if found["purged"] and not consent.yes:
            agree(f"purge {found['purged']} dead letters of {group}?")
        found = api.request("POST", f"{_path(group)}/purge", {})
    show({"group": group, "would be purged" if consent.dry_run else "purged": found["purged"]}, output)
    fail_if_silent(found["unanswered"])


def _redrive_selected(
    api: AdminApi, group: str, letters: list[dict[str, Any]], rate: int, consent: Consent, output: Format
) -> None:
    """Redrive these, the smallest offsets first: what they move to the end is none of the others then."""
    if not consent.dry_run and not consent.yes:
        agree(f"give {len(letters)} dead letters back to {group}?")
    letters.sort(key=lambda each: each["queue_offset"])
    sums = {"redriven": 0, "kept": 0, "moved": 0}
    refused: list[dict[str, Any]] = []
    at_once = min(_CHOSEN_MAX, max(1, rate // 2))
    for begin in range(0, len(letters), at_once):
        some = letters[begin : begin + at_once]
        answer = api.request("POST", f"{_path(group)}/redrive", {"letters": some, "dry_run": consent.dry_run})
        sums = {name: count + answer[name] for name, count in sums.items()}
        refused += answer["refused"]
        if begin + at_once < len(letters) and not consent.dry_run:
            threading.Event().wait(len(some) / rate)
    if consent.dry_run:
        sums = {f"would be {name}": count for name, count in sums.items()}
    show({"group": group, **sums}, output)
    for each in refused:
        click.echo(f"{each['broker']}/{each['queue_offset']}: {each['reason']}", err=True)
    if refused:
        raise CommandError(f"{len(refused)} of {len(letters)} were not redriven")


def _letter(text: str) -> dict[str, Any]:
    """Return the dead letter that `BROKER/OFFSET` names."""
    broker, slash, offset = text.partition("/")
    if not slash or not offset.isdecimal():
        raise WrongUseError(f"--select: {text!r} names no dead letter; write BROKER/OFFSET, as dlq list shows them")
    return {"broker": broker, "queue_offset": int(offset)}


def _brokers(api: AdminApi, only: str) -> list[str]:
    """Return all brokers, or the wanted one."""
    if only:
        return [only]
    return sorted(each["name"] for each in api.request("GET", "/cluster")["brokers"])


def _page(api: AdminApi, group: str, broker: str, begin: int, limit: int) -> Any:
    return api.request("GET", f"{_path(group)}/{quote(broker, safe='')}?{urlencode({'begin': begin, 'limit': limit})}")


def _path(group: str) -> str:
    return f"/groups/{quote(group, safe='')}/dead-letters"
