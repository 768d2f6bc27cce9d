"""Connection of a command: from its options, then variables, then a context, then this machine."""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from popwheel_cli.admin.api import (
    ACCESS_KEY_VARIABLE,
    CONTEXT_VARIABLE,
    SECRET_VARIABLE,
    SERVER_VARIABLE,
    TOKEN_VARIABLE,
    AdminApi,
    Connection,
)
from popwheel_cli.admin.contexts import Contexts, contexts_file, load_contexts
from popwheel_cli.errors import WrongUseError
from popwheel_common.contract.credentials import Credentials

Function = TypeVar("Function", bound=Any)

DEFAULT_SERVER = "http://127.0.0.1:8080"
_GIVEN = "popwheel_cli.given"
"""Key of the given options in click's shared context."""

_HELP = {
    "server": "Where the controller answers; several, one after a comma, are asked in turn. Or "
    f"{SERVER_VARIABLE}.  [default: {DEFAULT_SERVER}]",
    "context": f"The cluster by its name (`popwheel context`), or {CONTEXT_VARIABLE}.",
    "token": f"Shown to a controller that demands one; better in {TOKEN_VARIABLE}, where others do not see it.",
    "access_key": f"User as which messages are sent and received, or {ACCESS_KEY_VARIABLE}.",
    "secret": f"That user's secret; better in {SECRET_VARIABLE}.",
}


def _store_option(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Store the given value; the rightmost one counts."""
    if value is not None:
        context.meta.setdefault(_GIVEN, {})[parameter.name] = value


def connection_options(function: Function) -> Function:
    """Add the options that choose the cluster and the user."""
    for name in reversed(_HELP):
        option = f"--{name.replace('_', '-')}"
        function = click.option(option, callback=_store_option, expose_value=False, help=_HELP[name])(function)
    return function


def api_of(context: click.Context) -> AdminApi:
    """Return the admin API of the chosen cluster, which is determined by the first call."""
    meta = context.meta
    return AdminApi(lambda: connection_from(meta.get(_GIVEN, {}), os.environ, lambda: load_contexts(contexts_file())))


def connection_from(
    given: Mapping[str, str], environment: Mapping[str, str], contexts: Callable[[], Contexts]
) -> Connection:
    """Return the connection to the chosen cluster. A context's secrets go to its own server alone.

    Args:
        given: options of the command line, by name.
        environment: variables.
        contexts: reads the contexts; called only if one may be meant.

    Raises:
        CommandError: it is not possible, or the context's secrets are not there.
    """
    if "server" in given and "context" in given:
        raise WrongUseError("choose one of --server and --context: each says which cluster is meant")
    server, name = given.get("server"), given.get("context")
    if server is None and name is None:
        server = environment.get(SERVER_VARIABLE) or None
        name = environment.get(CONTEXT_VARIABLE) or None
    if server is not None:
        found = Connection(server)  # an empty one, too: a script whose variable is not set means no other cluster
    else:
        all_contexts = contexts()
        name = all_contexts.current if name is None else name
        is_any = name or "context" in given
        found = all_contexts.get(name).connection(environment) if is_any else Connection(DEFAULT_SERVER)
    token = given.get("token") or environment.get(TOKEN_VARIABLE) or found.token
    access_key = given.get("access_key") or environment.get(ACCESS_KEY_VARIABLE)
    secret = given.get("secret") or environment.get(SECRET_VARIABLE)
    if access_key:
        credentials = Credentials(access_key, secret or "")
    else:
        credentials = found.credentials._replace(secret=secret) if secret else found.credentials
    return found._replace(token=token, credentials=credentials)
