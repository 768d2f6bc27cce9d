"""Requests of commands to the controller's admin API, and output of its answers."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlencode, urlsplit

import click

from popwheel_cli.errors import CommandError, WrongUseError
from popwheel_cli.table import print_table
from popwheel_common.contract.credentials import Credentials

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 10.0
_NOBODY = Credentials("", "")

TOKEN_VARIABLE = "POPWHEEL_TOKEN"
ACCESS_KEY_VARIABLE = "POPWHEEL_ACCESS_KEY"
SECRET_VARIABLE = "POPWHEEL_SECRET"
SERVER_VARIABLE = "POPWHEEL_SERVER"
CONTEXT_VARIABLE = "POPWHEEL_CONTEXT"
_PAGE_ROWS = 500
_LINES = "application/x-ndjson"
_YAML_WIDTH = 100_000
"""Width at which longer lines are folded."""

Format = Literal["table", "json", "yaml", "name"]
Row = Mapping[str, Any]

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml", "name"]),
    default="table",
    show_default=True,
    help="Form of the answer; name: the name of each thing alone, one a line.",
)

_NAMING = ("name", "message_id", "id")
"""Properties that name a row: the first of these that it has, else its first property."""


class Connection(NamedTuple):
    """Connection to a cluster: its address, and the secrets for it.

    Args:
        servers: base addresses of its controllers, commas between several.
        token: for the admin API; empty: none is shown.
        credentials: of the user that sends and receives.
        proxy: `host:port` of the proxy for messages; empty to find one.
        tls: whether to use TLS to the proxy.
        tls_authority: file of the certificates that vouch for the proxy; None: those of the system.
    """

    servers: str
    token: str = ""
    credentials: Credentials = _NOBODY
    proxy: str = ""
    tls: bool = False
    tls_authority: Path | None = None


class AdminApi:
    """Client of the admin API of a cluster's controllers. A controller that does not lead names the leader.

    Args:
        servers: base addresses, `http://127.0.0.1:8080`, commas between several; or what finds all of it, called when
            it is first needed.
        token: for the admin API; empty for none.
        credentials: for commands that send and receive themselves.
    """

    def __init__(
        self, servers: str | Callable[[], Connection], token: str = "", credentials: Credentials = _NOBODY
    ) -> None:
        self._find = servers if callable(servers) else lambda: Connection(servers, token, credentials)
        self._http: httpx.Client | None = None
        """Made once, as that takes a fifth of a second. Without keep-alive, as servers may close connections."""

    @cached_property
    def connection(self) -> Connection:
        """Connection to the cluster.

        Raises:
            CommandError: the context cannot be read.
        """
        return self._find()

    @property
    def credentials(self) -> Credentials:
        """Credentials of the user that sends and receives."""
        return self.connection.credentials

    @property
    def servers(self) -> list[str]:
        """Base addresses of the controllers."""
        return [server.strip().rstrip("/") for server in self.connection.servers.split(",")]

    @property
    def host(self) -> str:
        """Host of the first server, as in `host:port`."""
        return urlsplit(self.servers[0]).netloc.rpartition("@")[2].rpartition(":")[0]

    def request(self, method: str, path: str, body: object = None, timeout_s: float = _TIMEOUT_S) -> Any:
        """Ask, and give what was answered: None where the answer is empty, a list of what stands in lines. A controller
        that does not lead is passed by.

        So is one that does not answer, unless something is to be changed and it may have received it: a switchover that
        was done might be done once more, back again.

        Args:
            method: of HTTP.
            path: below `/api/v1`, its parts already quoted.
            body: what is sent as JSON.
            timeout_s: for the answer.

        Raises:
            CommandError: it was refused, or nobody answered.
        """
        ask = self.servers
        for server in ask:  # grows while it is gone through
            try:
                return _request(self._client(), server, method, path, body, timeout_s)
            except RefusedError as error:
                last: CommandError = error
                if error.leader is None:
                    raise
                if error.leader and f"http://{error.leader}" not in ask:
                    ask.append(f"http://{error.leader}")
            except _SilentError as error:
                if error.may_have_arrived and method != "GET":
                    raise
                last = error
        raise last

    def _client(self) -> "httpx.Client":
        if self._http is None:
            import httpx

            token = self.connection.token
            headers = {"authorization": f"Bearer {token}"} if token else {}
            limits = httpx.Limits(max_keepalive_connections=0)
            self._http = httpx.Client(trust_env=False, headers=headers, limits=limits)
        return self._http

    def pages(
        self, path: str, name: str, prefix: str, limit: int, page_rows: int = _PAGE_ROWS
    ) -> tuple[list[Row], int]:
        """Request a list page by page; return its rows, and their total number.

        Args:
            path: below `/api/v1`.
            name: under which an answer has the rows.
            prefix: prefix of the wanted names; empty for all.
            limit: limit of the rows.
            page_rows: of one page.

        Raises:
            CommandError: it was refused, or nobody answered.
        """
        rows: list[Row] = []
        after, total = "", 0
        while len(rows) < limit:
            asked = {"prefix": prefix, "after": after, "limit": min(page_rows, limit - len(rows))}
            answer = self.request("GET", f"{path}?{urlencode(asked)}")
            rows += answer[name]
            total, after = answer["total"], answer["next"]
            if after is None:
                break
        return rows, total


class RefusedError(CommandError):
    """Refusal of the controller.

    Args:
        code: why, in a word.
        sentence: why.
        leader: None if it has looked at what was asked; else where the controller that leads answers, `host:port`,
            empty if that is not known.
    """

    def __init__(self, code: str, sentence: str, leader: str | None = None) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence
        self.leader = leader


class _SilentError(CommandError):
    """Error of a controller that does not answer.

    Args:
        sentence: the message.
        may_have_arrived: whether a controller may have executed the request.
    """

    def __init__(self, sentence: str, *, may_have_arrived: bool) -> None:
        super().__init__(sentence)
        self.may_have_arrived = may_have_arrived


def _request(client: "httpx.Client", server: str, method: str, path: str, body: object, timeout_s: float) -> Any:
    import httpx

    try:
        answer = client.request(method, f"{server}/api/v1{path}", json=body, timeout=timeout_s)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise WrongUseError(f"--server must be like http://127.0.0.1:8080, not {server}") from error
    except httpx.HTTPError as error:
        if isinstance(error, httpx.ConnectError):
            advice = "start one (`popwheel standalone`), or name another with --server"
            raise _SilentError(
                f"no controller answers at {server} ({error}); {advice}", may_have_arrived=False
            ) from error
        connected = not isinstance(error, httpx.ConnectTimeout)
        how = f"within {timeout_s:.0f} s" if isinstance(error, httpx.TimeoutException) else f"({error})"
        doubt = "; check whether it was done before you retry" if connected and method != "GET" else ""
        raise _SilentError(
            f"the controller at {server} did not answer {how}{doubt}", may_have_arrived=connected
        ) from error
    if answer.is_success:
        if answer.headers.get("content-type", "").startswith(_LINES):
            return [json.loads(line) for line in answer.content.split(b"\n") if line]
        return answer.json() if answer.content else None
    raise _refusal(answer.content) or CommandError(f"{server} answered with HTTP status {answer.status_code}")


def _refusal(content: bytes) -> RefusedError | None:
    """Return the refusal of an answer; None if it is not one of the admin API's."""
    try:
        refusal = json.loads(content)
    except ValueError:
        return None
    if not isinstance(refusal, dict) or not isinstance(refusal.get("message"), str):
        return None
    leader = refusal.get("leader")
    return RefusedError(
        str(refusal.get("code", "REFUSED")), refusal["message"], leader if isinstance(leader, str) else None
    )


def moment(time_ms: int) -> str:
    """Return a time in UTC, to the millisecond."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"


class MomentParam(click.ParamType[int]):
    """A time like 2026-01-31T12:00:00Z, in milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time; write it like 2026-01-31T12:00:00Z", param, ctx)
        if time.tzinfo is None:
            self.fail(f"{value!r} does not say of which zone it is; write {value}Z for UTC", param, ctx)
        since_ms = (time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000
        if since_ms < 0:
            self.fail(f"{value!r} is before 1970", param, ctx)
        return round(since_ms)


def show(row: Row, output: Format) -> None:
    """Print the properties of one row."""
    if show_whole(row, output):
        return
    if output == "name":
        click.echo(cell(_name_of(row, tuple(row))))
    else:
        print_table(("property", "value"), [(name, cell(value)) for name, value in row.items()])


def show_all(rows: Sequence[Row], output: Format, columns: Sequence[str]) -> None:
    """Print rows as a table, a line for each."""
    if show_whole(rows, output):
        return
    if output == "name":
        show_names(_name_of(row, columns) for row in rows)
    else:
        print_table(columns, [[cell(row[column]) for column in columns] for row in rows])


def show_whole(answer: object, output: Format) -> bool:
    """Print the whole answer, if the format is JSON or YAML.

    Returns:
        Whether it was printed; if not, the caller prints a table or names of what it picks.
    """
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
    elif output == "yaml":
        click.echo(as_yaml(answer), nl=False)
    return output in ("json", "yaml")


def show_of_many(row: Row, output: Format, line: str) -> None:
    """Print one row of a stream of rows: JSON on one line, YAML as a document of its own.

    Args:
        row: the thing.
        output: the form.
        line: the thing as a line of a table.
    """
    if output == "json":
        click.echo(json.dumps(row, ensure_ascii=False))
    elif output == "yaml":
        click.echo(f"---\n{as_yaml(row)}", nl=False)
    else:
        click.echo(cell(_name_of(row, tuple(row))) if output == "name" else line)


def show_names(names: Iterable[object]) -> None:
    """Print names, one a line."""
    for name in names:
        click.echo(cell(name))


def as_yaml(answer: object) -> str:
    """Return an answer as a YAML document, in its own order."""
    import yaml

    plain = json.loads(json.dumps(answer))  # YAML of mappings and tuples of other types would name those
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=_YAML_WIDTH))


def _name_of(row: Row, columns: Sequence[str]) -> object:
    return row[next((each for each in _NAMING if each in row), columns[0])]


def cell(value: object) -> str:
    """A value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell(each)}" for name, each in value.items())
    return "" if value is None else str(value)
