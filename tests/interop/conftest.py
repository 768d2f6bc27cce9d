"""Servers, and scenarios run against them side by side: most of a scenario is waiting."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.programs import Outcome, run_program
from tests.harness.standalone import StandaloneProcess

TRANSPORTS = ("popwheel", "grpcio")

AT_ONCE = 4
"""Scenarios at one time; each is a process that spends a second of CPU on its imports."""

SCENARIOS = (
    "transactions",
    "priorities",
    "dead_letters",
    "redelivery",
    "changed_invisible_duration",
    "fifo_push",
    "fifo_simple",
    "push",
    "sql_filters",
    "tags",
    "send_receive_ack",
    "big_bodies",
    "four_topics",
)
"""Those of scenarios.py that share a server, the long ones first."""


@pytest.fixture(scope="module", params=TRANSPORTS)
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """How each scenario went, by its name."""
    folder = tmp_path_factory.mktemp(f"interop-{request.param}")
    transport = f"proxy.transport={request.param}"
    quick = (
        *("--set", transport),
        *("--set", "proxy.receive.invisible_ms_min=1000"),
        *("--set", "broker.transaction.first_check_ms=2000"),
        *("--set", "broker.transaction.check_interval_ms=2000"),
        *("--set", "proxy.grpc_client_consumer_min_long_polling_timeout_ms=0"),
    )
    strict = ("--set", transport, "--set", "proxy.auto_create_topics=false")
    with (
        StandaloneProcess(folder / "data", quick) as server,
        StandaloneProcess(folder / "strict-data", strict) as strict_server,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        create_group(server, folder, "interop-dead-letters", "--max-attempts", "2")
        for number, (topic, group) in enumerate(
            (("InteropFifo", "interop-fifo"), ("InteropFifoSimple", "interop-fifo-simple"))
        ):
            admin(server, folder / f"create-fifo-{number}", "topic", "create", topic, "--type", "FIFO")
            create_group(server, folder, group, "--fifo", "--max-attempts", "2")
        admin(server, folder / "create-priority", "topic", "create", "InteropPriority", "--type", "PRIORITY")
        create_group(server, folder, "interop-priority-fifo", "--fifo")
        admin(server, folder / "create-lite", "topic", "create", "InteropLite", "--type", "LITE")
        for group, *options in (("interop-lite",), ("interop-lite-fifo", "--fifo"), ("interop-lite-simple",)):
            create_group(server, folder, group, *options, "--max-attempts", "2")
        lite = pool.submit(run_program, ["-m", "tests.interop.lite_client", server.grpc_address], folder / "lite")
        running = {
            name: pool.submit(run_scenario, folder, each_server, name)
            for each_server, names in ((server, SCENARIOS), (strict_server, ("missing_topic",)))
            for name in names
        }
        results = {"lite": lite.result(), **{name: future.result() for name, future in running.items()}}
        yield results


def run_scenario(folder: Path, server: StandaloneProcess, name: str) -> Outcome:
    """Run one scenario in a process of its own."""
    return run_program(["-m", "tests.interop.scenarios", server.grpc_address, name], folder / name)


def create_group(server: StandaloneProcess, folder: Path, name: str, *options: str) -> None:
    """Make a consumer group by the command line."""
    admin(server, folder / f"create-{name}", "group", "create", name, *options)


def admin(server: StandaloneProcess, folder: Path, *words: str) -> None:
    """Have the command line do something."""
    outcome = run_program(["-m", "popwheel_cli.main", "admin", "--server", server.http_url, *words], folder)
    assert outcome.exit_code == 0, outcome.explain()
