"""Health check of a container: `python -m popwheel_cli.healthcheck` requests `/healthz` of the `popwheel` in it.

The port comes from the command line of that process and from the shared settings.
"""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from popwheel_cli.errors import CommandError
from popwheel_cli.main import main
from popwheel_cli.options import ClusterOptions
from popwheel_cli.process.listeners import host_in_address, reached_here
from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.config import load

_FIRST = Path("/proc/1/cmdline")
_TIMEOUT_S = 4.0
_SERVICES = ("standalone", "cluster", "proxy", "broker", "controller")


def address_of(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return host:port of a process's HTTP listener.

    Args:
        words: its command line, also with what stands before its verb.
        environment: its variables.

    Raises:
        CommandError: it is none of ours, or has any port that is free.
        ConfigurationError: its settings can't be.
    """
    verb = next((word for word in words if word in _SERVICES), None)
    if verb is None:
        raise CommandError(f"no popwheel runs here as the first process, but {' '.join(words) or 'nothing'}")
    command = main.commands[verb]
    given = command.make_context(verb, [*words[words.index(verb) + 1 :]], resilient_parsing=True).params
    options: Any = load(
        ClusterOptions,
        file=given.get("file"),
        environment=environment,
        assignments=given.get("assignments") or (),
        flags={},
    )
    host, port = {
        "proxy": (options.proxy.http_host, options.proxy.http_port),
        "broker": (options.broker.grpc_host, options.broker.http_port),
    }.get(verb, (options.controller.http_host, options.controller.http_port))
    host, port = given.get("host") or host, given.get("http_port") or port
    if not port:
        raise CommandError("the port of HTTP is 0, any that is free: give one, so that it can be asked")
    return f"{host_in_address(reached_here(host))}:{port}"


def check(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Check that a process is alive; arguments as for `address_of`.

    Raises:
        CommandError: it is not, or can't be asked.
        ConfigurationError: its settings can't be.
    """
    address = address_of(words, environment)
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    try:
        ask(f"http://{address}/healthz", timeout=_TIMEOUT_S).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise CommandError(f"{address} answers with HTTP status {error.code}") from error
    except OSError as error:
        raise CommandError(f"{address} does not answer: {error}") from error


if __name__ == "__main__":
    try:
        check(_FIRST.read_text(encoding="utf-8", errors="replace").split("\0")[:-1], os.environ)
    except (CommandError, ConfigurationError, OSError) as error:
        sys.exit(f"popwheel: {error}")
