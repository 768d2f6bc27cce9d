"""`popwheel cluster`: many processes from one command, under load of the official client, while some of them die."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.cluster import ClusterCommand, wait_until_gone
from tests.harness.load import receive_and_ack_all
from tests.harness.standalone import ROOT
from tests.integration.conftest import QUICK

ROUTES_S_MAX = 1.0
HANG_S_MAX = 4.0
"""A broker that hangs is pinged after a second, once more after half of one, and given up a second and a half later."""
POLL_S_MAX = 10.0


class OfficialClient:
    """The official client at work at one proxy, in a process of its own.

    Args:
        folder: for its output and its log.
        address: of the proxy.
        name: what its messages begin with.
    """

    def __init__(self, folder: Path, address: str, name: str) -> None:
        self._path = folder / f"{name}.events"
        with self._path.open("wb") as output, (folder / f"{name}.errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.cluster_client", address, name],
                cwd=ROOT,
                env={**os.environ, "HOME": str(folder)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
            )

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What has happened so far."""
        lines = self._path.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["event"] == kind]

    def bodies(self, kind: str) -> set[bytes]:
        """Of which messages."""
        return {event["body"].encode() for event in self.events(kind)}

    def end(self) -> None:
        """Have it send no more, and end after its last poll."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Wait for its end."""
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()


async def until(wanted: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(timeout_s):
        while not wanted():
            await asyncio.sleep(0.02)


async def route_changes(client: MessagingClient, broker: str, *, there: bool, timeout_s: float) -> float:
    """Wait until a broker is in the route, or out of it; how many seconds that took."""
    began = time.monotonic()
    while True:
        route = await client.route("Load")
        if (broker in {queue.broker.name for queue in route.message_queues}) is there:
            return time.monotonic() - began
        assert time.monotonic() - began < timeout_s, f"{broker} is {'not ' if there else ''}in the route"
        await asyncio.sleep(0.01)


async def go_on(*clients: OfficialClient) -> None:
    """Each sends and receives again and again from now on."""
    counts = [(client, kind, len(client.events(kind))) for client in clients for kind in ("sent", "acked")]
    # Long, as two cores may be shared with Spark: a client that goes on does so in a second.
    await until(lambda: all(len(client.events(kind)) >= before + 10 for client, kind, before in counts), 60)


def said(command: ClusterCommand, *words: str) -> tuple[int, str]:
    """How a command fails: exit code and sentence."""
    run = subprocess.run([*command.command, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    (sentence,) = [line for line in run.stderr.splitlines() if line.startswith("popwheel: ")]
    return run.returncode, sentence


async def test_brokers_and_proxies_die_under_load_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with ClusterCommand(tmp_path, "--groups", "3", "--proxies", "2", *QUICK) as cluster:
        rows = cluster.rows()
        first, second = (rows[f"proxy-{number}"][0] for number in range(2))
        workers = [OfficialClient(tmp_path, first, "first"), OfficialClient(tmp_path, second, "second")]
        try:
            async with MessagingClient(first) as one, MessagingClient(second) as two:
                await go_on(*workers)
                for client in (one, two):
                    for number in range(3):
                        await route_changes(client, f"broker-{number}", there=True, timeout_s=5)

                killed = cluster.send_signal("broker-1", signal.SIGKILL)
                took = await asyncio.gather(
                    *(route_changes(each, "broker-1", there=False, timeout_s=5) for each in (one, two))
                )
                assert max(took) <= ROUTES_S_MAX
                await route_changes(one, "broker-1", there=True, timeout_s=15)
                assert cluster.status()["broker-1"]["pid"] != killed
                await go_on(*workers)

                stopped = cluster.send_signal("broker-2", signal.SIGSTOP)
                await route_changes(two, "broker-2", there=False, timeout_s=HANG_S_MAX)
                await go_on(*workers)
                os.kill(stopped, signal.SIGCONT)
                await route_changes(two, "broker-2", there=True, timeout_s=5)

                killed = cluster.send_signal("proxy-1", signal.SIGKILL)
                await until(lambda: cluster.status().get("proxy-1", {}).get("pid", killed) != killed)
                await go_on(*workers)
        finally:
            for worker in workers:
                worker.end()
            for worker in workers:
                worker.wait()
        sent = set[bytes]().union(*(worker.bodies("sent") for worker in workers))
        acked = set[bytes]().union(*(worker.bodies("acked") for worker in workers))
        # What nobody answered when a process was killed may have been carried out; all else comes again.
        outcome_unknown = set[bytes]().union(*(worker.bodies("ack failed") for worker in workers))
        if missing := sent - acked - outcome_unknown:
            async with MessagingClient(first) as client:
                missing -= set(await receive_and_ack_all(client, missing))
        assert missing == set(), "sent with OK and lost"
        assert len(sent) > 100
        assert workers[0].events("send failed") == workers[0].events("poll failed") == []
        assert max(event["took"] for event in workers[0].events("polled")) <= POLL_S_MAX
        said = cluster.errors.read_text()
        for name in ("broker-1", "proxy-1"):
            assert any(
                event["process"] == name and event["how"] == "SIGKILL"
                for event in map(json.loads, [line for line in said.splitlines() if '"a process has ended"' in line])
            ), said
            assert f"    {name}: {{" in said, "the end of its log"

        pids = cluster.pids()
        assert len(pids) == 1 + 1 + 3 + 2
        cluster.interrupt()
        assert cluster.wait() == 0, cluster.explain()
        wait_until_gone(pids, 1)
        last = {name: Path(row[2]).read_text().splitlines()[-1] for name, row in rows.items()}
        ends = {name: json.loads(line) for name, line in last.items()}
        assert {end["event"] for end in ends.values()} == {"ended"}
        order = sorted(ends, key=lambda name: ends[name]["timestamp"])
        assert [name.partition("-")[0] for name in order] == ["proxy"] * 2 + ["broker"] * 3 + ["controller"]


async def test_workers_share_a_port_and_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    with ClusterCommand(tmp_path, "--groups", "2", "--proxies", "1", "--proxy-workers", "2", *QUICK) as cluster:
        address, http, _ = cluster.rows()["proxy-0"]
        status = cluster.status()
        assert list(status) == ["broker-0", "broker-1", "proxy-0/0", "proxy-0/1"]
        assert {one["address"] for name, one in status.items() if name.startswith("proxy")} == {address}
        assert all(one["ready"] for one in status.values())
        words = [sys.executable, "-m", "popwheel_cli.main", "admin", "--server", cluster.url, "cluster", "status"]
        table = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        lines = [line.split() for line in table]
        processes = lines[lines.index([]) + 2 :]
        assert [[*line[:2], *line[4:6]] for line in processes] == [
            [one["kind"], name, one["address"], str(one["pid"])] for name, one in status.items()
        ]
        assert [line[2:4] for line in processes] == [["0", "master"]] * 2 + [["-", "-"]] * 2
        assert {line[-1] for line in processes} == {"yes"}

        clients = [MessagingClient(address) for _ in range(12)]
        try:
            await asyncio.gather(*(each.send("Spread", str(number).encode()) for number, each in enumerate(clients)))
            received = await clients[0].receive_all("spread", "Spread", 12)
            assert bodies(received) == sorted(str(number).encode() for number in range(12))
            # One ack over each connection, so both workers ack what one of them has received.
            answers = await asyncio.gather(
                *(each.ack("spread", "Spread", [message]) for each, message in zip(clients, received, strict=True))
            )
            assert {answer.status.code for answer in answers} == {Code.OK}
            _, page = cluster.page(f"{http}/metrics")
            for worker in ("0", "1"):
                acks = [line for line in page.splitlines() if "AckMessage" in line and f'worker="{worker}"' in line]
                assert acks, "each of the two has got some of the twelve connections"
                assert f'python_gc_collections_total{{generation="2",worker="{worker}"}}' in page
            assert "popwheel_proxy_workers 2.0" in page

            polls = [asyncio.ensure_future(each.receive("spread", "Spread", count=1, poll_s=15)) for each in clients]
            await asyncio.sleep(0.5)
            cluster.send_signal("proxy-0/1", signal.SIGKILL)
            await asyncio.to_thread(cluster.wait_until, lambda status: "proxy-0/1" not in status)
            code, text = cluster.page(f"{http}/readyz")
            assert code in (200, 503), text
            sender = MessagingClient(address)
            clients.append(sender)
            for number in range(20):
                await sender.send("Spread", b"x%d" % number)
            ended = await asyncio.gather(*polls, return_exceptions=True)
            answered = [poll for poll in ended if not isinstance(poll, BaseException)]
            assert answered, "those of the other worker"
            assert {poll.code for poll in answered} == {Code.OK}
            await asyncio.to_thread(cluster.wait_until, lambda status: status.get("proxy-0/1", {}).get("ready", False))
            _, page = cluster.page(f"{http}/metrics")
            assert "popwheel_proxy_worker_restarts_total 1.0" in page
            assert cluster.page(f"{http}/readyz")[0] == 200
        finally:
            for each in clients:
                await each.close()
        code, sentence = said(cluster, "--http-port", "0")
        assert (code, f"is in use by process {cluster.pid}" in sentence) == (2, True), sentence
        pids = cluster.pids()
        assert len(pids) == 1 + 1 + 2 + 1 + 2
        for pid in pids[1:]:
            os.kill(pid, signal.SIGSTOP)  # they will not end well
        cluster.interrupt()
        await until(lambda: '"draining"' in cluster.errors.read_text())
        cluster.interrupt()
        assert cluster.wait(2) == 1
        wait_until_gone(pids, 2)


def test_what_cannot_be_is_said_in_one_sentence(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        taken = str(other.getsockname()[1])
        code, sentence = said(ClusterCommand(tmp_path / "taken"), "--grpc-port", taken)
        assert (code, f"127.0.0.1:{taken}: Address already in use" in sentence) == (2, True), sentence

    state = tmp_path / "data" / "controller" / "controller" / "cluster.json"
    state.parent.mkdir(parents=True)
    state.write_text("damaged")
    cluster = ClusterCommand(tmp_path, "--groups", "1", "--proxies", "1")
    code, sentence = said(cluster)
    assert code == 1
    assert sentence.startswith("popwheel: controller: cannot start: "), sentence
