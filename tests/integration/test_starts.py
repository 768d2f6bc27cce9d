"""What a process says when it starts: nothing to worry about after a good end, one line after a kill -9.

And what it leaves alone when it cannot start.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import MessagingClient
from tests.harness.cluster import ClusterCommand, wait_until_found, wait_until_gone
from tests.harness.standalone import ROOT, StandaloneProcess, child_pids

LEFT = "the last run did not end by itself"
_WRITTEN_S = 15.0
"""Lines are written by another thread than that which serves."""


def events(text: str) -> list[dict[str, Any]]:
    """The lines of a log, as far as they are written whole."""
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


class Lives:
    """What is said at one start after another.

    Args:
        files: where it is said.
    """

    def __init__(self, *files: Path) -> None:
        self._seen = dict.fromkeys(files, 0)

    def next(self) -> None:
        """Forget all that was said before."""
        for file in self._seen:
            self._seen[file] = len(file.read_bytes()) if file.exists() else 0

    def warnings(self) -> list[dict[str, Any]]:
        """What was said since that is more than information."""
        lines = [events(file.read_bytes()[seen:].decode()) for file, seen in self._seen.items()]
        assert all(lines), "each says something"
        return [line for some in lines for line in some if line["level"] != "info"]


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
async def test_three_starts_of_a_standalone(workers: tuple[str, ...], tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path / "data", workers, loads_itself=True)
    lives = Lives(server.log_path)
    server.start()
    assert lives.warnings() == [], "a first start"
    server.stop()
    lives.next()
    server.start()
    assert lives.warnings() == [], "a start after a good end"
    async with MessagingClient(server.grpc_address) as client:
        await client.send("Topic", b"body")
    pids = [server.pid, *child_pids(server.pid)]
    server.kill()
    wait_until_gone(pids, 15)
    lives.next()
    server.start()
    (line,) = wait_until_found(lives.warnings, _WRITTEN_S)
    assert (line["event"], line["process"], line["level"]) == (LEFT, str(pids[0]), "warning")
    if not workers:  # else the broker is another process, which tells of that
        assert line["records"] > 0
        assert line["seconds"] < 10
    server.stop()


def test_three_starts_of_a_cluster(tmp_path: Path) -> None:
    cluster = ClusterCommand(tmp_path, "--groups", "2", "--proxies", "1", loads_itself=True)
    names = ("controller", "broker-0", "broker-1", "proxy-0")
    lives = Lives(cluster.errors, *(cluster.data_dir / "logs" / f"{name}.log" for name in names))
    cluster.start()
    assert lives.warnings() == [], "a first start"
    cluster.interrupt()
    assert cluster.wait() == 0, cluster.explain()
    cluster.errors.unlink()
    lives.next()
    cluster.start()
    assert lives.warnings() == [], "a start after a good end"
    pids = cluster.pids()
    cluster.kill()
    wait_until_gone(pids, 15)
    cluster.start()
    shown = wait_until_found(
        lambda: [line for line in events(cluster.errors.read_text()) if line["level"] != "info"], _WRITTEN_S
    )
    assert [(line["event"], line["process"]) for line in shown] == [(LEFT, str(pids[0]))]
    broker = events((cluster.data_dir / "logs" / "broker-0.log").read_text())
    assert [line["process"] for line in broker if line["event"] == LEFT]
    cluster.interrupt()
    assert cluster.wait() == 0, cluster.explain()


def test_a_taken_port_leaves_the_data_as_it_is(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path / "data")
    server.start()
    server.stop()
    before = contents(server.data_dir)
    for port in (server.grpc_port, server.http_port):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            server.start(until="")
            assert server.wait(30) == 2
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in server.log_text()
        assert contents(server.data_dir) == before


def test_a_check_finds_the_way_into_a_standalone(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data") as server:
        words = (sys.executable, "-m", "popwheel_cli.main", "admin", "--server", server.http_url, "check")
        result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert f"messages go through {server.grpc_address}" in result.stdout
