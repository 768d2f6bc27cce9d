"""What `popwheel` says and how it exits: a contract with those who script against it."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from popwheel_cli.main import main
from popwheel_common.clock import SystemClock
from popwheel_common.contract.topic_settings import TOPIC_SETTINGS
from popwheel_common.http import HttpServer, make_http_app
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.service import Channel
from tests.harness.ports import free_ports
from tests.unit.controller.changes import less_life

UNSET = {each.name: each.default for each in TOPIC_SETTINGS}

Popwheel = Callable[..., "asyncio.Future[Result]"]


def no_broker(info: BrokerInfo) -> Channel:
    raise AssertionError(f"nothing is asked of brokers here, nor of {info.name}")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def sentence_of(result: Result) -> str:
    """The one line on standard error of a call that failed."""
    assert result.exit_code != 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("popwheel: ")
    assert result.stdout == ""
    return line.removeprefix("popwheel: ")


@pytest.fixture
async def admin(tmp_path: Path, quiet_server: None) -> AsyncIterator[Popwheel]:
    """`popwheel admin ...` against a controller over a real socket."""
    registry = CollectorRegistry()
    controller = ControllerApp(
        Runtime(SystemClock(), random.Random(1), registry), ControllerOptions(), tmp_path, no_broker
    )
    await controller.start()
    server = HttpServer(make_http_app("test", "0", registry, {}, [controller.admin]), "127.0.0.1", 0)
    await server.start()

    def admin(*arguments: str) -> "asyncio.Future[Result]":
        words = ("admin", "--server", f"http://127.0.0.1:{server.port}", *arguments)
        return asyncio.ensure_future(asyncio.to_thread(call, *words))

    yield admin
    await server.stop()
    await controller.stop()


async def test_topics_as_json(admin: Popwheel) -> None:
    orders = {"name": "orders", "type": "FIFO", "queues": 3, "id": 1, "paused_since_ms": None, **UNSET}
    words = ("topic", "create", "orders", "--type", "fifo", "--queues", "3", "-o", "json")
    created = await admin(*words)
    assert (created.exit_code, less_life(json.loads(created.stdout))) == (0, orders)
    assert less_life(json.loads((await admin("topic", "list", "-o", "json")).stdout)) == [orders]
    assert less_life(json.loads((await admin("topic", "describe", "orders", "-o", "json")).stdout)) == orders
    deleted = await admin("topic", "delete", "orders", "--yes", "-o", "json")
    found = json.loads(deleted.stdout)
    assert (deleted.exit_code, found["name"], found["deleted"], found["unread"]) == (0, "orders", True, 0)
    assert [one["broker"] for one in found["unanswered"]] == []
    assert json.loads((await admin("topic", "list", "-o", "json")).stdout) == []


async def test_many_are_listed_page_by_page_and_no_more_than_asked_for(
    admin: Popwheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popwheel_cli.admin.api._PAGE_ROWS", 2)
    for kind in ("topic", "group"):
        for name in ("a", "b-1", "b-2", "b-3", "c"):
            await admin(kind, "create", name)
        for words, names, said in (
            ((), ["a", "b-1", "b-2", "b-3", "c"], ""),
            (("--limit", "3"), ["a", "b-1", "b-2"], f"3 of 5 {kind}s"),
            (("--prefix", "b-"), ["b-1", "b-2", "b-3"], ""),
            (("--prefix", "b-", "--limit", "1"), ["b-1"], f"1 of 3 {kind}s"),
            (("--prefix", "x"), [], ""),
        ):
            result = await admin(kind, "list", "-o", "json", *words)
            assert [each["name"] for each in json.loads(result.stdout)] == names
            assert result.stderr.startswith(said) and bool(result.stderr) == bool(said)


async def test_groups_as_json(admin: Popwheel) -> None:
    created = await admin("group", "create", "%g", "--max-attempts", "3", "--fifo", "-o", "json")
    group = json.loads(created.stdout)
    assert (group["name"], group["max_attempts"], group["fifo"]) == ("%g", 3, True)
    assert json.loads((await admin("group", "list", "-o", "json")).stdout) == [group]
    assert json.loads((await admin("group", "describe", "%g", "-o", "json")).stdout) == group
    assert (await admin("group", "delete", "%g", "--yes")).exit_code == 0
    assert json.loads((await admin("group", "list", "-o", "json")).stdout) == []


async def test_tables_hold_one_whole_line_each(admin: Popwheel) -> None:
    long_name = "n" * 120
    await admin("topic", "create", long_name)
    await admin("topic", "create", "bold", "--type", "DELAY")
    lines = [line.split() for line in (await admin("topic", "list")).stdout.splitlines()]
    assert [[*line[:3], line[3][-9:].lstrip("0")] for line in lines] == [
        ["NAME", "TYPE", "QUEUES", "ID"],
        ["bold", "DELAY", "8", "2"],
        [long_name, "NORMAL", "8", "1"],
    ]
    described = (await admin("topic", "describe", "bold")).stdout
    assert ["queues", "8"] in [line.split() for line in described.splitlines()]
    created = (await admin("group", "create", "g")).stdout
    assert "1000, 5000, 10000" in created
    assert ["fifo", "no"] in [line.split() for line in created.splitlines()]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["topic", "describe", "x"], "TOPIC_NOT_FOUND: there is no topic x"),
        (["topic", "delete", "x", "--yes"], "TOPIC_NOT_FOUND: there is no topic x"),
        (["group", "delete", "x", "--yes"], "CONSUMER_GROUP_NOT_FOUND: there is no group x"),
        (["topic", "create", "there"], "PRECONDITION_FAILED: topic there is there already"),
        (["topic", "create", "rmq_sys_x"], "ILLEGAL_TOPIC: 'rmq_sys_x' is a topic of the system and cannot be made"),
        (["topic", "create", "x", "--type", "square"], "BAD_REQUEST: a topic's type must be one of NORMAL, FIFO"),
        (["topic", "create", "a/b"], "ILLEGAL_TOPIC: 'a/b' is not a name for a topic: letters, digits"),
        (["topic", "describe", "a/b"], "NOT_FOUND"),
        (["topic", "create", "x", "--queues", "0"], "BAD_REQUEST: a topic must have from 1 to 1024 queues, not 0"),
        (["group", "create", "x", "--max-attempts", "0"], "BAD_REQUEST: max_attempts must be from 1 to 1000"),
    ],
)
async def test_refusals_are_one_sentence(admin: Popwheel, words: list[str], sentence: str) -> None:
    await admin("topic", "create", "there")
    result = await admin(*words)
    assert sentence in sentence_of(result)
    assert result.exit_code == 1


def test_no_server_is_one_sentence() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = call("admin", "--server", address, "topic", "list")
    assert f"no controller answers at {address}" in sentence_of(result)
    assert "start one (`popwheel standalone`)" in sentence_of(result)
    assert result.exit_code == 1


@pytest.mark.parametrize("server", ["", "localhost", "ftp://x", "http://host:port"])
def test_an_address_that_is_none_is_one_sentence(server: str) -> None:
    assert "--server must be like http://127.0.0.1:8080" in sentence_of(
        call("admin", "--server", server, "topic", "list")
    )


async def test_a_server_of_another_kind_is_one_sentence() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\nconnection: close\r\n\r\noops")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    result = await asyncio.to_thread(call, "admin", "--server", f"http://127.0.0.1:{port}", "topic", "list")
    assert "answered with HTTP status 502" in sentence_of(result)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["standalone", "--set", "broker.flush=often"], "broker.flush: must be sync or async, not often"),
        (["standalone", "--set", "broker.flash=sync"], "did you mean broker.flush?"),
        (["standalone", "--grpc-port", "70000"], "proxy.grpc_port: must be a whole number from 0 to 65535, not 70000"),
        (["standalone", "--grpc-port", "many"], "'many' is not a valid integer"),
        (["standalone", "--config", "/none.yaml"], "--config: cannot read /none.yaml: No such file or directory"),
        (["broker", "--set", "broker.name=no good"], "broker.name: must be text of the form"),
        (["proxy", "--set", "x"], "--set: must be key=value"),
        (["controller", "--set", "controller.topic.queues=0"], "a whole number from 1 to 1024, not 0"),
        (["standalon"], "No such command 'standalon'"),
        (["standalone", "--colour"], "No such option"),
        (["admin", "topic", "create"], "Missing argument 'NAME'"),
        (["admin", "topic", "list", "-o", "xml"], "'xml' is not one of 'table', 'json'"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(words: list[str], sentence: str) -> None:
    result = call(*words)
    assert sentence in sentence_of(result)
    assert result.exit_code == 2


def test_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPWHEEL_BROKER__FLUSH", "never")
    assert "broker.flush: must be sync or async, not never" in sentence_of(call("standalone"))


def test_a_data_folder_in_use_is_one_sentence(tmp_path: Path) -> None:
    from popwheel_cli.process.data_lock import DataLock

    lock = DataLock(tmp_path)
    lock.acquire()
    for verb in ("standalone", "broker", "controller"):
        sentence = sentence_of(call(verb, "--data-dir", str(tmp_path)))
        assert "is in use by process" in sentence
    lock.release()


@pytest.mark.parametrize("flag", ["--grpc-port", "--http-port"])
def test_a_taken_port_is_one_sentence(flag: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        other = "--http-port" if flag == "--grpc-port" else "--grpc-port"
        result = call(
            "standalone", "--data-dir", str(tmp_path), flag, str(port), other, "0", "--set", "log.level=error"
        )
    assert f"cannot listen on 127.0.0.1:{port}: " in sentence_of(result)
    assert "in use" in result.stderr


def test_a_broker_that_listens_everywhere_must_say_where_it_is(tmp_path: Path) -> None:
    result = call("broker", "--data-dir", str(tmp_path), "--set", "broker.grpc_host=0.0.0.0")
    assert "broker.advertised_address: must say at which host:port" in sentence_of(result)


def test_an_address_of_the_controller_must_be_one(tmp_path: Path) -> None:
    result = call("broker", "--data-dir", str(tmp_path), "--set", "broker.controller=nowhere")
    sentence = "must be host:port of the controller, or of several with commas between them, not 'nowhere'"
    assert f"broker.controller: {sentence}" in sentence_of(result)
    result = call("proxy", "--set", "proxy.controller=nowhere")
    assert "proxy.controller: must be host:port of the controller" in sentence_of(result)


def test_files_that_hold_no_certificate_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("no")
    settings = {"proxy.tls.certificate_file": tmp_path / "a.pem", "proxy.tls.key_file": tmp_path / "a.pem"}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    result = call("standalone", "--data-dir", str(tmp_path / "data"), "--set", "log.level=error", *words)
    assert "are not a certificate and its key" in sentence_of(result)


FILES = ("certificate_file", "key_file", "authority_file")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"certificate_file": "a.pem"}, "tls: certificate_file, key_file and authority_file belong together"),
        ({"mode": "demand"}, "tls: mode says nothing without certificate_file, key_file and authority_file"),
        (
            dict.fromkeys(FILES, "a.pem"),
            "are not a certificate for both sides of a connection, its key and its authority",
        ),
        (dict.fromkeys(FILES, "b.pem"), "No such file or directory: 'b.pem'"),
    ],
)
@pytest.mark.parametrize("verb", ["controller", "broker", "proxy"])
def test_certificates_for_other_services_that_cannot_be_used_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, settings: dict[str, str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pem").write_text("no")
    words = [word for key, value in settings.items() for word in ("--set", f"tls.{key}={value}")]
    assert sentence in sentence_of(call(verb, "--set", "log.level=error", *words))


def test_version_and_help() -> None:
    assert call("--version").stdout.strip() == "0.1.0"
    for words in ([], ["admin"], ["admin", "topic"], ["admin", "timer"], ["standalone"]):
        assert call(*words, "--help").exit_code == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--groups", "0"), "Invalid value for '--groups': 0 is not in the range 1<=x<=256."),
        (("--proxies", "65"), "Invalid value for '--proxies': 65 is not in the range 1<=x<=64."),
        (("--replicas", "17"), "Invalid value for '--replicas': 17 is not in the range 1<=x<=16."),
        (("--controllers", "0"), "Invalid value for '--controllers': 0 is not in the range 1<=x<=8."),
        (("--grpc-port", "70000"), "proxy.grpc_port: must be a whole number from 0 to 65535, not 70000"),
        (
            ("--grpc-port", "65535", "--http-port", "0"),
            "--grpc-port: must leave ports for 2 proxies, up to 65535, not 65535",
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_in_one_sentence(
    words: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    result = call("cluster", "--data-dir", str(tmp_path), *words)
    assert result.exit_code == 2
    assert sentence_of(result) == sentence


def test_the_controller_and_a_proxy_cannot_have_one_port(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    words = ("--grpc-port", str(port - 1), "--http-port", str(port))
    result = call("cluster", "--data-dir", str(tmp_path), *words)
    assert result.exit_code == 2
    assert sentence_of(result) == f"proxy.grpc_port: {port} is the port of controller.http_port, too; choose another"
