"""`popwheel admin inflight`: messages in flight, their numbers by group and client, and the release of one."""

from collections.abc import Sequence

import click

from popwheel_cli.admin.api import AdminApi, Format, Row, moment, output_option, show, show_all, show_whole
from popwheel_cli.admin.consent import Consent, agree, destroys
from popwheel_cli.admin.pages import gather, limit_option, say_what_is_missing, silent


@click.group("inflight", invoke_without_command=True)
@click.option("--topic", default="", help="Topic that groups receive from.  [default: all]")
@click.option("--group", default="", help="Of this group alone.")
@click.option("--client", default="", help="Only messages of the client with this id, as far as it is known.")
@click.option("--broker", default="", help="Of this broker alone.")
@limit_option
@output_option
@click.pass_context
def in_flight(
    context: click.Context, topic: str, group: str, client: str, broker: str, limit: int, output: Format
) -> None:
    """Show delivered messages that are not acknowledged: their clients, and until when they are invisible."""
    if context.invoked_subcommand is not None:
        return
    api: AdminApi = context.obj
    asked = {"topic": topic, "group": group, "broker": broker} | ({"client": client} if client else {})
    found, pages, more = gather(api, "/inflight", asked, "messages", limit)
    known = {page["broker"]: page.get("known_since_ms") for page in pages if page["broker"]}
    answer = {"messages": found, "known_since_ms": known, "more": more, "unanswered": silent(pages)}
    if show_whole(answer, output):
        return
    rows = [
        {
            **one,
            "client": one.get("client_id") or "-",
            "popped": moment(one["popped_ms"]),
            "hidden until": moment(one["due_ms"]),
        }
        for one in found
    ]
    place = ("group", "topic", "broker", "queue_id", "queue_offset", "message_id")
    show_all(rows, output, (*place, "client", "popped", "hidden until", "attempt"))
    if any(one.get("client_id") is None for one in found):
        click.echo(f"clients are known of what was delivered {_since(known)}", err=True)
    say_what_is_missing(pages, more)


@in_flight.command("summary")
@output_option
@click.pass_obj
def summary(api: AdminApi, output: Format) -> None:
    """Show the groups and the clients with most messages in flight, and since when they have the oldest of them."""
    found = api.request("GET", "/inflight/summary")
    if show_whole(found, output):
        return
    show_all(_rows(found["groups"]), output, ("group", "held", "clients", "oldest popped"))
    click.echo()
    show_all(_rows(found["clients"]), output, ("group", "client", "held", "oldest popped"))
    others = f"{found['other_groups']} other groups and {found['other_clients']} other clients at least"
    click.echo(f"{found['total']} messages are in flight; {others} are not shown", err=True)
    say_what_is_missing([found], more=False)


@in_flight.command("release")
@click.option("--broker", required=True, help="Broker group of the message.")
@click.option("--group", required=True, help="Consumer group that has it in flight.")
@click.option("--topic", required=True, help="Topic of its offset: the topic, or the group's retry topic of it.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), required=True, help="Its queue.")
@click.option("--offset", "queue_offset", type=click.IntRange(min=0), required=True, help="Its offset there.")
@destroys
@output_option
@click.pass_obj
def release(
    api: AdminApi,
    broker: str,
    group: str,
    topic: str,
    queue_id: int,
    queue_offset: int,
    consent: Consent,
    output: Format,
) -> None:
    """End the delivery of one message now, as if its invisible duration were over.

    The message is delivered to its group again, or becomes a dead letter if that was its last attempt. Its consumer
    cannot acknowledge it any more. `popwheel admin inflight` shows the messages in flight, by topic, queue and offset.
    """
    consent.check_terminal()
    wanted = {"broker": broker, "group": group, "topic": topic, "queue_id": queue_id, "queue_offset": queue_offset}
    found = None
    if consent.dry_run or not consent.yes:
        found = api.request("POST", "/inflight/release", {**wanted, "dry_run": True})
    if not consent.dry_run:
        if found is not None:
            click.echo(_cost(found), err=True)
            agree(f"release message {queue_offset} of queue {queue_id} of {topic}?")
        found = api.request("POST", "/inflight/release", wanted)
    show({**wanted, **(found or {})}, output)


def _cost(would: Row) -> str:
    holder = would["client_id"] or "a client that is not known"
    then = "it becomes a dead letter" if would["dead_letter"] else "it comes to the group again"
    return f"{holder} has {would['message_id'] or 'a message that cannot be read'} (attempt {would['attempt']}); {then}"


def _rows(found: Sequence[Row]) -> list[Row]:
    return [
        {
            **one,
            "client": one.get("client_id") or "-",
            "oldest popped": "-" if one["oldest_popped_ms"] is None else moment(one["oldest_popped_ms"]),
        }
        for one in found
    ]


def _since(known: dict[str, int | None]) -> str:
    times = [f"since {moment(since_ms)} by {broker}" for broker, since_ms in known.items() if since_ms]
    return ", ".join(times) or "by brokers of a later release"
