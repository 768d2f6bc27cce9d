"""Signatures of calls: the claimed user, and whether the signature is valid."""

import hmac
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from popwheel_common.contract.credentials import ALGORITHM, DATE_TIME, signature_of

_HOUR_MS = 3_600_000
_WESTMOST_MS = -12 * _HOUR_MS
_EASTMOST_MS = 14 * _HOUR_MS
_LENGTH_MAX = 1_024
_REMEMBERED_MAX = 1_024
_SIGNATURE_DIGITS = 40
_COMPACT_LENGTH = len("20260131T235959Z")


class Claim(NamedTuple):
    """Claim of a caller: its user and signature.

    Args:
        access_key: the user's; empty if the client was given none.
        signature: proof that it knows the secret.
    """

    access_key: str
    signature: bytes


@lru_cache(maxsize=_REMEMBERED_MAX)
def claim_of(authorization: str) -> Claim:
    """Return the claim of the header `authorization`; clients repeat a header for a second.

    Raises:
        ValueError: it is not of the form that official clients send.
    """
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM or len(authorization) > _LENGTH_MAX:
        raise ValueError(f"the header authorization does not begin with {ALGORITHM}")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    # Some clients put a service's name behind the access key.
    access_key = parts.get("Credential", "").partition("/")[0]
    if not access_key:
        return Claim("", b"")
    signature = parts.get("Signature", "")
    if parts.get("SignedHeaders", DATE_TIME).lower() != DATE_TIME or len(signature) != _SIGNATURE_DIGITS:
        raise ValueError(f"the header authorization must sign {DATE_TIME} with {_SIGNATURE_DIGITS} hexadecimal digits")
    return Claim(access_key, bytes.fromhex(signature))


def is_by(secret: bytes, date_time: str, signature: bytes) -> bool:
    """Return whether a signature was made with a secret; it takes as long either way."""
    return hmac.compare_digest(signature_of(secret, date_time), signature)


def is_timely(date_time: str, now_ms: int, skew_ms: int) -> bool:
    """Return whether a signed time is close enough to the current time.

    Official clients write `20260131T235959Z`, though some of them mean the time of their own zone by it. So such a time
    may be that of any zone, from twelve hours behind UTC to fourteen before it. A time that names its zone may not.

    Args:
        date_time: as it was signed.
        now_ms: milliseconds since 1970.
        skew_ms: how far clocks may differ.

    Raises:
        ValueError: it is no time.
    """
    ahead_ms = _time_ms(date_time) - now_ms
    if len(date_time) == _COMPACT_LENGTH and date_time.endswith("Z"):
        return _WESTMOST_MS - skew_ms <= ahead_ms <= _EASTMOST_MS + skew_ms
    return abs(ahead_ms) <= skew_ms


@lru_cache(maxsize=_REMEMBERED_MAX)
def _time_ms(date_time: str) -> float:
    if len(date_time) > _LENGTH_MAX:
        raise ValueError("a time is not as long")
    signed = datetime.fromisoformat(date_time)
    if signed.tzinfo is None:
        raise ValueError("the time names no zone")
    return signed.timestamp() * 1000
