"""The users of the console that a file names: each has a role and a hash of a password."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.watched_file import WatchedFile
from popwheel_common.web.caller import NAME, RESERVED_NAMES, RIGHTS, Rights

_FILE_BYTES_MAX: Final = 256 * 1024
_HASH: Final = re.compile(r"\$argon2id\$[!-~]{20,500}")


class User(NamedTuple):
    """A line of the file.

    Args:
        rights: what the user may do.
        password_hash: of Argon2id, as `popwheel console password` prints it.
    """

    rights: Rights
    password_hash: str


class Users:
    """Users by name, as the file has them now.

    Args:
        path: the file, one user a line: NAME ROLE HASH.
        registry: shows whether it can be used.

    Raises:
        ConfigurationError: it cannot be used.
    """

    def __init__(self, path: str, registry: CollectorRegistry) -> None:
        try:
            self._file = WatchedFile(Path(path), users_of, "the file of the console's users", _FILE_BYTES_MAX)
        except OSError as error:
            raise ConfigurationError("console.users_file", f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError("console.users_file", f"{path} is no file of users: {error}") from None
        Gauge(
            "popwheel_console_users_file_refused",
            "1 while the file of the console's users holds what cannot be used, so that those before stay in force",
            registry=registry,
        ).set_function(lambda: bool(self._file.trouble))

    def get(self, name: str) -> User | None:
        """Return a user; None if there is none of that name (any more)."""
        self._file.refresh()
        return self._file.content.get(name)


def users_of(data: bytes) -> Mapping[str, User]:
    """Return the users in a file; empty lines and lines that begin with `#` say nothing.

    Raises:
        ValueError: a line is none, or there is no user; the sentence shows no hash.
    """
    found: dict[str, User] = {}
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3:
            raise ValueError(f"line {number} is no user: write NAME ROLE HASH, as popwheel console password prints it")
        name, role, password_hash = words
        if NAME.fullmatch(name) is None or name.lower() in RESERVED_NAMES:
            raise ValueError(
                f"line {number} has no good name: up to 64 letters, digits, dots, dashes, underscores and @, and none "
                f"of {', '.join(sorted(RESERVED_NAMES))}"
            )
        if role not in RIGHTS:
            raise ValueError(f"line {number} has no good role: the second word must be one of {', '.join(RIGHTS)}")
        if _HASH.fullmatch(password_hash) is None:
            raise ValueError(f"line {number} has no hash of Argon2id: take one from popwheel console password")
        if name in found:
            raise ValueError(f"line {number} has the name of a line before: give each user one line")
        found[name] = User(RIGHTS[role], password_hash)
    if not found:
        raise ValueError("there is no user in it")
    return found
