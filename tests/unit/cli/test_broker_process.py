"""A drill signals the process of the master, and never one that only has the number which somebody said."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from popwheel_cli.admin.api import AdminApi
from popwheel_cli.admin.drill import process_of_master
from popwheel_cli.errors import CommandError
from popwheel_cli.process.broker_process import BrokerProcess, StrangeProcessError
from popwheel_cli.settings import assigned
from tests.unit.cli.fake_admin_api import GROUP, STATUS, FakeAdminApi

BROKER = ("popwheel_cli.main", "broker", *assigned({"broker.name": "broker-0", "broker.replica": 0}))


@contextmanager
def started(*words: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that waits, with these words in its command line."""
    words = (sys.executable, "-c", "print(flush=True); input()", *words)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_the_process_of_the_replica_is_signalled_and_no_other_that_gets_its_number() -> None:
    with started(*BROKER) as process:
        broker = BrokerProcess(process.pid, "broker-0", 0)
        broker.signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        broker.signal(signal.SIGCONT)
    broker.close()


@pytest.mark.parametrize(
    "words", [(), BROKER[1:], (*BROKER[:-1], "broker.replica=1"), ("popwheel_cli.main", "proxy", *BROKER[2:])]
)
def test_another_process_is_refused_and_goes_on(words: tuple[str, ...]) -> None:
    processes = [{**one, "pid": None} for one in STATUS["processes"]]
    with started(*words) as process:
        for pid in (process.pid, None):
            processes[0]["pid"] = pid
            with (
                FakeAdminApi({"GET /cluster/status": (200, {**STATUS, "processes": processes})}) as api,
                pytest.raises(CommandError, match="nothing was done: the process of replica 0 of broker-0"),
            ):
                process_of_master(AdminApi(api.url), GROUP)
        assert process.poll() is None


def test_a_number_of_nobody_is_refused() -> None:
    with started() as process:
        pass
    with pytest.raises(StrangeProcessError, match="there is no process"):
        BrokerProcess(process.pid, "broker-0", 0)
