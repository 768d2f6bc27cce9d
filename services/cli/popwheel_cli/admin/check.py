"""`popwheel admin check`: sends and receives a message as clients do; `helm test` runs it."""

import asyncio
import secrets
from contextlib import suppress

import click

from popwheel_cli.admin.api import Format, output_option, show_names, show_whole
from popwheel_cli.admin.proxy_way import ProxyWay, through_proxy
from popwheel_cli.errors import CommandError
from popwheel_cli.table import print_table


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(1, 600), default=30.0, show_default=True, help="Time limit of one step."
)
@output_option
@through_proxy
def check(way: ProxyWay, seconds: float, output: Format) -> None:
    """Send, receive, delay and acknowledge, on a topic made for it and deleted at the end.

    The exit code is 0 if all of it went well, else 1.
    """
    from popwheel_cli.drills.check import Check
    from popwheel_cli.drills.client import Client
    from popwheel_common.clock import SystemClock

    run = secrets.token_hex(4)
    name = f"popwheel-check-{run}"
    api, address = way.api, way.address
    clock = SystemClock()

    async def measure() -> dict[str, float]:
        async with way.channel() as channel:
            return await Check(Client(channel, name, run, clock, api.credentials), name, clock, seconds).run()

    api.request("POST", "/topics", {"name": name, "type": "MIXED"})
    try:
        api.request("POST", "/groups", {"name": name})
        took = asyncio.run(measure())
    finally:
        for path in (f"/topics/{name}", f"/groups/{name}"):
            with suppress(CommandError):  # what went wrong before it says more
                api.request("DELETE", path)
    if show_whole({"proxy": address, "seconds": took}, output):
        return
    if output == "name":
        show_names([address])
        return
    print_table(("step", "took"), [(step, f"{took_s:.2f} s") for step, took_s in took.items()])
    click.echo(f"messages go through {address}")
