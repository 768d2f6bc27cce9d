"""Console of a controller, from its settings: users, sessions and pages."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from popwheel_cli.options import ClusterOptions
from popwheel_common.clock import SystemClock
from popwheel_common.errors import ConfigurationError
from popwheel_common.web.signatures import SECRET_BYTES_MIN, Signatures
from popwheel_common.web.signed_callers import SignedCallers
from popwheel_common.web.tokens import Tokens
from popwheel_common.web.users import Users

if TYPE_CHECKING:
    from fastapi import APIRouter

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """Parts of the console that an HTTP application needs.

    Args:
        signed: the login sessions; None without logins.
        router: its pages; the last routes of the application.
    """

    signed: SignedCallers | None
    router: "APIRouter"


def make_console(options: ClusterOptions, tokens: Tokens | None, registry: CollectorRegistry) -> ConsoleParts:
    """Return the console. Call it in a thread, as it reads files and loads modules.

    Args:
        options: of the process.
        tokens: of the admin API; None if it takes none.
        registry: where logins are counted.

    Raises:
        ConfigurationError: a file cannot be used, or options do not go together.
    """
    from popwheel_console.console import Console
    from popwheel_console.login.login_methods import LoginMethods
    from popwheel_console.login.logins import Logins
    from popwheel_console.login.oidc import Oidc
    from popwheel_console.login.pages import LoginPages
    from popwheel_console.static_files import StaticFiles
    from popwheel_console.view.renderer import Renderer

    ours, clock = options.console, SystemClock()
    secret = _secret(ours.secret_file)
    users = Users(ours.users_file, registry) if ours.users_file else None
    methods = LoginMethods(tokens, users, Oidc(ours) if ours.oidc.issuer else None)
    signed = SignedCallers(secret, tokens, users, clock) if methods.are_any else None
    store = options.controller.store
    if methods.are_any and not ours.secret_file and (store.kind != "file" or store.folder):
        _logger.warning(
            "each controller signs sessions of the console with a secret of its own, so a login is good at one of them "
            "alone: set console.secret_file (docs/operate/access.md)"
        )
    logins = Logins(ours, secret, signed, clock)
    renderer, files = Renderer(clock), StaticFiles()
    on_the_way = Signatures(secret, "oidc", clock)
    pages = LoginPages(logins, renderer, files.version, methods, on_the_way, clock, registry)
    return ConsoleParts(signed, Console(clock, logins, pages, renderer, files).router())


def _secret(path: str) -> bytes:
    if not path:
        return os.urandom(SECRET_BYTES_MIN)
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigurationError("console.secret_file", f"cannot read {path}: {error.strerror}") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigurationError(
            "console.secret_file",
            f"{path} has {len(secret)} bytes, and must have at least {SECRET_BYTES_MIN} random ones",
        )
    return secret
