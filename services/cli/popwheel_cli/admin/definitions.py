"""`popwheel admin export`, `apply`, `import`: topics and groups as a file."""

import json
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

import click

from popwheel_cli.admin.api import AdminApi, Format, Row, cell, output_option
from popwheel_cli.admin.consent import dry_run_option
from popwheel_cli.errors import CommandError
from popwheel_common.contract.topic_settings import TOPIC_SETTINGS
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType

if TYPE_CHECKING:
    from popwheel_cli.admin.definition_file import Entry
    from popwheel_cli.admin.rocketmq_files import Found

_ENTRIES_A_REQUEST: Final = 50
_BYTES_A_REQUEST: Final = 15 * 1024
"""Size of a request, below the limit of its body (`popwheel_common.web.gate`)."""
_TIMEOUT_S: Final = 30.0
_REFUSED_SHOWN: Final = 50
_KEYS: Final = {
    "topics": ("name", "type", "queues", *(each.name for each in TOPIC_SETTINGS)),
    "groups": ("name", "max_attempts", "fifo", "backoff_ms", "exponential_backoff"),
}


@click.command("export")
@click.option(
    "-f",
    "--file",
    type=click.File("w", encoding="utf-8", lazy=True, atomic=True),
    default="-",
    help="Where to write it.  [default: standard output]",
)
@click.pass_obj
def export_definitions(api: AdminApi, file: IO[str]) -> None:
    """Write all topics and groups, with their settings, as YAML that `apply` takes."""
    from popwheel_cli.admin.definition_file import ENTRIES_MAX, written

    found: dict[str, list[dict[str, Any]]] = {}
    for kind in ("topics", "groups"):
        rows, total = api.pages(f"/{kind}", kind, "", ENTRIES_MAX)
        if len(rows) < total:
            raise CommandError(f"the cluster holds {total} {kind}, and an export at the most {ENTRIES_MAX}")
        found[kind] = [_settings(kind, row) for row in rows]
    file.write(written(found["topics"], found["groups"]))


@click.command("apply")
@click.option(
    "-f", "--file", type=click.File("rb"), required=True, help="YAML as `export` writes it; - for standard input."
)
@dry_run_option
@output_option
@click.pass_obj
def apply_definitions(api: AdminApi, file: IO[bytes], dry_run: bool, output: Format) -> None:
    """Create topics and groups of a file, or change existing ones to match it.

    Others stay as they are: nothing is ever deleted. Applying a file again changes nothing. If an entry
    is refused, nothing is changed.
    """
    from popwheel_cli.admin.definition_file import entries_of
    from popwheel_cli.admin.rocketmq_files import Found

    _apply(api, entries_of(_read(file), file.name), Found(), dry_run, output)


@click.command("import")
@click.argument("files", type=click.File("rb"), nargs=-1, required=True)
@dry_run_option
@output_option
@click.pass_obj
def import_definitions(api: AdminApi, files: Sequence[IO[bytes]], dry_run: bool, output: Format) -> None:
    """Make topics and groups of files: as `export` writes them, or RocketMQ's topics.json and subscriptionGroup.json.

    It does what `apply` does. What RocketMQ's brokers made for themselves is left out, and what can't be here is named.
    """
    from popwheel_cli.admin.definition_file import Entry, entries_of, without_repeats
    from popwheel_cli.admin.rocketmq_files import Found, rocketmq_found

    entries: list[Entry] = []
    left_out = Found()
    for file in files:
        data = _read(file)
        found = rocketmq_found(data, file.name)
        if found is None:
            entries += entries_of(data, file.name)
            continue
        entries += found.entries
        left_out.unmapped += found.unmapped
        left_out.of_system += found.of_system
    alike = [Entry(each.kind, each.settings) for each in entries]  # lines of several files say nothing
    _apply(api, without_repeats(alike, " and ".join(file.name for file in files)), left_out, dry_run, output)


def _read(file: IO[bytes]) -> bytes:
    from popwheel_cli.admin.definition_file import BYTES_MAX

    return file.read(BYTES_MAX + 1)


def _settings(kind: str, row: Row) -> dict[str, Any]:
    """Settings of a topic or group, but none that it does not have."""
    settings = {key: row[key] for key in _KEYS[kind] if row.get(key) is not None}
    for each in TOPIC_SETTINGS:
        if each.name in settings and not each.is_shown(TopicType.Value(str(row["type"])), settings[each.name]):
            del settings[each.name]
    if "exponential_backoff" in settings:
        del settings["backoff_ms"]
    return settings


def _apply(api: AdminApi, entries: "Sequence[Entry]", left_out: "Found", dry_run: bool, output: Format) -> None:
    """Ask what would become of all entries, and only if none is refused have it done."""
    outcomes = _define(api, entries, dry_run=True)
    refused = [each for each in outcomes if each["outcome"] == "refused"]
    if not (refused or dry_run):
        wanted = [
            entry for entry, each in zip(entries, outcomes, strict=True) if each["outcome"] in ("created", "changed")
        ]
        done = iter(_define(api, wanted, dry_run=False))
        outcomes = [next(done) if each["outcome"] in ("created", "changed") else each for each in outcomes]
    _show(outcomes, left_out, output, changed=not (refused or dry_run))
    if refused:
        raise CommandError(f"{len(refused)} of {len(outcomes)} topics and groups are refused; nothing was changed")


def _define(api: AdminApi, entries: "Iterable[Entry]", *, dry_run: bool) -> list[Row]:
    path = "/definitions?dry_run=true" if dry_run else "/definitions"
    outcomes: list[Row] = []
    for batch in _batches(entries):
        body = {
            "topics": [each.settings for each in batch if each.kind == "topic"],
            "groups": [each.settings for each in batch if each.kind == "group"],
        }
        found = api.request("POST", path, body, _TIMEOUT_S)["outcomes"]
        by_name = {(each["kind"], each["name"]): each for each in found}
        outcomes += [by_name[each.kind, each.name] for each in batch]
    return outcomes


def _batches(entries: "Iterable[Entry]") -> "Iterable[list[Entry]]":
    """The entries in parts that a request can hold."""
    batch: list[Entry] = []
    size = 0
    for each in entries:
        length = len(json.dumps(dict(each.settings))) + 2
        if batch and (len(batch) >= _ENTRIES_A_REQUEST or size + length > _BYTES_A_REQUEST):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += length
    if batch:
        yield batch


def _show(outcomes: Sequence[Row], left_out: "Found", output: Format, *, changed: bool) -> None:
    """Show what was done, or would be."""
    count = {
        word: sum(each["outcome"] == word for each in outcomes)
        for word in ("created", "changed", "unchanged", "refused")
    }
    if output == "json":
        unmapped = [{"kind": kind, "name": name, "reason": why} for kind, name, why in left_out.unmapped]
        shown = {"done": changed, **count, "outcomes": outcomes, "unmapped": unmapped, "of_system": left_out.of_system}
        click.echo(json.dumps(shown, indent=2))
        return
    for each in outcomes:
        if each["outcome"] == "created":
            facts = ", ".join(f"{key} {cell(value)}" for key, value in each["settings"].items())
            click.echo(f"+ {each['kind']} {each['name']}: {facts}")
        elif each["outcome"] == "changed":
            facts = ", ".join(
                f"{one['field']} {cell(one['before'])} -> {cell(one['after'])}" for one in each["changes"]
            )
            click.echo(f"~ {each['kind']} {each['name']}: {facts}")
    refused = [each for each in outcomes if each["outcome"] == "refused"]
    for each in refused[:_REFUSED_SHOWN]:
        click.echo(f"! {each['kind']} {each['name']}: {each['code']}: {each['message']}", err=True)
    for kind, name, why in left_out.unmapped:
        click.echo(f"- {kind} {name} is left out: {why}", err=True)
    if left_out.of_system:
        click.echo(f"{left_out.of_system} of RocketMQ's own topics and groups are left out", err=True)
    said = ", ".join(f"{number} {word}" for word, number in count.items() if number or word != "refused")
    click.echo(said if changed else f"nothing was changed; it would be: {said}", err=True)
