"""Errors of commands: one sentence on standard error and an exit code."""

import click


class CommandError(click.ClickException):
    """A command that could not do what was asked: why, and what to do about it."""

    exit_code = 1


class WrongUseError(CommandError):
    """A command that was asked for what cannot be: a wrong flag, a wrong setting."""

    exit_code = 2
