"""Names and help of all metrics are as Prometheus wants them: its `promtool check metrics` has nothing to say."""

import subprocess
import time
from pathlib import Path

import httpx

from tests.harness.client import MessagingClient, delayed_message
from tests.harness.cluster import ClusterCommand
from tests.harness.dashboards_and_alerts import program
from tests.harness.standalone import StandaloneProcess


def complaints(url: str) -> str:
    """What promtool says of a process's metrics."""
    page = httpx.get(f"{url}/metrics", trust_env=False)
    assert page.status_code == 200
    ended = subprocess.run(
        [program("promtool"), "check", "metrics"], input=page.content, capture_output=True, check=False
    )
    return (ended.stdout + ended.stderr).decode()


async def use(address: str) -> None:
    """Send and receive, so that what is shown by topic and group is there as well."""
    async with MessagingClient(address) as client:
        await client.send("Topic", b"body")
        await client.send_messages(delayed_message("Topic", b"later", round(time.time() * 1000) + 60_000))
        await client.receive("group", "Topic")


async def test_of_a_standalone(tmp_path: Path) -> None:
    program("promtool")
    with StandaloneProcess(tmp_path / "data") as server:
        await use(server.grpc_address)
        assert complaints(server.http_url) == ""


async def test_of_each_service(tmp_path: Path) -> None:
    program("promtool")
    words = ("--set", "proxy.auto_create_topics=true")
    with ClusterCommand(tmp_path, "--groups", "1", "--replicas", "2", "--proxies", "1", *words) as cluster:
        rows = cluster.rows()
        await use(rows["proxy-0"][0])
        assert {name: complaints(row[1]) for name, row in rows.items()} == dict.fromkeys(rows, "")
