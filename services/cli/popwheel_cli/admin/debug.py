"""`popwheel admin debug bundle`: one file for diagnosis, without secrets."""

import io
import json
import os
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from popwheel_cli.admin.api import AdminApi
from popwheel_cli.errors import CommandError, WrongUseError

_CLIENTS = 500
_SUFFIXES = {"settings": "json", "log": "txt", "metrics": "txt"}
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@click.group()
def debug() -> None:
    """Collect data for diagnosis."""


@debug.command("bundle")
@click.option(
    "-f",
    "--file",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.tar.gz|.zip",
    help="File to write.  [default: popwheel-debug-TIME.tar.gz]",
)
@click.pass_obj
def bundle(api: AdminApi, file: Path | None) -> None:
    """Write one file with the cluster's state, and the settings, metrics and last log lines of each process.

    It has no secret and no message, but names of topics, groups, users and machines.
    """
    from popwheel_common.clock import SystemClock

    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=SystemClock().wall_ms())
    file = file or Path(f"popwheel-debug-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    write = _writer(file)
    if file.exists():
        raise WrongUseError(f"{file} is there already; name another file with --file")
    parts, missing = collected(api)
    manifest = {"made": now.isoformat(), "servers": api.servers, "parts": sorted(parts), "missing": missing}
    parts["manifest.json"] = json.dumps(manifest, indent=2)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            write(stream, parts, now)
        beside.rename(file)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise CommandError(f"cannot write {file}: {error.strerror}; name another file with --file") from error
    click.echo(f"{file}: {len(parts)} parts, {file.stat().st_size} bytes")
    for what, why in missing.items():
        click.echo(f"without {what}: {why}", err=True)


def collected(api: AdminApi) -> tuple[dict[str, str], dict[str, str]]:
    """Return the parts of a bundle by name, and the reasons for missing ones.

    Raises:
        CommandError: no controller answers.
    """
    parts: dict[str, str] = {}
    missing: dict[str, str] = {}

    def take(name: str, path: str, of: Callable[[Any], Any] = lambda answer: answer) -> None:
        try:
            parts[name] = json.dumps(of(api.request("GET", path)), indent=2)
        except CommandError as error:
            missing[name] = error.format_message()

    processes = api.request("GET", "/debug/processes")["processes"]
    take("cluster.json", "/cluster")
    take("status.json", "/cluster/status")
    take("timers.json", "/timers/stats")
    take("quarantine.json", "/quarantine", _counts)
    take("clients.json", f"/clients?{urlencode({'limit': _CLIENTS})}")
    for process in processes:
        key = process["key"]
        if not process["pages"]:
            missing[key] = "it takes no questions: it is of an older release, or has just come"
        for page in process["pages"]:
            name = f"processes/{_NOT_IN_A_NAME.sub('_', key)}/{page}.{_SUFFIXES.get(page, 'txt')}"
            try:
                answer = api.request("GET", f"/debug/page?{urlencode({'process': key, 'page': page})}")
                parts[name] = answer["text"]
            except CommandError as error:
                missing[f"{page} of {key}"] = error.format_message()
    return parts, missing


def _counts(quarantine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of poison messages: an error's text may show part of a message."""
    entries = quarantine["entries"]
    return {
        "shown": len(entries),
        "by_step": Counter(each["step"] for each in entries),
        "by_topic": Counter(each["topic"] for each in entries),
        **{name: value for name, value in quarantine.items() if name != "entries"},
    }


def _writer(file: Path) -> Callable[[Any, Mapping[str, str], datetime], None]:
    """Return the function that writes a file of that name.

    Raises:
        WrongUseError: its name says no kind that there is.
    """
    if file.name.endswith((".tar.gz", ".tgz")):
        return _write_tar
    if file.name.endswith(".zip"):
        return _write_zip
    raise WrongUseError(f"--file must end with .tar.gz or .zip, not {file.name}")


def _write_tar(stream: Any, parts: Mapping[str, str], now: datetime) -> None:
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in sorted(parts.items()):
            data = text.encode()
            entry = tarfile.TarInfo(f"popwheel-debug/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(now.timestamp()), 0o600
            archive.addfile(entry, io.BytesIO(data))


def _write_zip(stream: Any, parts: Mapping[str, str], now: datetime) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(parts.items()):
            archive.writestr(zipfile.ZipInfo(f"popwheel-debug/{name}", now.timetuple()[:6]), text)
