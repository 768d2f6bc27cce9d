"""Errors of commands: one sentence on standard error and an exit code."""

import click


class CommandError(click.ClickException):
    """Failure of a command: the reason, and the remedy."""

    exit_code = 1


class WrongUseError(CommandError):
    """Impossible request to a command: a wrong flag, a wrong setting."""

    exit_code = 2
