"""`popwheel context ...`: clusters by name."""

import os
from dataclasses import asdict
from pathlib import Path

import click

from popwheel_cli.admin.api import CONTEXT_VARIABLE, Format, output_option, show, show_all
from popwheel_cli.admin.contexts import Context, contexts_file, load_contexts, save_contexts
from popwheel_cli.errors import WrongUseError


@click.group("context")
def context() -> None:
    """Manage clusters by name: add them once, and choose one with `use`."""


@context.command("add")
@click.argument("name")
@click.option("--server", required=True, help="Addresses of the controllers, separated by commas.")
@click.option("--proxy", default="", metavar="HOST:PORT", help="Proxy for messages.")
@click.option("--tls", is_flag=True, help="Use TLS to the proxy.")
@click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificates that vouch for the proxy.  [default: the system's]",
)
@click.option("--token-file", default="", help="File that holds the token for the admin API.")
@click.option("--token-variable", default="", help="Variable that holds it.")
@click.option("--access-key", default="", help="User that sends and receives messages.")
@click.option("--secret-file", default="", help="File that holds that user's secret.")
@click.option("--secret-variable", default="", help="Variable that holds it.")
@click.option("--overwrite", is_flag=True, help="Replace an existing context.")
@output_option
def add(
    name: str,
    server: str,
    proxy: str,
    tls: bool,
    tls_ca: Path | None,
    token_file: str,
    token_variable: str,
    access_key: str,
    secret_file: str,
    secret_variable: str,
    overwrite: bool,
    output: Format,
) -> None:
    """Add a cluster. Secrets are stored by their file or variable, not by their value."""
    made = Context(
        server=server,
        proxy=proxy,
        tls=tls or tls_ca is not None,
        tls_ca="" if tls_ca is None else str(tls_ca.absolute()),
        token_file=_absolute(token_file),
        token_variable=token_variable,
        access_key=access_key,
        secret_file=_absolute(secret_file),
        secret_variable=secret_variable,
    )
    file = contexts_file()
    save_contexts(file, load_contexts(file).add(name, made, overwrite=overwrite))
    _show(name, made, output)


@context.command("use")
@click.argument("name")
@output_option
def use(name: str, output: Format) -> None:
    """Use this cluster from now on, unless an option or variable names another."""
    file = contexts_file()
    save_contexts(file, load_contexts(file).use(name))
    show({"name": name, "current": True}, output)


@context.command("list")
@output_option
def list_contexts(output: Format) -> None:
    """Show the contexts, by name."""
    contexts = load_contexts(contexts_file())
    current = os.environ.get(CONTEXT_VARIABLE) or contexts.current
    rows = [
        {"name": name, "current": name == current, "server": one.server, "proxy": one.proxy, "user": one.access_key}
        for name, one in sorted(contexts.by_name.items())
    ]
    show_all(rows, output, ("name", "current", "server", "proxy", "user"))


@context.command("show")
@click.argument("name", required=False)
@output_option
def show_context(name: str | None, output: Format) -> None:
    """Show a context; the current one by default."""
    contexts = load_contexts(contexts_file())
    name = name or os.environ.get(CONTEXT_VARIABLE) or contexts.current
    if not name:
        raise WrongUseError("no context is in use; name one, or choose one with `context use`")
    _show(name, contexts.get(name), output)


@context.command("remove")
@click.argument("name")
@output_option
def remove(name: str, output: Format) -> None:
    """Remove a context; the cluster is not affected."""
    file = contexts_file()
    save_contexts(file, load_contexts(file).remove(name))
    show({"name": name, "removed": True}, output)


def _absolute(file: str) -> str:
    return str(Path(file).absolute()) if file else ""


def _show(name: str, one: Context, output: Format) -> None:
    show({"name": name, **{key: value for key, value in asdict(one).items() if value}}, output)
