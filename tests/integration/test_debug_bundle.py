"""A debug bundle and the list of clients of real processes: all are asked, and no secret is in the file."""

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import httpx

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient
from tests.harness.programs import run_popwheel
from tests.harness.standalone import ROOT, StandaloneProcess

TOKEN = "a-token-that-nobody-may-see"
SECRET = "a-secret-that-nobody-may-see"
BODY = b"a-body-that-nobody-may-see"
PASSWORD = "a-password-that-nobody-may-see"
RULES = [{"topic": "*", "allow": ["publish", "subscribe", "admin"]}, {"group": "*", "allow": ["subscribe"]}]


def admin(server: StandaloneProcess, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_popwheel(["admin", "--server", server.http_url, "--token", TOKEN, *words], timeout_s=90)


def parts_of(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        found = {each.name.removeprefix("popwheel-debug/"): archive.extractfile(each) for each in archive}
        return {name: b"" if part is None else part.read() for name, part in found.items()}


async def test_no_secret_is_in_a_bundle_of_workers(tmp_path: Path) -> None:
    """Each worker, the broker and the parent give their pages; clients of all workers are listed."""
    users = {"users": [{"access_key": "producer", "secret": SECRET, "rules": RULES}]}
    (tmp_path / "access.yaml").write_text(json.dumps(users))
    (tmp_path / "tokens").write_text(TOKEN)
    words = [
        *("--workers", "2", "--set", "proxy.client.grace_ms=600000", "--set", "proxy.client.expiry_ms=600000"),
        *("--set", f"access.file={tmp_path / 'access.yaml'}", "--set", f"access.token_file={tmp_path / 'tokens'}"),
        *("--set", f"proxy.redis_url=redis://user:{PASSWORD}@127.0.0.1:1/0"),
    ]
    with StandaloneProcess(tmp_path / "data", words) as server:
        clients = [MessagingClient(server.grpc_address, credentials=("producer", SECRET)) for _ in range(6)]
        try:
            for number, client in enumerate(clients):
                settings = d.Settings(
                    client_type=d.PRODUCER,
                    user_agent=d.UA(language=d.PYTHON, version=f"5.{number}"),
                    publishing=d.Publishing(topics=[d.Resource(name="Bundled")]),
                )
                await client.agree_on_settings(settings)
                assert (await client.send("Bundled", BODY)).status.code == Code.OK
            headers = {"authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=f"{server.http_url}/api/v1", headers=headers, timeout=20) as http:
                found: list[dict[str, Any]] = []
                after: str | None = ""
                while after is not None:
                    page = (await http.get("/clients", params={"limit": 4, "after": after})).json()
                    assert page["unanswered"] == []
                    found += page["clients"]
                    after = page["next"]
                refused = await http.get("/debug/processes", headers={"authorization": "Bearer no"})
                assert refused.status_code == 401
        finally:
            for client in clients:
                await client.close()
        assert sorted(each["version"] for each in found) == [f"5.{number}" for number in range(6)]
        assert {(each["kind"], each["user"], tuple(each["publishes"])) for each in found} == {
            ("producer", "producer", ("Bundled",))
        }
        assert {re.sub(r".*/", "", each["proxy"]) for each in found} <= {"0", "1"}
        made = admin(server, "debug", "bundle", "-f", str(tmp_path / "bundle.tar.gz"))
        assert made.returncode == 0, made.stderr
        listed = admin(server, "client", "list", "--topic", "Bundled", "-o", "json")
        assert len(json.loads(listed.stdout)["clients"]) == 6, listed.stderr
        health = admin(server, "health")
        assert (health.returncode, health.stdout) == (0, "ready\n"), health.stderr
        stored = (tmp_path / "data" / "controller" / "cluster.json").read_text()
    parts = parts_of(tmp_path / "bundle.tar.gz")
    manifest = json.loads(parts["manifest.json"])
    assert manifest["missing"] == {}
    processes = {name.split("/")[1] for name in parts if name.startswith("processes/")}
    assert len(processes) == 4, processes
    for process in processes:
        settings = json.loads(parts[f"processes/{process}/settings.json"])
        assert settings["settings"]["proxy"]["redis_url"] == "redis://***@127.0.0.1:1/0"
        assert settings["versions"]["python"]
        assert b"process_cpu_seconds_total" in parts[f"processes/{process}/metrics.txt"]
        assert parts[f"processes/{process}/log.txt"]
    everything = b"".join(parts.values())
    keys = re.findall(r'"receipt_key": *"([^"]+)"', stored)
    assert keys, "the state has the key of receipt handles"
    for secret in (TOKEN.encode(), SECRET.encode(), PASSWORD.encode(), BODY, *(key.encode() for key in keys)):
        assert secret not in everything


def test_health_waits_for_a_server_that_starts(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path / "data")
    words = ("health", "--exit-when-ready", "--timeout", "60s")
    command = [sys.executable, "-m", "popwheel_cli.main", "admin", "--server", server.http_url, *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        with server:
            stdout, stderr = waiting.communicate(timeout=90)
        assert waiting.returncode == 0, stderr
    assert stdout.splitlines()[-1] == "ready"
