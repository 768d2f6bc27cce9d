"""Contexts: clusters by name, in a file; secrets are stored elsewhere."""

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import click

from popwheel_cli.admin.api import Connection
from popwheel_cli.errors import CommandError, WrongUseError
from popwheel_common.contract.credentials import Credentials

CONTEXTS_MAX = 100
FILE_BYTES_MAX = 256 * 1024
SECRET_BYTES_MAX = 4 * 1024
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SERVER = re.compile(r"https?://[^\s,/]+/?")
_PROXY = re.compile(r"\S+:[0-9]{1,5}")


@dataclass(frozen=True)
class Context:
    """A cluster and its user. Secrets are named by their file or variable, never by their value.

    Args:
        server: base addresses of its controllers, commas between several.
        proxy: `host:port` through which messages go; empty: one is looked for.
        tls: whether that is spoken to over TLS.
        tls_ca: file of the certificates that vouch for it; empty: those of the system.
        token_file: holds the token for the admin API.
        token_variable: the same, in the environment.
        access_key: of the user that sends and receives.
        secret_file: holds that user's secret.
        secret_variable: the same, in the environment.
    """

    server: str
    proxy: str = ""
    tls: bool = False
    tls_ca: str = ""
    token_file: str = ""
    token_variable: str = ""
    access_key: str = ""
    secret_file: str = ""
    secret_variable: str = ""

    def connection(self, environment: Mapping[str, str]) -> Connection:
        """Return the context's connection, with its secrets read.

        Raises:
            CommandError: a secret is not where the context says.
        """
        token = _secret("token", self.token_file, self.token_variable, environment)
        secret = _secret("secret", self.secret_file, self.secret_variable, environment)
        authority = Path(self.tls_ca) if self.tls_ca else None
        return Connection(self.server, token, Credentials(self.access_key, secret), self.proxy, self.tls, authority)


@dataclass(frozen=True)
class Contexts:
    """Contexts of the file.

    Args:
        by_name: each of them.
        current: the name of the one that counts where none is named; empty: none.
    """

    by_name: Mapping[str, Context] = field(default_factory=dict)
    current: str = ""

    def get(self, name: str) -> Context:
        """Return a context.

        Raises:
            CommandError: there is none of that name.
        """
        try:
            return self.by_name[name]
        except KeyError:
            there = ", ".join(sorted(self.by_name)) or "there is none yet"
            raise WrongUseError(f"there is no context {name[:64]!r} ({there}); make it with `context add`") from None

    def add(self, name: str, context: Context, *, overwrite: bool) -> "Contexts":
        """Return the contexts with one more.

        Raises:
            CommandError: the context or its name is not possible, or it is there, or there are too many.
        """
        _check_name(name)
        check(context)
        if name in self.by_name and not overwrite:
            raise WrongUseError(f"the context {name} is there; change it with --overwrite, or remove it first")
        if name not in self.by_name and len(self.by_name) >= CONTEXTS_MAX:
            raise CommandError(f"there are {CONTEXTS_MAX} contexts, and no more are kept; remove one first")
        return replace(self, by_name={**self.by_name, name: context})

    def remove(self, name: str) -> "Contexts":
        """Return the contexts without one. Raises CommandError if it is not there."""
        self.get(name)
        left = {key: context for key, context in self.by_name.items() if key != name}
        return Contexts(left, "" if self.current == name else self.current)

    def use(self, name: str) -> "Contexts":
        """Return the contexts with another current one. Raises CommandError if it is not there."""
        self.get(name)
        return replace(self, current=name)


def check(context: Context) -> None:
    """Check a context.

    Raises:
        WrongUseError: it cannot be.
    """
    for server in context.server.split(","):
        if not _SERVER.fullmatch(server.strip()):
            raise WrongUseError(f"--server must be like http://127.0.0.1:8080, not {server[:80]!r}")
    if context.proxy and not _PROXY.fullmatch(context.proxy):
        raise WrongUseError(f"--proxy must be host:port, not {context.proxy[:80]!r}")
    for what in ("token", "secret"):
        if getattr(context, f"{what}_file") and getattr(context, f"{what}_variable"):
            raise WrongUseError(f"choose one of --{what}-file and --{what}-variable")
    if (context.secret_file or context.secret_variable) and not context.access_key:
        raise WrongUseError("a secret is of a user; say with --access-key whose it is")


def contexts_file() -> Path:
    """Return the file of the contexts: below `$XDG_CONFIG_HOME`, or `~/.config`."""
    return Path(click.get_app_dir("popwheel")) / "contexts.yaml"


def load_contexts(file: Path) -> Contexts:
    """Return the contexts of a file; none if it is not there.

    Raises:
        CommandError: it cannot be read, or is not a file of contexts.
    """
    import yaml

    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CommandError(f"the contexts cannot be read: {file}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise CommandError(f"{file} has more than {FILE_BYTES_MAX} bytes, which is no file of contexts")
    try:
        content = yaml.safe_load(data.decode())
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise _no_contexts(file, "it is not YAML") from error
    return _parsed(file, {} if content is None else content)


def save_contexts(file: Path, contexts: Contexts) -> None:
    """Write the file anew, for its owner alone.

    Raises:
        CommandError: it cannot be written.
    """
    import yaml

    rows = {name: _without_defaults(context) for name, context in sorted(contexts.by_name.items())}
    text = yaml.safe_dump({"current": contexts.current, "contexts": rows}, sort_keys=False, allow_unicode=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, stat.S_IRUSR | stat.S_IWUSR)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
        fresh.replace(file)
    except OSError as error:
        with suppress(OSError):  # what went wrong before it says more
            fresh.unlink(missing_ok=True)
        raise CommandError(f"the contexts cannot be saved: {file}: {error.strerror}") from error


def _parsed(file: Path, content: Any) -> Contexts:
    if not isinstance(content, dict) or not content.keys() <= {"current", "contexts"}:
        raise _no_contexts(file, "it may have the keys current and contexts alone")
    rows, current = content.get("contexts") or {}, content.get("current") or ""
    if not isinstance(rows, dict) or not isinstance(current, str) or len(rows) > CONTEXTS_MAX:
        raise _no_contexts(file, f"contexts must hold at most {CONTEXTS_MAX} of them by name, current a name")
    kinds = {each.name: bool if each.name == "tls" else str for each in fields(Context)}
    by_name: dict[str, Context] = {}
    for name, row in rows.items():
        if not isinstance(name, str) or not isinstance(row, dict) or "server" not in row:
            raise _no_contexts(file, f"the context {name!r} must have a server")
        for key, value in row.items():
            if not isinstance(value, kinds.get(key, type(None))):
                raise _no_contexts(file, f"the context {name!r} has a wrong entry {key!r}")
        by_name[name] = Context(**row)
        try:
            _check_name(name)
            check(by_name[name])
        except WrongUseError as error:
            raise _no_contexts(file, f"in the context {name!r}, {error.message}") from error
    return Contexts(by_name, current)


def _no_contexts(file: Path, why: str) -> CommandError:
    return WrongUseError(f"{file} is no file of contexts: {why}; mend it, or remove it")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise WrongUseError(f"{name[:80]!r} is no name of a context: 1 to 64 letters, digits, '.', '_' and '-'")


def _without_defaults(context: Context) -> dict[str, object]:
    return {key: value for key, value in asdict(context).items() if value}


def _secret(what: str, file: str, variable: str, environment: Mapping[str, str]) -> str:
    if variable:
        try:
            return environment[variable]
        except KeyError:
            raise WrongUseError(
                f"the context takes its {what} from the variable {variable}, which is not set"
            ) from None
    if not file:
        return ""
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(SECRET_BYTES_MAX + 1)
        if len(data) > SECRET_BYTES_MAX:
            raise CommandError(f"the context's {what} is in {file}, which has more than {SECRET_BYTES_MAX} bytes")
        return data.decode().strip()
    except OSError as error:
        raise CommandError(f"the context's {what} cannot be read: {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"the context's {what} is in {file}, which is not text") from error
