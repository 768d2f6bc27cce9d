"""The server that Popwheel lends to others' tests: ready soon, its own ports and folder, nothing left behind."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from popwheel_testing import PopwheelServer, ServerFailedError, server
from tests.harness.cluster import wait_until_found, wait_until_gone
from tests.harness.loop_turns import slowness
from tests.harness.ports import free_ports

pytest_plugins = ["popwheel_testing.plugin"]

READY_S_MAX = 2.0
"""CPU time of a start, in seconds of a machine that has nothing else to do: there nothing waits at a start."""

LOCKED_BY_ANOTHER_PROCESS = """
import sys
from popwheel_testing import PopwheelServer
server = PopwheelServer()
server.start()
print(server.pid, server._folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; none is left at the end of a test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def admin(popwheel: PopwheelServer, path: str) -> httpx.Response:
    return httpx.get(f"{popwheel.http_url}/api/v1/{path}", trust_env=False)


def test_a_server_has_its_settings_and_topics_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPWHEEL_CONTROLLER__TOPICS_MAX", "1")  # of whoever runs the tests: not for this server
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with PopwheelServer({"controller.topic.queues": 3}, topics={"Orders": "FIFO", "Mail": "DELAY"}) as popwheel:
        pid = popwheel.pid
        topics = admin(popwheel, "topics").json()["topics"]
        assert [(each["name"], each["type"], each["queues"]) for each in topics] == [
            ("Mail", "DELAY", 3),
            ("Orders", "FIFO", 3),
        ]
        popwheel.create_group("billing", fifo=True, max_attempts=2)
        assert admin(popwheel, "groups/billing").json()["fifo"]
        with pytest.raises(ServerFailedError, match="topic Orders is there already"):
            popwheel.create_topic("Orders")
        assert "popwheel standalone serves" in popwheel.log_text()
        assert popwheel.endpoints.startswith("127.0.0.1:")
    wait_until_gone([pid], 0)
    with pytest.raises(httpx.ConnectError):
        admin(popwheel, "topics")


@pytest.mark.flaky(reruns=2)
def test_a_server_is_soon_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # what is installed has its bytecode
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "bytecode"))
    with PopwheelServer():
        pass
    before = slowness()
    with PopwheelServer() as popwheel:
        ticks = Path(f"/proc/{popwheel.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    assert sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") / max(before, slowness()) < READY_S_MAX


def test_it_goes_with_a_test_process_that_is_killed(folders: Path) -> None:
    words = [sys.executable, "-c", LOCKED_BY_ANOTHER_PROCESS]
    environment = {**os.environ, "TMPDIR": str(folders)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        assert Path(folder, "data").is_dir()
        process.kill()
    wait_until_gone([int(pid)], 10)
    # As it becomes the command that removes the folder, the process looks like one that has ended.
    assert wait_until_found(lambda: [folder] if not Path(folder).exists() else [], 10)


def test_it_outlives_the_thread_that_started_it() -> None:
    popwheel = PopwheelServer()
    thread = threading.Thread(target=popwheel.start)
    thread.start()
    thread.join()
    assert admin(popwheel, "topics").is_success
    popwheel.stop()


def test_a_setting_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ServerFailedError, match=r"exit code 2.*\n.*there is no such setting"):
        PopwheelServer({"broker.flusch": "async"}).start()


def test_a_topic_that_cannot_be_made_ends_the_start() -> None:
    with pytest.raises(ServerFailedError, match="topics Orders: "):
        PopwheelServer(topics={"Orders": "LOUD"}).start()


def test_a_port_that_was_taken_meanwhile_is_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    choose, taken = server._free_port, free_ports(1)
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(taken[0])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()  # it serves
        monkeypatch.setattr(server, "_free_port", lambda reserved: taken.pop() if taken else choose(reserved))
        with PopwheelServer() as popwheel:
            assert admin(popwheel, "topics").is_success
        assert taken == []
        other.kill()


def test_a_server_that_ended_by_itself_is_noticed() -> None:
    with pytest.raises(ServerFailedError, match="ended by itself, with exit code -9"), PopwheelServer() as popwheel:
        os.kill(popwheel.pid, 9)
        wait_until_gone([popwheel.pid], 10)


def test_it_is_said_when_no_server_runs() -> None:
    for use in (PopwheelServer().stop, lambda: PopwheelServer().pid):
        with pytest.raises(ServerFailedError, match="the server does not run"):
            use()


def test_each_test_has_names_of_its_own(popwheel_topic: str, popwheel_group: str) -> None:
    assert popwheel_topic.startswith("test-each-test-has-names-of-its-own-")
    assert popwheel_topic != popwheel_group


def test_a_test_process_loads_nothing_of_the_server() -> None:
    program = "import sys, popwheel_testing; print(*[name for name in sys.modules if name.startswith('popwheel_')])"
    loaded = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert set(loaded.split()) == {
        *("popwheel_cli", "popwheel_cli.settings", "popwheel_common", "popwheel_common.clock"),
        *("popwheel_testing", "popwheel_testing.server"),
    }
