"""Consent of operators: destructive commands ask first, or take `--yes`, and show their effect with `--dry-run`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click

from popwheel_cli.admin.api import AdminApi, RefusedError, Row
from popwheel_cli.errors import CommandError, WrongUseError

Given = ParamSpec("Given")
Result = TypeVar("Result")

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show the changes without making them.")


@dataclass(frozen=True, slots=True)
class Consent:
    """Consent of an operator on the command line.

    Args:
        yes: do not ask.
        dry_run: change nothing.
    """

    yes: bool
    dry_run: bool

    def check_terminal(self) -> None:
        """Check that there is a terminal, if a question is needed.

        Raises:
            WrongUseError: there is none; nothing was done.
        """
        if not self.yes and not self.dry_run and not has_terminal():
            raise WrongUseError(
                "nothing was done: this destroys, and there is no terminal to ask at; give --yes, or see with "
                "--dry-run what would go"
            )

    def carry_out(
        self, api: AdminApi, method: str, path: str, question: str, cost: Callable[[Row], str], body: object = None
    ) -> Row | None:
        """Ask what would go, then the operator, then for it to be done; what was answered, None to an older release.

        Args:
            api: the admin API.
            method: of HTTP.
            path: of what destroys; it takes `?dry_run=true`.
            question: for the operator.
            cost: says in a sentence what would go, by the answer to the dry run.
            body: what is sent as JSON.

        Raises:
            WrongUseError: there is no terminal to ask at.
            click.Abort: the operator does not want it.
            CommandError: it was refused, or no controller answered.
        """
        self.check_terminal()
        if self.dry_run or not self.yes:
            would = preview(api, method, path, body)
            if self.dry_run:
                return would
            click.echo(cost(would), err=True)
            agree(question)
        found: Row | None = api.request(method, path, body)
        return found


def destroys(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options `--yes` and `--dry-run` to a command, and call it with a `Consent` under that name."""

    @wraps(command)
    def with_consent(*given: Any, yes: bool, dry_run: bool, **named: Any) -> Result:
        return command(*given, consent=Consent(yes, dry_run), **named)

    return yes_option(dry_run_option(with_consent))


def preview(api: AdminApi, method: str, path: str, body: object = None) -> Row:
    """Return what would be deleted, by a dry run.

    Raises:
        CommandError: the controller is of a release that would do it all the same.
    """
    try:
        api.request("GET", "/changes?limit=1")
    except RefusedError as error:
        if error.code != "NOT_FOUND":
            raise
        raise CommandError(
            "nothing was done: the controller is of an older release, which has no dry run; give --yes to have it "
            "done without"
        ) from error
    found: Row = api.request(method, f"{path}?dry_run=true", body)
    return found


def has_terminal() -> bool:
    """Return whether there is a terminal."""
    return sys.stdin.isatty()


def agree(question: str) -> None:
    """Ask for confirmation at the terminal.

    Raises:
        click.Abort: the operator does not want it.
    """
    click.confirm(question, abort=True, err=True)
