"""A port that is taken ends a process before it has written anything, with one sentence."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from popwheel_cli.process.ports import Ports
from popwheel_common.errors import ConfigurationError
from tests.harness.ports import free_ports
from tests.unit.cli.test_main import call, sentence_of

STANDALONE = ("proxy.grpc_port", "controller.http_port")
VERBS = [
    *((("standalone",), key) for key in STANDALONE),
    *((("standalone", "--workers", "2"), key) for key in STANDALONE),
    *((("cluster", "--groups", "1", "--proxies", "1"), key) for key in STANDALONE),
    *((("broker",), key) for key in ("broker.grpc_port", "broker.http_port")),
    *((("controller",), key) for key in ("controller.grpc_port", "controller.http_port")),
]
PROXIES = [
    (words, f"proxy.{key}") for words in (("proxy",), ("proxy", "--workers", "2")) for key in ("grpc_port", "http_port")
]
ALL_KEYS = tuple(f"{service}.{kind}_port" for service in ("proxy", "broker", "controller") for kind in ("grpc", "http"))


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def settings(key: str, port: int) -> list[str]:
    """Words by which one port is this one, and all others are any."""
    return [word for each in ALL_KEYS for word in ("--set", f"{each}={port if each == key else 0}")]


@pytest.mark.parametrize(("words", "key"), VERBS)
def test_no_folder_is_made(words: tuple[str, ...], key: str, taken: int, tmp_path: Path) -> None:
    result = call(*words, "--data-dir", str(tmp_path / "data"), *settings(key, taken), "--set", "log.level=error")
    assert sentence_of(result) == (
        f"{key}: cannot listen on 127.0.0.1:{taken}: Address already in use; choose another port or address"
    )
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "key"), PROXIES)
def test_a_proxy_says_so_before_it_asks_for_the_cluster(words: tuple[str, ...], key: str, taken: int) -> None:
    result = call(*words, *settings(key, taken), "--set", "log.level=error")
    assert f"{key}: cannot listen on 127.0.0.1:{taken}: " in sentence_of(result)


def test_two_services_cannot_have_one_port(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    words = ("--grpc-port", str(port), "--http-port", str(port))
    result = call("standalone", "--data-dir", str(tmp_path / "data"), *words)
    assert sentence_of(result) == f"controller.http_port: {port} is the port of proxy.grpc_port, too; choose another"
    assert not list(tmp_path.iterdir())


def test_one_port_at_two_addresses_is_two() -> None:
    (port,) = free_ports(1)
    with Ports() as ports:
        ports.reserve("127.0.0.1", port, "one")
        ports.reserve("127.0.0.2", port, "other")
        with pytest.raises(ConfigurationError, match=f"{port} is the port of one, too"):
            ports.reserve("0.0.0.0", port, "all")
