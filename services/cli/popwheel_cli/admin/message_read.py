"""`popwheel message receive`, `tail`, `browse`: messages received by a consumer group, or read without one."""

import asyncio
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import click

from popwheel_cli.admin.api import Format, MomentParam, moment, output_option, show_of_many
from popwheel_cli.admin.proxy_way import ProxyWay, through_proxy
from popwheel_cli.admin.spans import Span, span_ms
from popwheel_cli.errors import WrongUseError

if TYPE_CHECKING:
    from popwheel_cli.messages.client import MessageClient
    from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message

BROWSED_MAX = 10_000
_OFFSET = re.compile(r"offset:([0-9]{1,18})")
_BATCH = 16
_PAUSE_S = 0.2
_PLACES = "earliest, latest, offset:17, -1h, or a time: 2026-01-31T12:00:00Z"

_raw = click.option("--raw", is_flag=True, help="Print bodies alone, byte for byte, each with a line feed behind it.")


class _PlaceParam(click.ParamType["tuple[str, int]"]):
    """Parameter for the first message to read: its kind, and an offset, a time, or a time before now."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if value in ("earliest", "latest"):
            return value, 0
        if match := _OFFSET.fullmatch(value):
            return "offset", int(match[1])
        if value.startswith("-") and (ago := span_ms(value[1:])) is not None:
            return "ago", ago
        if not value[:1].isdigit():
            self.fail(f"{value!r} is no place to begin at; write {_PLACES}", param, ctx)
        return "time", MomentParam().convert(value, param, ctx)


class _Printer:
    """Printer of messages as they arrive.

    Args:
        output: the form.
        raw: whether bodies alone are printed, as they are.
    """

    def __init__(self, output: Format, *, raw: bool) -> None:
        self._output = output
        self._raw = raw
        self._width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self.shown = 0

    def __call__(self, message: "Message") -> None:
        """Print a message at once."""
        from popwheel_cli.messages.shown import line_of, row_of, title

        if self._raw:
            sys.stdout.buffer.write(message.body + b"\n")
            sys.stdout.buffer.flush()
        else:
            stored = moment(message.system_properties.store_timestamp.ToMilliseconds())
            if self._output == "table" and not self.shown:
                click.echo(title())
            show_of_many(row_of(message), self._output, line_of(message, stored, self._width))
        self.shown += 1


@click.command("receive")
@click.argument("topic")
@click.option("--group", required=True, help="Consumer group that receives.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="At most this many.")
@click.option("--wait", type=Span(zero=True), default="5s", show_default=True, help="Longest wait for messages.")
@click.option(
    "--ack/--no-ack", default=True, help="Acknowledge printed messages, or have them delivered again.  [default: ack]"
)
@click.option("--invisible", type=Span(), default="30s", show_default=True, help="Invisible duration.")
@click.option(
    "--filter", "tags", default="", metavar="TAGS", help="Only these tags: 'a || b'; the group passes over all others."
)
@click.option("--sql", default="", metavar="EXPRESSION", help="The same by an expression: \"color = 'red'\".")
@_raw
@output_option
@through_proxy
def receive(
    way: ProxyWay,
    topic: str,
    group: str,
    count: int,
    wait: int,
    ack: bool,
    invisible: int,
    tags: str,
    sql: str,
    raw: bool,
    output: Format,
) -> None:
    """Receive messages of TOPIC as a consumer of a group, and acknowledge them once they are printed.

    Without --ack they are delivered to the group again after the invisible duration.
    """
    from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition

    if tags and sql:
        raise WrongUseError("choose one of --filter and --sql")
    wanted = definition.FilterExpression(type=definition.SQL if sql else definition.TAG, expression=sql or tags or "*")
    printer = _Printer(output, raw=raw)

    async def some(client: "MessageClient", queues: Sequence[Any]) -> bool:
        """Poll each broker once; return whether there were messages."""
        before = printer.shown
        for queue in queues:
            left = min(_BATCH, count - printer.shown)
            if not left:
                break
            messages = await client.receive(group, queue, wanted, left, invisible, 0.0)
            for message in messages:
                printer(message)
            if ack and messages:
                await client.acknowledge(group, topic, messages)
        return printer.shown > before

    async def work(client: "MessageClient") -> None:
        of_brokers = {queue.broker.name: queue for queue in await client.queues(topic)}
        queues = list(of_brokers.values())  # a poll for one of a broker's queues is one for all of them
        time = asyncio.get_running_loop().time
        until = time() + wait / 1000
        while printer.shown < count:
            if not await some(client, queues):
                if time() >= until:
                    break
                await asyncio.sleep(_PAUSE_S)

    way.run(work, topic)
    if not printer.shown:
        click.echo(f"no message of {topic} came to {group} within {wait // 1000} s", err=True)
    elif not ack:
        click.echo(
            f"{printer.shown} messages were not acknowledged: they come again when {invisible // 1000} s are over",
            err=True,
        )


@click.command("tail")
@click.argument("topic")
@click.option("--filter", "tags", default="*", metavar="TAGS", help="Only these tags: 'a || b'.")
@click.option("--key", default="", help="Only those with this key.")
@click.option("--queue", default="", help="Of this queue alone: 3, or broker-0/3.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many.  [default: Ctrl-C ends it]")
@_raw
@output_option
@through_proxy
def tail(
    way: ProxyWay, topic: str, tags: str, key: str, queue: str, count: int | None, raw: bool, output: Format
) -> None:
    """Show messages of TOPIC as they arrive, without any consumer group."""
    from popwheel_cli.messages.queue_reader import Tail, Wanted

    printer = _Printer(output, raw=raw)

    def take(message: "Message") -> bool:
        printer(message)
        return printer.shown != count

    def say_so() -> None:
        click.echo(f"waiting for messages of {topic}; Ctrl-C ends it", err=True)

    async def work(client: "MessageClient") -> None:
        await Tail(client, Wanted(topic, tags, key, queue), take, say_so).run()

    with suppress(KeyboardInterrupt):  # the usual way to end it
        way.run(work, topic)


@click.command("browse")
@click.argument("topic")
@click.option("--from", "place", type=_PlaceParam(), default="earliest", show_default=True, help=f"Where: {_PLACES}.")
@click.option("--queue", default="", help="Of this queue alone: 3, or broker-0/3.")
@click.option("--key", default="", help="Only those with this key.")
@click.option("--tag", "--filter", "tags", default="*", metavar="TAGS", help="Only these tags: 'a || b'.")
@click.option("--limit", type=click.IntRange(1, BROWSED_MAX), default=20, show_default=True, help="At most this many.")
@_raw
@output_option
@through_proxy
def browse(
    way: ProxyWay,
    topic: str,
    place: tuple[str, int],
    queue: str,
    key: str,
    tags: str,
    limit: int,
    raw: bool,
    output: Format,
) -> None:
    """Show stored messages of TOPIC, the oldest first, without any consumer group.

    With --from latest the newest are shown.
    """
    from popwheel_cli.messages.queue_reader import Place, Wanted
    from popwheel_cli.messages.queue_reader import browse as read
    from popwheel_common.clock import SystemClock

    kind, number = place
    begin = Place("time", SystemClock().wall_ms() - number) if kind == "ago" else Place(kind, number)
    printer = _Printer(output, raw=raw)

    async def work(client: "MessageClient") -> None:
        async with aclosing(read(client, Wanted(topic, tags, key, queue), begin, limit)) as messages:
            async for message in messages:
                printer(message)

    way.run(work, topic)
    if printer.shown == limit and kind != "latest":
        click.echo("there may be more: raise --limit, or begin later with --from", err=True)
    if not printer.shown:
        click.echo(f"{topic} holds no such message", err=True)
