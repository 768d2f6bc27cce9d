"""Controller, broker and proxy as processes of their own, over real sockets."""

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, make_message
from tests.harness.ports import free_ports
from tests.harness.preloaded import PROGRAM, PreloadedProcess
from tests.harness.programs import run_popwheel, start_words
from tests.harness.standalone import START_TIMEOUT_S, STOP_TIMEOUT_S


class Cluster:
    """The three processes, from one file of settings.

    Args:
        folder: for the settings, data and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(6)
        self.grpc_ports = dict(zip(("controller", "broker", "proxy"), ports[:3], strict=True))
        self.http_ports = dict(zip(("controller", "broker", "proxy"), ports[3:], strict=True))
        controller = f"127.0.0.1:{self.grpc_ports['controller']}"
        settings = {
            name: {"grpc_port": self.grpc_ports[name], "http_port": self.http_ports[name]} for name in self.grpc_ports
        }
        broker: dict[str, object] = {**settings["broker"], "controller": controller}
        proxy: dict[str, object] = {**settings["proxy"], "controller": controller}
        self.settings = folder / "cluster.yaml"
        self.settings.write_text(json.dumps({**settings, "broker": broker, "proxy": proxy}))  # JSON is YAML
        self.processes: dict[str, PreloadedProcess | subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start one of the processes; returns when it is alive, perhaps not ready."""
        data = [] if name == "proxy" else ["--data-dir", str(self.folder / name)]
        with (self.folder / f"{name}.log").open("ab") as log:
            words = [*PROGRAM, name, "--config", str(self.settings), *data]
            self.processes[name] = start_words(words, os.environ, log, log)

    def stop(self, name: str) -> None:
        """Ask it to end, and see that it does so well and in time."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_TIMEOUT_S) == 0, self.log(name)

    def kill(self, name: str) -> None:
        """End it as kill -9 does."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def log(self, name: str) -> str:
        """What it has said so far."""
        return (self.folder / f"{name}.log").read_text()

    def admin(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`popwheel admin ...` at this cluster's controller."""
        server = f"http://127.0.0.1:{self.http_ports['controller']}"
        return run_popwheel(["admin", "--server", server, *words])

    def reasons(self, name: str) -> dict[str, str] | None:
        """Why a process is not ready: empty if it is, None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_ports[name]}/readyz", timeout=2) as answer:
                content = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                content = json.load(error)
        except OSError:
            return None
        return dict(content["reasons"])

    async def until_ready(self, *names: str) -> None:
        """Wait until all of these processes are ready."""
        until = time.monotonic() + START_TIMEOUT_S
        for name in names:
            while (reasons := await asyncio.to_thread(self.reasons, name)) != {}:
                assert self.processes[name].poll() is None, self.log(name)
                assert time.monotonic() < until, f"{name}: {reasons}\n{self.log(name)}"
                await asyncio.sleep(0.02)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    for name in ("proxy", "broker", "controller"):  # each finds the others whenever they come
        cluster.start(name)
    yield cluster
    for name in list(cluster.processes):
        cluster.kill(name)


async def test_a_cluster_goes_on_while_its_controller_is_away(cluster: Cluster) -> None:
    await cluster.until_ready("controller", "broker", "proxy")
    async with MessagingClient(f"127.0.0.1:{cluster.grpc_ports['proxy']}") as client:
        # Topics are not made on first use here.
        refused = await client.send("Orders", b"too early")
        assert Code.TOPIC_NOT_FOUND in (refused.status.code, *(entry.status.code for entry in refused.entries))
        created = await asyncio.to_thread(cluster.admin, "topic", "create", "Orders", "-o", "json")
        assert (created.returncode, created.stderr) == (0, "")
        assert json.loads(created.stdout)["queues"] == 8
        created = await asyncio.to_thread(cluster.admin, "group", "create", "billing", "--max-attempts", "3")
        assert created.returncode == 0
        await consume_one(client, b"one")

        cluster.kill("controller")
        away = await asyncio.to_thread(cluster.admin, "topic", "list")
        assert away.returncode != 0
        assert away.stderr.startswith("popwheel: no controller answers at ")
        await consume_one(client, b"two")

        cluster.start("controller")
        await cluster.until_ready("controller", "broker", "proxy")
        topics = await asyncio.to_thread(cluster.admin, "topic", "list", "-o", "json")
        assert [topic["name"] for topic in json.loads(topics.stdout)] == ["Orders"]
        await consume_one(client, b"three")

    for name in ("proxy", "broker", "controller"):
        cluster.stop(name)


async def test_an_operator_sees_and_recalls_delayed_messages(cluster: Cluster) -> None:
    await cluster.until_ready("controller", "broker", "proxy")
    assert cluster.admin("topic", "create", "Later", "--type", "DELAY").returncode == 0

    def admin(*words: str) -> "asyncio.Future[subprocess.CompletedProcess[str]]":
        return asyncio.ensure_future(asyncio.to_thread(cluster.admin, "timer", *words, "-o", "json"))

    async with MessagingClient(f"127.0.0.1:{cluster.grpc_ports['proxy']}") as client:
        message = make_message("Later", b"far away")
        message.system_properties.message_type = definition.DELAY
        message.system_properties.delivery_timestamp.FromSeconds(int(time.time()) + 3000)
        request = service.SendMessageRequest(messages=[message])
        until = time.monotonic() + 10
        while (sent := await client.call("SendMessage", request, service.SendMessageResponse)).status.code != Code.OK:
            assert sent.status.code == Code.TOPIC_NOT_FOUND, sent
            assert time.monotonic() < until, sent
            await asyncio.sleep(0.02)
        handle = sent.entries[0].recall_handle
        listed = json.loads((await admin("list", "--topic", "Later", "--within", "1h")).stdout)
        assert [(one["recall_handle"], one["message_id"]) for one in listed["timers"]] == [
            (handle, message.system_properties.message_id)
        ]
        assert json.loads((await admin("stats")).stdout)["pending"] == 1
        assert (await admin("recall", handle, "--topic", "Later")).returncode == 0
        stats = json.loads((await admin("stats")).stdout)
        assert (stats["pending"], stats["brokers"][0]["recalled"], stats["unanswered"]) == (0, 1, [])
        recall = service.RecallMessageRequest(topic=definition.Resource(name="Later"), recall_handle=handle)
        again = await client.call("RecallMessage", recall, service.RecallMessageResponse)
        assert (again.status.code, again.message_id) == (Code.OK, message.system_properties.message_id)

        cluster.kill("broker")
        # What is asked before the proxy sees that the connection is gone may be lost on it: then nobody can tell.
        first, away = [await client.call("RecallMessage", recall, service.RecallMessageResponse) for _ in range(2)]
        assert first.status.code in (Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT), first
        assert away.status.code == Code.HA_NOT_AVAILABLE, "try again when it is back"


async def consume_one(client: MessagingClient, body: bytes) -> None:
    """Send a message, receive it and ack it. What the admin API has said may be on its way to the proxy still."""
    until = time.monotonic() + 10
    while (sent := await client.send("Orders", body)).status.code != Code.OK:
        assert sent.status.code == Code.TOPIC_NOT_FOUND, sent
        assert time.monotonic() < until, sent
        await asyncio.sleep(0.02)
    received = await client.receive("billing", "Orders", poll_s=8)
    assert [message.body for message in received.messages] == [body], received
    acked = await client.ack("billing", "Orders", received.messages)
    assert acked.status.code == Code.OK
