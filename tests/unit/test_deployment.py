"""Files by which others run Popwheel: compose files, the systemd unit, the image."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from popwheel_cli.cluster.standalone_workers import stop_s_max_of_all
from popwheel_cli.errors import CommandError
from popwheel_cli.healthcheck import address_of, check
from popwheel_cli.main import main
from popwheel_cli.options import ClusterOptions, StandaloneOptions
from popwheel_cli.process.listeners import EVERYWHERE
from popwheel_common.settings.config import load
from tests.harness.ports import free_ports
from tests.harness.tools import missing
from tests.unit.cli.fake_admin_api import FakeAdminApi
from tests.unit.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
UNIT = ROOT / "packaging" / "systemd" / "popwheel.service"
COMPOSE_FILES = ("compose.yaml", "compose.cluster.yaml")
SERVICES: dict[str, dict[str, Any]] = {
    name: service
    for file in COMPOSE_FILES
    for name, service in yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["services"].items()
}


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_docker_compose_takes_the_file(file: str) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker compose is missing, which Debian 12 has not: install its plugin; it is asked for no daemon")
    words = (docker, "compose", "-f", str(ROOT / file), "config", "--quiet")
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_gets_settings_that_can_be_and_opens_them_to_this_machine_alone(name: str) -> None:
    service = SERVICES[name]
    verb, *words = service["command"]
    standalone = verb == "standalone"
    model = StandaloneOptions if standalone else ClusterOptions
    options: Any = load(model, environment=service["environment"])
    given = main.commands[verb].make_context(verb, [*words]).params
    for published in service.get("ports", ()):
        address, outside, inside = published.split(":")
        assert (address, outside) == ("127.0.0.1", inside)
        (listener,) = (
            (kind, host)
            for kind, host, port in (
                ("proxy", options.proxy.grpc_host, options.proxy.grpc_port),
                ("controller", options.controller.http_host, options.controller.http_port),
            )
            if port == int(inside) and (standalone or kind == verb)
        )
        assert (given.get("host") or listener[1]) in EVERYWHERE
    if verb == "broker":
        assert options.broker.advertised_address == f"{name}:{options.broker.grpc_port}"
    assert ("--data-dir" in words) == (verb != "proxy") == bool(service.get("volumes"))


def test_a_cluster_of_containers_finds_one_another() -> None:
    reported = {name: service["environment"] for name, service in SERVICES.items()}
    controller = reported["controller"]["POPWHEEL_CONTROLLER__ADVERTISED_ADDRESS"]
    assert reported["proxy"]["POPWHEEL_PROXY__CONTROLLER"] == controller == "controller:8083"
    brokers = [reported[name] for name in SERVICES if name.startswith("broker")]
    assert [broker["POPWHEEL_BROKER__CONTROLLER"] for broker in brokers] == [controller] * 2
    assert {broker["POPWHEEL_BROKER__NAME"] for broker in brokers} == {"broker-0"}
    assert [broker["POPWHEEL_BROKER__REPLICA"] for broker in brokers] == ["0", "1"]


def test_a_container_is_as_healthy_as_the_image_says() -> None:
    (image,) = re.findall(r'HEALTHCHECK .*CMD \["(.*)"\]', DOCKERFILE)
    for service in SERVICES.values():
        assert service["healthcheck"]["test"] == ["CMD", *image.split('", "')]
        assert service["restart"] == "unless-stopped"
        assert service["image"].endswith(f":-popwheel:{PROJECT['version']}}}")


def test_the_image_says_what_it_is() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', DOCKERFILE))
    assert labels["version"] == PROJECT["version"]
    assert labels["licenses"] == PROJECT["license"]
    assert labels.keys() >= {"title", "description", "source", "documentation", "revision"}


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        missing("systemd-analyze", "install Debian's package `systemd`")
    text = UNIT.read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecStart=(\S+) ", text, re.MULTILINE)
    copy = tmp_path / UNIT.name  # what it starts must be there
    copy.write_text(text.replace(command, str(shutil.which("true"))), encoding="utf-8")
    ended = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_unit_starts_what_there_is_and_gives_it_time_to_end() -> None:
    values = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE))
    _, verb, *words = values["ExecStart"].split()
    assert (
        main.commands[verb].make_context(verb, [*words]).params["data_dir"]
        == Path("/var/lib") / values["StateDirectory"]
    )
    assert int(values["TimeoutStopSec"]) > stop_s_max_of_all(StandaloneOptions())
    assert values["RestartPreventExitStatus"] == "2"


@pytest.mark.parametrize(
    ("words", "environment", "address"),
    [
        ("popwheel standalone --data-dir d --host 0.0.0.0", {}, "127.0.0.1:8080"),
        ("python3 /usr/local/bin/popwheel standalone --http-port 9000 --workers 2", {}, "127.0.0.1:9000"),
        ("docker-init -- popwheel controller", {"POPWHEEL_CONTROLLER__HTTP_PORT": "9001"}, "127.0.0.1:9001"),
        ("popwheel controller --set controller.http_host='::'", {}, "[::1]:8080"),
        ("popwheel cluster --groups 1", {}, "127.0.0.1:8080"),
        ("popwheel broker --set broker.http_port=9002 --set broker.grpc_host=10.0.0.1", {}, "10.0.0.1:9002"),
        ("popwheel broker --data-dir d", {}, "127.0.0.1:8090"),
        ("popwheel proxy --workers 2", {"POPWHEEL_PROXY__HTTP_HOST": "0.0.0.0"}, "127.0.0.1:8091"),
    ],
)
def test_each_verb_is_asked_for_its_health_at_its_own_port(
    words: str, environment: dict[str, str], address: str
) -> None:
    assert address_of(words.split(), environment) == address


def test_a_port_in_a_file_of_settings_counts(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("proxy: {http_port: 9003}")
    assert address_of(["popwheel", "proxy", "--config", str(tmp_path / "a.yaml")], {}) == "127.0.0.1:9003"


def test_a_check_says_in_a_sentence_why_there_is_no_health() -> None:
    (port,) = free_ports(1)
    for words, sentence in (
        (f"popwheel proxy --set proxy.http_port={port}", f"127.0.0.1:{port} does not answer"),
        ("popwheel proxy --set proxy.http_port=0", "the port of HTTP is 0"),
        ("sleep infinity", "no popwheel runs here as the first process, but sleep infinity"),
    ):
        with pytest.raises(CommandError, match=sentence):
            check(words.split(), {})


def test_a_process_is_healthy_if_it_says_so() -> None:
    with FakeAdminApi({"GET /healthz": (200, {})}) as well, FakeAdminApi({"GET /healthz": (503, {})}) as ill:
        words = [f"popwheel proxy --set proxy.http_port={api.url.rpartition(':')[2]}" for api in (well, ill)]
        check(words[0].split(), {})
        with pytest.raises(CommandError, match="answers with HTTP status 503"):
            check(words[1].split(), {})


def test_the_check_is_a_command_of_its_own() -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "popwheel_cli.healthcheck"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("popwheel: ")
    assert len(ended.stderr.splitlines()) == 1
