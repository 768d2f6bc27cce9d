"""The controller's store is lost, and what the brokers hold is not: topics that come into being again go on."""

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

from popwheel_common.contract.cluster_view import store_id_of
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies, delayed_message
from tests.harness.cluster import ClusterCommand
from tests.integration.conftest import QUICK

AHEAD_S = 6.0
IN_FLIGHT_S = 4.0
"""Brokers begin new terms now: what a pop delivers whose answer that takes along comes again after so long."""


def lose_state(cluster: ClusterCommand) -> None:
    """Kill the controller, and delete all that it has stored before it is started again."""
    (pid,) = [pid for pid in cluster.pids()[1:] if b"\0controller\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(cluster.pid, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        shutil.rmtree(cluster.data_dir / "controller" / "controller")
    finally:
        os.kill(cluster.pid, signal.SIGCONT)


async def version(cluster: ClusterCommand) -> int:
    """Of the cluster's state; 0 if nobody tells."""
    code, page = await asyncio.to_thread(cluster.page, f"{cluster.url}/api/v1/cluster")
    return int(page.partition('"version":')[2].partition(",")[0]) if code == 200 else 0


async def send_until_known(cluster: ClusterCommand, client: MessagingClient, topic: str, body: bytes) -> list[bytes]:
    """Send until the new controller has the topic; what was accepted. A proxy makes the topic once it knows that it is
    gone. Until then it goes by the old controller's state, and its sends are accepted, too.
    """
    accepted: list[bytes] = []
    while (await asyncio.to_thread(cluster.page, f"{cluster.url}/api/v1/topics/{topic}"))[0] != 200:
        if (await client.send(topic, body)).status.code == Code.OK:
            accepted.append(body)
        await asyncio.sleep(0.1)
    return accepted


async def drained(client: MessagingClient, topic: str, count: int) -> list[bytes]:
    """Receive a number of messages, and acknowledge each."""
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            got = (await client.receive("readers", topic, invisible_s=IN_FLIGHT_S, poll_s=2.0)).messages
            if got:
                assert (await client.ack("readers", topic, got)).status.code == Code.OK
            found += bodies(got)
    return found


async def test_messages_and_progress_outlive_the_controllers_store(tmp_path: Path) -> None:
    with ClusterCommand(tmp_path, "--groups", "1", "--replicas", "2", "--proxies", "1", *QUICK) as cluster:
        address = cluster.rows()["proxy-0"][0]
        async with MessagingClient(address) as client:
            due_ms = int((time.time() + AHEAD_S) * 1000)
            sent = [await client.send("Plain", b"%d" % number) for number in range(4)]
            sent.append(await client.send_messages(delayed_message("Delayed", b"late", due_ms)))
            assert {answer.status.code for answer in sent} == {Code.OK}
            taken = await client.receive_all("readers", "Plain", 2)
            assert (await client.ack("readers", "Plain", taken)).status.code == Code.OK
            before = await version(cluster)

            await asyncio.to_thread(lose_state, cluster)
            async with asyncio.timeout(20):
                while store_id_of(await version(cluster)) in (0, store_id_of(before)):
                    await asyncio.sleep(0.1)
                plain = await send_until_known(cluster, client, "Plain", b"4")
                delayed = await send_until_known(cluster, client, "Delayed", b"now")
            plain += {b"%d" % number for number in range(4)} - set(bodies(taken))
            for topic, left in (("Plain", plain), ("Delayed", [*delayed, b"late"])):
                assert sorted(await drained(client, topic, len(left))) == sorted(left)
            assert time.time() * 1000 >= due_ms
