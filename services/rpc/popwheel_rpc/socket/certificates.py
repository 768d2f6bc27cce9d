"""Creation of certificates: self-signed, or by an authority of our own. Import late: slow to load, rarely needed."""

import datetime
import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from popwheel_rpc.socket.tls import server_context

_DAYS_SELF_SIGNED = 3650
_HERE = ("localhost", "127.0.0.1", "::1")

BACKDATED = datetime.timedelta(hours=1)
"""Backdating of certificates, for clocks that are behind."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and the private key that belongs to it.

    Args:
        certificate: PEM.
        key: PEM, PKCS8, not encrypted.
    """

    certificate: bytes
    key: bytes


def self_signed(now: datetime.datetime) -> KeyPair:
    """Return a self-signed certificate for localhost, for clients that trust any."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("localhost")
    builder = _builder(name, name, key, now, _DAYS_SELF_SIGNED).add_extension(_alternatives(_HERE), critical=False)
    return _pair(builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True), key, key)


def self_signed_context(now: datetime.datetime) -> ssl.SSLContext:
    """Return a server's context with a self-signed certificate; its key is on disk only for a moment."""
    made = self_signed(now)
    with tempfile.TemporaryDirectory() as folder:
        certificate_file = Path(folder) / "certificate.pem"
        key_file = Path(folder) / "key.pem"
        certificate_file.write_bytes(made.certificate)
        key_file.touch(mode=0o600)
        key_file.write_bytes(made.key)
        return server_context(certificate_file, key_file)


def authority(now: datetime.datetime, days: int) -> KeyPair:
    """Return an authority, valid for some days. No two have the same name."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"Popwheel {identifier.digest.hex()[:16]}")
    builder = (
        _builder(name, name, key, now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return _pair(builder, key, key)


def signed(by: KeyPair, names: Sequence[str], now: datetime.datetime, days: int) -> KeyPair:
    """Return a certificate signed by an authority, for both sides of a connection.

    Args:
        by: the authority.
        names: host names, `*` for the first part of one, or addresses.
        now: it is valid from `BACKDATED` before.
        days: for how long.
    """
    issuer = x509.load_pem_x509_certificate(by.certificate)
    issuer_key = serialization.load_pem_private_key(by.key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name("Popwheel"), issuer.subject, key, now, days)
        .add_extension(_alternatives(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return _pair(builder, key, issuer_key)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _alternatives(names: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_alternative(name) for name in names])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> KeyPair:
    return KeyPair(
        builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
