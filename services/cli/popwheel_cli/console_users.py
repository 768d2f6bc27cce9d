"""Lines of the file of the console's users."""

import sys

import click

from popwheel_cli.errors import WrongUseError
from popwheel_common.web.caller import NAME, RESERVED_NAMES

_LENGTH_MIN = 8


def user_line(name: str, role: str) -> str:
    """Return the line of a user, after asking for the password.

    Args:
        name: of the user.
        role: what the user may do.

    Raises:
        WrongUseError: the name or the password cannot be.
    """
    from popwheel_console.login.passwords import PASSWORD_LENGTH_MAX, hash_of

    if NAME.fullmatch(name) is None or name.lower() in RESERVED_NAMES:
        raise WrongUseError(
            f"{name[:64]!r} is no name: up to 64 letters, digits, dots, dashes, underscores and @, and none of "
            f"{', '.join(sorted(RESERVED_NAMES))}"
        )
    if sys.stdin.isatty():
        password = str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not _LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
        raise WrongUseError(f"the password must have {_LENGTH_MIN} to {PASSWORD_LENGTH_MAX} characters")
    return f"{name} {role} {hash_of(password)}"
