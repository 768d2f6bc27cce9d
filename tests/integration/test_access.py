"""Access on a real process: users, rules, tokens, and clients' certificates, changed without a restart."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.certificates import certificate_by, new_authority
from tests.harness.client import MessagingClient, bodies
from tests.harness.programs import run_program
from tests.harness.standalone import ProcessFailedError, StandaloneProcess

TOKEN = "a-token-of-the-tests"
PRODUCER = ("producer", "secret of the producer")
CONSUMER = ("consumer", "secret of the consumer")
CHECKER = ("checker", "secret of the check")
RULES: dict[str, list[dict[str, Any]]] = {
    "producer": [{"topic": "orders", "allow": ["publish"]}],
    "checker": [
        {"topic": "popwheel-check-*", "allow": ["publish", "subscribe"]},
        {"group": "*", "allow": ["subscribe"]},
    ],
    "consumer": [{"topic": "orders", "allow": ["subscribe"]}, {"group": "billing", "allow": ["subscribe"]}],
}
PATIENCE_S = 10.0


def document(*users: tuple[str, str]) -> str:
    return json.dumps({"users": [{"access_key": key, "secret": word, "rules": RULES[key]} for key, word in users]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[StandaloneProcess]:
    (folder / "access.yaml").write_text(document(PRODUCER, CONSUMER, CHECKER))
    (folder / "tokens").write_text(TOKEN)
    words = [
        *("--set", f"access.file={folder / 'access.yaml'}", "--set", f"access.token_file={folder / 'tokens'}"),
        *("--set", "proxy.receive.invisible_ms_min=500"),
    ]
    with StandaloneProcess(folder / "data", words) as process:
        admin(process, folder, "topic", "create", "orders")
        admin(process, folder, "group", "create", "billing")
        yield process


def admin(process: StandaloneProcess, folder: Path, *words: str) -> None:
    outcome = run_program(
        ["-m", "popwheel_cli.main", "admin", "--server", process.http_url, "--token", TOKEN, *words], folder / words[-1]
    )
    assert outcome.exit_code == 0, outcome.explain()


async def test_each_does_what_it_may_and_no_more(guarded: StandaloneProcess) -> None:
    async with (
        MessagingClient(guarded.grpc_address, credentials=PRODUCER) as producer,
        MessagingClient(guarded.grpc_address, credentials=CONSUMER) as consumer,
    ):
        assert (await producer.send("orders", b"one")).status.code == Code.OK
        assert (await consumer.send("orders", b"two")).status.code == Code.FORBIDDEN
        # The route is for both; of what they then do each may one half.
        assert (await producer.receive("billing", "orders")).code == Code.FORBIDDEN
        messages = await consumer.receive_all("billing", "orders", 1)
        assert bodies(messages) == [b"one"]
        assert (await producer.ack("billing", "orders", messages)).status.code == Code.FORBIDDEN
        assert (await consumer.ack("billing", "orders", messages)).status.code == Code.OK
        assert (await consumer.heartbeat("billing")).code == Code.OK
        assert (await producer.heartbeat("billing")).code == Code.FORBIDDEN
        forbidden = await producer.send("payments", b"three")
        assert forbidden.status.code == Code.FORBIDDEN
        assert "the user producer may not publish with the topic payments" in forbidden.status.message


@pytest.mark.parametrize("credentials", [None, ("producer", "not the secret"), ("nobody", "secret of the producer")])
async def test_who_does_not_show_who_it_is_gets_nothing(
    guarded: StandaloneProcess, credentials: tuple[str, str] | None
) -> None:
    async with MessagingClient(guarded.grpc_address, credentials=credentials) as stranger:
        assert (await stranger.send("orders", b"one")).status.code == Code.UNAUTHORIZED
        assert (await stranger.route("orders")).status.code == Code.UNAUTHORIZED
        assert (await stranger.heartbeat("billing")).code == Code.UNAUTHORIZED
        settings = d.Settings(publishing=d.Publishing(topics=[d.Resource(name="orders")]))
        with pytest.raises(AssertionError, match="UNAUTHORIZED"):
            await stranger.agree_on_settings(settings)
    assert "access denied" in guarded.log_path.read_text()


def test_the_check_shows_who_it_is(guarded: StandaloneProcess, folder: Path) -> None:
    words = ["-m", "popwheel_cli.main", "admin", "--server", guarded.http_url, "--token", TOKEN]
    check = ["check", "--proxy", guarded.grpc_address, "--seconds", "10"]
    outcome = run_program([*words, "--access-key", CHECKER[0], "--secret", CHECKER[1], *check], folder / "check")
    assert outcome.exit_code == 0, outcome.explain()
    refused = run_program([*words, *check[:-1], "2"], folder / "check-by-nobody")
    assert refused.exit_code == 1
    assert "UNAUTHORIZED: " in refused.explain()


async def test_a_user_comes_and_goes_without_a_restart(guarded: StandaloneProcess, folder: Path) -> None:
    file = folder / "access.yaml"
    async with MessagingClient(guarded.grpc_address, credentials=PRODUCER) as producer:
        assert (await producer.send("orders", b"kept")).status.code == Code.OK
        file.write_text(document(CONSUMER))
        assert await becomes(producer, Code.UNAUTHORIZED)
        file.write_text("users: [")
        async with asyncio.timeout(PATIENCE_S):
            while "stays in force" not in guarded.log_path.read_text():
                await asyncio.sleep(0.1)
        assert (await producer.send("orders", b"kept")).status.code == Code.UNAUTHORIZED
        file.write_text(document(PRODUCER, CONSUMER))
        assert await becomes(producer, Code.OK)


async def becomes(client: MessagingClient, code: int) -> bool:
    """Whether sends get a status within some seconds."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if (await client.send("orders", b"again")).status.code == code:
            return True
        await asyncio.sleep(0.1)
    return False


async def test_the_admin_api_wants_a_token(guarded: StandaloneProcess, folder: Path) -> None:
    def ask(path: str, token: str = "") -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.get(f"{guarded.http_url}{path}", headers=headers, trust_env=False).status_code

    assert ask("/api/v1/topics") == ask("/api/v1/topics", "not-the-token-of-it") == ask("/docs") == 401
    assert ask("/api/v1/topics", TOKEN) == ask("/healthz") == ask("/readyz") == ask("/metrics") == 200
    words = ["-m", "popwheel_cli.main", "admin", "--server", guarded.http_url, "topic", "list"]
    outcome = run_program(words, folder / "without-token")
    assert outcome.exit_code != 0
    assert "UNAUTHORIZED: show a token" in outcome.explain()


def test_a_wrong_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "access.yaml").write_text("users: everybody")
    process = StandaloneProcess(tmp_path / "data", ["--set", f"access.file={tmp_path / 'access.yaml'}"])
    with pytest.raises(ProcessFailedError, match=r"access\.file: .*users: Input should be a valid list"):
        process.start()


async def test_clients_show_certificates_where_that_is_demanded(tmp_path: Path) -> None:
    ours, of_clients, foreign = new_authority(), new_authority(), new_authority()
    server = certificate_by(ours)
    for name, content in (
        ("tls.crt", server.certificate),
        ("tls.key", server.key),
        ("clients.crt", of_clients.certificate),
    ):
        (tmp_path / name).write_bytes(content)
    words = [
        *("--set", f"proxy.tls.certificate_file={tmp_path / 'tls.crt'}"),
        *("--set", f"proxy.tls.key_file={tmp_path / 'tls.key'}"),
        *("--set", f"access.client_authority_file={tmp_path / 'clients.crt'}"),
    ]
    client, stranger = certificate_by(of_clients), certificate_by(foreign)
    with StandaloneProcess(tmp_path / "data", words) as process:

        async def send(**how: Any) -> int:
            async with MessagingClient(process.grpc_address, **how) as connected:
                return (await connected.send("orders", b"one")).status.code

        trusted = ours.certificate
        assert await send(certificate=trusted, own=(client.certificate, client.key)) == Code.OK
        for refused in (
            {},
            {"certificate": trusted},
            {"certificate": trusted, "own": (stranger.certificate, stranger.key)},
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await send(**refused)
