"""`popwheel message send`: from the command line, a file or standard input."""

import secrets
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from popwheel_cli.admin.api import Format, MomentParam, output_option, show, show_of_many
from popwheel_cli.admin.proxy_way import ProxyWay, through_proxy
from popwheel_cli.admin.spans import Span
from popwheel_cli.errors import CommandError, WrongUseError

if TYPE_CHECKING:
    from popwheel_cli.messages.client import MessageClient
    from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message

BODY_BYTES_MAX = 64 * 1024 * 1024
"""Limit of bytes read from a file; the proxy decides how large a message may be."""
_CHUNK_BYTES = 64 * 1024
_AT_ONCE_MAX = 100
"""Messages of one call; proxies take 128."""


@click.command("send")
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--file", "file", type=click.Path(path_type=Path), help="File with the body; - for standard input.")
@click.option("--lines", is_flag=True, help="Send each line of the file or of standard input as a message.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="One of its own; may be repeated.")
@click.option("--key", "keys", multiple=True, help="A word to find it by; may be repeated.")
@click.option("--tag", default="", help="By which consumers may filter.")
@click.option("--delay", type=Span(), help="Deliver it so much later: 90s, 10m, 2h or 1d.")
@click.option("--at", "at_ms", type=MomentParam(), help="Deliver it then: 2026-01-31T12:00:00Z.")
@click.option("--group", "message_group", default="", help="Message group, in which messages keep their order.")
@click.option("--priority", type=click.IntRange(min=0), help="The highest comes first.")
@click.option("--lite-topic", default="", help="Of a topic of lite topics.")
@output_option
@through_proxy
def send(
    way: ProxyWay,
    topic: str,
    body: str | None,
    file: Path | None,
    lines: bool,
    properties: Sequence[str],
    keys: tuple[str, ...],
    tag: str,
    delay: int | None,
    at_ms: int | None,
    message_group: str,
    priority: int | None,
    lite_topic: str,
    output: Format,
) -> None:
    """Send BODY to TOPIC, or the content of a file or of standard input."""
    from popwheel_cli.messages.message_draft import MessageDraft
    from popwheel_common.clock import SystemClock
    from popwheel_common.contract.message_id import message_ids

    if delay is not None and at_ms is not None:
        raise WrongUseError("choose one of --delay and --at")
    clock = SystemClock()
    draft = MessageDraft(
        topic=topic,
        properties=dict(_property(each) for each in properties),
        keys=keys,
        tag=tag,
        due_ms=at_ms if delay is None else clock.wall_ms() + delay,
        group=message_group,
        priority=priority,
        lite_topic=lite_topic,
    )
    host = socket.gethostname()
    ids = message_ids(clock.wall_ms(), secrets.token_hex(8))
    sent = 0
    for bodies in _bodies(body, file, lines):
        messages = [draft.message(each, next(ids), clock.wall_ms(), host) for each in bodies]
        sent += _send(way, topic, messages, output, many=lines, before=sent)
    if lines:
        click.echo(f"{sent} messages were sent", err=True)


def _send(way: ProxyWay, topic: str, messages: "list[Message]", output: Format, *, many: bool, before: int) -> int:
    """Send some messages and show their results; return their number."""
    from popwheel_common.errors import StatusError
    from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

    async def work(client: "MessageClient") -> list[Any]:
        return await client.send(messages)

    try:
        entries = way.run(work, topic)
    except CommandError as error:
        raise CommandError(f"{error.message}{_how_far(before, many=many)}") from error
    for number, (message, entry) in enumerate(zip(messages, entries, strict=True)):
        if entry.status.code != Code.OK:
            refusal = StatusError(entry.status.code, entry.status.message)
            raise CommandError(f"{refusal}{_how_far(before + number, many=many)}")
        row = {"message_id": message.system_properties.message_id}
        if entry.recall_handle:
            row["recall_handle"] = entry.recall_handle
        if many:
            show_of_many(row, output, "  ".join(row.values()))
        else:
            show(row, output)
    return len(messages)


def _how_far(sent: int, *, many: bool) -> str:
    return f"; line {sent + 1} and those behind it may not have been sent, {sent} were" if many else ""


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise WrongUseError(f"--property must be NAME=VALUE, not {text[:80]!r}")
    return name, value


def _bodies(body: str | None, file: Path | None, lines: bool) -> Iterator[list[bytes]]:
    """Yield the bodies to send, as many at once as are there.

    Raises:
        CommandError: it cannot be read, or is not given.
    """
    is_input = body == "-" or (file is not None and str(file) == "-") or (body is None and file is None)
    if body is not None and file is not None:
        raise WrongUseError("choose one of BODY and --file")
    if body is not None and not is_input:
        if lines:
            raise WrongUseError("--lines is for a file or standard input")
        yield [body.encode("utf-8", "surrogateescape")]
        return
    if body is None and file is None and sys.stdin.isatty():
        raise WrongUseError("there is nothing to send: give a BODY, --file, or - to type it (Ctrl-D ends it)")
    try:
        with click.open_file("-" if is_input else str(file), "rb") as opened:
            yield from _lines_of(opened) if lines else [[_whole(opened)]]
    except OSError as error:
        raise WrongUseError(f"{file} cannot be read: {error.strerror}") from error


def _whole(opened: Any) -> bytes:
    data: bytes = opened.read(BODY_BYTES_MAX + 1)
    if len(data) > BODY_BYTES_MAX:
        raise CommandError(f"a body has at most {BODY_BYTES_MAX} bytes; with --lines each line is a message")
    return data


def _lines_of(opened: Any) -> Iterator[list[bytes]]:
    """Lines as they come, some at once; empty ones, which no message can be, are left out."""
    rest = bytearray()
    while chunk := opened.read1(_CHUNK_BYTES):
        rest += chunk
        if len(rest) > BODY_BYTES_MAX:
            raise CommandError(f"a line has more than {BODY_BYTES_MAX} bytes, which no message may have")
        if b"\n" in chunk:
            *whole, rest = rest.split(b"\n")
            yield from _portions(whole)
    yield from _portions([rest])


def _portions(lines: Iterable[bytearray]) -> Iterator[list[bytes]]:
    bodies = (bytes(body) for line in lines if (body := line.removesuffix(b"\r")))
    while portion := list(islice(bodies, _AT_ONCE_MAX)):
        yield portion
