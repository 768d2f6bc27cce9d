"""The tokens that callers of the admin API must show: each has a name and a role."""

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from popwheel_common.audit_log import AuditLog
from popwheel_common.clock import Clock
from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.watched_file import WatchedFile
from popwheel_common.web.caller import NAME, RESERVED_NAMES, RIGHTS, Caller, Rights, Role

_FILE_BYTES_MAX = 64 * 1024
_SCHEME = "bearer"
_TOKEN = re.compile(rb"[!-~]{16,512}")


@dataclass(frozen=True, slots=True)
class Token:
    """A line of the file.

    Args:
        secret: what a caller shows.
        name: by which logs call it.
        role: what it may do.
        sees_data: may see the bodies and properties of messages.
    """

    secret: bytes = field(repr=False)
    name: str
    role: Role = Role.ADMINISTER
    sees_data: bool = True


class Tokens:
    """Identifies callers by the header `authorization: Bearer TOKEN`.

    Args:
        path: file of tokens, one a line, so that a new one can be good before the old one is gone.
        clock: for the log.
        registry: where denials are counted.

    Raises:
        ConfigurationError: the file cannot be used.
    """

    def __init__(self, path: str, clock: Clock, registry: CollectorRegistry) -> None:
        try:
            self._file = WatchedFile(Path(path), tokens_of, "the file of tokens", _FILE_BYTES_MAX)
        except OSError as error:
            raise ConfigurationError("access.token_file", f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError("access.token_file", f"{path} is no file of tokens: {error}") from None
        self._log = AuditLog(clock.monotonic)
        self._denials = Counter(
            "popwheel_http_denials", "Requests to the admin API that showed no good token", registry=registry
        )
        Gauge(
            "popwheel_http_token_file_refused",
            "1 while the file of tokens holds what cannot be used, so that those before stay in force",
            registry=registry,
        ).set_function(lambda: bool(self._file.trouble))

    def caller(self, authorization: str, address: str) -> Caller | None:
        """Return the caller of a valid token in a header; None without one. A wrong token takes as long as a right one.

        Args:
            authorization: the header.
            address: where the call comes from.
        """
        self._file.refresh()
        scheme, _, shown = authorization.partition(" ")
        secret = shown.strip().encode(errors="replace")
        found = [each for each in self._file.content if hmac.compare_digest(secret, each.secret)]
        if scheme.lower() != _SCHEME or not found:
            return None
        return Caller(found[0].name, found[0].role, found[0].sees_data, address)

    def rights(self, name: str) -> Rights | None:
        """Return the current rights of a token of that name; None if it no longer exists."""
        self._file.refresh()
        return next((Rights(each.role, each.sees_data) for each in self._file.content if each.name == name), None)

    def denied(self, method: str, path: str, peer: str) -> None:
        """Count a denial, and write it into the log."""
        self._denials.inc()
        self._log.denied(reason="no_token", method=method, path=path[:64], peer=peer)


def tokens_of(data: bytes) -> Sequence[Token]:
    """Return the tokens in a file: lines `NAME ROLE TOKEN`, or `TOKEN` alone, which may administer.

    Raises:
        ValueError: there is none, or a line is none; the sentence shows none of them.
    """
    found: dict[bytes, tuple[int, Token]] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        token = _token(number, line.split())
        earlier, known = found.setdefault(token.secret, (number, token))
        if earlier != number and (known.role, known.sees_data) != (token.role, token.sees_data):
            raise ValueError(f"line {number} has the token of line {earlier} and another role: give it one of its own")
    if not found:
        raise ValueError("there is no token in it")
    return [token for _, token in found.values()]


def _token(number: int, words: list[bytes]) -> Token:
    secret = words[-1]
    if len(words) not in (1, 3):
        raise ValueError(f"line {number} is no token: write NAME ROLE TOKEN, or the token alone, which may administer")
    if _TOKEN.fullmatch(secret) is None:
        raise ValueError(f"line {number} is no token: 16 to 512 letters, digits and signs of ASCII")
    if len(words) == 1:
        return Token(secret, f"token {number}")
    name, role = (word.decode(errors="replace") for word in words[:2])
    if NAME.fullmatch(name) is None or name.lower() in RESERVED_NAMES:
        raise ValueError(
            f"line {number} has no good name: up to 64 letters, digits, dots, dashes, underscores and @, and none of "
            f"{', '.join(sorted(RESERVED_NAMES))}"
        )
    if role not in RIGHTS:
        raise ValueError(f"line {number} has no good role: the second word must be one of {', '.join(RIGHTS)}")
    return Token(secret, name, *RIGHTS[role])
