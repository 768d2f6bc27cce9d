"""Certificates and authorities of a cluster's services, and the next step in renewing them.

The decision depends on the certificates and the time alone; only new keys are random.
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from popwheel_rpc.socket.certificates import BACKDATED, KeyPair, authority, signed

DAYS = 90
AUTHORITY_DAYS = 3650

SPREAD = datetime.timedelta(hours=1)
"""Time after which every process has a new file, even if Kubernetes is slow."""

_LAST_PART = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSet:
    """Certificate for all services, and the authorities they trust. All PEM; empty: there is none.

    Args:
        certificate: by an authority of the set.
        key: its private key.
        authorities: that are trusted; one of them makes the next certificate.
        authority_key: the private key of that one.
    """

    certificate: bytes = b""
    key: bytes = b""
    authorities: bytes = b""
    authority_key: bytes = b""


@dataclass(frozen=True, slots=True)
class Step:
    """Step of a renewal.

    Args:
        made: the set afterwards.
        why: in words.
    """

    made: CertificateSet
    why: str


def next_step(current: CertificateSet, names: Sequence[str], now: datetime.datetime) -> Step | None:
    """Return the next step in renewing a set; None if none is due.

    Processes see a step at different times, up to `SPREAD` apart, and no two of them may refuse each other meanwhile.
    So a new authority is first trusted by all, then makes a certificate, and only then the one before is forgotten.

    Args:
        current: the set as it is.
        names: host names that the certificate must be good for.
        now: the time.

    Raises:
        ValueError: it has an invalid certificate or key.
    """
    trusted = _certificates(current.authorities)
    issuer = next((each for each in trusted if _belongs(current.authority_key, each)), None)
    shown = x509.load_pem_x509_certificate(current.certificate) if current.certificate else None
    if shown is not None and (shown.not_valid_after_utc <= now or not _belongs(current.key, shown)):
        shown = None  # no process accepts it, so none must be waited for
    if issuer is None or _is_in_last_part(issuer, now):
        return _with_new_authority(current, names, now, alone=shown is None)
    wanted = set(names)
    if shown is None:
        return _with_new_certificate(current, issuer, wanted, now, "there is no certificate")
    by_issuer = _is_by(shown, issuer)
    if by_issuer or _is_known_to_all(issuer, now):
        if not wanted <= _names(shown):
            # Others use the former names until they are restarted.
            return _with_new_certificate(current, issuer, wanted | _names(shown), now, "there are new names")
        if not by_issuer:
            return _with_new_certificate(current, issuer, wanted, now, "there is a new authority")
        if _is_in_last_part(shown, now):
            return _with_new_certificate(
                current, issuer, wanted, now, "the certificate is in the last third of its time"
            )
    if by_issuer and len(trusted) > 1 and _is_known_to_all(shown, now):
        return Step(replace(current, authorities=_pem(issuer)), "the previous authority is not trusted any more")
    return None


def _with_new_authority(current: CertificateSet, names: Sequence[str], now: datetime.datetime, *, alone: bool) -> Step:
    made = authority(now, AUTHORITY_DAYS)
    step = replace(current, authorities=current.authorities + made.certificate, authority_key=made.key)
    if not alone:
        return Step(step, "there is a new authority, which all are to trust before it makes a certificate")
    issuer = x509.load_pem_x509_certificate(made.certificate)
    return _with_new_certificate(step, issuer, set(names), now, "there are an authority and a certificate now")


def _with_new_certificate(
    current: CertificateSet, issuer: x509.Certificate, names: set[str], now: datetime.datetime, why: str
) -> Step:
    made = signed(KeyPair(_pem(issuer), current.authority_key), sorted(names), now, DAYS)
    return Step(replace(current, certificate=made.certificate, key=made.key), why)


def _certificates(pem: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem) if pem else []


def _belongs(key: bytes, certificate: x509.Certificate) -> bool:
    if not key:
        return False
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"it is no private key in PEM without a password: {error}") from error
    return bool(private.public_key() == certificate.public_key())


def _is_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_in_last_part(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    end = certificate.not_valid_after_utc
    return end - now < (end - certificate.not_valid_before_utc) / _LAST_PART


def _is_known_to_all(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    return now - (certificate.not_valid_before_utc + BACKDATED) >= SPREAD


def _names(certificate: x509.Certificate) -> set[str]:
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(each) for kind in (x509.DNSName, x509.IPAddress) for each in alternatives.get_values_for_type(kind)}


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
