"""What a parent of processes hands them and gathers from them: ports, settings, metrics."""

import socket
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from popwheel_cli.cluster.children import Child
from popwheel_cli.cluster.worker_metrics import ChildPages
from popwheel_cli.options import ClusterOptions
from popwheel_cli.process.broker_folders import check_cluster_folder, check_standalone_folder
from popwheel_cli.process.ports import Ports
from popwheel_cli.settings import assigned, given
from popwheel_common.errors import ConfigurationError
from popwheel_common.exposition import PLAIN
from popwheel_common.web.metrics_page import MetricsPage

HOST = "127.0.0.1"


async def test_a_worker_that_gives_no_page_is_counted_on_the_page() -> None:
    with Ports() as ports:
        port = ports.reserve(HOST, 0, "proxy.grpc_port")
        registry = CollectorRegistry()
        pages = ChildPages([Child("proxy/0", (), HOST, port, "/healthz", None)], registry)
        page = await MetricsPage(registry, pages.read).text(PLAIN, pairs=False)
    assert "\npopwheel_processes_without_page 1.0\n" in page.decode()


def listener(port: int, *, shared: bool = False) -> socket.socket:
    """Listens as our servers do."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((HOST, port))
    sock.listen()
    return sock


def test_a_reserved_port_can_be_listened_on_again_and_again() -> None:
    with Ports() as ports:
        port = ports.reserve(HOST, 0, "proxy.grpc_port")
        for _ in range(2):
            listener(port).close()
        assert ports.reserve(HOST, 0, "proxy.grpc_port") != port


def test_workers_share_a_reserved_port() -> None:
    with Ports() as ports:
        port = ports.reserve(HOST, 0, "proxy.grpc_port")
        with closing(listener(port, shared=True)), closing(listener(port, shared=True)):
            socket.create_connection((HOST, port)).close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_that_somebody_listens_on_is_refused(shared: bool) -> None:
    with closing(listener(0, shared=shared)) as other, Ports() as ports:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError) as caught:
            ports.reserve(HOST, port, "proxy.grpc_port")
    assert str(caught.value) == (
        f"proxy.grpc_port: cannot listen on {HOST}:{port}: Address already in use; choose another port or address"
    )


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), (HOST, 65536), ("no such host", 0)])
def test_what_cannot_be_listened_on_is_refused(host: str, port: int) -> None:
    with Ports() as ports, pytest.raises(ConfigurationError, match=r"^proxy\.grpc_port: cannot listen on"):
        ports.reserve(host, port, "proxy.grpc_port")


def test_settings_as_words() -> None:
    assert given(None, ["a=1", "b=[1, 2]"], ClusterOptions()) == ["--set", "a=1", "--set", "b=[1, 2]"]
    assert given(Path("/x/y.yaml"), [], ClusterOptions()) == ["--config", "/x/y.yaml"]
    assert assigned({"proxy.name": "proxy-0", "proxy.controller": "[::1]:80", "proxy.auto_create_topics": True}) == [
        *("--set", 'proxy.name="proxy-0"'),
        *("--set", 'proxy.controller="[::1]:80"'),
        *("--set", "proxy.auto_create_topics=true"),
    ]


def test_settings_by_an_old_name_are_passed_by_the_new_one() -> None:
    options = ClusterOptions.model_validate({"proxy": {"advertised_address": "mq:80"}})
    assert given(None, ["proxy.advertised_port=80", "a=1"], options) == [
        *("--set", "a=1"),
        *("--set", 'proxy.advertised_address="mq:80"'),
    ]


async def test_the_metrics_of_all_workers_are_one_page() -> None:
    page = (
        '# HELP calls_total Calls\n# TYPE calls_total counter\ncalls_total{{code="OK"}} {}\n'
        "# HELP up Up\n# TYPE up gauge\nup 1\n"
    )
    pages: dict[str, str] = {}

    async def read(pairs: bool) -> dict[str, str]:
        return pages

    metrics = MetricsPage(CollectorRegistry(), read)
    assert await metrics.text(PLAIN, pairs=False) == b""
    pages.update({"0": page.format(3), "1": page.format(4)})
    lines = (await metrics.text(PLAIN, pairs=False)).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'calls_total{code="OK",worker="0"} 3',
        'calls_total{code="OK",worker="1"} 4',
        'up{worker="0"} 1',
        'up{worker="1"} 1',
    ]
    assert lines.count("# TYPE calls_total counter") == 1


def test_a_folder_of_another_kind_or_of_more_brokers_is_refused(tmp_path: Path) -> None:
    check_cluster_folder(tmp_path / "new", 1)
    for number in (0, 10):
        (tmp_path / f"broker-{number}").mkdir()
    check_cluster_folder(tmp_path, 11)
    with pytest.raises(ConfigurationError, match=r"^--groups: must be at least 11, because .* of broker-10$"):
        check_cluster_folder(tmp_path, 8)
    (tmp_path / "broker-3-2").mkdir()
    check_cluster_folder(tmp_path, 11, 3)
    with pytest.raises(ConfigurationError, match=r"^--replicas: must be at least 3, because .* with the number 2$"):
        check_cluster_folder(tmp_path, 11, 2)
    (tmp_path / "broker").mkdir()
    with pytest.raises(ConfigurationError, match="standalone; give another folder"):
        check_cluster_folder(tmp_path, 11)


def test_standalone_refuses_the_folder_of_a_cluster_or_of_more_brokers(tmp_path: Path) -> None:
    check_standalone_folder(tmp_path / "new", 1)
    (tmp_path / "broker").mkdir()
    check_standalone_folder(tmp_path, 1)
    (tmp_path / "broker-1").mkdir()
    check_standalone_folder(tmp_path, 2)
    with pytest.raises(ConfigurationError, match=r"^--brokers: must be at least 2, because .* of broker-1$"):
        check_standalone_folder(tmp_path, 1)
    (tmp_path / "broker-0").mkdir()
    with pytest.raises(ConfigurationError, match=r"^--data-dir: .* holds data of `popwheel cluster`; run that"):
        check_standalone_folder(tmp_path, 2)
