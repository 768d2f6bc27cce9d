"""The tokens that callers of the admin API must show."""

import hmac
import re
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.common.audit_log import AuditLog
from services.common.clock import Clock
from services.common.errors import ConfigurationError
from services.common.settings.watched_file import WatchedFile

_FILE_BYTES_MAX = 64 * 1024
_SCHEME = "bearer"
_TOKEN = re.compile(rb"[!-~]{16,512}")


class Tokens:
    """Tells who may call, by the header `authorization: Bearer TOKEN`.

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

    def allow(self, authorization: str) -> bool:
        """Whether a header shows a good token; it takes as long for each that is wrong."""
        self._file.refresh()
        scheme, _, shown = authorization.partition(" ")
        token = shown.strip().encode(errors="replace")
        found = [hmac.compare_digest(token, each) for each in self._file.content]
        return scheme.lower() == _SCHEME and any(found)

    def denied(self, method: str, path: str, peer: str) -> None:
        """Count a denial, and write it into the log."""
        self._denials.inc()
        self._log.denied(reason="no_token", method=method, path=path[:64], peer=peer)


def tokens_of(data: bytes) -> tuple[bytes, ...]:
    """The tokens in a file.

    Raises:
        ValueError: there is none, or a line is none; the sentence shows none of them.
    """
    lines = [line.strip() for line in data.splitlines()]
    for number, line in enumerate(lines, 1):
        if line and _TOKEN.fullmatch(line) is None:
            raise ValueError(f"line {number} is no token: 16 to 512 letters, digits and signs of ASCII")
    tokens = tuple(dict.fromkeys(line for line in lines if line))
    if not tokens:
        raise ValueError("there is no token in it")
    return tokens
