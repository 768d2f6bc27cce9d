"""`popwheel standalone --workers`: to clients and operators what one process is, also while its processes die."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import GetOffsetRequest
from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.methods import GET_OFFSET
from popwheel_rpc.status import RpcError
from tests.harness.certificates import CertificateVolume, certificate_by, new_authority
from tests.harness.client import MessagingClient, bodies, delayed_message, half_message, lite_message
from tests.harness.cluster import wait_until_gone
from tests.harness.load import Ledger, Load, receive_and_ack_all
from tests.harness.programs import run_program
from tests.harness.standalone import ROOT, StandaloneProcess, child_pids
from tests.integration.conftest import QUICK

SOON = (
    *QUICK,
    *("--set", "broker.transaction.first_check_ms=1000"),
    *("--set", "broker.transaction.check_interval_ms=1000"),
    *("--set", "proxy.grpc_client_consumer_min_long_polling_timeout_ms=0"),
)
TWO = ("--workers", "2")
HANGS_SOON = ("--set", "children.silence_ms_max=3000")
CONNECTIONS = 12
"""The kernel gives all of them to the same of two workers once in 2,048 times."""
PATIENCE_S = 15.0
SCENARIOS = ("transactions", "push", "send_receive_ack")
"""Of the official client; `make interop` has the others."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("workers") / "data", (*SOON, *TWO)) as process:
        yield process


@asynccontextmanager
async def connections(server: StandaloneProcess) -> AsyncIterator[list[MessagingClient]]:
    """As many that each worker has some."""
    clients = [MessagingClient(server.grpc_address) for _ in range(CONNECTIONS)]
    try:
        yield clients
    finally:
        for each in clients:
            await each.close()


def processes(server: StandaloneProcess) -> dict[str, int]:
    """Broker and workers, by name."""
    found = httpx.get(f"{server.http_url}/api/v1/cluster/status").json()["processes"]
    return {one["kind"] if one["kind"] == "broker" else one["name"].partition("/")[2]: one["pid"] for one in found}


def all_pids(server: StandaloneProcess) -> list[int]:
    """The parent and its children."""
    return [server.pid, *child_pids(server.pid)]


def events(server: StandaloneProcess) -> list[dict[str, object]]:
    """Its log."""
    return [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]


async def until_ready_again(server: StandaloneProcess, name: str, killed: int) -> None:
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient() as http:
        while processes(server).get(name, killed) == killed:
            await asyncio.sleep(0.05)
        while (await http.get(f"{server.http_url}/readyz")).status_code != 200:
            await asyncio.sleep(0.05)


async def test_the_official_client_sees_no_difference(server: StandaloneProcess, tmp_path: Path) -> None:
    words = ["-m", "tests.interop.scenarios", server.grpc_address]
    running = (asyncio.to_thread(run_program, [*words, name], tmp_path / name) for name in SCENARIOS)
    outcomes = dict(zip(SCENARIOS, await asyncio.gather(*running), strict=True))
    for outcome in outcomes.values():
        assert outcome.exit_code == 0, outcome.explain()
        assert outcome.of("left")[0]["count"] == 0, outcome.explain()
    story = outcomes["transactions"]
    assert sorted(event["body"] for event in story.of("received")) == [
        *("commit for the dead", "commit if asked", "commit if asked, late", "commit now")
    ], story.explain()
    assert "commit for the dead" in {event["body"] for event in story.of("asked")}
    attempts: dict[str, list[int]] = {}
    for event in outcomes["push"].of("received"):
        attempts.setdefault(event["body"], []).append(event["attempt"])
    assert attempts == {f"push {number}": [1, 2] if number == 7 else [1] for number in range(20)}
    story = outcomes["send_receive_ack"]
    assert {event["id"] for event in story.of("acked")} == {event["id"] for event in story.of("sent")}


async def test_any_connection_goes_on_with_what_another_has_begun(server: StandaloneProcess) -> None:
    async with connections(server) as clients:
        first = clients[0]
        await asyncio.gather(*(each.send("Any", b"%d" % number) for number, each in enumerate(clients)))
        received = await first.receive_all("any", "Any", CONNECTIONS)
        assert bodies(received) == sorted(b"%d" % number for number in range(CONNECTIONS))
        acks = await asyncio.gather(
            *(each.ack("any", "Any", [message]) for each, message in zip(clients, received, strict=True))
        )
        assert {answer.status.code for answer in acks} == {Code.OK}, "receipts"

        polls = [asyncio.ensure_future(each.receive("any", "Any", count=1, poll_s=10)) for each in clients]
        await asyncio.sleep(0.5)
        for number in range(CONNECTIONS):
            await first.send("Any", b"woken %d" % number)
        woken = [message.body for poll in await asyncio.gather(*polls) for message in poll.messages]
        assert sorted(woken) == sorted(b"woken %d" % number for number in range(CONNECTIONS)), "long polls"

        due_ms = int(time.time() * 1000) + 60_000
        sent = [await first.send_messages(delayed_message("Later", b"late", due_ms)) for _ in clients]
        recalls = await asyncio.gather(
            *(each.recall("Later", answer.entries[0].recall_handle) for each, answer in zip(clients, sent, strict=True))
        )
        assert {answer.status.code for answer in recalls} == {Code.OK}, "recalls"


async def test_transactions_are_ended_and_asked_about_at_any_connection(server: StandaloneProcess) -> None:
    async with connections(server) as clients:
        halves = [(await clients[0].send_messages(half_message("Half", b"h"))).entries[0] for _ in clients]
        statuses = await asyncio.gather(
            *(
                each.end_transaction("Half", half.transaction_id, definition.COMMIT, half.message_id)
                for each, half in zip(clients, halves, strict=True)
            )
        )
        assert {status.code for status in statuses} == {Code.OK}
    for number in range(3):  # whichever of the workers the producer has come back to
        async with MessagingClient(server.grpc_address) as dead:
            left = (await dead.send_messages(half_message(f"Asked{number}", b"left alone"))).entries[0]
        async with (
            MessagingClient(server.grpc_address) as client,
            aclosing(client.checks(f"Asked{number}")) as checks,
            asyncio.timeout(PATIENCE_S),
        ):
            asked = await anext(checks)
            assert (asked.transaction_id, asked.message.body) == (left.transaction_id, b"left alone")
            status = await client.end_transaction(
                f"Asked{number}", asked.transaction_id, definition.COMMIT, left.message_id
            )
            assert status.code == Code.OK


async def test_lite_subscriptions_hold_at_any_connection(server: StandaloneProcess) -> None:
    async with httpx.AsyncClient() as http:
        for path, content in (("topics", {"name": "Small", "type": "LITE"}), ("groups", {"name": "small"})):
            (await http.post(f"{server.http_url}/api/v1/{path}", json=content)).raise_for_status()
    one_client = [MessagingClient(server.grpc_address, client_id="reader@1") for _ in range(CONNECTIONS)]
    try:
        assert (await one_client[0].sync_lite("small", "Small", "mine")).code == Code.OK
        for number, each in enumerate(one_client):
            body = b"%d" % number
            assert (await one_client[0].send_messages(lite_message("Small", body, "mine"))).status.code == Code.OK
            (message,) = (await each.receive("small", "Small", poll_s=5.0)).messages
            assert message.body == body
            assert (await each.ack("small", "Small", [message])).status.code == Code.OK
    finally:
        for each in one_client:
            await each.close()


async def test_one_port_shows_all_processes(server: StandaloneProcess) -> None:
    assert set(processes(server)) == {"broker", "0", "1"}
    assert len(all_pids(server)) == 1 + 1 + 2
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{server.http_url}/readyz")).json() == {"ready": True, "reasons": {}}
        page = (await http.get(f"{server.http_url}/metrics")).text
    labels = set(re.findall(r'^process_resident_memory_bytes(?:{worker="(\w+)"})? ', page, re.MULTILINE))
    assert labels == {"", "broker", "0", "1"}
    assert "popwheel_proxy_workers 2.0" in page
    assert "popwheel_controller_brokers 1.0" in page
    types = re.findall(r"^# TYPE (\S+) ", page, re.MULTILINE)
    assert len(types) == len(set(types)), "Prometheus wants each family once"


async def test_a_worker_and_the_broker_that_die_or_hang_are_started_again(tmp_path: Path) -> None:
    authority, volume = new_authority(), CertificateVolume(tmp_path / "tls")
    volume.hold(certificate_by(authority), authority)
    with StandaloneProcess(tmp_path / "data", (*SOON, *TWO, *HANGS_SOON, *volume.settings)) as server:
        async with MessagingClient(server.grpc_address) as client:
            assert (await client.send("Kept", b"before")).status.code == Code.OK
        for name, way in (("0", signal.SIGKILL), ("broker", signal.SIGKILL), ("1", signal.SIGSTOP)):
            killed = processes(server)[name]
            os.kill(killed, way)
            await until_ready_again(server, name, killed)
            async with connections(server) as clients:
                answers = await asyncio.gather(*(each.send("Kept", name.encode()) for each in clients))
                assert {answer.status.code for answer in answers} == {Code.OK}
        async with MessagingClient(server.grpc_address) as client:
            got = await client.receive_all("kept", "Kept", 1 + 3 * CONNECTIONS)
            sent = [b"0"] * CONNECTIONS + [b"1"] * CONNECTIONS + [b"before"] + [b"broker"] * CONNECTIONS
            assert bodies(got) == sent
        page = httpx.get(f"{server.http_url}/metrics").text
        assert "popwheel_proxy_worker_restarts_total 2.0" in page
        assert "popwheel_hung_processes_killed_total 1.0" in page
        assert "popwheel_standalone_broker_restarts_total 1.0" in page
        ended = [event for event in events(server) if event["event"] == "a process has ended"]
        assert [event["how"] for event in ended] == ["SIGKILL"] * 3
        broker = [event for event in events(server) if event["event"] == "popwheel broker serves"][-1]
        plain = connect(str(broker["grpc"]))
        with pytest.raises(RpcError, match=r"was closed|was lost"):  # with certificates only workers get through to it
            await plain.call(GET_OFFSET, GetOffsetRequest(), timeout_s=5)
        await plain.close()


async def test_sigterm_ends_workers_then_the_broker_and_answers_polls(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path / "data", (*SOON, *TWO))
    server.start()
    pids = all_pids(server)
    async with connections(server) as clients:
        polls = [asyncio.ensure_future(each.receive("g", "Empty", poll_s=10)) for each in clients]
        await asyncio.sleep(0.5)
        server.terminate()
        assert {poll.code for poll in await asyncio.gather(*polls)} <= {Code.OK, Code.MESSAGE_NOT_FOUND}
    assert await asyncio.to_thread(server.wait) == 0
    wait_until_gone(pids, 1)
    said = [str(event["event"]) for event in events(server)]
    assert said.count("ended") == len(pids)
    assert said[-1] == "ended"
    last_worker = max(number for number, event in enumerate(said) if event == "proxy stopped")
    assert [number for number, event in enumerate(said) if event == "draining"][-1] > last_worker, "then the broker"


@pytest.mark.timeout(300)
async def test_kill_9_of_all_loses_nothing_whatever_the_number_of_workers(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path / "data", (*QUICK, *TWO))
    ledger = Ledger()
    with server:
        made = {"name": "load", "max_attempts": 1000}
        assert httpx.post(f"{server.http_url}/api/v1/groups", json=made).status_code == 201
        for kill, workers in enumerate(("3", "1")):
            wanted = len(ledger.sent) + 150
            load = Load(server.grpc_address, ledger, lambda ledger: len(ledger.sent) >= wanted)  # noqa: B023
            senders = [asyncio.create_task(load.send(kill * 6 + number)) for number in range(6)]
            consumers = [asyncio.create_task(load.consume()) for _ in range(3)]
            await load.reached.wait()
            pids = all_pids(server)
            server.kill()  # the parent alone: the kernel kills the others
            await asyncio.gather(*senders, *consumers)
            wait_until_gone(pids, 2)
            server.extra_args = [*QUICK, "--workers", workers]
            server.start()
        async with MessagingClient(server.grpc_address) as client:
            got = await receive_and_ack_all(client, ledger.owed)
    assert len(ledger.acked) > 20
    assert ledger.owed - set(got) == set(), "sent with OK and lost (S1)"
    assert ledger.again | ledger.acked & set(got) == set(), "acked with OK and delivered again (P3)"
    assert set(got) - ledger.tried == set(), "delivered though nobody sent it (S2)"


def test_what_cannot_be_is_said_in_one_sentence(server: StandaloneProcess, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "popwheel_cli.main", "standalone", *TWO]

    def said(*more: str) -> tuple[int, str]:
        run = subprocess.run([*words, *more], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
        return run.returncode, next(line for line in run.stderr.splitlines() if line.startswith("popwheel: "))

    code, sentence = said("--data-dir", str(server.data_dir))
    assert (code, f"is in use by process {server.pid}" in sentence) == (2, True), sentence
    fresh = ("--data-dir", str(tmp_path / "fresh"), "--http-port", "0")
    code, sentence = said(*fresh, "--grpc-port", str(server.grpc_port))
    assert (code, f"cannot listen on 127.0.0.1:{server.grpc_port}" in sentence) == (2, True), sentence
    damaged = tmp_path / "damaged" / "broker" / "identity"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("no such thing")
    code, sentence = said("--data-dir", str(tmp_path / "damaged"), "--grpc-port", "0", "--http-port", "0")
    assert (code, sentence.startswith("popwheel: cannot start: ")) == (1, True), sentence
