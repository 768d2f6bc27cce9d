"""Signatures as official clients make them."""

import pytest

from popwheel_common.contract.credentials import Credentials, signature_of, signed_headers
from popwheel_proxy.access.signature import Claim, claim_of, is_by, is_timely

NOW_MS = 1_703_706_379_000
NOW = "20231227T194619Z"
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("secret", "date_time", "digits"),
    [
        # By OpenSSL: printf %s TIME | openssl dgst -sha1 -hmac SECRET
        ("secret-key", NOW, "3d1e81c98f1cba3dffb05f99ad1cdbc89e6ba0ea"),
        ("x", "20260131T235959Z", "17132d2ad90224bb0e80bf2500523d8dae37b345"),
        ("grüße", "2026-01-31T23:59:59.123456789+01:00", "305c114ae9a9e994c4f308b7a9ea442fc568bc1d"),
    ],
)
def test_signatures_are_those_that_others_compute(secret: str, date_time: str, digits: str) -> None:
    assert signature_of(secret.encode(), date_time).hex() == digits
    assert is_by(secret.encode(), date_time, bytes.fromhex(digits))
    assert not is_by(b"another", date_time, bytes.fromhex(digits))
    assert not is_by(secret.encode(), date_time, b"")


HEX = "3d1e81c98f1cba3dffb05f99ad1cdbc89e6ba0ea"


@pytest.mark.parametrize(
    "text",
    [
        f"MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=x-mq-date-time, Signature={HEX}",  # Java, Python
        f"MQv2-HMAC-SHA1 Credential=orders//Rocketmq, SignedHeaders=x-mq-date-time, Signature={HEX}",  # Go
        f"MQv2-HMAC-SHA1 Credential=orders/region/Rocketmq,SignedHeaders=x-mq-date-time,Signature={HEX.upper()}",  # C++
        f"MQv2-HMAC-SHA1 Signature={HEX}, Credential=orders",
    ],
)
def test_claims_as_official_clients_write_them(text: str) -> None:
    assert claim_of(text) == Claim("orders", bytes.fromhex(HEX))


@pytest.mark.parametrize(
    "text",
    [
        "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=" + HEX,
        "MQv2-HMAC-SHA1 Credential=//Rocketmq",
    ],
)
def test_a_client_without_credentials_claims_nothing(text: str) -> None:
    assert claim_of(text) == Claim("", b"")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Basic b3JkZXJzOng=",
        f"MQv2-HMAC-SHA256 Credential=orders, Signature={HEX}",
        "MQv2-HMAC-SHA1 Credential=orders",
        "MQv2-HMAC-SHA1 Credential=orders, Signature=1234",
        "MQv2-HMAC-SHA1 Credential=orders, Signature=" + "g" * 40,
        "MQv2-HMAC-SHA1 Credential=orders, Signature=" + "é" * 40,
        f"MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=host, Signature={HEX}",
        f"MQv2-HMAC-SHA1 Credential=orders, Signature={HEX}, x={'x' * 2000}",
    ],
)
def test_other_headers_are_no_claim(text: str) -> None:
    with pytest.raises(ValueError):
        claim_of(text)


@pytest.mark.parametrize(
    ("date_time", "timely"),
    [
        (NOW, True),
        ("20231227T195019Z", True),
        ("20231228T034619Z", True),  # local time in Shanghai, as some clients sign it
        ("20231227T074619Z", True),  # twelve hours behind
        ("20231227T073619Z", False),
        ("20231228T094619Z", True),
        ("20231228T095219Z", False),
        ("2023-12-27T19:46:19.123456789Z", True),
        ("2023-12-27T20:46:19+01:00", True),
        ("2023-12-27T20:46:19Z", False),  # says its zone
        ("2023-12-27T19:52:19+00:00", False),
    ],
)
def test_a_time_may_be_that_of_any_zone_unless_it_says_which(date_time: str, timely: bool) -> None:
    assert is_timely(date_time, NOW_MS, 300_000) is timely


@pytest.mark.parametrize("date_time", ["", "now", "20231227T194619", "20231327T194619Z", "x" * 5_000])
def test_what_is_no_time(date_time: str) -> None:
    with pytest.raises(ValueError):
        is_timely(date_time, NOW_MS, 300_000)


def test_our_own_headers_are_good() -> None:
    headers = signed_headers(Credentials("orders", "secret-key"), NOW_MS)
    assert headers["x-mq-date-time"] == NOW
    assert claim_of(headers["authorization"]) == Claim("orders", bytes.fromhex(HEX))
