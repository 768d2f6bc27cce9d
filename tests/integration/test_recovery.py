"""The controllers' store is lost, and `popwheel admin cluster recover` brings topics and groups back as they were."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from popwheel_cli.main import main
from popwheel_common.contract.cluster_view import store_id_of
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import COMMIT, Code
from tests.harness.client import MessagingClient, bodies, delayed_message, half_message
from tests.harness.cluster import ClusterCommand
from tests.integration.conftest import QUICK
from tests.integration.test_lost_cluster_state import lose_state, version

IN_FLIGHT_S = 6.0
AHEAD_S = 14.0
SOON = ("--set", "broker.transaction.first_check_ms=2000", "--set", "broker.transaction.check_interval_ms=3000")
QUIET_S = 3.0


async def admin(cluster: ClusterCommand, *words: str) -> Any:
    """What `popwheel admin` answers."""
    command = ["admin", "--server", cluster.url, *words, "-o", "json"]
    result = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def refused(cluster: ClusterCommand, *words: str) -> str:
    """Why `popwheel admin` did not do it."""
    result = await asyncio.to_thread(CliRunner().invoke, main, ["admin", "--server", cluster.url, *words])
    assert result.exit_code == 1, result.output
    return result.stderr


async def definitions(cluster: ClusterCommand) -> tuple[list[Any], list[Any]]:
    """All topics and groups, with ids and settings."""
    return await admin(cluster, "topic", "list"), await admin(cluster, "group", "list")


async def taken(client: MessagingClient, topic: str, seconds: float) -> list[bytes]:
    """What comes within a time, each acknowledged."""
    found: list[bytes] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        got = (await client.receive("readers", topic, invisible_s=IN_FLIGHT_S, poll_s=1.0)).messages
        if got:
            assert (await client.ack("readers", topic, got)).status.code == Code.OK
        found += bodies(got)
    return found


async def test_ids_settings_progress_timers_and_half_messages_are_as_they_were(tmp_path: Path) -> None:
    with ClusterCommand(tmp_path, "--groups", "1", "--replicas", "2", "--proxies", "1", *QUICK, *SOON) as cluster:
        for words in (("Plain", "--queues", "3"), ("Late", "--type", "DELAY"), ("Half", "--type", "TRANSACTION")):
            await admin(cluster, "topic", "create", *words)
        await admin(cluster, "group", "create", "readers", "--max-attempts", "7")
        await admin(cluster, "topic", "update", "Plain", "--queues", "5")
        address = cluster.rows()["proxy-0"][0]
        async with MessagingClient(address) as client:
            due_ms = int((time.time() + AHEAD_S) * 1000)
            sent = [await client.send("Plain", b"%d" % number) for number in range(8)]
            sent.append(await client.send_messages(delayed_message("Late", b"late", due_ms)))
            sent.append(half := await client.send_messages(half_message("Half", b"half")))
            assert {answer.status.code for answer in sent} == {Code.OK}
            done = await client.receive_all("readers", "Plain", 3)
            assert (await client.ack("readers", "Plain", done)).status.code == Code.OK
            held = (await client.receive("readers", "Plain", count=1, invisible_s=IN_FLIGHT_S)).messages
            assert len(held) == 1
            before, first_life = await definitions(cluster), await version(cluster)
            assert [(each["name"], each["queues"]) for each in before[0]][-1] == ("Plain", 5)

            await asyncio.to_thread(lose_state, cluster)
            async with asyncio.timeout(20):
                while store_id_of(await version(cluster)) in (0, store_id_of(first_life)):
                    await asyncio.sleep(0.1)
                while not (await admin(cluster, "broker", "list")) or not (await admin(cluster, "cluster", "status")):
                    await asyncio.sleep(0.1)
                while (await admin(cluster, "broker", "list"))[0]["master"] is None:
                    await asyncio.sleep(0.1)
            assert await definitions(cluster) == ([], [])

            would = await admin(cluster, "cluster", "recover", "--dry-run")
            assert (would["topics_total"], would["groups_total"], would["findings"]) == (3, 1, [])
            assert await definitions(cluster) == ([], []), "a dry run changes nothing"
            assert await admin(cluster, "cluster", "recover", "--yes") == would
            assert await definitions(cluster) == before
            assert store_id_of(await version(cluster)) == store_id_of(first_life)

            again = await admin(cluster, "cluster", "recover", "--yes")
            assert (again["topics_total"], again["groups_total"], again["findings"]) == (0, 0, [])
            left = {b"%d" % number for number in range(8)} - {*bodies(done)}
            assert sorted(await taken(client, "Plain", IN_FLIGHT_S + QUIET_S)) == sorted(left)
            # The id that the sender has is signed with the lost store's key; its sender is asked, with a new one.
            async with asyncio.timeout(20), aclosing(client.checks("Half")) as checks:
                asked = await anext(checks)
            assert (asked.message.body, half.entries[0].message_id) == (
                b"half",
                asked.message.system_properties.message_id,
            )
            ended = await client.end_transaction("Half", asked.transaction_id, COMMIT, half.entries[0].message_id)
            assert ended.code == Code.OK
            assert await taken(client, "Half", QUIET_S) == [b"half"]
            until_due_s = max(0.0, due_ms / 1000 - time.time())
            assert await taken(client, "Late", until_due_s + QUIET_S) == [b"late"]
            assert time.time() * 1000 >= due_ms
            await admin(cluster, "topic", "create", "New")
            assert (await client.send("New", b"new")).status.code == Code.OK
            assert await taken(client, "New", QUIET_S) == [b"new"]


async def test_what_was_made_again_under_its_name_is_refused_or_adopted(tmp_path: Path) -> None:
    with ClusterCommand(tmp_path, "--groups", "1", "--replicas", "1", "--proxies", "1", *QUICK) as cluster:
        await admin(cluster, "topic", "create", "Plain", "--queues", "2")
        await admin(cluster, "topic", "create", "Other", "--type", "FIFO")
        await admin(cluster, "group", "create", "readers", "--max-attempts", "7")
        async with MessagingClient(cluster.rows()["proxy-0"][0]) as client:
            assert (await client.send("Plain", b"before")).status.code == Code.OK
            ids, first_life = (
                {each["name"]: each["id"] for each in (await definitions(cluster))[0]},
                await version(cluster),
            )
            await asyncio.to_thread(lose_state, cluster)
            async with asyncio.timeout(20):
                while store_id_of(await version(cluster)) in (0, store_id_of(first_life)):
                    await asyncio.sleep(0.1)
                while [each["master"] for each in await admin(cluster, "broker", "list")] != [0]:
                    await asyncio.sleep(0.1)
                await admin(cluster, "topic", "create", "Plain", "--queues", "2")
                while (await client.send("Plain", b"between")).status.code != Code.OK:
                    await asyncio.sleep(0.1)
                while not (await definitions(cluster))[1]:  # a consumer that goes on polling makes its group again
                    await client.receive("readers", "Plain", count=1, invisible_s=1.0)
            why = await refused(cluster, "cluster", "recover", "--yes")
            assert "topic Plain, group readers are there already under another id" in why
            assert (await admin(cluster, "cluster", "recover", "--yes", "--adopt"))["kept_total"] == 2
            (group,) = (await definitions(cluster))[1]
            assert (group["name"], group["max_attempts"]) == ("readers", 7)
            assert {each["name"]: each["id"] for each in (await definitions(cluster))[0]} == ids
            async with asyncio.timeout(20):
                while (await client.send("Plain", b"after")).status.code != Code.OK:
                    await asyncio.sleep(0.1)
            assert {*await taken(client, "Plain", QUIET_S)} == {b"before", b"between", b"after"}


@contextmanager
def broker_away(cluster: ClusterCommand) -> Iterator[None]:
    """End the only broker's process; its parent starts it again afterwards."""
    pid = cluster.status()["broker-0"]["pid"]
    os.kill(cluster.pid, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        yield
    finally:
        os.kill(cluster.pid, signal.SIGCONT)


def moved(source: Path, to: Path) -> None:
    """A broker's folder goes to another place, whose own goes out of its way."""
    if to.exists():
        to.rename(to.with_name(f"{to.name}-own"))
    shutil.move(source, to)


async def test_a_folder_of_another_cluster_is_refused_by_name_and_goes_on_when_it_is_moved_back(tmp_path: Path) -> None:
    words = ("--groups", "1", "--replicas", "1", "--proxies", "1", *QUICK)
    one, other = (ClusterCommand(tmp_path / name, *words) for name in ("one", "other"))
    for each in (one, other):
        each.data_dir.parent.mkdir()
    with one:
        await admin(one, "topic", "create", "Plain")
        ours = (await admin(one, "topic", "list"))[0]["id"]
        async with MessagingClient(one.rows()["proxy-0"][0]) as client:
            assert (await client.send("Plain", b"of one")).status.code == Code.OK
    with other:
        await admin(other, "topic", "create", "Plain")
        await admin(other, "group", "create", "readers")
        async with MessagingClient(other.rows()["proxy-0"][0]) as client:
            assert (await client.send("Plain", b"of the other")).status.code == Code.OK
            http = other.rows()["broker-0"][1]
            with broker_away(other):
                moved(one.data_dir / "broker-0", other.data_dir / "broker-0")
            async with asyncio.timeout(30):
                while "INCONSISTENT_CLUSTER_ID" not in (await asyncio.to_thread(other.page, f"{http}/readyz"))[1]:
                    await asyncio.sleep(0.1)
            assert await admin(other, "broker", "list") != [], "the group is known still"
            route = await client.route("Plain")
            assert route.status.code == Code.HA_NOT_AVAILABLE, "nothing is handed out"
            assert (await client.send("Plain", b"nowhere")).status.code != Code.OK
            pid = other.status().get("broker-0", {}).get("pid")
            assert pid is None, "it is not registered"
    moved(other.data_dir / "broker-0", one.data_dir / "broker-0")
    (other.data_dir / "broker-0-own").rename(other.data_dir / "broker-0")
    for cluster, body in ((one, b"of one"), (other, b"of the other")):
        with cluster:
            if cluster is one:
                assert (await admin(one, "topic", "list"))[0]["id"] == ours
                await admin(one, "group", "create", "readers")
            async with MessagingClient(cluster.rows()["proxy-0"][0]) as client:
                assert await taken(client, "Plain", QUIET_S) == [body]
