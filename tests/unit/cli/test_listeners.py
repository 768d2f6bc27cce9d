"""Listeners: connections of a process that may not open as many files, clients' certificates, loud warnings."""

import asyncio
import importlib
import resource
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from popwheel_cli.options import ClusterOptions
from popwheel_cli.process import listeners
from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.access_options import AccessOptions
from popwheel_common.settings.console_options import ConsoleOptions
from popwheel_proxy.options import ProxyOptions, TlsOptions, TransportLimits
from popwheel_rpc.limits import Limits
from tests.harness.certificates import CertificateVolume, certificate_by, new_authority


@pytest.mark.parametrize(
    ("open_files", "connections"), [(64, 1), (256, 192), (1_024, 768), (20_000, 18_976), (1_048_576, 1_047_552)]
)
def test_files_are_kept_back_for_the_disk(open_files: int, connections: int) -> None:
    assert listeners.connections_within(open_files) == connections


def test_the_soft_limit_is_raised_and_the_hard_one_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1_024))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: given.append(limits))
    assert listeners.within_open_files(Limits(connections_max=20_000)).connections_max == 768
    assert listeners.within_open_files(Limits(connections_max=100)).connections_max == 100
    assert given == [(1_024, 1_024)] * 2


@pytest.mark.parametrize(("asked", "level"), [(False, "info"), (True, "warning")])
def test_only_who_asked_for_more_connections_is_warned(
    asked: bool, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1_024))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    options = ProxyOptions(limits=TransportLimits(connections_max=10_000) if asked else TransportLimits())
    is_asked_for = listeners.connections_are_asked_for(options)
    with capture_logs() as lines:
        listeners.within_open_files(listeners.client_limits(options), is_asked_for=is_asked_for)
    assert [line["log_level"] for line in lines] == [level]


def test_a_process_without_a_limit_of_files_takes_what_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    assert listeners.within_open_files(Limits(connections_max=7)).connections_max == 7


@pytest.mark.parametrize(("host", "loud"), [("127.0.0.1", 0), ("::1", 0), ("localhost", 0), ("0.0.0.0", 2), ("::", 2)])
def test_a_start_that_strangers_reach_says_so(host: str, loud: int) -> None:
    with capture_logs() as lines:
        listeners.warn_of_open_clients(AccessOptions(), host)
        listeners.warn_of_open_admin(AccessOptions(), host)
        given = AccessOptions(file="access.yaml", token_file="tokens")
        listeners.warn_of_open_clients(given, host)
        listeners.warn_of_open_admin(given, host)
    assert [line["log_level"] for line in lines] == ["warning"] * loud
    assert all(line["event"].startswith("all clients that reach this port may") for line in lines)


def test_a_controller_serves_the_console_unless_it_is_notified_not_to() -> None:
    assert listeners.console_of(ClusterOptions(), "http://127.0.0.1:8080") == {"console": "http://127.0.0.1:8080/"}
    without = ClusterOptions(console=ConsoleOptions(enabled=False))
    assert listeners.console_of(without, "http://127.0.0.1:8080") == {}


def test_clients_certificates_need_one_of_the_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^access\.client_authority_file: .*give proxy\.tls"):
        listeners.client_certificate(TlsOptions(), str(tmp_path / "ca.crt"))


def test_a_file_that_holds_no_authority_is_refused(tmp_path: Path) -> None:
    volume = CertificateVolume(tmp_path / "tls")
    pair = certificate_by(new_authority())
    volume.hold_bytes(pair.certificate, pair.key, b"no authority")
    options = TlsOptions(certificate_file=str(volume.certificate), key_file=str(volume.key))
    with pytest.raises(ConfigurationError, match=r"^access\.client_authority_file: .* and an authority"):
        listeners.client_certificate(options, str(volume.authority))


def test_the_authority_of_clients_may_be_another_than_that_of_the_server(tmp_path: Path) -> None:
    volume = CertificateVolume(tmp_path / "tls")
    volume.hold(certificate_by(new_authority()), new_authority())
    options = TlsOptions(certificate_file=str(volume.certificate), key_file=str(volume.key))
    shown = listeners.client_certificate(options, str(volume.authority))
    assert shown is not None
    assert shown.expires_s() > 0
    before = shown.server()
    volume.hold(certificate_by(new_authority()), new_authority())
    assert shown.server() is not before, "all three files are taken over when they change"


def test_the_loop_goes_first_while_http_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    usual_s = sys.getswitchinterval()
    meanwhile_s: list[float] = []
    monkeypatch.setattr(importlib, "import_module", lambda _: meanwhile_s.append(sys.getswitchinterval()))
    asyncio.run(listeners.load_http())
    assert meanwhile_s[0] < usual_s / 5
    assert sys.getswitchinterval() == usual_s
