"""`popwheel admin drill ...`: makes a failure, watches it under traffic of its own, and says what it cost."""

import asyncio
import secrets
import signal
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from popwheel_cli.admin.api import AdminApi, Format, RefusedError, output_option, show_names, show_whole
from popwheel_cli.admin.proxy_way import ProxyWay, through_proxy
from popwheel_cli.errors import CommandError
from popwheel_cli.process.broker_process import BrokerProcess, StrangeProcessError
from popwheel_cli.table import print_table

if TYPE_CHECKING:
    from popwheel_cli.drills.drill import Bill

Function = TypeVar("Function", bound=Any)
View = Mapping[str, Any]

_SWITCHOVER_S_MAX = 15.0
_PAUSE_S_MAX = 8.0
"""A longer one may be a kill: a parent kills whoever is silent for 10 s, and may see late that it goes on."""
_KILLS = (
    f"the parent of a process that is silent for children.silence_ms_max (10 s by default) kills it: with more than "
    f"--seconds {_PAUSE_S_MAX:g} this drill may be a kill, unless that is set higher"
)
_NOT_CLEAN = 1


def _with_traffic(function: Function) -> Any:
    """Add what all drills have."""
    return click.argument("group")(output_option(through_proxy(function)))


def _seconds(default: float) -> Callable[[Function], Function]:
    return click.option(
        "--seconds",
        type=click.FloatRange(0.1, 600),
        default=default,
        show_default=True,
        help="How long the failure lasts.",
    )


@click.group()
def drill() -> None:
    """Failures on purpose. Each sends and receives on topics of its own meanwhile and prints what the failure cost.

    The exit code is 0 if nothing was lost or repeated, else 1.
    """


@drill.command("kill-master")
@_with_traffic
def kill_master(way: ProxyWay, group: str, output: Format) -> int:
    """Kill the master of a group as kill -9 does; on a one-machine cluster, which starts it again."""

    def strike(view: View) -> None:
        with closing(process_of_master(way.api, view)) as process:
            process.signal(signal.SIGKILL)

    return _drill("kill-master", way, group, output, strike)


@drill.command("pause-master")
@_with_traffic
@_seconds(5.0)
def pause_master(way: ProxyWay, group: str, output: Format, seconds: float) -> int:
    """Stop the master's process (SIGSTOP), and let it go on later, when another leads.

    After children.silence_ms_max its parent takes it for hung and kills it.
    """
    if seconds > _PAUSE_S_MAX:
        click.echo(f"popwheel: {_KILLS}", err=True)
    paused: list[BrokerProcess] = []

    def strike(view: View) -> None:
        paused.append(process_of_master(way.api, view))
        paused[0].signal(signal.SIGSTOP)

    def mend() -> None:
        for process in paused:
            with closing(process), suppress(ProcessLookupError):
                process.signal(signal.SIGCONT)

    return _drill("pause-master", way, group, output, strike, mend, seconds)


@drill.command("switchover")
@_with_traffic
def switchover(way: ProxyWay, group: str, output: Format) -> int:
    """Pass the master's role on."""

    def strike(view: View) -> None:
        way.api.request("POST", f"/brokers/{quote(group, safe='')}/switchover", {}, _SWITCHOVER_S_MAX)

    return _drill("switchover", way, group, output, strike)


@drill.command("partition")
@_with_traffic
@_seconds(10.0)
@click.option(
    "--from",
    "apart",
    type=click.Choice(["controller", "slaves", "all"]),
    default="all",
    show_default=True,
    help="From whom the master is cut off.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="Data folder of the cluster, which must have been started with --relays.",
)
def partition(way: ProxyWay, group: str, output: Format, seconds: float, apart: str, data_dir: Path) -> int:
    """Cut the master of a group off from the controllers, from its slaves, or from both."""
    from popwheel_cli.drills.links import LinksClient
    from popwheel_cli.drills.relay import CUT

    links = LinksClient(data_dir)
    names = links.heal()  # so that it is refused before anything is done

    def strike(view: View) -> None:
        master, others = partners(names, group, view, apart)
        for other in others:
            links.between(master, other, CUT)

    return _drill("partition", way, group, output, strike, links.heal, seconds)


def partners(names: list[str], group: str, view: View, apart: str) -> tuple[str, list[str]]:
    """The process of a group's master, and those from which it is to be cut off.

    Args:
        names: of the processes that have a relay before them.
        group: the broker group.
        view: as the controller shows it.
        apart: `controller`, `slaves` or `all`.
    """
    replicas = {replica["number"]: f"{group}-{replica['number']}" for replica in view["replicas"]}
    if len(replicas) == 1:
        replicas = dict.fromkeys(replicas, group)
    master = replicas.pop(view["master"])
    controllers = [name for name in names if name.startswith("controller")]
    slaves = [name for name in replicas.values() if name in names]
    return master, {"controller": controllers, "slaves": slaves, "all": [*controllers, *slaves]}[apart]


def _drill(
    name: str,
    way: ProxyWay,
    group: str,
    output: Format,
    strike: Callable[[View], object],
    mend: Callable[[], object] = lambda: None,
    strike_s: float = 0.0,
) -> int:
    """Run the drill; return the exit code."""
    from popwheel_cli.drills.account import Account
    from popwheel_cli.drills.drill import Drill
    from popwheel_cli.drills.traffic import Traffic
    from popwheel_common.clock import SystemClock

    api, connection = way.api, way.channel()  # a cluster without a proxy is refused before anything is made
    _make_topics(api)
    clock = SystemClock()
    account = Account()

    async def run() -> "Bill":
        async with connection as channel:
            traffic = Traffic(channel, account, secrets.token_hex(4), clock, api.credentials)
            look = lambda: api.request("GET", f"/brokers/{quote(group, safe='')}")  # noqa: E731
            drill_ = Drill(name, look, traffic, account, clock, lambda step: click.echo(step, err=True))
            return await drill_.run(strike, mend, strike_s)

    bill = asyncio.run(run())
    show_bill(bill, output)
    return 0 if bill.clean else _NOT_CLEAN


def show_bill(bill: "Bill", output: Format) -> None:
    """Print what a drill cost."""
    if show_whole(bill.as_dict(), output):
        return
    if output == "name":
        show_names([bill.drill])
        return
    print_table(
        (bill.drill, bill.group),
        [
            ("master", f"replica {bill.master_before} -> {'none' if bill.master_after is None else bill.master_after}"),
            ("epoch", f"{bill.epoch_before} -> {bill.epoch_after}"),
            ("new master after", "none came" if bill.new_master_s is None else _in_seconds(bill.new_master_s)),
            ("without a send", _in_seconds(bill.without_send_s)),
            ("without a receive", _in_seconds(bill.without_receive_s)),
            ("usual gap before", _in_seconds(bill.usual_gap_s)),
            ("all in sync after", _in_seconds(bill.healthy_again_s)),
            ("sent / received", f"{bill.sent} / {bill.received}"),
            ("lost", str(bill.lost)),
            ("repeated", str(bill.repeated)),
            ("delayed messages", str(bill.timers)),
            ("late by more than 1 s", str(bill.timers_late)),
            ("late p50 / max", f"{bill.late_p50_ms:.0f} / {bill.late_max_ms:.0f} ms"),
            ("calls that failed", str(bill.failed_calls)),
        ],
    )
    if bill.words:
        click.echo(f"popwheel: {bill.words}", err=True)
    for failure in bill.failures:
        click.echo(f"popwheel: a call failed: {failure}", err=True)


def _in_seconds(seconds: float | None) -> str:
    return "not in time" if seconds is None else f"{seconds:.2f} s"


def process_of_master(api: AdminApi, view: View) -> BrokerProcess:
    """The process of a group's master, which must run on this machine.

    Args:
        api: of the controllers; what they call the process's number holds on their machine, which may be another one.
        view: the group, as the controller shows it.

    Raises:
        CommandError: it does not run here.
    """
    why = "the controller does not know its number"
    for one in api.request("GET", "/cluster/status")["processes"]:
        if (one["kind"], one["name"], one.get("replica")) == ("broker", view["name"], view["master"]) and one["pid"]:
            try:
                return BrokerProcess(int(one["pid"]), view["name"], view["master"])
            except StrangeProcessError as error:
                why = str(error)
    raise CommandError(
        f"nothing was done: the process of replica {view['master']} of {view['name']} can't be signalled from here, "
        f"only on the machine of its `popwheel cluster`; {why}"
    )


_NOT_THERE = ("TOPIC_NOT_FOUND", "CONSUMER_GROUP_NOT_FOUND")


def _make_topics(api: AdminApi) -> None:
    """Make what the traffic needs, if it is not there."""
    from popwheel_cli.drills.traffic import CONSUMER_GROUP, DELAYED_TOPIC, TOPIC

    for path, body in (
        ("/topics", {"name": TOPIC, "type": "NORMAL"}),
        ("/topics", {"name": DELAYED_TOPIC, "type": "DELAY"}),
        ("/groups", {"name": CONSUMER_GROUP}),
    ):
        try:  # a token that may only operate can't make it, and need not once it is there
            api.request("GET", f"{path}/{quote(body['name'], safe='')}")
        except RefusedError as error:
            if error.code not in _NOT_THERE:
                raise
            api.request("POST", path, body)
