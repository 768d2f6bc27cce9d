"""Certificates in files: what is taken over, what is refused, and what is notified of it."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from popwheel_rpc.socket import certificate_files
from popwheel_rpc.socket.certificate_files import CertificateFiles, CertificateMetrics
from popwheel_rpc.socket.certificates import KeyPair
from popwheel_rpc.socket.tls import server_context
from tests.harness.certificates import CertificateVolume, certificate_by, new_authority, now
from tests.harness.manual_clock import ManualClock

DAY_S = 24 * 3600.0
_SINCE_S = 3600.0
"""The certificates were made when this module was read, which may be a while before a test runs."""
OURS = new_authority()
FOREIGN = new_authority()
GOOD = certificate_by(OURS)

Contents = tuple[bytes | None, bytes | None, bytes | None]


def encrypted(key: bytes) -> bytes:
    return load_key(key).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"a password"),
    )


def for_servers_only() -> KeyPair:
    """As many who hand out certificates make them, if they are not asked for more."""
    good, issuer_key = x509.load_pem_x509_certificate(GOOD.certificate), load_key(OURS.key)
    builder = (
        x509.CertificateBuilder()
        .subject_name(good.subject)
        .issuer_name(good.issuer)
        .public_key(good.public_key())
        .serial_number(1)
        .not_valid_before(good.not_valid_before_utc)
        .not_valid_after(good.not_valid_after_utc)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    return KeyPair(builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), GOOD.key)


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def contents(pair: KeyPair, *authorities: KeyPair) -> Contents:
    return pair.certificate, pair.key, b"".join(each.certificate for each in authorities)


BROKEN: dict[str, tuple[Contents, str]] = {
    "no certificate": ((None, GOOD.key, OURS.certificate), "tls.crt"),
    "no key": ((GOOD.certificate, None, OURS.certificate), "tls.key"),
    "no authority": ((GOOD.certificate, GOOD.key, None), "ca.crt"),
    "words for a certificate": ((b"no", GOOD.key, OURS.certificate), "PEM"),
    "nothing for authorities": ((GOOD.certificate, GOOD.key, b""), "PEM"),
    "the key of another": ((GOOD.certificate, FOREIGN.key, OURS.certificate), "KEY_VALUES_MISMATCH"),
    "an encrypted key": ((GOOD.certificate, encrypted(GOOD.key), OURS.certificate), "PEM|DECRYPT|BAD"),
    "by no authority in the file": (contents(GOOD, FOREIGN), "CERTIFICATE_VERIFY_FAILED"),
    "for servers only": (contents(for_servers_only(), OURS), "CERTIFICATE_VERIFY_FAILED.*purpose"),
    "out of date": (contents(certificate_by(OURS, days_ago=91), OURS), "CERTIFICATE_VERIFY_FAILED"),
}


@pytest.fixture
def volume(tmp_path: Path) -> CertificateVolume:
    volume = CertificateVolume(tmp_path / "tls")
    volume.hold(GOOD, OURS)
    return volume


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_used_is_refused_at_the_start(volume: CertificateVolume, kind: str) -> None:
    broken, words = BROKEN[kind]
    volume.hold_bytes(*broken)
    with pytest.raises((OSError, ValueError), match=words):
        volume.files()


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_used_leaves_what_was_there_before(volume: CertificateVolume, kind: str) -> None:
    files = volume.files()
    server, client, expires_s = files.server(), files.client(), files.expires_s()
    volume.hold_bytes(*BROKEN[kind][0])
    with capture_logs() as logs:
        assert (files.server(), files.client(), files.expires_s()) == (server, client, expires_s)
    (warning,) = logs
    assert warning["log_level"] == "warning"
    assert warning["reason"] == files.trouble != ""
    volume.hold(GOOD, OURS)
    assert files.server() is not server
    assert files.trouble == ""


def test_what_has_changed_is_taken_over_once(volume: CertificateVolume) -> None:
    files = volume.files()
    server, client = files.server(), files.client()
    assert (files.server(), files.client()) == (server, client)
    volume.hold(certificate_by(OURS), OURS, FOREIGN)
    with capture_logs() as logs:
        changed = files.server()
        assert files.client() is not client
        assert files.server() is changed is not server
    assert [line["event"] for line in logs] == ["loaded a certificate"]
    assert len(changed.get_ca_certs()) == 2


def test_files_that_change_while_they_are_read_are_read_again(
    volume: CertificateVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = volume.files()
    before = files.server()
    later = certificate_by(OURS)

    def swapped_meanwhile(*paths: Path) -> ssl.SSLContext:
        monkeypatch.setattr(certificate_files, "server_context", server_context)
        volume.hold(later, OURS)
        raise ssl.SSLError("key values mismatch")

    monkeypatch.setattr(certificate_files, "server_context", swapped_meanwhile)
    volume.hold(certificate_by(OURS), OURS)
    with capture_logs() as logs:
        assert files.server() is before
        assert logs == []
        assert files.server() is not before
    assert files.trouble == ""


def without_authority(volume: CertificateVolume) -> CertificateFiles:
    return CertificateFiles(volume.certificate, volume.key)


@pytest.mark.parametrize("read", [CertificateVolume.files, without_authority], ids=["services", "clients"])
def test_metrics_say_how_long_the_certificate_in_force_is_valid(
    volume: CertificateVolume, read: Callable[[CertificateVolume], CertificateFiles]
) -> None:
    """Also if nobody connects, and for clients of a proxy also when it is out of date: they may not look at it."""
    registry = CollectorRegistry()
    clock = ManualClock(int(now().timestamp() * 1000))
    CertificateMetrics(registry, clock).show("use", read(volume))

    def value(name: str) -> float:
        found = registry.get_sample_value(f"popwheel_certificate_{name}", {"use": "use"})
        assert found is not None
        return found

    assert value("expires_seconds") == pytest.approx(90 * DAY_S, abs=_SINCE_S)
    clock.advance(100 * DAY_S * 1000)
    assert value("expires_seconds") == pytest.approx(-10 * DAY_S, abs=_SINCE_S)
    volume.hold(certificate_by(OURS, days=400), OURS)
    expected = 300 if read is without_authority else 265  # when its authority ends
    assert value("expires_seconds") == pytest.approx(expected * DAY_S, abs=_SINCE_S)
    assert value("refused") == 0
    volume.hold_bytes(b"no", GOOD.key, OURS.certificate)
    assert value("refused") == 1
    assert value("expires_seconds") == pytest.approx(expected * DAY_S, abs=_SINCE_S)


def test_a_certificate_for_clients_may_be_out_of_date(volume: CertificateVolume) -> None:
    """Official clients take any: a proxy that would not start for it would be worse."""
    volume.hold(certificate_by(OURS, days_ago=91), OURS)
    assert without_authority(volume).expires_s() < now().timestamp()
