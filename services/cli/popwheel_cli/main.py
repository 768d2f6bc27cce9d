"""The `popwheel` command. Each verb loads its modules only when it is called."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from popwheel_cli.admin.connection import api_of, connection_options
from popwheel_cli.errors import WrongUseError
from popwheel_cli.process.quick_load import loads_quickly

Function = TypeVar("Function", bound=Any)

_WORKERS_MAX = 64


def _say(words: str) -> None:
    """Write on standard error; a failure to write does not change the exit code."""
    with suppress(OSError):
        click.echo(words, err=True)


class _OneSentenceGroup(click.Group):
    """Group of commands that prints an error in one line, without the usage text around it."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "popwheel",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            _say(error.ctx.get_help() if error.ctx else error.format_message())
            sys.exit(error.exit_code)
        except click.ClickException as error:
            sentence = " ".join(error.format_message().split())
            _say(f"popwheel: {sentence}")
            sys.exit(error.exit_code)
        except click.Abort:
            _say("popwheel: interrupted")
            sys.exit(1)
        sys.exit(result if isinstance(result, int) else 0)


class _Popwheel(_OneSentenceGroup):
    """The command itself. What calls a cluster is loaded when it is asked for: a service does without."""

    def add_admin(self) -> None:
        """Add `admin` and its verbs, if they are not there yet."""
        from popwheel_cli.admin.commands import admin
        from popwheel_cli.admin.completion import complete_names

        if admin.name not in self.commands:
            self.add_command(admin)
            for name, command in admin.commands.items():
                if name not in self.commands:  # `admin broker` and `admin cluster` have the names of services
                    self.add_command(command, name)
            complete_names(admin)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            self.add_admin()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        self.add_admin()
        return super().list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands that run a service apart from those that call one."""
        from popwheel_cli.admin.commands import admin

        self.add_admin()
        of_admin = {name for name, command in self.commands.items() if admin.commands.get(name) is command}
        for title, names in (
            ("Run and set up", sorted(self.commands.keys() - of_admin)),
            ("Messages and administration (as in `popwheel admin`)", sorted(of_admin)),
        ):
            rows = [(name, self.commands[name].get_short_help_str(62)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


class _WorkerCount(click.ParamType[int]):
    """Number of processes, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; that of usable cores if it is `auto`."""
        if value == "auto":
            from popwheel_cli.process.cores import usable_cores

            return min(_WORKERS_MAX, usable_cores())
        text = str(value)
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _WORKERS_MAX):
            self.fail(f"must be a number from 1 to {_WORKERS_MAX}, or auto, not {text[:20]!r}", param, ctx)
        return int(text)


def _with_settings(function: Function) -> Function:
    """Add the common options of all processes."""
    function = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="One setting, such as broker.flush=async; may be repeated. All of them: docs/reference/options.md.",
    )(function)
    return click.option(
        "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="A YAML file of settings."
    )(function)


def _of_child(function: Function) -> Function:
    """Add the options that a parent gives to a child process."""
    function = click.option("--heartbeat", type=int, hidden=True)(function)
    return click.option(
        "--parent", type=int, expose_value=False, hidden=True, callback=lambda _, __, value: _bind(value)
    )(function)


_data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="Folder of all persistent data.",
)


_skip_record = click.option(
    "--skip-record",
    type=click.IntRange(min=0),
    metavar="POSITION",
    help="Skip the damaged message at this position of the log, if no replica has it whole (docs/operate/alerts.md).",
)


def _skipping(assignments: Sequence[str], skip_record: int | None) -> Sequence[str]:
    """Settings with that of `--skip-record`."""
    return assignments if skip_record is None else (*assignments, f"broker.skip_record={skip_record}")


@click.group(cls=_Popwheel, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="popwheel", message="%(version)s")
@connection_options
@click.pass_context
def main(context: click.Context) -> None:
    """Popwheel: a message system that speaks RocketMQ 5's gRPC protocol."""
    context.obj = api_of(context)


@main.command()
@_data_dir
@click.option("--host", metavar="ADDRESS", help="Address to listen on, for both ports.  [default: 127.0.0.1]")
@click.option("--grpc-port", type=int, metavar="PORT", help="Port for clients.  [default: 8081]")
@click.option("--http-port", type=int, metavar="PORT", help="Port of the admin API and metrics.  [default: 8080]")
@click.option(
    "--workers",
    type=_WorkerCount(),
    default="1",
    show_default=True,
    metavar="N|auto",
    help="Proxy processes on the port for clients, beside those of the brokers; auto: one for each core.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Broker processes, each with a log of its own; more than one when a broker's core is full.",
)
@_skip_record
@_with_settings
@loads_quickly
def standalone(
    data_dir: Path,
    host: str | None,
    grpc_port: int | None,
    http_port: int | None,
    workers: int,
    brokers: int,
    skip_record: int | None,
    file: Path | None,
    assignments: Sequence[str],
) -> int:
    """Run everything in one process, or on every core."""
    from popwheel_cli.options import StandaloneOptions
    from popwheel_cli.process.run import run

    flags = {
        "proxy.grpc_host": host,
        "controller.http_host": host,
        "proxy.grpc_port": grpc_port,
        "controller.http_port": http_port,
    }
    assignments = _skipping(assignments, skip_record)
    options = _load(StandaloneOptions, file, assignments, flags)

    if workers > 1 or brokers > 1:
        from popwheel_cli.cluster.cluster_plan import Shape
        from popwheel_cli.cluster.standalone_workers import StandaloneWorkers, stop_s_max_of_all
        from popwheel_cli.settings import given

        shape = Shape(standalone=True, groups=brokers, workers=workers)
        words = given(file, assignments, options)
        return run(
            lambda: StandaloneWorkers(options, words, shape, data_dir),
            options.log,
            stop_s_max_of_all(options),
            old_names=options.old_names,
        )

    from popwheel_cli.process.standalone import Standalone

    return run(lambda: Standalone(options, data_dir), options.log, old_names=options.old_names)


@main.command()
@_data_dir
@click.option("--groups", type=click.IntRange(1, 256), default=8, show_default=True, help="Broker groups.")
@click.option(
    "--replicas", type=click.IntRange(1, 16), default=1, show_default=True, help="Brokers of one group: its replicas."
)
@click.option(
    "--controllers", type=click.IntRange(1, 8), default=1, show_default=True, help="Controllers, one of which leads."
)
@click.option("--proxies", type=click.IntRange(1, 64), default=2, show_default=True, help="Proxies.")
@click.option(
    "--proxy-workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes of each proxy."
)
@click.option(
    "--grpc-port",
    type=int,
    metavar="PORT",
    help="Port of the first proxy; the others use the next ones.  [default: 8081]",
)
@click.option("--http-port", type=int, metavar="PORT", help="Port of the admin API.  [default: 8080]")
@click.option("--relays", is_flag=True, help="A relay before each broker and controller, for `admin drill partition`.")
@_with_settings
@loads_quickly
def cluster(
    data_dir: Path,
    groups: int,
    replicas: int,
    controllers: int,
    proxies: int,
    proxy_workers: int,
    relays: bool,
    grpc_port: int | None,
    http_port: int | None,
    file: Path | None,
    assignments: Sequence[str],
) -> int:
    """Run a cluster on this machine: controllers, brokers and proxies, each a process."""
    from popwheel_cli.options import StandaloneOptions
    from popwheel_cli.process.run import run

    options = _load(
        StandaloneOptions, file, assignments, {"proxy.grpc_port": grpc_port, "controller.http_port": http_port}
    )

    from popwheel_cli.cluster.cluster import STOP_S_MAX_OF_ALL, ClusterOfOneMachine
    from popwheel_cli.cluster.cluster_plan import Shape
    from popwheel_cli.settings import given

    shape = Shape(
        groups=groups,
        proxies=proxies,
        workers=proxy_workers,
        replicas=replicas,
        controllers=controllers,
        relays=relays,
    )
    words = given(file, assignments, options)
    return run(
        lambda: ClusterOfOneMachine(options, words, shape, data_dir),
        options.log,
        STOP_S_MAX_OF_ALL,
        old_names=options.old_names,
    )


@main.command()
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that share the port."
)
@click.option("--shared-port", is_flag=True, hidden=True, help="For a worker: listen beside the others.")
@_of_child
@_with_settings
@loads_quickly
def proxy(workers: int, shared_port: bool, heartbeat: int | None, file: Path | None, assignments: Sequence[str]) -> int:
    """Run a proxy of a cluster."""
    from popwheel_cli.options import ClusterOptions
    from popwheel_cli.process.run import run

    options = _load(ClusterOptions, file, assignments)

    if workers > 1:
        from popwheel_cli.cluster.workers import STOP_S_MAX, ProxyWorkers
        from popwheel_cli.settings import given

        words = given(file, assignments, options)
        return run(
            lambda: ProxyWorkers(options, words, workers), options.log, STOP_S_MAX + 1.0, heartbeat, options.old_names
        )

    from popwheel_cli.process.service_process import ProxyProcess

    return run(
        lambda: ProxyProcess(options, worker=shared_port), options.log, heartbeat=heartbeat, old_names=options.old_names
    )


@main.command()
@_data_dir
@click.option(
    "--lock-inherited", is_flag=True, hidden=True, help="For a child process: its parent has locked the folder."
)
@_skip_record
@_of_child
@_with_settings
@loads_quickly
def broker(
    data_dir: Path,
    lock_inherited: bool,
    skip_record: int | None,
    heartbeat: int | None,
    file: Path | None,
    assignments: Sequence[str],
) -> int:
    """Run a broker of a cluster."""
    from popwheel_cli.options import ClusterOptions
    from popwheel_cli.process.run import run

    options = _load(ClusterOptions, file, _skipping(assignments, skip_record))

    from popwheel_cli.process.service_process import BrokerProcess, stop_s_max

    return run(
        lambda: BrokerProcess(options, data_dir, lock_inherited=lock_inherited),
        options.log,
        stop_s_max(options.broker),
        heartbeat,
        options.old_names,
    )


@main.command()
@_data_dir
@_of_child
@_with_settings
@loads_quickly
def controller(data_dir: Path, heartbeat: int | None, file: Path | None, assignments: Sequence[str]) -> int:
    """Run the controller of a cluster."""
    from popwheel_cli.options import ClusterOptions
    from popwheel_cli.process.run import run

    options = _load(ClusterOptions, file, assignments)

    from popwheel_cli.process.service_process import ControllerProcess

    return run(
        lambda: ControllerProcess(options, data_dir), options.log, heartbeat=heartbeat, old_names=options.old_names
    )


@main.command()
@click.option(
    "--secret", required=True, metavar="NAME", help="Secret with the certificates; created if it does not exist."
)
@click.option("--namespace", default="", help="Namespace of the Secret.  [default: that of this pod]")
@click.option(
    "--name",
    "names",
    required=True,
    multiple=True,
    help="Host name of services, * for its first part; may be repeated.",
)
def certificates(secret: str, namespace: str, names: Sequence[str]) -> None:
    """Renew the certificates between the services of a cluster on Kubernetes, if it is time.

    A new authority takes three calls, an hour or more apart, so that no two processes refuse each other meanwhile.
    """
    from popwheel_cli.certificates import renew_certificates
    from popwheel_common.clock import SystemClock

    renew_certificates(secret, namespace, names, SystemClock())


@main.group()
def console() -> None:
    """Manage users of the web console."""


@console.command("password")
@click.argument("name")
@click.argument("role", type=click.Choice(["read", "read+bodies", "operate", "operate+bodies", "administer"]))
def console_password(name: str, role: str) -> None:
    """Print a user's line for console.users_file. The password is asked for, or read from the standard input."""
    from popwheel_cli.console_users import user_line

    click.echo(user_line(name, role))


def _bind(parent: int | None) -> None:
    """Make a child process end with its parent."""
    if parent is not None:
        from popwheel_cli.cluster.parent import end_with_parent

        end_with_parent(parent)


def _load(
    model: type[Any], file: Path | None, assignments: Sequence[str], flags: Mapping[str, object] | None = None
) -> Any:
    from popwheel_common.errors import ConfigurationError
    from popwheel_common.settings.config import load

    given = {key: value for key, value in (flags or {}).items() if value is not None}
    try:
        sources: dict[str, str] = {}
        old_names: dict[str, str] = {}
        options = load(
            model,
            file=file,
            environment=os.environ,
            assignments=assignments,
            flags=given,
            sources=sources,
            old_names=old_names,
        )
        return options.from_sources(sources, old_names)
    except ConfigurationError as error:
        raise WrongUseError(str(error)) from error


if __name__ == "__main__":
    main()
