"""Credentials that a client shows in each call's headers: the signature `MQv2-HMAC-SHA1` of official clients.

They sign the header `x-mq-date-time` with the user's secret, and nothing else of the call. So a signature says who
calls and when it was made. What is in the call is not signed: TLS protects that, and keeps the signature from
strangers.
"""

import hmac
from datetime import UTC, datetime
from typing import NamedTuple

ALGORITHM = "MQv2-HMAC-SHA1"
AUTHORIZATION = "authorization"
DATE_TIME = "x-mq-date-time"


class Credentials(NamedTuple):
    """Access key and secret of a client.

    Args:
        access_key: the user's name; empty: it shows nothing.
        secret: with which it signs.
    """

    access_key: str
    secret: str

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ...)"


def signature_of(secret: bytes, date_time: str) -> bytes:
    """Return the signature of a time by a user with this secret."""
    return hmac.digest(secret, date_time.encode(), "sha1")


def signed_headers(credentials: Credentials, now_ms: int) -> dict[str, str]:
    """Return the headers by which our own clients show who they are; none without an access key.

    Args:
        credentials: the user's.
        now_ms: milliseconds since 1970.
    """
    access_key, secret = credentials
    if not access_key:
        return {}
    date_time = f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%dT%H%M%SZ}"
    signature = signature_of(secret.encode(), date_time).hex()
    return {
        DATE_TIME: date_time,
        AUTHORIZATION: f"{ALGORITHM} Credential={access_key}, SignedHeaders={DATE_TIME}, Signature={signature}",
    }
