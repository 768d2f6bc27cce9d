"""`popwheel admin cluster ...` and `admin broker ...`: parts of a cluster, and masters of its broker groups."""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from popwheel_cli.admin.api import (
    AdminApi,
    Format,
    Row,
    cell,
    moment,
    output_option,
    show,
    show_names,
    show_whole,
)
from popwheel_cli.admin.consent import Consent, agree, destroys, preview
from popwheel_cli.errors import CommandError
from popwheel_cli.table import print_table

_POLL_S = 0.5
_SWITCHOVER_S_MAX = 15.0
"""A leadership transfer may take two seconds, an election a little more."""
_RECOVERY_S_MAX = 300.0
"""Time in which all brokers report all their topics and groups, a thousand at a time."""
_RECOVERY = "/cluster/recovery"


@click.group()
def cluster() -> None:
    """Show and recover the cluster as a whole."""


@cluster.command("status")
@click.option("-w", "--watch", is_flag=True, help="Go on, and show it again whenever it has changed; Ctrl-C ends it.")
@output_option
@click.pass_obj
def cluster_status(api: AdminApi, watch: bool, output: Format) -> None:
    """Show all broker groups and processes: masters, lag of slaves, and readiness."""
    shown = None
    while True:
        try:
            status = api.request("GET", "/cluster/status")
        except CommandError as error:
            if not watch or shown is None:
                raise
            if error.format_message() != shown:
                shown = error.format_message()
                click.echo(f"popwheel: {shown}", err=True)
        else:
            essence = _essence(status)
            if essence != shown:
                shown = essence
                _show_status(status, output, watch)
        if not watch:
            return
        _wait(_POLL_S)


@cluster.command("recover")
@click.option(
    "--adopt",
    is_flag=True,
    help="Topics and groups that were made again since get their former ids. They keep their settings; groups that a "
    "first use made get their former ones.",
)
@destroys
@output_option
@click.pass_obj
def recover(api: AdminApi, adopt: bool, consent: Consent, output: Format) -> None:
    """Recover topics and groups from the brokers' logs after the controllers' store was lost.

    First start new controllers with an empty store, and all brokers. Topics and groups get their ids, settings and
    progress again. What could not be recovered is said. Where nothing was lost, nothing is changed.
    """
    body = {"adopt": True} if adopt else {}
    consent.check_terminal()
    if consent.dry_run or not consent.yes:
        would = api.request("POST", f"{_RECOVERY}?dry_run=true", body, _RECOVERY_S_MAX)
        if consent.dry_run:
            _show_recovery(would, output, "would come back")
            return
        _show_recovery(would, "table", "would come back", err=True)
        agree(f"bring back {_counts(would)}?")
    _show_recovery(api.request("POST", _RECOVERY, body, _RECOVERY_S_MAX), output, "came back")


@click.group()
def broker() -> None:
    """Show and change masters and slaves of broker groups."""


@broker.command("list")
@output_option
@click.pass_obj
def list_groups(api: AdminApi, output: Format) -> None:
    """Show all broker groups."""
    groups = api.request("GET", "/brokers")["groups"]
    if show_whole(groups, output):
        return
    if output == "name":
        show_names(group["name"] for group in groups)
    else:
        _show_groups(groups)


@broker.command("describe")
@click.argument("group")
@output_option
@click.pass_obj
def describe_group(api: AdminApi, group: str, output: Format) -> None:
    """Show one broker group and its replicas."""
    found = api.request("GET", _path(group))
    if show_whole(found, output):
        return
    if output == "name":
        show_names([found["name"]])
        return
    _show_groups([found])
    click.echo()
    standing = ("number", "role", "alive", "in_sync", "doubtful", "address")
    columns = (*standing, "last_epoch", "end_position", "lag_bytes", "lag_ms")
    rows = [[_value(replica[column]) for column in columns] for replica in found["replicas"]]
    print_table([column.replace("_", " ") for column in ("replica", *columns[1:])], rows)


@broker.command("switchover")
@click.argument("group")
@click.option(
    "--to", type=int, metavar="REPLICA", help="Replica that becomes master.  [default: the most complete of the others]"
)
@output_option
@click.pass_obj
def switch_over(api: AdminApi, group: str, to: int | None, output: Format) -> None:
    """Transfer the leadership of a broker group to another replica, without loss."""
    body = {} if to is None else {"to": to}
    found = api.request("POST", f"{_path(group)}/switchover", body, _SWITCHOVER_S_MAX)
    show({"group": group, "master": found["master"], "epoch": found["epoch"]}, output)


@broker.command("elect-unclean")
@click.argument("group")
@click.option(
    "--replica", type=int, metavar="REPLICA", help="Replica that becomes master.  [default: the most complete live one]"
)
@click.option("--word", help="Which --dry-run names: that you know what may be lost. Then nothing is asked.")
@destroys
@output_option
@click.pass_obj
def elect_unclean(
    api: AdminApi, group: str, replica: int | None, word: str | None, consent: Consent, output: Format
) -> None:
    """Elect a replica that may lack acknowledged messages, when no other is left.

    First it is said what may be lost.
    """
    body = {} if replica is None else {"replica": replica}
    question = f"have acknowledged messages of {group} lost?"
    found = _lose(api, f"{_path(group)}/unclean-election", body, word, consent, question)
    if "loss" in found:
        show(found, output)
    else:
        show({"group": group, "master": found["master"], "epoch": found["epoch"]}, output)


@broker.command("forget")
@click.argument("group")
@click.option("--replica", type=int, metavar="REPLICA", help="Replica that is gone.  [default: the whole group]")
@click.option("--word", help="For a whole group, which --dry-run names: then nothing is asked.")
@destroys
@output_option
@click.pass_obj
def forget(api: AdminApi, group: str, replica: int | None, word: str | None, consent: Consent, output: Format) -> None:
    """Forget a replica that will not return, or a whole group without a live replica.

    A replica of the sync-state set is not forgotten. Of a whole group it is first said what may be lost. What was
    forgotten and comes back is new.
    """
    body = {} if replica is None else {"replica": replica}
    question = f"forget {group if replica is None else f'replica {replica} of {group}'}?"
    found = _lose(api, f"{_path(group)}/forget", body, word, consent, question)
    show(found if "loss" in found else {"group": group, "replicas": found["replicas"]}, output)


def _lose(
    api: AdminApi, path: str, body: Mapping[str, object], word: str | None, consent: Consent, question: str
) -> Row:
    """Ask for what may lose messages. Who gives the word knows what; else it is looked at, and the operator is asked.

    Raises:
        WrongUseError: there is no terminal to ask at.
        CommandError: it was refused, or no controller answered.
    """
    if not word or consent.dry_run:
        consent.check_terminal()
        would = preview(api, "POST", path, body)
        if consent.dry_run:
            return would
        if not consent.yes:
            if would["loss"]:
                click.echo(would["loss"], err=True)
            agree(question)
        word = would["word"]
    found: Row = api.request("POST", path, {"word": word, **body}, _SWITCHOVER_S_MAX)
    return found


def _show_recovery(found: Mapping[str, Any], output: Format, what: str, *, err: bool = False) -> None:
    """Print the recovered entries, then the findings that an operator must see."""
    if show_whole(found, output):
        return
    rows = [
        *(("topic", topic["name"], str(topic["id"]), _topic_in_short(topic)) for topic in found["topics"]),
        *(("group", group["name"], str(group["id"]), _group_in_short(group)) for group in found["groups"]),
    ]
    if output == "name":
        show_names(row[1] for row in rows)
        return
    if rows:
        print_table(("kind", "name", "id", "settings"), rows, err=err)
    if found["findings"]:
        click.echo(err=err)
        findings = [(finding["kind"], finding["name"], finding["what"]) for finding in found["findings"]]
        print_table(("kind", "name", "finding"), findings, err=err)
    click.echo(err=err)
    shown = len(rows), len(found["findings"])
    left_out = found["topics_total"] + found["groups_total"] - shown[0] + found["findings_total"] - shown[1]
    more = f"; {left_out} lines are left out here" if left_out else ""
    kept = f", {found['kept_total']} that were made since stay" if found["kept_total"] else ""
    asked = ", ".join(found["brokers"])
    click.echo(f"{_counts(found)} {what}{kept}, by the logs of {asked}{more}", err=err)


def _counts(found: Mapping[str, Any]) -> str:
    return f"{found['topics_total']} topics and {found['groups_total']} groups"


def _topic_in_short(topic: Row) -> str:
    paused = ", paused" if topic["paused_since_ms"] else ""
    return f"{topic['type']}, {topic['queues']} queues{paused}"


def _group_in_short(group: Row) -> str:
    order = ", in order" if group["fifo"] else ""
    paused = ", paused" if group["paused_since_ms"] else ""
    return f"{group['max_attempts']} attempts{order}{paused}"


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _path(group: str) -> str:
    return f"/brokers/{quote(group, safe='')}"


def _show_status(status: Mapping[str, Any], output: Format, watch: bool) -> None:
    if output == "json" and watch:
        click.echo(json.dumps(status))  # one line for each change
        return
    if watch and output == "yaml":
        click.echo("---")
    if show_whole(status, output):
        return
    if output == "name":
        show_names(one["name"] for one in status["processes"])
        return
    if watch:
        click.clear()  # nothing, if it does not go to a terminal
    if groups := status.get("broker_groups"):
        _show_groups(groups)
        click.echo()
    columns = ("kind", "name", "replica", "role", "address", "pid", "since", "ready")
    rows = [
        (
            one["kind"],
            one["name"],
            _value(one.get("replica")),
            one.get("role") or "-",
            one["address"] or "-",
            _value(one["pid"]),
            moment(one["since_ms"]) if one["since_ms"] else "-",
            "yes" if one["ready"] else f"no: {one['reason']}",
        )
        for one in status["processes"]
    ]
    print_table(columns, rows)
    if watch:
        click.echo()


def _show_groups(groups: Sequence[Row]) -> None:
    print_table(
        ("group", "epoch", "master", "in sync", "lag", "checkpoint", "trouble"),
        [
            (
                group["name"],
                str(group["epoch"]),
                _value(group["master"]),
                cell(group["sync_state_set"]) or "-",
                _lag(group),
                _age(group.get("checkpoint")),
                group["trouble"] or "-",
            )
            for group in groups
        ],
    )


def _lag(group: Row) -> str:
    """Return the lag of each slave."""
    lags = [
        f"{replica['number']}: "
        + ("dead" if not replica["alive"] else "?" if replica["lag_bytes"] is None else _behind(replica))
        for replica in group["replicas"]
        if replica["number"] != group["master"]
    ]
    return ", ".join(lags) or "-"


def _behind(replica: Row) -> str:
    return f"{replica['lag_bytes']} B {_value(replica['lag_ms'])} ms"


def _age(checkpoint: Row | None) -> str:
    return "-" if checkpoint is None else f"{checkpoint['age_ms'] / 1000:.1f} s"


def _value(value: object) -> str:
    return "-" if value is None else cell(value)


def _essence(status: Mapping[str, Any]) -> str:
    """Return the part of a status whose changes are printed: not the ages, which always change."""
    groups = [
        {
            **{key: value for key, value in group.items() if key != "checkpoint"},
            "replicas": [
                {key: replica[key] for key in ("number", "role", "address", "alive", "in_sync")}
                for replica in group["replicas"]
            ],
        }
        for group in status.get("broker_groups", ())
    ]
    return json.dumps([groups, status["processes"]], sort_keys=True)
