"""TLS with the proxies: reads, streams and sends, by the authority that is named, and by no other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.harness.certificates import CertificateVolume, certificate_by, new_authority
from tests.spark.round_trip import round_trip
from tests.spark.topics import Topics, own_topics

OURS = new_authority()
FOREIGN = new_authority()


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Topics]:
    """Topics of a server whose certificate is by `OURS`."""
    volume = CertificateVolume(tmp_path / "certificates")
    volume.hold(certificate_by(OURS))
    settings = (f"proxy.tls.certificate_file={volume.certificate}", f"proxy.tls.key_file={volume.key}")
    with own_topics(tmp_path / "server", *settings) as topics:
        yield topics


def test_a_query_speaks_tls_with_whom_it_trusts(spark: SparkSession, secret: Topics, tmp_path: Path) -> None:
    sent = secret.fill(secret.make("Secret"), 100)
    into = secret.make("SecretToo")
    trusted, foreign = tmp_path / "ours.pem", tmp_path / "foreign.pem"
    trusted.write_bytes(OURS.certificate)
    foreign.write_bytes(FOREIGN.certificate)

    options = {"endpoints": secret.address, "tls": "true", "tlsCaFile": str(trusted)}
    round_trip(spark, options, "Secret", into, tmp_path / "read")
    for name in ("batch", "stream"):
        rows = spark.read.parquet(str(tmp_path / "read" / name / "files")).collect()
        assert {row["messageId"] for row in rows} == sent
    assert spark.read.format("popwheel").options(**options, topic=into).load().count() == 100

    options |= {"tlsCaFile": str(foreign), "timeoutMs": "500"}
    with pytest.raises(PySparkException, match="CERTIFICATE_VERIFY_FAILED"):
        spark.read.format("popwheel").options(**options, topic="Secret").load().count()
