"""`popwheel admin check`: whether messages go through, seen as clients see it; `helm test` runs it."""

import asyncio
import json
import secrets
from contextlib import suppress

import click

from services.cli.admin.api import AdminApi, Format, output_option
from services.cli.admin.drill import some_proxy
from services.cli.errors import CommandError
from services.cli.table import print_table


@click.command()
@click.option("--proxy", metavar="HOST:PORT", help="Through which one.  [default: a proxy that is ready]")
@click.option(
    "--seconds", type=click.FloatRange(1, 600), default=30.0, show_default=True, help="How long one step may take."
)
@output_option
@click.pass_obj
def check(api: AdminApi, proxy: str | None, seconds: float, output: Format) -> None:
    """Send, receive, delay and acknowledge, on a topic made for it and deleted at the end.

    The exit code is 0 if all of it went well, else 1.
    """
    from services.cli.drills.check import Check
    from services.cli.drills.client import Client, connected
    from services.common.clock import SystemClock

    run = secrets.token_hex(4)
    name = f"popwheel-check-{run}"
    address = proxy or some_proxy(api)
    clock = SystemClock()

    async def go() -> dict[str, float]:
        async with connected(address) as channel:
            return await Check(Client(channel, name, run, clock, api.credentials), name, clock, seconds).run()

    api.request("POST", "/topics", {"name": name, "type": "MIXED"})
    try:
        api.request("POST", "/groups", {"name": name})
        took = asyncio.run(go())
    finally:
        for path in (f"/topics/{name}", f"/groups/{name}"):
            with suppress(CommandError):  # what went wrong before it says more
                api.request("DELETE", path)
    if output == "json":
        click.echo(json.dumps({"proxy": address, "seconds": took}, indent=2))
    else:
        print_table(("step", "took"), [(step, f"{took_s:.2f} s") for step, took_s in took.items()])
        click.echo(f"messages go through {address}")
