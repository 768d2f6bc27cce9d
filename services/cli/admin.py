"""`popwheel admin ...`: the cluster, topics, groups and delayed messages, through the controller's admin API."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote, urlencode

import click

from services.cli.errors import CommandError, WrongUseError
from services.cli.table import print_table

_TIMEOUT_S = 10.0
_LISTED_MAX = 1_000  # of what the controller lists
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,9})([smhd])")

Format = Literal["table", "json"]
Row = Mapping[str, Any]

_output = click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form of the answer."
)


class AdminApi:
    """The admin API of one controller.

    Args:
        server: its base address, `http://127.0.0.1:8080`.
    """

    def __init__(self, server: str) -> None:
        self._server = server.rstrip("/")

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Ask, and give what was answered; None where the answer is empty.

        Args:
            method: of HTTP.
            path: below `/api/v1`, its parts already quoted.
            body: what is sent as JSON.

        Raises:
            CommandError: it was refused, or nobody answered.
        """
        import httpx

        try:
            answer = httpx.request(
                method, f"{self._server}/api/v1{path}", json=body, timeout=_TIMEOUT_S, trust_env=False
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise WrongUseError(f"--server must be like http://127.0.0.1:8080, not {self._server}") from error
        except httpx.TimeoutException as error:
            raise CommandError(f"the controller at {self._server} did not answer within {_TIMEOUT_S:.0f} s") from error
        except httpx.HTTPError as error:
            raise CommandError(
                f"no controller answers at {self._server} ({error}); start one, or name another with --server"
            ) from error
        if answer.is_success:
            return answer.json() if answer.content else None
        raise CommandError(_reason(answer.content) or f"{self._server} answered with HTTP status {answer.status_code}")


@click.group()
@click.option("--server", default="http://127.0.0.1:8080", show_default=True, help="Where the controller answers.")
@click.pass_context
def admin(context: click.Context, server: str) -> None:
    """Look after the cluster, topics, consumer groups and delayed messages."""
    context.obj = AdminApi(server)


@admin.group()
def topic() -> None:
    """Topics."""


@topic.command("create")
@click.argument("name")
@click.option(
    "--type",
    "topic_type",
    metavar="[NORMAL|FIFO|DELAY|TRANSACTION|MIXED]",
    default="NORMAL",
    show_default=True,
    help="Which messages it takes; MIXED takes all.",
)
@click.option("--queues", type=int, help="Number of its queues.  [default: the controller's, 8]")
@_output
@click.pass_obj
def create_topic(api: AdminApi, name: str, topic_type: str, queues: int | None, output: Format) -> None:
    """Make a topic."""
    _show(api.request("POST", "/topics", {"name": name, "type": topic_type.upper(), "queues": queues}), output)


@topic.command("list")
@_output
@click.pass_obj
def list_topics(api: AdminApi, output: Format) -> None:
    """Show all topics but the system's own."""
    _show_all(api.request("GET", "/topics"), output, ("name", "type", "queues", "id"))


@topic.command("describe")
@click.argument("name")
@_output
@click.pass_obj
def describe_topic(api: AdminApi, name: str, output: Format) -> None:
    """Show one topic."""
    _show(api.request("GET", f"/topics/{quote(name, safe='')}"), output)


@topic.command("delete")
@click.argument("name")
@_output
@click.pass_obj
def delete_topic(api: AdminApi, name: str, output: Format) -> None:
    """Delete a topic and its messages."""
    api.request("DELETE", f"/topics/{quote(name, safe='')}")
    _show({"name": name, "deleted": True}, output)


@admin.group()
def group() -> None:
    """Consumer groups."""


@group.command("create")
@click.argument("name")
@click.option("--max-attempts", type=int, help="Deliveries before a message is dead.  [default: the controller's, 17]")
@click.option("--fifo", is_flag=True, help="Consume in order.")
@_output
@click.pass_obj
def create_group(api: AdminApi, name: str, max_attempts: int | None, fifo: bool, output: Format) -> None:
    """Make a consumer group."""
    _show(api.request("POST", "/groups", {"name": name, "max_attempts": max_attempts, "fifo": fifo}), output)


@group.command("list")
@_output
@click.pass_obj
def list_groups(api: AdminApi, output: Format) -> None:
    """Show all consumer groups."""
    _show_all(api.request("GET", "/groups"), output, ("name", "max_attempts", "fifo", "id"))


@group.command("describe")
@click.argument("name")
@_output
@click.pass_obj
def describe_group(api: AdminApi, name: str, output: Format) -> None:
    """Show one consumer group."""
    _show(api.request("GET", f"/groups/{quote(name, safe='')}"), output)


@group.command("delete")
@click.argument("name")
@_output
@click.pass_obj
def delete_group(api: AdminApi, name: str, output: Format) -> None:
    """Delete a consumer group and what it has consumed so far."""
    api.request("DELETE", f"/groups/{quote(name, safe='')}")
    _show({"name": name, "deleted": True}, output)


class _Span(click.ParamType[int]):
    """A span of time as an operator writes it, in milliseconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SPAN.fullmatch(value)
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is not a span of time; write 90s, 10m, 2h or 1d", param, ctx)
        return int(match[1]) * _UNITS_MS[match[2]]


@admin.group()
def cluster() -> None:
    """The cluster as a whole."""


@cluster.command("status")
@_output
@click.pass_obj
def cluster_status(api: AdminApi, output: Format) -> None:
    """Show all brokers and proxies: where they are, since when, and whether they are ready."""
    status = api.request("GET", "/cluster/status")
    if output == "json":
        click.echo(json.dumps(status, indent=2))
        return
    rows = [
        (
            one["kind"],
            one["name"],
            one["address"],
            "" if one["pid"] is None else str(one["pid"]),
            _moment(one["since_ms"]) if one["since_ms"] else "",
            "yes" if one["ready"] else f"no: {one['reason']}",
        )
        for one in status["processes"]
    ]
    print_table(("kind", "name", "address", "pid", "since", "ready"), rows)


@admin.group()
def timer() -> None:
    """Messages that wait for their delivery time."""


@timer.command("stats")
@_output
@click.pass_obj
def timer_stats(api: AdminApi, output: Format) -> None:
    """Show how many wait, for when, of which topics, and how far each broker's timer has come."""
    stats = api.request("GET", "/timers/stats")
    if output == "json":
        click.echo(json.dumps(stats, indent=2))
        return
    due = [(_horizon(horizon["within_ms"]), str(horizon["count"])) for horizon in stats["horizons"]]
    print_table(("due", "pending"), [*due, ("all", str(stats["pending"]))])
    if stats["topics"]:
        click.echo()
        print_table(("topic", "pending"), [(one["topic"], str(one["count"])) for one in stats["topics"]])
    if stats["brokers"]:
        click.echo()
        print_table(
            ("broker", "pending", "recalled", "read until", "written until", "behind"),
            [
                (
                    one["broker"],
                    str(one["pending"]),
                    str(one["recalled"]),
                    _moment(one["read_time_ms"]),
                    _moment(one["write_time_ms"]),
                    f"{one['behind_ms']} ms",
                )
                for one in stats["brokers"]
            ],
        )
    _name_silent(stats["unanswered"])


@timer.command("list")
@click.option("--topic", required=True, help="Whose messages.")
@click.option(
    "--within", type=_Span(), metavar="SPAN", default="10m", show_default=True, help="Due by then: 90s, 10m, 2h, 1d."
)
@click.option("--limit", type=click.IntRange(1, _LISTED_MAX), default=100, show_default=True, help="At most this many.")
@_output
@click.pass_obj
def list_timers(api: AdminApi, topic: str, within: int, limit: int, output: Format) -> None:
    """Show the messages of a topic that are due soon, the earliest first."""
    found = api.request("GET", f"/timers?{urlencode({'topic': topic, 'within_ms': within, 'limit': limit})}")
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    rows = [{**one, "due": _moment(one["due_ms"])} for one in found["timers"]]
    _show_all(rows, output, ("due", "message_id", "tag", "keys", "broker", "recall_handle"))
    if found["more"]:
        click.echo("there are more: raise --limit, or ask for a shorter time with --within", err=True)
    _name_silent(found["unanswered"])


@timer.command("recall")
@click.argument("handle")
@click.option("--topic", required=True, help="The topic that the message was sent to.")
@_output
@click.pass_obj
def recall_timer(api: AdminApi, handle: str, topic: str, output: Format) -> None:
    """Take a message back before its time, by the recall handle that its sender was given."""
    _show(api.request("POST", "/timers/recall", {"topic": topic, "recall_handle": handle}), output)


def _name_silent(unanswered: Sequence[Row]) -> None:
    """Say whose part is missing in what was shown."""
    for one in unanswered:
        click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)


def _horizon(within_ms: int) -> str:
    """A horizon in words."""
    if within_ms == 0:
        return "later"
    unit = max((unit for unit, size in _UNITS_MS.items() if within_ms % size == 0), key=_UNITS_MS.__getitem__)
    return f"within {within_ms // _UNITS_MS[unit]}{unit}"


def _moment(time_ms: int) -> str:
    """A time in UTC, to the millisecond."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"


def _reason(content: bytes) -> str | None:
    """The sentence of a refusal; None if it is not one of the admin API's."""
    try:
        refusal = json.loads(content)
    except ValueError:
        return None
    if not isinstance(refusal, dict) or not isinstance(refusal.get("message"), str):
        return None
    return f"{refusal.get('code', 'REFUSED')}: {refusal['message']}"


def _show(row: Row, output: Format) -> None:
    if output == "json":
        click.echo(json.dumps(row, indent=2))
    else:
        print_table(("property", "value"), [(name, _cell(value)) for name, value in row.items()])


def _show_all(rows: Sequence[Row], output: Format, columns: Sequence[str]) -> None:
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        print_table(columns, [[_cell(row[column]) for column in columns] for row in rows])


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value)
