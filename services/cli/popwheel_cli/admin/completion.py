"""Shell completion of names of topics, groups and contexts; names that take too long are left out."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import click
from click.shell_completion import CompletionItem

from popwheel_cli.admin.api import AdminApi
from popwheel_cli.admin.connection import api_of
from popwheel_cli.admin.contexts import contexts_file, load_contexts
from popwheel_cli.errors import CommandError

COMPLETION_S_MAX = 1.0
_NAMES_MAX = 100
_OF_BROKERS = ("broker", "drill")
"""Commands whose groups are broker groups."""


def _listed(path: str) -> "Callable[[click.Context, str], list[str]]":
    """Return a function that asks the cluster for names; it returns none if the cluster does not answer in time."""

    def names(context: click.Context, incomplete: str) -> list[str]:
        connection = api_of(context).connection
        api = AdminApi(lambda: connection._replace(servers=connection.servers.split(",")[0]))
        asked = urlencode({"prefix": incomplete, "limit": _NAMES_MAX})
        return [one["name"] for one in api.request("GET", f"/{path}?{asked}", timeout_s=COMPLETION_S_MAX)[path]]

    return names


def _contexts(_: click.Context, incomplete: str) -> list[str]:
    return [name for name in load_contexts(contexts_file()).by_name if name.startswith(incomplete)]


_topics = _listed("topics")
_groups = _listed("groups")


class _Name(click.ParamType[str]):
    """Text parameter with completion.

    Args:
        names: returns candidates.
    """

    name = "text"

    def __init__(self, names: Callable[[click.Context, str], list[str]]) -> None:
        self._names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names with this prefix."""
        try:
            return [CompletionItem(name) for name in self._names(ctx, incomplete)]
        except CommandError:
            return []  # a shell shows no errors while words are typed


def complete_names(admin: click.Group) -> None:
    """Add completion to every parameter that is a topic's, group's or context's name."""
    for path, parameter in _parameters(admin, ()):
        names = _names_for(path, parameter.name or "")
        if names is not None and parameter.type is click.STRING:
            parameter.type = _Name(names)


def _parameters(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Parameter]]:
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _parameters(each, (*path, name))
        return
    for parameter in command.params:
        yield path, parameter


def _names_for(path: tuple[str, ...], name: str) -> Callable[[click.Context, str], list[str]] | None:
    """Return the function that completes a parameter of a command; None if there is none."""
    if name == "topic":
        return _topics
    if name == "group":
        return None if path[0] in _OF_BROKERS else _groups
    if name == "name" and path[-1] not in ("create", "add"):
        return {"topic": _topics, "group": _groups, "context": _contexts}.get(path[0])
    return None
