"""`popwheel admin health`: why the cluster is not ready, for people, scripts and CI."""

import sys
import threading
from collections.abc import Sequence

import click

from popwheel_cli.admin.api import AdminApi, Format, output_option, show_of_many, show_whole
from popwheel_cli.admin.spans import Span
from popwheel_cli.errors import CommandError

_POLL_S = 1.0
_ASK_S = 5.0


@click.command()
@click.option(
    "-w", "--watch", is_flag=True, help="Look each second, and show it whenever it has changed; Ctrl-C ends it."
)
@click.option(
    "--exit-when-ready", is_flag=True, help="Wait until all is ready, also for a server that is not there yet."
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=Span(),
    metavar="SPAN",
    default="60s",
    show_default=True,
    help="For how long --exit-when-ready waits: 90s, 10m.",
)
@output_option
@click.pass_obj
def health(api: AdminApi, watch: bool, exit_when_ready: bool, timeout_ms: int, output: Format) -> int:
    """Show problems, a line for each; the exit code is 0 if all is ready, else 1."""
    from popwheel_common.clock import SystemClock

    clock = SystemClock()
    until = clock.monotonic() + timeout_ms / 1000
    shown: list[str] | None = None
    rewrites = watch and output == "table" and sys.stdout.isatty()
    while True:
        problems = problems_of(api)
        if problems != shown:
            _show(problems, output, rewrites=rewrites, one_line=watch or exit_when_ready)
            shown = problems
        if exit_when_ready:
            if not problems:
                return 0
            if clock.monotonic() >= until:
                raise CommandError(f"not ready within {timeout_ms / 1000:.0f} s")
        elif not watch:
            return 1 if problems else 0
        _wait(_POLL_S if watch else min(_POLL_S, max(0.05, until - clock.monotonic())))


def problems_of(api: AdminApi) -> list[str]:
    """Return why the cluster is not ready, a sentence for each problem."""
    problems: list[str] = []
    for server in api.servers:
        problems += _of_server(server)
    try:
        status = api.request("GET", "/cluster/status", timeout_s=_ASK_S)
    except CommandError as error:
        return problems or [error.format_message()]
    for group in status["broker_groups"]:
        if group["trouble"]:
            problems.append(f"broker group {group['name']}: {group['trouble']}")
    for one in status["processes"]:
        if not one["ready"]:
            replica = "" if one["replica"] is None else f" replica {one['replica']}"
            problems.append(f"{one['kind']} {one['name']}{replica}: {one['reason']}")
    kinds = {one["kind"] for one in status["processes"]}
    problems += [f"no {kind} is there" for kind in ("broker", "proxy") if kind not in kinds]
    return list(dict.fromkeys(problems))


def _of_server(server: str) -> list[str]:
    """Return the problems that a server reports at /readyz."""
    import httpx

    try:
        answer = httpx.get(f"{server}/readyz", timeout=_ASK_S, trust_env=False)
        reasons = answer.json()["reasons"]
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise CommandError(f"--server must be like http://127.0.0.1:8080, not {server}") from error
    except httpx.HTTPError as error:
        return [f"{server} does not answer: {error or type(error).__name__}"]
    except (ValueError, KeyError, TypeError):
        return [f"{server} answers with HTTP status {answer.status_code} and not as a server of Popwheel"]
    return [f"{server}: {name}: {reason}" for name, reason in reasons.items()]


def _show(problems: Sequence[str], output: Format, *, rewrites: bool, one_line: bool) -> None:
    found = {"ready": not problems, "problems": list(problems)}
    if one_line and output in ("json", "yaml"):
        show_of_many(found, output, "")
        return
    if show_whole(found, output):
        return
    if rewrites:
        click.echo("\r\x1b[2K" + ("; ".join(problems) or "ready")[: _columns()], nl=False)
        return
    if one_line:
        click.echo("; ".join(problems) or "ready")
        return
    for problem in problems or ("ready",):
        click.echo(problem)


def _columns() -> int:
    from shutil import get_terminal_size

    return max(20, get_terminal_size().columns - 1)


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)
